//! One choice while it runs: engine tokens become text, ends become finish reasons. All choices of a request together.

use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use engine_client::{
    Ended, Output, OutputStream, PromptChunk, RequestTimes, RequestUsage, TokenBatch, TokenLogprobs,
};
use limits::{AbortCause, ApiError, EndCause, Finish};
use text::{ChoiceText, TextOptions, Tokenizer};

/// Time the engine has for its own word after a deadline.
const DEADLINE_GRACE: Duration = Duration::from_millis(250);

/// A token of a choice.
#[derive(Clone, Debug)]
pub struct ChoiceToken {
    /// Its id.
    pub id: u32,
    /// Code points of the choice's text before it.
    pub text_offset: u32,
    /// When logprobs were asked for.
    pub logprobs: Option<TokenLogprobs>,
}

/// What stopped a choice.
#[derive(Clone, Debug, PartialEq)]
pub enum StopReason {
    /// Nothing that has a name.
    None,
    /// A word.
    Word(String),
    /// A token id.
    Id(u32),
}

/// How a choice ended.
#[derive(Clone, Debug)]
pub struct ChoiceEnd {
    /// `stop`, `length`, `abort` or `error`.
    pub finish_reason: &'static str,
    /// Beside it.
    pub stop_reason: StopReason,
    /// Set when the choice failed.
    pub error: Option<ApiError>,
    /// Tokens the engine spent.
    pub usage: RequestUsage,
    /// Output tokens that count: none after a stop string.
    pub completion_tokens: u32,
    /// Where the time went.
    pub times: RequestTimes,
}

/// What happens to a choice.
#[derive(Clone, Debug)]
pub enum ChoiceEvent {
    /// Scored prompt tokens; before the first delta.
    Prompt(PromptChunk),
    /// Text that may be shown now, and the tokens that came with it.
    Delta(String, Vec<ChoiceToken>),
    /// The last event.
    End(Box<ChoiceEnd>),
}

/// How text is made, and which ids end a choice.
#[derive(Clone, Debug)]
pub struct ChoiceOptions {
    /// Stop strings and what is shown.
    pub text: TextOptions,
    /// Ids that end the choice.
    pub stop_ids: Vec<u32>,
}

/// A running choice.
#[derive(Debug)]
struct Choice {
    stream: OutputStream,
    text: ChoiceText,
    options: ChoiceOptions,
    num_tokens: u32,
    end: Option<Box<ChoiceEnd>>,
    done: bool,
}

impl Choice {
    fn poll(&mut self, context: &mut Context<'_>) -> Poll<ChoiceEvent> {
        if let Some(end) = self.end.take() {
            self.done = true;
            return Poll::Ready(ChoiceEvent::End(end));
        }
        match ready!(self.stream.poll_next(context)) {
            Some(Output::PromptLogprobs(chunk)) => Poll::Ready(ChoiceEvent::Prompt(chunk)),
            Some(Output::Tokens(batch)) => Poll::Ready(self.take_tokens(batch)),
            Some(Output::End(ended)) => Poll::Ready(self.take_end(*ended)),
            // The stream was ended from this side: its end stands in `end`, which was given out.
            None => Poll::Pending,
        }
    }

    fn take_tokens(&mut self, batch: TokenBatch) -> ChoiceEvent {
        let mut out = String::new();
        let mut tokens = Vec::with_capacity(batch.ids.len());
        let mut logprobs = batch.logprobs.into_iter();
        for id in batch.ids {
            self.num_tokens += 1;
            let ends = self.options.stop_ids.contains(&id)
                && self.num_tokens > self.options.text.min_tokens;
            let effect = if ends {
                self.text.push_end_token(id, &mut out)
            } else {
                self.text.push(id, &mut out)
            };
            tokens.push(ChoiceToken {
                id,
                text_offset: effect.text_offset,
                logprobs: logprobs.next(),
            });
            if let Some(index) = effect.stop {
                // What the engine made beyond this token is nobody's.
                let ended = self.stream.end_at_stop_string(self.num_tokens);
                let word = StopReason::Word(self.options.text.stop[index].clone());
                self.end = Some(Box::new(self.ended("stop", word, None, &ended)));
                break;
            }
            if ends {
                break;
            }
        }
        ChoiceEvent::Delta(out, tokens)
    }

    fn take_end(&mut self, ended: Ended) -> ChoiceEvent {
        let mut out = String::new();
        if !self.text.has_ended() {
            self.text.finish(&mut out);
        }
        let (reason, stop) = finish_of(&ended);
        let error = ended.error.clone();
        let end = Box::new(self.ended(
            if error.is_some() { "error" } else { reason },
            stop,
            error,
            &ended,
        ));
        if out.is_empty() {
            self.done = true;
            return ChoiceEvent::End(end);
        }
        self.end = Some(end);
        ChoiceEvent::Delta(out, Vec::new())
    }

    fn ended(
        &self,
        finish_reason: &'static str,
        stop_reason: StopReason,
        error: Option<ApiError>,
        ended: &Ended,
    ) -> ChoiceEnd {
        ChoiceEnd {
            finish_reason,
            stop_reason,
            error,
            usage: ended.usage,
            completion_tokens: self.num_tokens,
            times: ended.times,
        }
    }
}

/// finish_reason and stop_reason of an end (http-surface.md 3.3).
fn finish_of(ended: &Ended) -> (&'static str, StopReason) {
    let word = |word: &str| StopReason::Word(word.to_owned());
    match (ended.cause, ended.finish) {
        (EndCause::Eos | EndCause::GrammarEnd, _) => ("stop", StopReason::None),
        (EndCause::StopToken, _) => (
            "stop",
            ended.stop_token.map_or(StopReason::None, StopReason::Id),
        ),
        (EndCause::MaxTokens | EndCause::ContextFull, _) => ("length", StopReason::None),
        (EndCause::Deadline, _) => ("abort", word("deadline")),
        (EndCause::Cancelled, _) => ("abort", word("cancelled")),
        (EndCause::PauseAbort, _) | (_, Finish::Paused) => ("abort", word("paused")),
        _ => ("error", StopReason::None),
    }
}

/// The choices of a request, in index order. Dropping it aborts what still runs.
#[derive(Debug)]
pub struct Choices {
    choices: Vec<Choice>,
    deadline: Option<Instant>,
    next: usize,
}

impl Choices {
    /// The choices read from `streams`.
    pub fn new(
        streams: Vec<OutputStream>,
        tokenizer: &Tokenizer,
        options: &ChoiceOptions,
        deadline: Option<Instant>,
    ) -> Self {
        let choice = |stream| Choice {
            stream,
            text: ChoiceText::new(tokenizer.clone(), options.text.clone()),
            options: options.clone(),
            num_tokens: 0,
            end: None,
            done: false,
        };
        Choices {
            choices: streams.into_iter().map(choice).collect(),
            deadline,
            next: 0,
        }
    }

    /// The next event with its choice's index; None when all have ended.
    pub async fn next(&mut self) -> Option<(usize, ChoiceEvent)> {
        let Some(deadline) = self.deadline else {
            return std::future::poll_fn(|context| self.poll_any(context)).await;
        };
        let late = tokio::time::sleep_until((deadline + DEADLINE_GRACE).into());
        tokio::select! {
            biased;
            event = std::future::poll_fn(|context| self.poll_any(context)) => event,
            () = late => {
                // The engine has not kept the deadline: it is kept here.
                for choice in self.choices.iter_mut().filter(|choice| !choice.done && choice.end.is_none()) {
                    let ended = choice.stream.end(AbortCause::Deadline);
                    let (reason, stop) = finish_of(&ended);
                    choice.end = Some(Box::new(choice.ended(reason, stop, ended.error.clone(), &ended)));
                }
                self.deadline = None;
                std::future::poll_fn(|context| self.poll_any(context)).await
            }
        }
    }

    /// An event that is there already.
    pub fn try_next(&mut self) -> Option<(usize, ChoiceEvent)> {
        let mut context = Context::from_waker(std::task::Waker::noop());
        match self.poll_any(&mut context) {
            Poll::Ready(event) => event,
            Poll::Pending => None,
        }
    }

    fn poll_any(&mut self, context: &mut Context<'_>) -> Poll<Option<(usize, ChoiceEvent)>> {
        let count = self.choices.len();
        let mut open = false;
        // Beginning behind the last one served, so that no choice waits for a busier one.
        for offset in 0..count {
            let index = (self.next + offset) % count;
            let choice = &mut self.choices[index];
            if choice.done {
                continue;
            }
            open = true;
            if let Poll::Ready(event) = choice.poll(context) {
                self.next = (index + 1) % count;
                return Poll::Ready(Some((index, event)));
            }
        }
        if open {
            Poll::Pending
        } else {
            Poll::Ready(None)
        }
    }
}
