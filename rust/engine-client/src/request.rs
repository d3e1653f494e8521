//! A request as the routes hand it over: every default filled, every limit checked.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Instant;

/// The engine requests of one client request, for the samples that are taken once a client request.
#[derive(Debug)]
pub struct RequestGroup {
    /// Choices per prompt, as asked.
    pub n: u32,
    open: AtomicU32,
    longest: AtomicU32,
}

impl RequestGroup {
    /// A group of `num_requests` engine requests.
    pub fn new(n: u32, num_requests: u32) -> Arc<Self> {
        Arc::new(RequestGroup {
            n,
            open: AtomicU32::new(num_requests),
            longest: AtomicU32::new(0),
        })
    }

    /// Notes the end of one; the last one gets the longest output's tokens.
    pub(crate) fn end_one(&self, generated: u32) -> Option<u32> {
        self.longest.fetch_max(generated, Ordering::Relaxed);
        (self.open.fetch_sub(1, Ordering::AcqRel) == 1)
            .then(|| self.longest.load(Ordering::Relaxed))
    }
}

/// One engine request (wire.md section 3, AddRequests).
#[derive(Clone, Debug)]
pub struct EngineRequest {
    /// At least one id, each below the vocabulary size.
    pub prompt_ids: Arc<[u32]>,
    /// Output tokens in all.
    pub max_tokens: u32,
    /// Output tokens before which nothing ends the request.
    pub min_tokens: u32,
    /// 0 = greedy.
    pub temperature: f32,
    /// 1 = off.
    pub top_p: f32,
    /// 0 = off.
    pub min_p: f32,
    /// 0 = off.
    pub presence_penalty: f32,
    /// 0 = off.
    pub frequency_penalty: f32,
    /// 1 = off.
    pub repetition_penalty: f32,
    /// 0 = off.
    pub top_k: u32,
    /// Random stream of the choice.
    pub stream_key: u64,
    /// -1 none, 0 the drawn token only, k, -2 the vocabulary.
    pub num_logprobs: i32,
    /// As `num_logprobs`, for the prompt.
    pub num_prompt_logprobs: i32,
    /// All ids that end the request.
    pub stop_ids: Vec<u32>,
    /// Which of `stop_ids` are the model's own: an end by them counts as `eos`.
    pub eos_ids: Arc<[u32]>,
    /// 0 under fcfs.
    pub priority: i64,
    /// When the request must have ended.
    pub deadline: Option<Instant>,
    /// `wire::FLAG_*`.
    pub flags: u32,
    /// What few requests have; its `row` is filled in.
    pub rare: Option<wire::Rare>,
    /// When the body was complete.
    pub arrival: Instant,
    /// The client request it belongs to.
    pub group: Arc<RequestGroup>,
}

impl EngineRequest {
    /// A greedy request with neutral values, to be changed field by field.
    pub fn new(prompt_ids: Arc<[u32]>, max_tokens: u32) -> Self {
        EngineRequest {
            prompt_ids,
            max_tokens,
            min_tokens: 0,
            temperature: 0.0,
            top_p: 1.0,
            min_p: 0.0,
            presence_penalty: 0.0,
            frequency_penalty: 0.0,
            repetition_penalty: 1.0,
            top_k: 0,
            stream_key: 0,
            num_logprobs: wire::LOGPROBS_NONE,
            num_prompt_logprobs: wire::LOGPROBS_NONE,
            stop_ids: Vec::new(),
            eos_ids: Arc::from([]),
            priority: 0,
            deadline: None,
            flags: 0,
            rare: None,
            arrival: Instant::now(),
            group: RequestGroup::new(1, 1),
        }
    }

    /// The wire's row; `deadline_ms` counts from now, when the message is sent.
    pub(crate) fn row(&self, request_key: u64) -> wire::RequestRow<'_> {
        let left = |deadline: Instant| {
            deadline
                .saturating_duration_since(Instant::now())
                .as_millis()
        };
        let deadline_ms = self.deadline.map_or(wire::NO_DEADLINE, |d| {
            left(d).min(u128::from(wire::NO_DEADLINE - 1)) as u32
        });
        wire::RequestRow {
            request_key,
            prompt_ids: &self.prompt_ids,
            num_emitted: 0,
            max_tokens: self.max_tokens,
            min_tokens: self.min_tokens,
            temperature: self.temperature,
            top_p: self.top_p,
            min_p: self.min_p,
            presence_penalty: self.presence_penalty,
            frequency_penalty: self.frequency_penalty,
            repetition_penalty: self.repetition_penalty,
            top_k: self.top_k,
            stream_key: self.stream_key,
            num_logprobs: self.num_logprobs,
            num_prompt_logprobs: self.num_prompt_logprobs,
            stop_ids: &self.stop_ids,
            priority: self.priority,
            deadline_ms,
            flags: self.flags,
            rare: self.rare.as_ref(),
        }
    }
}
