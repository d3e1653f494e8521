//! The handles of one engine: built once, alive for the life of the process, shown (at 0) from the engine's first Ready.
//!
//! A restarted engine of the same index goes on with the same handles, so counters never fall. What a handle means is
//! defined in metrics-and-bench.md 1.3 and 1.4 and nowhere else; the help texts are the short form.

use std::sync::atomic::{AtomicBool, Ordering};

use limits::{EndCause, FinishedReason, WAITING_CAUSES};

use crate::buckets::{BucketFamily, request_tokens_bounds};
use crate::registry::{Family, Value};
use crate::text::label;
use crate::value::{Counter, Gauge, Histogram};

/// Where prompt tokens came from.
const PROMPT_SOURCES: [&str; 3] = ["local_compute", "local_cache_hit", "external_kv_transfer"];
const CACHE_SOURCES: [&str; 5] = ["device", "host", "disk", "p2p", "external_unspecified"];
const STEP_MODES: [&str; 3] = ["graph", "piecewise", "eager"];
const STEP_PHASES: [&str; 5] = ["schedule", "submit", "wait", "apply", "send"];
const SLEEP_STATES: [&str; 3] = ["awake", "weights_offloaded", "discard_all"];
const RESTART_CAUSES: [&str; 3] = ["crash", "hang", "requested"];
const WASTE_CAUSES: [&str; 5] = [
    "preemption",
    "engine_restart",
    "rejected_draft",
    "finished_row",
    "past_stop",
];
const BAD_FRAME_SIDES: [&str; 2] = ["front_end", "engine"];
const BAD_FRAME_REASONS: [&str; 4] = ["decode", "kind", "columns", "stats_backwards"];
/// Families that say how an engine's start goes: they are shown before its first Ready too.
const START_FAMILIES: [&str; 3] = ["engine_up", "engine_start_seconds", "engine_restarts_total"];
/// How many of `WAITING_CAUSES`, from the front, are want of capacity; the rest defer a request.
const CAPACITY_CAUSES: usize = 4;

/// Parts of a step's CPU time, in the order of `SchedulerStats.step_ns`.
#[derive(Clone, Copy, Debug)]
pub enum StepPhase {
    /// Planning.
    Schedule,
    /// Launching.
    Submit,
    /// Waiting for the device.
    Wait,
    /// Taking the result in.
    Apply,
    /// Sending it.
    Send,
}

macro_rules! engine_metrics {
    (
        counters { $($counter:ident: $counter_name:literal, $counter_help:literal;)* }
        labelled_counters { $($many:ident: $many_name:literal, $label:literal, $values:expr, $many_help:literal;)* }
        gauges { $($gauge:ident: $gauge_name:literal, $gauge_help:literal;)* }
        labelled_gauges { $($many_gauge:ident: $many_gauge_name:literal, $gauge_label:literal, $gauge_values:expr, $many_gauge_help:literal;)* }
        histograms { $($histogram:ident: $histogram_name:literal, $build:expr, $histogram_help:literal;)* }
    ) => {
        /// Every series of one engine.
        #[derive(Debug)]
        #[allow(missing_docs)] // the help texts say what each is
        pub struct EngineMetrics {
            labels: String,
            is_ready: AtomicBool,
            $(pub $counter: Counter,)*
            $(pub $many: Vec<Counter>,)*
            $(pub $gauge: Gauge,)*
            $(pub $many_gauge: Vec<Gauge>,)*
            $(pub $histogram: Histogram,)*
            /// One counter per side and reason, sides first.
            pub wire_bad_frames: Vec<Counter>,
            /// Label text of `cache_config_info`; empty until the engine is ready.
            pub cache_config: std::sync::Mutex<String>,
        }

        impl EngineMetrics {
            /// Handles for (model name, engine index).
            pub fn new(model_name: &str, engine_index: u16) -> Self {
                EngineMetrics {
                    is_ready: AtomicBool::new(false),
                    labels: format!("{},{}", label("model_name", model_name), label("engine", &engine_index.to_string())),
                    $($counter: Counter::default(),)*
                    $($many: $values.iter().map(|_| Counter::default()).collect(),)*
                    $($gauge: Gauge::default(),)*
                    $($many_gauge: $gauge_values.iter().map(|_| Gauge::default()).collect(),)*
                    $($histogram: $build,)*
                    wire_bad_frames: (0..BAD_FRAME_SIDES.len() * BAD_FRAME_REASONS.len()).map(|_| Counter::default()).collect(),
                    cache_config: std::sync::Mutex::default(),
                }
            }

            pub(crate) fn families(&self) -> Vec<Family<'_>> {
                let mut families = Vec::with_capacity(64);
                let one = |value| vec![(self.labels.clone(), value)];
                $(families.push(Family::new($counter_name, "counter", $counter_help, one(Value::Counter(&self.$counter))));)*
                $(families.push(Family::new($many_name, "counter", $many_help, $values.iter().zip(&self.$many)
                    .map(|(value, counter)| (format!("{},{}", self.labels, label($label, value_name(value))), Value::Counter(counter)))
                    .collect()));)*
                $(families.push(Family::new($gauge_name, "gauge", $gauge_help, one(Value::Gauge(&self.$gauge))));)*
                $(families.push(Family::new($many_gauge_name, "gauge", $many_gauge_help, $gauge_values.iter().zip(&self.$many_gauge)
                    .map(|(value, gauge)| (format!("{},{}", self.labels, label($gauge_label, value_name(value))), Value::Gauge(gauge)))
                    .collect()));)*
                $(families.push(Family::new($histogram_name, "histogram", $histogram_help, one(Value::Histogram(&self.$histogram))));)*
                self.add_special_families(&mut families);
                if !self.is_ready.load(Ordering::Acquire) {
                    for family in families.iter_mut().filter(|family| !START_FAMILIES.contains(&family.name)) {
                        family.samples.clear();
                    }
                }
                families
            }
        }
    };
}

/// A label value: a word, or a member of a closed list.
trait LabelValue {
    fn name(&self) -> &'static str;
}

impl LabelValue for &'static str {
    fn name(&self) -> &'static str {
        self
    }
}

impl LabelValue for FinishedReason {
    fn name(&self) -> &'static str {
        self.label()
    }
}

impl LabelValue for EndCause {
    fn name(&self) -> &'static str {
        self.label()
    }
}

fn value_name(value: &impl LabelValue) -> &'static str {
    value.name()
}

fn seconds(family: BucketFamily) -> Histogram {
    Histogram::of_seconds(family.bounds())
}

fn counts(family: BucketFamily) -> Histogram {
    Histogram::of_counts(family.bounds())
}

engine_metrics! {
    counters {
        prompt_tokens: "prompt_tokens_total", "Prompt tokens of requests whose prefill completed, cached ones included.";
        prompt_tokens_cached: "prompt_tokens_cached_total", "Prompt tokens that were not computed.";
        generation_tokens: "generation_tokens_total", "Tokens generated.";
        num_preemptions: "num_preemptions_total", "Preemptions of open requests.";
        request_accepted: "request_accepted_total", "Requests handed to the engine.";
        late_output_rows: "late_output_rows_total", "Output rows of requests that had ended before.";
        prefix_cache_queries: "prefix_cache_queries_total", "Tokens looked up in the prefix cache at first admission.";
        prefix_cache_hits: "prefix_cache_hits_total", "Tokens found in the prefix cache at first admission.";
        external_prefix_cache_queries: "external_prefix_cache_queries_total", "Tokens looked up in host, disk and peer tiers.";
        external_prefix_cache_hits: "external_prefix_cache_hits_total", "Tokens found in host, disk and peer tiers.";
        mm_cache_queries: "mm_cache_queries_total", "Media items looked up.";
        mm_cache_hits: "mm_cache_hits_total", "Media items found.";
        spec_decode_num_drafts: "spec_decode_num_drafts_total", "Verifications of drafts.";
        spec_decode_num_draft_tokens: "spec_decode_num_draft_tokens_total", "Tokens proposed by drafters.";
        spec_decode_num_accepted_tokens: "spec_decode_num_accepted_tokens_total", "Proposed tokens that were accepted.";
        corrupted_requests: "corrupted_requests_total", "Requests ended because their logits were not finite.";
        engine_process_cpu_ns: "engine_process_cpu_seconds_total", "CPU time of the engine process.";
        clock_anomalies: "clock_anomalies_total", "Negative intervals that were taken as 0.";
    }
    labelled_counters {
        prompt_tokens_by_source: "prompt_tokens_by_source_total", "source", PROMPT_SOURCES, "Prompt tokens by where they came from.";
        prompt_tokens_cached_by_source: "prompt_tokens_cached_by_source_total", "source", CACHE_SOURCES, "Cached prompt tokens by tier.";
        request_success: "request_success_total", "finished_reason", FinishedReason::ALL, "Ended requests, whatever the reason.";
        request_ended: "request_ended_total", "cause", EndCause::ALL, "Ended requests by cause.";
        steps: "steps_total", "mode", STEP_MODES, "Executed steps.";
        step_time_ns: "step_time_seconds_total", "phase", STEP_PHASES, "CPU-side time of steps.";
        wasted_tokens: "wasted_tokens_total", "cause", WASTE_CAUSES, "Tokens computed and not used.";
        engine_restarts: "engine_restarts_total", "cause", RESTART_CAUSES, "Replacements of the engine that were started.";
    }
    gauges {
        num_requests_open: "num_requests_open", "Accepted requests that have not ended.";
        num_requests_running: "num_requests_running", "Requests that hold blocks and take part in steps.";
        num_requests_waiting: "num_requests_waiting", "Requests in the engine that do not run.";
        kv_cache_usage_perc: "kv_cache_usage_perc", "Used blocks over all blocks, 0 to 1.";
        engine_up: "engine_up", "1 from ready to loss.";
        engine_start_seconds: "engine_start_seconds", "Command to ready of the latest start.";
        engine_process_resident_memory_bytes: "engine_process_resident_memory_bytes", "Resident memory of the engine process.";
        engine_process_open_fds: "engine_process_open_fds", "Open descriptors of the engine process.";
    }
    labelled_gauges {
        num_requests_waiting_by_cause: "num_requests_waiting_by_cause", "cause", WAITING_CAUSES, "Waiting requests by the first cause met.";
        engine_sleep_state: "engine_sleep_state", "sleep_state", SLEEP_STATES, "1 on the current state.";
    }
    histograms {
        iteration_tokens: "iteration_tokens_total", counts(BucketFamily::IterationTokens), "Tokens per output message: generated, and computed of completed prompts.";
        step_tokens: "step_tokens", counts(BucketFamily::IterationTokens), "Tokens put into the model by a step.";
        time_to_first_token: "time_to_first_token_seconds", seconds(BucketFamily::TimeToFirstToken), "Arrival to first output.";
        inter_token_latency: "inter_token_latency_seconds", seconds(BucketFamily::InterTokenLatency), "Time between neighbouring outputs of a request.";
        request_time_per_output_token: "request_time_per_output_token_seconds", seconds(BucketFamily::InterTokenLatency), "Decode time per generated token after the first, by request.";
        e2e_request_latency: "e2e_request_latency_seconds", seconds(BucketFamily::RequestLatency), "Arrival to end.";
        request_queue_time: "request_queue_time_seconds", seconds(BucketFamily::RequestLatency), "Queued to first scheduled.";
        request_prefill_time: "request_prefill_time_seconds", seconds(BucketFamily::RequestLatency), "First scheduled to first output.";
        request_decode_time: "request_decode_time_seconds", seconds(BucketFamily::RequestLatency), "First to last output.";
        request_inference_time: "request_inference_time_seconds", seconds(BucketFamily::RequestLatency), "Prefill and decode time.";
        request_prompt_tokens: "request_prompt_tokens", Histogram::deferred_counts(), "Prompt length.";
        request_generation_tokens: "request_generation_tokens", Histogram::deferred_counts(), "Tokens generated.";
        request_params_max_tokens: "request_params_max_tokens", Histogram::deferred_counts(), "The token limit in force.";
        request_prefill_kv_computed_tokens: "request_prefill_kv_computed_tokens", Histogram::deferred_counts(), "Prompt tokens computed, not cached.";
        request_max_num_generation_tokens: "request_max_num_generation_tokens", Histogram::deferred_counts(), "Tokens of the longest choice of a client request.";
        request_params_n: "request_params_n", counts(BucketFamily::RequestParamsN), "Choices of a client request.";
        request_num_preemptions: "request_num_preemptions", counts(BucketFamily::RequestNumPreemptions), "Preemptions of a request.";
        request_preprocess: "request_preprocess_seconds", seconds(BucketFamily::TimeToFirstToken), "Arrival to acceptance: parse, template, tokenise, admit.";
        grammar_compile: "grammar_compile_seconds", seconds(BucketFamily::TimeToFirstToken), "Compiling a grammar, cache hits excluded.";
    }
}

/// Indexes into the labelled families.
impl EngineMetrics {
    /// The engine's Ready: from now on every series is shown. `max_model_len` ends the buckets of token counts; that of
    /// the first Ready counts.
    pub fn become_ready(&self, max_model_len: u32) {
        let bounds = request_tokens_bounds(max_model_len);
        for histogram in [
            &self.request_prompt_tokens,
            &self.request_generation_tokens,
            &self.request_params_max_tokens,
            &self.request_prefill_kv_computed_tokens,
            &self.request_max_num_generation_tokens,
        ] {
            histogram.set_bounds(&bounds);
        }
        self.is_ready.store(true, Ordering::Release);
    }

    /// Index of a bad frame's counter; reasons are those of `wire_bad_frames_total`.
    pub fn bad_frame(&self, from_engine_side: bool, reason: &str) -> &Counter {
        let reason = BAD_FRAME_REASONS
            .iter()
            .position(|known| *known == reason)
            .unwrap_or(0);
        &self.wire_bad_frames[usize::from(from_engine_side) * BAD_FRAME_REASONS.len() + reason]
    }

    /// Counts tokens that were computed for nothing.
    pub fn wasted(&self, cause: &str) -> &Counter {
        &self.wasted_tokens[WASTE_CAUSES
            .iter()
            .position(|known| *known == cause)
            .unwrap_or(0)]
    }

    /// Counts an ended request under its cause and reason.
    pub fn count_end(&self, cause: EndCause) {
        let reason = cause.finished_reason();
        let index = FinishedReason::ALL
            .iter()
            .position(|known| *known == reason)
            .unwrap_or(0);
        self.request_success[index].add(1);
        let index = EndCause::ALL
            .iter()
            .position(|known| *known == cause)
            .unwrap_or(0);
        self.request_ended[index].add(1);
    }

    fn add_special_families<'a>(&'a self, families: &mut Vec<Family<'a>>) {
        let frames = BAD_FRAME_SIDES
            .iter()
            .flat_map(|side| BAD_FRAME_REASONS.iter().map(move |reason| (side, reason)))
            .zip(&self.wire_bad_frames)
            .map(|((side, reason), counter)| {
                (
                    format!(
                        "{},{},{}",
                        self.labels,
                        label("side", side),
                        label("reason", reason)
                    ),
                    Value::Counter(counter),
                )
            })
            .collect();
        families.push(Family::new(
            "wire_bad_frames_total",
            "counter",
            "Frames or parts of frames that were dropped.",
            frames,
        ));
        let (capacity, deferred) = self.num_requests_waiting_by_cause.split_at(CAPACITY_CAUSES);
        let sum = |gauges: &[Gauge]| gauges.iter().map(Gauge::get).sum::<f64>();
        let reasons = [("capacity", sum(capacity)), ("deferred", sum(deferred))]
            .into_iter()
            .map(|(reason, value)| {
                (
                    format!("{},{}", self.labels, label("reason", reason)),
                    Value::Number(value),
                )
            })
            .collect();
        families.push(Family::new(
            "num_requests_waiting_by_reason",
            "gauge",
            "Waiting requests by kind of cause.",
            reasons,
        ));
        let config = self
            .cache_config
            .lock()
            .map(|text| text.clone())
            .unwrap_or_default();
        let samples = if config.is_empty() {
            Vec::new()
        } else {
            vec![(format!("{},{config}", self.labels), Value::Number(1.0))]
        };
        families.push(Family::new(
            "cache_config_info",
            "gauge",
            "How the KV cache is set up.",
            samples,
        ));
    }
}
