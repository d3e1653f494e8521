//! What a scripted engine plays.

use std::sync::Arc;
use std::time::Duration;

use limits::Finish;

/// A request as the scripted engine sees it.
#[derive(Clone, Debug)]
pub struct MockRequest {
    /// The front end's key.
    pub key: u64,
    /// Its prompt.
    pub prompt_ids: Vec<u32>,
    /// Output tokens in all.
    pub max_tokens: u32,
    /// Output tokens before which nothing ends it.
    pub min_tokens: u32,
    /// Ids that end it.
    pub stop_ids: Vec<u32>,
    /// Its random stream.
    pub stream_key: u64,
    /// -1 none, else k.
    pub num_logprobs: i32,
    /// -1 none, else k.
    pub num_prompt_logprobs: i32,
    /// What few requests have.
    pub rare: Option<wire::Rare>,
}

/// What one request gets.
#[derive(Clone, Debug)]
pub struct Script {
    /// Output tokens; after them the request ends with `finish`. `max_tokens` and stop ids end it earlier, as in an engine.
    pub tokens: Vec<u32>,
    /// Tokens of a step.
    pub tokens_per_step: usize,
    /// Logprob of each token, repeated from the beginning when short; empty = -1.0 each. May hold NaN and infinities.
    pub logprobs: Vec<f32>,
    /// Rank of each token, as `logprobs`; empty = 1 each. 0 = not ranked.
    pub ranks: Vec<u32>,
    /// How the request ends when its tokens are used up.
    pub finish: Finish,
    /// The line beside a failing finish.
    pub detail: String,
    /// Prompt tokens that came from the cache.
    pub cached: u32,
    /// Steps before the first token.
    pub delay_steps: u32,
    /// Preemptions told with the first token; they cost the script nothing.
    pub preemptions: u32,
}

impl Default for Script {
    fn default() -> Self {
        Script {
            tokens: Vec::new(),
            tokens_per_step: 1,
            logprobs: Vec::new(),
            ranks: Vec::new(),
            finish: Finish::MaxTokens,
            detail: String::new(),
            cached: 0,
            delay_steps: 0,
            preemptions: 0,
        }
    }
}

impl Script {
    /// These tokens, one a step.
    pub fn of(tokens: impl Into<Vec<u32>>) -> Self {
        Script {
            tokens: tokens.into(),
            ..Script::default()
        }
    }

    /// The default play: the prompt's ids again and again from the first one, `max_tokens` of them.
    pub fn echo(request: &MockRequest) -> Self {
        Script::of(
            request
                .prompt_ids
                .iter()
                .copied()
                .cycle()
                .take(request.max_tokens as usize)
                .collect::<Vec<_>>(),
        )
    }
}

/// A misdeed, at the step with this number (from 1) counted over all requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// A frame that is no msgpack instead of the step's message.
    Garbage(u64),
    /// The first row's token is the vocabulary size.
    BadRow(u64),
    /// EngineFailed, then the end of the thread (or process).
    Fail(u64),
    /// The end without a word; a process dies by SIGABRT.
    Die(u64),
    /// Silence for this long.
    Freeze(u64, Duration),
    /// A step that lasts this long; the loop goes on sending heartbeats that tell its age.
    LongStep(u64, Duration),
    /// Snapshots whose counters fall.
    StatsBackwards(u64),
}

/// A scripted engine's properties.
#[derive(Clone)]
pub struct MockConfig {
    /// Ids of the model.
    pub vocab_size: u32,
    /// Context.
    pub max_model_len: u32,
    /// Rows; further requests wait.
    pub max_num_seqs: u32,
    /// Time between steps; zero = as fast as possible.
    pub step_delay: Duration,
    /// Loading phases before ready, each lasting this long.
    pub loading: Vec<(&'static str, Duration)>,
    /// Major version it says it speaks.
    pub protocol_major: u16,
    /// Refuses to start, with this line.
    pub refuses_start: Option<String>,
    /// Misdeeds.
    pub faults: Vec<Fault>,
    /// What a request gets.
    pub script: Arc<dyn Fn(&MockRequest) -> Script + Send + Sync>,
}

impl Default for MockConfig {
    fn default() -> Self {
        MockConfig {
            vocab_size: 49_152,
            max_model_len: 2048,
            max_num_seqs: 256,
            step_delay: Duration::ZERO,
            loading: Vec::new(),
            protocol_major: wire::PROTOCOL_MAJOR,
            refuses_start: None,
            faults: Vec::new(),
            script: Arc::new(Script::echo),
        }
    }
}
