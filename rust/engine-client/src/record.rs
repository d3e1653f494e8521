//! The record of one open request: what has come, and every sample that is taken of it, each exactly once.
//!
//! The dispatcher and the closing side share a record under its lock: an event is counted before the close, or it is
//! late, never both. Definitions: metrics-and-bench.md 1.3 and 1.7.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use limits::{AbortCause, ApiError, EndCause, ErrorKind, Finish};
use metrics::EngineMetrics;

use crate::output::{Ended, Pending, RequestTimes, RequestUsage};
use crate::request::EngineRequest;

/// An accepted request until its end.
#[derive(Debug)]
pub(crate) struct Record {
    pub key: u64,
    pub request: EngineRequest,
    accepted: Instant,
    state: Mutex<RecordState>,
}

/// The changing part of a record.
#[derive(Debug, Default)]
pub(crate) struct RecordState {
    pub pending: Pending,
    /// Set once; afterwards nothing is counted.
    pub ended: Option<Ended>,
    /// Engine clock, ns.
    queued_ns: Option<u64>,
    pub scheduled_ns: Option<u64>,
    first_event_ns: Option<u64>,
    last_event_ns: Option<u64>,
    ttft: Option<Duration>,
    decode_ns: u64,
    generated: u32,
    prefilled: bool,
    cached: u32,
    computed: u32,
    preemptions: u32,
}

/// Prompt tokens by source, of one completed prefill.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PrefillCounts {
    pub computed: u32,
    /// Device, host, disk, peer, other.
    pub cached: [u32; 5],
}

fn ns(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

impl Record {
    /// `max_batches` = length of the reader's queue from which on events merge.
    pub fn new(key: u64, request: EngineRequest, max_batches: usize) -> Self {
        let state = RecordState {
            pending: Pending::new(max_batches),
            ..RecordState::default()
        };
        Record {
            key,
            request,
            accepted: Instant::now(),
            state: Mutex::new(state),
        }
    }

    pub fn lock(&self) -> MutexGuard<'_, RecordState> {
        // A panic under the lock leaves plain data behind; the request can still be ended.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts the request as handed to the engine.
    pub fn count_accepted(&self, metrics: &EngineMetrics) {
        metrics.request_accepted.add(1);
        metrics.num_requests_open.add(1.0);
        metrics.request_preprocess.observe(ns(self
            .accepted
            .saturating_duration_since(self.request.arrival)));
    }

    fn prompt_len(&self) -> u32 {
        self.request.prompt_ids.len() as u32
    }

    /// Takes the only samples of an end, and keeps the end for the reader. None if it had ended before.
    pub fn end(
        &self,
        state: &mut RecordState,
        metrics: &EngineMetrics,
        end: EndOf,
    ) -> Option<Ended> {
        if state.ended.is_some() {
            return None;
        }
        let now = Instant::now();
        metrics.clock_anomalies.add(state.num_backward_spans());
        let ended = self.ended(state, end, now);
        let times = &ended.times;
        metrics.count_end(ended.cause);
        metrics.num_requests_open.add(-1.0);
        metrics.e2e_request_latency.observe(ns(times.total));
        metrics.request_queue_time.observe(ns(times.queue));
        metrics.request_prefill_time.observe(ns(times.prefill));
        metrics.request_decode_time.observe(state.decode_ns);
        metrics
            .request_inference_time
            .observe(ns(times.prefill) + state.decode_ns);
        let gaps = u64::from(state.generated.saturating_sub(1));
        let per_token = (state.decode_ns + gaps / 2).checked_div(gaps).unwrap_or(0);
        metrics.request_time_per_output_token.observe(per_token);
        metrics
            .request_prompt_tokens
            .observe(u64::from(self.prompt_len()));
        metrics
            .request_generation_tokens
            .observe(u64::from(state.generated));
        metrics
            .request_params_max_tokens
            .observe(u64::from(self.request.max_tokens));
        metrics
            .request_prefill_kv_computed_tokens
            .observe(u64::from(state.computed));
        metrics
            .request_num_preemptions
            .observe(u64::from(state.preemptions));
        if let Some(longest) = self.request.group.end_one(state.generated) {
            metrics
                .request_params_n
                .observe(u64::from(self.request.group.n));
            metrics
                .request_max_num_generation_tokens
                .observe(u64::from(longest));
        }
        state.ended = Some(ended.clone());
        Some(ended)
    }

    fn ended(&self, state: &RecordState, end: EndOf, now: Instant) -> Ended {
        let between = |from: Option<u64>, to: Option<u64>| match (from, to) {
            (Some(from), Some(to)) => Duration::from_nanos(to.saturating_sub(from)),
            _ => Duration::ZERO,
        };
        // Never scheduled: the front end's clock has to do.
        let queue = if state.scheduled_ns.is_some() {
            between(state.queued_ns, state.scheduled_ns)
        } else {
            now.saturating_duration_since(self.accepted)
        };
        Ended {
            cause: end.cause,
            finish: end.finish,
            stop_token: end.stop_token,
            error: end.error,
            usage: RequestUsage {
                prompt_tokens: self.prompt_len(),
                cached_tokens: state.cached,
                computed_tokens: state.computed,
                recomputed_tokens: end.recomputed,
                completion_tokens: state.generated,
                preemptions: state.preemptions,
            },
            times: RequestTimes {
                queue,
                prefill: between(state.scheduled_ns, state.first_event_ns),
                decode: Duration::from_nanos(state.decode_ns),
                total: now.saturating_duration_since(self.request.arrival),
                ttft: state.ttft,
            },
        }
    }
}

impl RecordState {
    /// Counts an event: a row of `num_tokens` tokens, made readable at `stamp_ns` and received at `received`.
    pub fn count_event(
        &mut self,
        record: &Record,
        metrics: &EngineMetrics,
        num_tokens: u32,
        stamp_ns: u64,
        received: Instant,
    ) {
        self.generated += num_tokens;
        metrics.generation_tokens.add(u64::from(num_tokens));
        match self.last_event_ns {
            None => {
                let ttft = received.saturating_duration_since(record.request.arrival);
                metrics.time_to_first_token.observe(ns(ttft));
                self.ttft = Some(ttft);
                self.first_event_ns = Some(stamp_ns);
            }
            Some(last) => {
                if stamp_ns < last {
                    metrics.clock_anomalies.add(1);
                }
                let gap = stamp_ns.saturating_sub(last);
                metrics.inter_token_latency.observe(gap);
                self.decode_ns += gap;
            }
        }
        self.last_event_ns = Some(stamp_ns);
    }

    /// Counts the prompt once in the request's life; returns the computed tokens if this was that once.
    pub fn count_prefill(&mut self, metrics: &EngineMetrics, counts: PrefillCounts) -> u32 {
        if self.prefilled {
            return 0;
        }
        self.prefilled = true;
        self.computed = counts.computed;
        self.cached = counts.cached.iter().sum();
        metrics
            .prompt_tokens
            .add(u64::from(self.computed) + u64::from(self.cached));
        metrics.prompt_tokens_cached.add(u64::from(self.cached));
        let device = counts.cached[0];
        for (counter, tokens) in metrics.prompt_tokens_by_source.iter().zip([
            self.computed,
            device,
            self.cached - device,
        ]) {
            counter.add(u64::from(tokens));
        }
        for (counter, tokens) in metrics
            .prompt_tokens_cached_by_source
            .iter()
            .zip(counts.cached)
        {
            counter.add(u64::from(tokens));
        }
        self.computed
    }

    /// Spans that end before they begin; they are sampled as 0.
    fn num_backward_spans(&self) -> u64 {
        let backward = |from: Option<u64>, to: Option<u64>| {
            u64::from(from.zip(to).is_some_and(|(from, to)| to < from))
        };
        backward(self.queued_ns, self.scheduled_ns)
            + backward(self.scheduled_ns, self.first_event_ns)
    }

    /// Notes a lifecycle stamp; true if it was the first `scheduled` one.
    pub fn note_stamp(&mut self, metrics: &EngineMetrics, kind: u8, at_ns: u64) -> bool {
        match kind {
            wire::STAMP_QUEUED => self.queued_ns = self.queued_ns.or(Some(at_ns)),
            wire::STAMP_FIRST_SCHEDULED if self.scheduled_ns.is_none() => {
                self.scheduled_ns = Some(at_ns);
                return true;
            }
            wire::STAMP_PREEMPTED => {
                self.preemptions += 1;
                metrics.num_preemptions.add(1);
            }
            _ => {}
        }
        false
    }
}

/// What ends a request.
#[derive(Debug)]
pub(crate) struct EndOf {
    pub cause: EndCause,
    pub finish: Finish,
    pub stop_token: Option<u32>,
    pub error: Option<ApiError>,
    pub recomputed: u32,
}

impl EndOf {
    /// By the front end.
    pub fn abort(cause: AbortCause) -> Self {
        let error = (cause == AbortCause::Internal)
            .then(|| ApiError::new(ErrorKind::Internal, "The request failed."));
        EndOf {
            cause: cause.end_cause(),
            finish: Finish::Aborted,
            stop_token: None,
            error,
            recomputed: 0,
        }
    }

    /// By a failure that the front end found.
    pub fn failure(cause: EndCause, error: ApiError) -> Self {
        EndOf {
            cause,
            finish: Finish::Internal,
            stop_token: None,
            error: Some(error),
            recomputed: 0,
        }
    }

    /// By the engine's own row.
    pub fn row(
        record: &Record,
        finish: Finish,
        stop_token: i32,
        detail: Option<&str>,
        recomputed: u32,
    ) -> Self {
        let stop_token = u32::try_from(stop_token).ok();
        let is_eos = finish == Finish::StopToken
            && stop_token.is_some_and(|id| record.request.eos_ids.contains(&id));
        let cause = if is_eos {
            EndCause::Eos
        } else {
            finish.end_cause().unwrap_or(EndCause::Internal)
        };
        let error = finish.error().map(|(kind, code)| {
            let told = kind != ErrorKind::Internal; // an internal detail is for the log
            let message = detail.filter(|_| told).map_or_else(
                || format!("The request ended with {}.", finish.label()),
                |d| format!("{d}."),
            );
            ApiError::new(kind, message).with_code(code)
        });
        EndOf {
            cause,
            finish,
            stop_token,
            error,
            recomputed,
        }
    }
}

/// A record in the hands of several.
pub(crate) type SharedRecord = Arc<Record>;
