"""Takes a step's result in: ids become known, requests end, blocks become findable, rows are given back.

The common path is a few array operations over the step's sampled rows. Python looks at single requests only where one
ended, crossed a block's edge, completed its prompt or scored prompt tokens.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from proa.errors import FinishCode
from proa.kvcache.block_hash import ROOT, block_hash
from proa.request import NO_LOGPROBS
from proa.sched.events import NO_STOP_TOKEN, Prefill, PromptLogprobs, StepEvents
from proa.sched.plan import LogprobColumns, StepPlan, StepResult
from proa.sched.scheduler import Scheduler


def apply(scheduler: Scheduler, plan: StepPlan, result: StepResult) -> StepEvents:
    """Take in the result of the oldest step not yet applied and return what the front end must hear of it."""
    scheduler.applied_step = plan.step
    rows = scheduler.rows
    events = _sampled_rows(scheduler, plan, result)
    prompts, corrupted = _prompt_scores(scheduler, plan, result)
    events.prompt_logprobs = prompts
    for row in corrupted:
        if rows.alive[row] and not scheduler.is_leaving(row):
            _append_end(events, int(rows.key[row]), FinishCode.CORRUPTED, "a prompt token's logits were not finite")
            _withdraw(scheduler, row)
    _complete_prompts(scheduler, plan, events)
    if scheduler.config.enable_prefix_caching:
        _publish_blocks(scheduler, plan)
    _retire_finished(scheduler, events)
    scheduler.release_left()
    events.stamps, scheduler.stamps = scheduler.stamps, []
    _append_ended(scheduler, events)
    return events


def idle_events(scheduler: Scheduler) -> StepEvents:
    """Return what there is to tell when no step was applied: stamps, and requests that ended without one."""
    events = _empty_events()
    events.stamps, scheduler.stamps = scheduler.stamps, []
    _append_ended(scheduler, events)
    return events


def _empty_events() -> StepEvents:
    return StepEvents(
        key=np.zeros(0, np.uint64),
        token=np.zeros(0, np.int32),
        num_tokens=np.zeros(0, np.uint16),
        finish=np.zeros(0, np.uint8),
        stop_token=np.zeros(0, np.int32),
        num_logprobs=np.zeros(0, np.int32),
    )


def _sampled_rows(scheduler: Scheduler, plan: StepPlan, result: StepResult) -> StepEvents:
    r = scheduler.rows
    live = r.alive[plan.sample_row]
    scheduler.counters.finished_row_tokens += int((~r.alive[plan.row]).sum())
    rows = plan.sample_row[live]
    if len(rows) == 0:
        return _empty_events()
    ids = result.sampled_ids[live].astype(np.int32, copy=False)
    bad = result.nonfinite[: plan.num_sampled][live] != 0
    place = r.prompt_len[rows] + plan.sample_position[live]
    good = ~bad
    r.tokens[rows[good], place[good]] = ids[good]
    r.applied[rows[good]] = place[good] + 1
    stopped = _stopped(scheduler, rows, ids, plan.sample_position[live]) & good
    full = (place + 1 >= r.limit[rows]) & good & ~stopped
    at_max_tokens = plan.sample_position[live] + 1 >= _max_tokens(scheduler, rows, full)
    finish = np.zeros(len(rows), np.uint8)
    finish[stopped] = FinishCode.STOP_TOKEN
    finish[full] = np.where(at_max_tokens[full], FinishCode.MAX_TOKENS, FinishCode.CONTEXT_FULL)
    finish[bad] = FinishCode.CORRUPTED
    wanted = r.num_logprobs[rows].copy()
    wanted[bad] = NO_LOGPROBS
    events = StepEvents(
        key=r.key[rows],
        token=ids,
        num_tokens=good.astype(np.uint16),
        finish=finish,
        stop_token=np.where(stopped, ids, NO_STOP_TOKEN).astype(np.int32),
        num_logprobs=wanted,
    )
    if result.logprobs is not None and (wanted != NO_LOGPROBS).any():
        events.logprobs = _take(result.logprobs, np.flatnonzero(live))
    for i in np.flatnonzero(bad).tolist():
        events.details.append((i, "the logits were not finite"))
        _withdraw(scheduler, int(rows[i]))
    return events


def _take(columns: LogprobColumns, index: NDArray[np.int64]) -> LogprobColumns:
    return LogprobColumns(columns.value[index], columns.rank[index], columns.top_ids[index], columns.top_values[index])


def _stopped(
    scheduler: Scheduler, rows: NDArray[np.int32], ids: NDArray[np.int32], position: NDArray[np.int32]
) -> NDArray[np.bool_]:
    r = scheduler.rows
    hit = (r.stop_ids[rows] == ids[:, None]).any(axis=1)
    for row, stop in r.long_stop.items():
        hit |= (rows == row) & np.isin(ids, list(stop))
    ended: NDArray[np.bool_] = hit & (position >= r.min_tokens[rows])
    return ended


def _max_tokens(scheduler: Scheduler, rows: NDArray[np.int32], full: NDArray[np.bool_]) -> NDArray[np.int64]:
    """Output tokens asked for, of the rows that are full; elsewhere a number that is never reached."""
    asked = np.full(len(rows), np.iinfo(np.int64).max)
    for i in np.flatnonzero(full).tolist():
        request = scheduler.rows.request[rows[i]]
        assert request is not None
        asked[i] = request.max_tokens
    return asked


def _append_end(events: StepEvents, key: int, finish: int, detail: str = "") -> None:
    """Add a row without a token; a key that has a row already ends in that row."""
    at = np.flatnonzero(events.key == key)
    if len(at):
        index = int(at[0])
        events.finish[index] = finish
    else:
        index = len(events.key)
        events.key = np.append(events.key, np.uint64(key))
        events.token = np.append(events.token, np.int32(0))
        events.num_tokens = np.append(events.num_tokens, np.uint16(0))
        events.finish = np.append(events.finish, np.uint8(finish))
        events.stop_token = np.append(events.stop_token, np.int32(NO_STOP_TOKEN))
        events.num_logprobs = np.append(events.num_logprobs, np.int32(NO_LOGPROBS))
        if events.logprobs is not None:
            columns = events.logprobs
            events.logprobs = LogprobColumns(
                np.append(columns.value, np.float32(0)),
                np.append(columns.rank, np.int32(0)),
                np.vstack([columns.top_ids, np.zeros((1, columns.top_ids.shape[1]), np.int32)]),
                np.vstack([columns.top_values, np.zeros((1, columns.top_values.shape[1]), np.float32)]),
            )
    if detail:
        events.details.append((index, detail))


def _append_ended(scheduler: Scheduler, events: StepEvents) -> None:
    for ended in scheduler.ended:
        _append_end(events, ended.key, ended.finish, ended.detail)
        events.usage.append((ended.key, ended.num_recomputed))
    scheduler.ended = []


def _prompt_scores(scheduler: Scheduler, plan: StepPlan, result: StepResult) -> tuple[list[PromptLogprobs], list[int]]:
    """Return the scored prompt stretches by request, and rows with a bad logit row among them."""
    if plan.num_prompt_scored == 0:
        return [], []
    assert result.prompt_logprobs is not None
    r = scheduler.rows
    tokens = plan.logit_token[plan.num_sampled :]
    plan_row = np.searchsorted(plan.query_start, tokens, side="right") - 1
    bad = result.nonfinite[plan.num_sampled :] != 0
    scores, corrupted = [], []
    for i in np.unique(plan_row).tolist():
        row = int(plan.row[i])
        index = np.flatnonzero(plan_row == i)
        if not r.alive[row]:
            continue
        if bad[index].any():
            corrupted.append(row)
            continue
        start = int(plan.positions[tokens[index[0]]]) + 1
        k = int(r.prompt_k[row])
        scores.append(PromptLogprobs(int(r.key[row]), start, len(index), k, _take(result.prompt_logprobs, index)))
    return scores, corrupted


def _complete_prompts(scheduler: Scheduler, plan: StepPlan, events: StepEvents) -> None:
    """Report prompts that this step completed, once in a request's life, and end those that draw nothing."""
    r = scheduler.rows
    done = (plan.context_len >= r.prefill_end[plan.row]) & (r.prefill_end[plan.row] > 0) & r.alive[plan.row]
    for i in np.flatnonzero(done).tolist():
        row = int(plan.row[i])
        request = r.request[row]
        assert request is not None
        cached = int(r.cached_tokens[row])
        r.prefill_end[row] = 0
        if not request.prefill_reported:
            request.prefill_reported = True
            events.prefills.append(Prefill(request.key, request.prompt_len - min(cached, request.prompt_len), cached))
        if request.max_tokens <= request.num_emitted:
            _append_end(events, request.key, FinishCode.MAX_TOKENS)


def _publish_blocks(scheduler: Scheduler, plan: StepPlan) -> None:
    """Make blocks that this step filled findable; their ids have all been applied."""
    r = scheduler.rows
    bs = scheduler.limits.block_size
    full = plan.context_len // bs
    for i in np.flatnonzero((full > r.published[plan.row]) & r.alive[plan.row]).tolist():
        row = int(plan.row[i])
        request = r.request[row]
        assert request is not None
        hashes = request.block_hashes
        for b in range(int(r.published[row]), int(full[i])):
            if len(hashes) <= b:
                parent = hashes[b - 1] if b else ROOT
                hashes.append(block_hash(parent, r.tokens[row, b * bs : (b + 1) * bs], request.salt))
            scheduler.pool.publish(int(r.blocks[row, b]), hashes[b])
            if scheduler.computing.get(hashes[b]) == request.key:
                del scheduler.computing[hashes[b]]
        r.published[row] = full[i]


def _retire_finished(scheduler: Scheduler, events: StepEvents) -> None:
    for i in np.flatnonzero(events.finish).tolist():
        key = int(events.key[i])
        row = scheduler.row_of.get(key)
        if row is None:
            continue
        request = scheduler.rows.request[row]
        assert request is not None
        events.usage.append((key, request.num_recomputed))
        if scheduler.is_leaving(row):
            scheduler.end_leaving(row)
        else:
            scheduler.retire(row)


def _withdraw(scheduler: Scheduler, row: int) -> None:
    """Distrust every block that a corrupted request computed, and everybody who read one of them."""
    scheduler.counters.num_corrupted += 1
    r = scheduler.rows
    cached = int(r.cached_tokens[row]) // scheduler.limits.block_size
    computed = r.held(row)[cached:]
    scheduler.pool.withdraw(computed)
    distrusted = set(computed)
    for other in scheduler.running_rows().tolist():
        request = r.request[other]
        if other == row or request is None or scheduler.is_leaving(other):
            continue
        if distrusted.intersection(r.held(other)):
            request.reads_cache = False
            scheduler.preempt(other, request.queued_ns)
