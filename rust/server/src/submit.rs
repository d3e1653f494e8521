//! From checked fields and tokenised prompts to engine requests and their choices.

use std::sync::Arc;

use engine_client::{EngineRequest, RequestGroup};
use limits::{ApiError, Ranged};
use text::{TextOptions, stream_key};
use wire::{BadWords, FLAG_SKIP_PREFIX_CACHE, LOGPROBS_NONE, LOGPROBS_VOCABULARY, LogitBias, Rare};

use crate::choice::{ChoiceOptions, Choices};
use crate::generation::{Generation, HeadFacts, check_context, empty_prompt};
use crate::state::ServerState;

/// A prompt in tokens.
#[derive(Clone, Debug)]
pub struct Prompt {
    /// Its ids.
    pub ids: Arc<[u32]>,
    /// Its text, for echo.
    pub text: String,
    /// Its path in the request.
    pub path: String,
}

/// What a route asks of the engine beyond the shared fields.
#[derive(Clone, Copy, Debug)]
pub struct Asks {
    /// Logprobs of output tokens; None = none, -1 = the vocabulary.
    pub logprobs: Option<i32>,
    /// Logprobs of prompt tokens, for `prompt_logprobs` and echo alike.
    pub prompt_logprobs: Option<i32>,
    /// Tokens when the request names none; None = all context left.
    pub default_max_tokens: Option<u32>,
}

fn wire_k(k: Option<i32>) -> i32 {
    k.map_or(
        LOGPROBS_NONE,
        |k| if k < 0 { LOGPROBS_VOCABULARY } else { k },
    )
}

/// Checks sizes against the model, and hands everything to the engine, all or nothing.
pub fn submit(
    state: &ServerState,
    generation: &Generation,
    asks: Asks,
    (prompts, bad_words): (&[Prompt], Vec<Vec<u32>>),
    head: &HeadFacts,
) -> Result<Choices, ApiError> {
    let sequences = prompts.len() as i64 * i64::from(generation.n);
    let max_sequences = state.config.limits.max_sequences_per_request;
    if sequences > max_sequences {
        return Err(ApiError::above(
            Ranged::Integer,
            "n",
            sequences,
            max_sequences,
            limits::MAX_SEQUENCES_PER_REQUEST.flag,
        ));
    }
    let rare = rare_of(state, generation, bad_words)?;
    let eos: Arc<[u32]> = state.model.tokenizer.eos_token_ids().into();
    let mut stop_ids = generation.stop_token_ids.clone();
    if !generation.ignore_eos {
        stop_ids.extend(
            eos.iter()
                .filter(|id| !generation.stop_token_ids.contains(id)),
        );
    }
    let seed = generation.seed.map_or_else(|| state.draw_seed(), Ok)?;
    let group = RequestGroup::new(generation.n, sequences as u32);
    let mut requests = Vec::with_capacity(sequences as usize);
    for (place, prompt) in prompts.iter().enumerate() {
        let max_tokens = max_tokens_of(state, generation, asks, prompt)?;
        check_prompt_logprobs(state, asks, prompt)?;
        for choice in 0..generation.n {
            requests.push(EngineRequest {
                max_tokens,
                min_tokens: generation.min_tokens.min(max_tokens),
                temperature: generation.temperature,
                top_p: generation.top_p,
                min_p: generation.min_p,
                presence_penalty: generation.presence_penalty,
                frequency_penalty: generation.frequency_penalty,
                repetition_penalty: generation.repetition_penalty,
                top_k: generation.top_k,
                stream_key: stream_key(seed, place as u32, choice),
                num_logprobs: wire_k(asks.logprobs),
                num_prompt_logprobs: wire_k(asks.prompt_logprobs),
                stop_ids: stop_ids.clone(),
                eos_ids: Arc::clone(&eos),
                priority: generation.priority,
                deadline: generation.deadline,
                flags: if asks.prompt_logprobs.is_some() {
                    FLAG_SKIP_PREFIX_CACHE
                } else {
                    0
                },
                rare: rare.clone(),
                arrival: head.arrival,
                group: Arc::clone(&group),
                ..EngineRequest::new(Arc::clone(&prompt.ids), max_tokens)
            });
        }
    }
    let streams = state.engine.submit_all(requests)?;
    let text = TextOptions {
        stop: generation.stop.clone(),
        include_stop: generation.include_stop,
        skip_special_tokens: generation.skip_special_tokens,
        min_tokens: generation.min_tokens,
    };
    let options = ChoiceOptions { text, stop_ids };
    Ok(Choices::new(
        streams,
        &state.model.tokenizer,
        &options,
        generation.deadline,
    ))
}

fn max_tokens_of(
    state: &ServerState,
    generation: &Generation,
    asks: Asks,
    prompt: &Prompt,
) -> Result<u32, ApiError> {
    if prompt.ids.is_empty() {
        return Err(empty_prompt(&prompt.path));
    }
    let context = state.max_model_len();
    let left = context.saturating_sub(prompt.ids.len() as u32);
    let default = asks
        .default_max_tokens
        .map_or(left, |tokens| tokens.min(left))
        .max(1);
    let cap = state
        .config
        .limits
        .max_output_tokens
        .and_then(|cap| u32::try_from(cap).ok());
    let max_tokens = match (generation.max_tokens, cap) {
        (Some(asked), Some(cap)) if asked > cap => {
            return Err(ApiError::above(
                Ranged::Integer,
                "max_tokens",
                asked,
                cap,
                limits::MAX_OUTPUT_TOKENS.flag,
            ));
        }
        (Some(asked), _) => asked,
        (None, cap) => default.min(cap.unwrap_or(u32::MAX)),
    };
    check_context(&prompt.path, context, prompt.ids.len(), max_tokens)?;
    Ok(max_tokens)
}

fn check_prompt_logprobs(state: &ServerState, asks: Asks, prompt: &Prompt) -> Result<(), ApiError> {
    let Some(k) = asks.prompt_logprobs else {
        return Ok(());
    };
    let each = if k < 0 {
        i64::from(state.vocab_size())
    } else {
        i64::from(k).max(1)
    };
    let values = each * prompt.ids.len() as i64;
    let max = state.config.limits.max_prompt_logprob_values;
    if values > max {
        return Err(ApiError::above(
            Ranged::Integer,
            "prompt_logprobs",
            values,
            max,
            limits::MAX_PROMPT_LOGPROB_VALUES.flag,
        ));
    }
    Ok(())
}

fn rare_of(
    state: &ServerState,
    generation: &Generation,
    bad_words: Vec<Vec<u32>>,
) -> Result<Option<Rare>, ApiError> {
    let tokens: usize = bad_words.iter().map(Vec::len).sum();
    let max_tokens = state.config.limits.max_bad_words_tokens;
    if tokens as i64 > max_tokens {
        return Err(ApiError::above(
            Ranged::Array,
            "bad_words",
            tokens,
            max_tokens,
            limits::MAX_BAD_WORDS_TOKENS.flag,
        ));
    }
    let (ids, values) = generation.logit_bias.iter().copied().unzip();
    let rare = Rare {
        salt: generation
            .cache_salt
            .as_ref()
            .map(|salt| salt.clone().into_bytes()),
        logit_bias: (!generation.logit_bias.is_empty()).then_some(LogitBias { ids, values }),
        allowed_ids: generation.allowed_token_ids.clone(),
        bad_words: (!bad_words.is_empty()).then_some(BadWords(bad_words)),
        ..Rare::default()
    };
    Ok((rare != Rare::default()).then_some(rare))
}
