//! The output dispatcher: columns of a `StepOutputs` straight to the queues of open requests, and into the metrics.
//!
//! Runs on the I/O thread only. A fault of one row harms that row's request; a row of a request that has ended is late.

use std::task::Waker;
use std::time::Instant;

use limits::{ApiError, EndCause, ErrorKind, Finish};
use metrics::EngineMetrics;
use wire::{RowFaults, SchedulerStats, Stats, StepOutputs, row_faults};

use crate::client::Shared;
use crate::output::{PromptChunk, TokenLogprobs};
use crate::record::{EndOf, PrefillCounts, Record, SharedRecord};

/// What the dispatcher remembers of the running engine process.
#[derive(Debug)]
pub(crate) struct EngineMemory {
    incarnation: u64,
    /// Totals as of the last snapshot; a new process starts from 0.
    last: Option<Box<SchedulerStats>>,
}

impl EngineMemory {
    pub fn new(incarnation: u64) -> Self {
        EngineMemory {
            incarnation,
            last: None,
        }
    }
}

/// Hands out one message. `received` is when it came from the socket.
pub(crate) fn dispatch(
    shared: &Shared,
    memory: &mut EngineMemory,
    outputs: &StepOutputs,
    received: Instant,
) {
    let metrics = &shared.metrics;
    let faults = row_faults(outputs, shared.vocab_size());
    let faulty = faults.rows.len() + faults.prompt_chunks.len() + faults.details.len();
    metrics.bad_frame(false, "columns").add(faulty as u64);
    note_stamps(shared, outputs);
    let mut wakers = Vec::new();
    deliver_prompt_logprobs(shared, outputs, &faults, &mut wakers);
    let iteration = deliver_rows(shared, outputs, &faults, received, &mut wakers);
    if iteration > 0 {
        metrics.iteration_tokens.observe(iteration);
    }
    match &outputs.stats {
        Stats::Present(stats) => take_snapshot(shared, memory, stats),
        Stats::Faulty => metrics.bad_frame(false, "columns").add(1),
        Stats::Absent => {}
    }
    wakers.into_iter().for_each(Waker::wake);
}

fn note_stamps(shared: &Shared, outputs: &StepOutputs) {
    let stamps = &outputs.stamps;
    if stamps.stamp_key.is_empty() {
        return;
    }
    let mut table = shared.open.lock();
    for ((key, kind), at_ns) in stamps
        .stamp_key
        .iter()
        .zip(&stamps.stamp_kind)
        .zip(&stamps.stamp_ns)
    {
        let Some(record) = table.get(*key).cloned() else {
            continue;
        };
        if record.lock().note_stamp(&shared.metrics, *kind, *at_ns) {
            table.leave_queue(*key);
        }
    }
}

fn deliver_prompt_logprobs(
    shared: &Shared,
    outputs: &StepOutputs,
    faults: &RowFaults,
    wakers: &mut Vec<Waker>,
) {
    let chunks = &outputs.prompt_logprobs;
    let (mut value_at, mut top_at) = (0, 0);
    for (index, key) in chunks.plp_key.iter().enumerate() {
        let (count, k) = (
            chunks.plp_count[index] as usize,
            chunks.plp_k[index].max(0) as usize,
        );
        let tokens = (0..count)
            .map(|i| TokenLogprobs {
                value: chunks.plp_value[value_at + i],
                rank: chunks.plp_rank[value_at + i],
                top: pairs(
                    &chunks.plp_top_ids,
                    &chunks.plp_top_values,
                    top_at + i * k,
                    k,
                ),
            })
            .collect();
        value_at += count;
        top_at += count * k;
        let Some(record) = shared.open.lock().get(*key).cloned() else {
            continue;
        };
        if faults.prompt_chunks.contains(&(index as u32)) {
            wakers.extend(shared.finish(&record, EndOf::failure(EndCause::Internal, row_fault())));
        } else {
            wakers.extend(record.lock().pending.push_prompt(PromptChunk {
                start: chunks.plp_start[index],
                tokens,
            }));
        }
    }
}

fn pairs(ids: &[u32], values: &[f32], at: usize, k: usize) -> Vec<(u32, f32)> {
    ids[at..at + k]
        .iter()
        .copied()
        .zip(values[at..at + k].iter().copied())
        .collect()
}

fn row_fault() -> ApiError {
    ApiError::new(
        ErrorKind::Internal,
        "The engine sent a row that breaks a rule.",
    )
}

/// Where a row's tokens and logprobs begin in the message's columns.
#[derive(Clone, Copy, Default)]
struct Place {
    token: usize,
    value: usize,
    top: usize,
}

/// Delivers every row and returns the iteration's tokens: generated ones, and computed ones of completed prompts.
fn deliver_rows(
    shared: &Shared,
    outputs: &StepOutputs,
    faults: &RowFaults,
    received: Instant,
    wakers: &mut Vec<Waker>,
) -> u64 {
    let rows = &outputs.rows;
    let records: Vec<Option<SharedRecord>> = {
        let table = shared.open.lock();
        rows.request_key
            .iter()
            .map(|key| table.get(*key).cloned())
            .collect()
    };
    let mut iteration = 0;
    let mut place = Place::default();
    for (row, record) in records.iter().enumerate() {
        let here = place;
        let num_tokens = usize::from(rows.num_tokens[row]);
        let k = outputs
            .sampled_logprobs
            .as_ref()
            .map_or(-1, |logprobs| logprobs.lp_k[row]);
        place.token += num_tokens;
        if k >= 0 {
            place.value += num_tokens;
            place.top += num_tokens * k as usize;
        }
        let Some(record) = record else {
            shared.metrics.late_output_rows.add(1);
            continue;
        };
        if faults.rows.contains(&(row as u32)) {
            wakers.extend(shared.finish(record, EndOf::failure(EndCause::Internal, row_fault())));
            continue;
        }
        iteration += deliver_row(
            shared,
            outputs,
            Row {
                row,
                k,
                place: here,
            },
            record,
            received,
            wakers,
        );
    }
    iteration
}

#[derive(Clone, Copy)]
struct Row {
    row: usize,
    k: i32,
    place: Place,
}

fn deliver_row(
    shared: &Shared,
    outputs: &StepOutputs,
    at: Row,
    record: &Record,
    received: Instant,
    wakers: &mut Vec<Waker>,
) -> u64 {
    let (rows, metrics) = (&outputs.rows, &shared.metrics);
    let num_tokens = usize::from(rows.num_tokens[at.row]);
    let mut iteration = 0;
    {
        let mut state = record.lock();
        if state.ended.is_some() {
            metrics.late_output_rows.add(1);
            return 0;
        }
        if let Some(counts) = prefill_of(outputs, at.row) {
            iteration += u64::from(state.count_prefill(metrics, counts));
        }
        if num_tokens > 0 {
            state.count_event(
                record,
                metrics,
                num_tokens as u32,
                outputs.step_stamp_ns,
                received,
            );
            iteration += num_tokens as u64;
            let ids = &rows.token_ids[at.place.token..at.place.token + num_tokens];
            let logprobs = outputs.sampled_logprobs.as_ref().filter(|_| at.k >= 0);
            let logprobs = logprobs.into_iter().flat_map(|columns| {
                let k = at.k as usize;
                (0..num_tokens).map(move |i| TokenLogprobs {
                    value: columns.lp_value[at.place.value + i],
                    rank: columns.lp_rank[at.place.value + i],
                    top: pairs(
                        &columns.lp_top_ids,
                        &columns.lp_top_values,
                        at.place.top + i * k,
                        k,
                    ),
                })
            });
            wakers.extend(state.pending.push_tokens(ids, logprobs));
        }
    }
    let finish = Finish::from_code(rows.finish[at.row]).unwrap_or(Finish::Internal);
    if finish.is_terminal() {
        let detail = outputs
            .details
            .iter()
            .find(|detail| detail.row as usize == at.row)
            .map(|detail| detail.message.as_str());
        if let Some(detail) = detail {
            tracing::warn!(key = record.key, finish = finish.label(), "{detail}");
        }
        let end = EndOf::row(
            record,
            finish,
            rows.stop_token[at.row],
            detail,
            recomputed_of(outputs, record.key),
        );
        wakers.extend(shared.finish(record, end));
    }
    iteration
}

fn prefill_of(outputs: &StepOutputs, row: usize) -> Option<PrefillCounts> {
    let prefill = &outputs.prefill;
    let at = prefill
        .prefill_row
        .iter()
        .position(|prefilled| *prefilled as usize == row)?;
    Some(PrefillCounts {
        computed: prefill.num_computed[at],
        cached: [
            prefill.num_cached_device[at],
            prefill.num_cached_host[at],
            prefill.num_cached_disk[at],
            prefill.num_cached_peer[at],
            prefill.num_cached_other[at],
        ],
    })
}

fn recomputed_of(outputs: &StepOutputs, key: u64) -> u32 {
    let usage = &outputs.usage;
    usage
        .use_key
        .iter()
        .position(|used| *used == key)
        .map_or(0, |at| usage.use_recomputed[at])
}

/// Totals of a snapshot that become counters: of each, the difference to what was seen last is added.
fn totals<'a>(
    stats: &SchedulerStats,
    metrics: &'a EngineMetrics,
) -> Vec<(u64, &'a metrics::Counter)> {
    let wasted = |cause| metrics.wasted(cause);
    let mut totals = vec![
        (stats.prefix_queries, &metrics.prefix_cache_queries),
        (stats.prefix_hits, &metrics.prefix_cache_hits),
        (
            stats.external_queries,
            &metrics.external_prefix_cache_queries,
        ),
        (stats.external_hits, &metrics.external_prefix_cache_hits),
        (stats.mm_queries, &metrics.mm_cache_queries),
        (stats.mm_hits, &metrics.mm_cache_hits),
        (stats.recomputed_tokens, wasted("preemption")),
        (stats.finished_row_tokens, wasted("finished_row")),
        (stats.num_corrupted, &metrics.corrupted_requests),
        (
            stats.num_drafts.unwrap_or(0),
            &metrics.spec_decode_num_drafts,
        ),
        (
            stats.num_draft_tokens.unwrap_or(0),
            &metrics.spec_decode_num_draft_tokens,
        ),
        (
            stats.num_accepted_tokens.unwrap_or(0),
            &metrics.spec_decode_num_accepted_tokens,
        ),
    ];
    totals.extend(stats.num_steps.iter().copied().zip(&metrics.steps));
    totals.extend(stats.step_ns.iter().copied().zip(&metrics.step_time_ns));
    totals.extend(
        ["kind", "decode", "columns"]
            .map(|reason| (dropped(stats, reason), metrics.bad_frame(true, reason))),
    );
    totals
}

/// Messages of ours that the engine dropped: the snapshot carries them among its fallbacks, as `wire/REASON`.
fn dropped(stats: &SchedulerStats, reason: &str) -> u64 {
    stats
        .fallbacks
        .iter()
        .find(|(name, _)| name.strip_prefix("wire/") == Some(reason))
        .map_or(0, |(_, total)| *total)
}

fn take_snapshot(shared: &Shared, memory: &mut EngineMemory, stats: &SchedulerStats) {
    let metrics = &shared.metrics;
    if stats.incarnation != memory.incarnation {
        metrics.bad_frame(false, "kind").add(1);
        return;
    }
    let before = memory.last.as_ref().map(|last| totals(last, metrics));
    let now = totals(stats, metrics);
    let falls = before
        .as_ref()
        .is_some_and(|before| before.iter().zip(&now).any(|(old, new)| new.0 < old.0));
    if falls {
        metrics.bad_frame(false, "stats_backwards").add(1);
        return;
    }
    let _whole = shared
        .registry
        .snapshot
        .lock()
        .unwrap_or_else(std::sync::PoisonError::into_inner);
    for (index, (total, counter)) in now.iter().enumerate() {
        counter.add(total - before.as_ref().map_or(0, |before| before[index].0));
    }
    if stats.step_num_tokens > 0 {
        metrics
            .step_tokens
            .observe(u64::from(stats.step_num_tokens));
    }
    // Samples come once a number: a message that comes twice brings none the second time.
    if memory.last.as_ref().is_none_or(|last| last.seq < stats.seq) {
        for ns in &stats.grammar_compile_ns {
            metrics.grammar_compile.observe(*ns);
        }
    }
    set_gauges(metrics, stats);
    if let Some(cpu_ns) = stats.process_cpu_ns {
        // A restarted process begins at 0 again; the series goes on.
        let seen = memory
            .last
            .as_ref()
            .and_then(|last| last.process_cpu_ns)
            .unwrap_or(0);
        metrics
            .engine_process_cpu_ns
            .add(cpu_ns.saturating_sub(seen));
    }
    let mut kept = Box::new(stats.clone());
    kept.process_cpu_ns = stats
        .process_cpu_ns
        .or(memory.last.as_ref().and_then(|last| last.process_cpu_ns));
    memory.last = Some(kept);
}

fn set_gauges(metrics: &EngineMetrics, stats: &SchedulerStats) {
    metrics
        .num_requests_running
        .set(f64::from(stats.num_running));
    metrics
        .num_requests_waiting
        .set(f64::from(stats.num_waiting));
    for (gauge, count) in metrics
        .num_requests_waiting_by_cause
        .iter()
        .zip(stats.waiting_causes)
    {
        gauge.set(f64::from(count));
    }
    metrics
        .kv_cache_usage_perc
        .set(f64::from(stats.kv_blocks_used) / f64::from(stats.kv_blocks_total.max(1)));
    for (state, gauge) in metrics.engine_sleep_state.iter().enumerate() {
        gauge.set(f64::from(u8::from(state == usize::from(stats.sleep_state))));
    }
    if let Some(bytes) = stats.process_rss_bytes {
        metrics
            .engine_process_resident_memory_bytes
            .set(bytes as f64);
    }
    if let Some(fds) = stats.process_open_fds {
        metrics.engine_process_open_fds.set(fds as f64);
    }
}

/// Gauges of an engine that is gone.
pub(crate) fn clear_gauges(metrics: &EngineMetrics) {
    metrics.engine_up.set(0.0);
    metrics.num_requests_running.set(0.0);
    metrics.num_requests_waiting.set(0.0);
    metrics.kv_cache_usage_perc.set(0.0);
    for gauge in &metrics.num_requests_waiting_by_cause {
        gauge.set(0.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_that_the_engine_dropped_are_found_among_its_fallbacks() {
        let stats = SchedulerStats {
            fallbacks: vec![("other/decode".into(), 9), ("wire/decode".into(), 3)],
            ..SchedulerStats::default()
        };
        assert_eq!(dropped(&stats, "decode"), 3);
        assert_eq!(dropped(&stats, "kind"), 0);
    }
}
