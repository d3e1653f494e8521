//! What a request gets: batches of tokens, stretches of prompt logprobs, and exactly one end.

use std::collections::VecDeque;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use limits::{AbortCause, ApiError, EndCause, Finish};

use crate::client::Shared;
use crate::record::Record;

/// Time the engine has for its own word after a deadline, before the front end ends the request.
const DEADLINE_GRACE: Duration = Duration::from_millis(250);

/// Logprobs of one token: NaN and infinities are as the engine sent them.
#[derive(Clone, Debug, PartialEq)]
pub struct TokenLogprobs {
    /// Of the token itself.
    pub value: f32,
    /// From 1; 0 = not ranked.
    pub rank: u32,
    /// The likeliest ids, by falling value.
    pub top: Vec<(u32, f32)>,
}

/// Neighbouring output tokens; batches of a slow reader grow together.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct TokenBatch {
    /// Drawn ids.
    pub ids: Vec<u32>,
    /// One entry an id when logprobs were asked for, else empty.
    pub logprobs: Vec<TokenLogprobs>,
}

/// Logprobs of prompt positions `start` .. `start + tokens.len()`.
#[derive(Clone, Debug, PartialEq)]
pub struct PromptChunk {
    /// First position; position 0 has none.
    pub start: u32,
    /// One entry a position.
    pub tokens: Vec<TokenLogprobs>,
}

/// Tokens a request cost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct RequestUsage {
    pub prompt_tokens: u32,
    pub cached_tokens: u32,
    pub computed_tokens: u32,
    pub recomputed_tokens: u32,
    pub completion_tokens: u32,
    pub preemptions: u32,
}

/// Where a request's time went (http-surface.md 3.6).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct RequestTimes {
    pub queue: Duration,
    pub prefill: Duration,
    pub decode: Duration,
    pub total: Duration,
    pub ttft: Option<Duration>,
}

/// The one end of a request.
#[derive(Clone, Debug, PartialEq)]
pub struct Ended {
    /// The metrics cause.
    pub cause: EndCause,
    /// The engine's code; `Aborted` when the front end ended the request.
    pub finish: Finish,
    /// The id that ended it.
    pub stop_token: Option<u32>,
    /// Set when this end is a failure.
    pub error: Option<ApiError>,
    /// Tokens.
    pub usage: RequestUsage,
    /// Times.
    pub times: RequestTimes,
}

/// One item of an [`OutputStream`].
#[derive(Clone, Debug, PartialEq)]
pub enum Output {
    /// Scored prompt tokens; they come before the first token.
    PromptLogprobs(PromptChunk),
    /// Output tokens.
    Tokens(TokenBatch),
    /// The last item.
    End(Box<Ended>),
}

/// Bytes queued per choice before batches merge.
const MAX_QUEUED_BYTES: usize = 1 << 20;

impl TokenBatch {
    fn num_bytes(&self) -> usize {
        let top = self.logprobs.first().map_or(0, |first| first.top.len());
        let logprobs = size_of::<TokenLogprobs>() + top * size_of::<(u32, f32)>();
        self.ids.len() * size_of::<u32>() + self.logprobs.len() * logprobs
    }
}

/// What waits to be read: a batch an event, until the queue has `max_batches` or a mebibyte; from then on what comes is
/// merged into the last one. So a reader that lags costs its own tokens and little more.
#[derive(Debug, Default)]
pub(crate) struct Pending {
    prompt: VecDeque<PromptChunk>,
    tokens: VecDeque<TokenBatch>,
    num_bytes: usize,
    max_batches: usize,
    end: Option<Box<Ended>>,
    waker: Option<Waker>,
}

impl Pending {
    pub fn new(max_batches: usize) -> Self {
        Pending {
            max_batches,
            ..Pending::default()
        }
    }

    pub fn push_prompt(&mut self, chunk: PromptChunk) -> Option<Waker> {
        self.prompt.push_back(chunk);
        self.waker.take()
    }

    pub fn push_tokens(
        &mut self,
        ids: &[u32],
        logprobs: impl Iterator<Item = TokenLogprobs>,
    ) -> Option<Waker> {
        let event = TokenBatch {
            ids: ids.to_vec(),
            logprobs: logprobs.collect(),
        };
        self.num_bytes += event.num_bytes();
        let is_full = self.tokens.len() >= self.max_batches || self.num_bytes > MAX_QUEUED_BYTES;
        match self.tokens.back_mut().filter(|_| is_full) {
            Some(last) => {
                last.ids.extend(event.ids);
                last.logprobs.extend(event.logprobs);
            }
            None => self.tokens.push_back(event),
        }
        self.waker.take()
    }

    pub fn push_end(&mut self, ended: Ended) -> Option<Waker> {
        self.end = Some(Box::new(ended));
        self.waker.take()
    }

    fn pop(&mut self) -> Option<Output> {
        if let Some(chunk) = self.prompt.pop_front() {
            return Some(Output::PromptLogprobs(chunk));
        }
        if let Some(batch) = self.tokens.pop_front() {
            self.num_bytes -= batch.num_bytes();
            return Some(Output::Tokens(batch));
        }
        self.end.take().map(Output::End)
    }
}

/// The outputs of one accepted request. Dropping it before the end aborts the request (`client_gone`).
#[derive(Debug)]
pub struct OutputStream {
    shared: Arc<Shared>,
    record: Arc<Record>,
    deadline: Option<Instant>,
    has_ended: bool,
}

impl OutputStream {
    pub(crate) fn new(shared: Arc<Shared>, record: Arc<Record>, deadline: Option<Instant>) -> Self {
        OutputStream {
            shared,
            record,
            deadline,
            has_ended: false,
        }
    }

    /// The next item; None after the end.
    pub async fn next(&mut self) -> Option<Output> {
        if self.has_ended {
            return None;
        }
        let output = match self.deadline {
            None => std::future::poll_fn(|context| self.poll_pending(context)).await,
            Some(deadline) => {
                let late = tokio::time::sleep_until((deadline + DEADLINE_GRACE).into());
                tokio::select! {
                    biased;
                    output = std::future::poll_fn(|context| self.poll_pending(context)) => output,
                    () = late => Output::End(Box::new(self.end(AbortCause::Deadline))),
                }
            }
        };
        self.has_ended |= matches!(output, Output::End(_));
        Some(output)
    }

    /// As [`OutputStream::next`], for callers that watch many streams. A deadline is theirs to keep.
    pub fn poll_next(&mut self, context: &mut Context<'_>) -> Poll<Option<Output>> {
        if self.has_ended {
            return Poll::Ready(None);
        }
        let output = std::task::ready!(self.poll_pending(context));
        self.has_ended |= matches!(output, Output::End(_));
        Poll::Ready(Some(output))
    }

    fn poll_pending(&self, context: &mut Context<'_>) -> Poll<Output> {
        let mut state = self.record.lock();
        match state.pending.pop() {
            Some(output) => Poll::Ready(output),
            None => {
                state.pending.waker = Some(context.waker().clone());
                Poll::Pending
            }
        }
    }

    /// Ends the request from this side: no further item comes. If the engine's end was first, that one is returned.
    pub fn end(&mut self, cause: AbortCause) -> Ended {
        self.has_ended = true;
        self.shared.end_early(&self.record, cause)
    }
}

impl OutputStream {
    /// Ends the request at a stop string that `num_kept` output tokens reach; what the engine made beyond them is waste.
    pub fn end_at_stop_string(&mut self, num_kept: u32) -> Ended {
        let ended = self.end(AbortCause::StopString);
        let beyond = ended.usage.completion_tokens.saturating_sub(num_kept);
        self.shared
            .metrics
            .wasted("past_stop")
            .add(u64::from(beyond));
        ended
    }
}

impl Drop for OutputStream {
    fn drop(&mut self) {
        if !self.has_ended {
            self.shared.end_early(&self.record, AbortCause::ClientGone);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn push(pending: &mut Pending, ids: &[u32]) {
        pending.push_tokens(ids, std::iter::empty());
    }

    fn pop(pending: &mut Pending) -> Option<Vec<u32>> {
        match pending.pop() {
            Some(Output::Tokens(batch)) => Some(batch.ids),
            None => None,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn events_merge_when_the_queue_is_full_and_only_then() {
        let mut pending = Pending::new(2);
        for id in 1..=4 {
            push(&mut pending, &[id]);
        }
        assert_eq!(pop(&mut pending), Some(vec![1]));
        push(&mut pending, &[5]);
        assert_eq!(pop(&mut pending), Some(vec![2, 3, 4]));
        assert_eq!(pop(&mut pending), Some(vec![5]));
        assert_eq!((pop(&mut pending), pending.num_bytes), (None, 0));
    }

    #[test]
    fn large_events_merge_by_bytes() {
        let mut pending = Pending::new(256);
        let ids = vec![7; MAX_QUEUED_BYTES / 8];
        for _ in 0..4 {
            push(&mut pending, &ids);
        }
        assert_eq!(pending.tokens.len(), 2);
        assert_eq!(pop(&mut pending).map(|ids| ids.len()), Some(ids.len()));
    }
}
