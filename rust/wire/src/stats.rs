//! The scheduler's snapshot (metrics-and-bench.md section 2).

use crate::field::record;

record! {
    /// Gauges after the step was applied, and totals since the engine process started.
    pub struct SchedulerStats {
        /// Id of the engine process, as in Ready.
        incarnation: u64 => required,
        /// Number of this message, +1 each.
        seq: u64 => required,
        /// Requests.
        num_running: u32 => required,
        /// Requests.
        num_waiting: u32 => required,
        /// In the order of `limits::WAITING_CAUSES`; sums to `num_waiting`.
        waiting_causes: [u32; 8] => required,
        /// Blocks.
        kv_blocks_used: u32 => required,
        /// Blocks.
        kv_blocks_total: u32 => required,
        /// 0 awake, 1 weights_offloaded, 2 discard_all.
        sleep_state: u8 => required,
        /// Whether the scheduler is paused.
        paused: bool => required,
        /// How long the step now running has run; 0 between steps.
        step_age_ms: u32 => required,
        /// Tokens put into the model by this step; 0 without a step.
        step_num_tokens: u32 => required,
        /// Requests put into the model by this step.
        step_num_rows: u32 => required,
        /// Steps: graph, piecewise, eager.
        num_steps: [u64; 3] => required,
        /// Time of schedule, submit, wait, apply, send (the last of the step before).
        step_ns: [u64; 5] => required,
        /// Tokens looked up at first admission.
        prefix_queries: u64 => required,
        /// Tokens found on the device at first admission.
        prefix_hits: u64 => required,
        /// Tokens looked up in other tiers.
        external_queries: u64 => required,
        /// Tokens found there.
        external_hits: u64 => required,
        /// Tokens looked up after preemption.
        resumed_queries: u64 => required,
        /// Tokens found after preemption.
        resumed_hits: u64 => required,
        /// Media items looked up.
        mm_queries: u64 => required,
        /// Media items found.
        mm_hits: u64 => required,
        /// Tokens recomputed after preemption.
        recomputed_tokens: u64 => required,
        /// Tokens computed for requests already finished.
        finished_row_tokens: u64 => required,
        /// Requests with NaN logits.
        num_corrupted: u64 => required,
        /// Absent without speculation.
        num_drafts: Option<u64> => optional,
        /// Absent without speculation.
        num_draft_tokens: Option<u64> => optional,
        /// Absent without speculation.
        num_accepted_tokens: Option<u64> => optional,
        /// Accepted tokens by position; absent without speculation.
        accepted_per_pos: Option<Vec<u64>> => optional,
        /// By `component/reason`.
        fallbacks: Vec<(String, u64)> => required,
        /// Absent without adapters.
        lora_slot_loads: Option<u64> => optional,
        /// Absent without adapters.
        lora_slot_evictions: Option<u64> => optional,
        /// Absent without adapters.
        lora_embedding_delta_skipped: Option<u64> => optional,
        /// Absent without expert balancing.
        eplb_rebalances_moved: Option<u64> => optional,
        /// Absent without expert balancing.
        eplb_rebalances_kept: Option<u64> => optional,
        /// Absent without expert balancing.
        eplb_expert_moves: Option<u64> => optional,
        /// Absent without expert balancing.
        eplb_rebalance_ns: Option<u64> => optional,
        /// Mean over layers of the last window; absent without expert balancing.
        eplb_balancedness: Option<f64> => optional,
        /// Names of adapters in use; only when changed.
        lora_running: Option<Vec<String>> => optional,
        /// Names of adapters waited for; only when changed.
        lora_waiting: Option<Vec<String>> => optional,
        /// At most once a second.
        process_rss_bytes: Option<u64> => optional,
        /// At most once a second.
        process_cpu_ns: Option<u64> => optional,
        /// At most once a second.
        process_open_fds: Option<u64> => optional,
        /// Samples since the last message.
        grammar_compile_ns: Vec<u64> => listed,
        /// Samples since the last message: lifetime and idle time of evicted blocks.
        kv_evicted_ns: Vec<[u64; 2]> => listed,
        /// Samples since the last message: gaps between uses.
        kv_reuse_gap_ns: Vec<u64> => listed,
    }
}
