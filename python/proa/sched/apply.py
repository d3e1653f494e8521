"""Takes a step's result in: ids become known, requests end, blocks become findable, rows are given back.

The common path is a few array operations over the step's drawn rows. Python looks at single requests only where one
ended, crossed a block's edge, completed its prompt or scored prompt tokens.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from proa.errors import FinishCode
from proa.sched.corruption import find_corrupted
from proa.sched.events import NO_STOP_TOKEN, DrawnRows, Ended, Prefill, PromptLogprobs, StepEvents
from proa.sched.plan import LogprobColumns, StepResult
from proa.sched.plan_builder import Planned
from proa.sched.rows import Rows
from proa.sched.scheduler import Scheduler

#: As an array: numpy takes longer to convert a Python number than to add it.
_ONE = np.array(1, np.int32)
_NOT_FINITE = "the logits were not finite"
I32 = NDArray[np.int32]
_Bool = NDArray[np.bool_]


def apply(scheduler: Scheduler, result: StepResult) -> StepEvents:
    """Take in the result of the oldest step not yet applied and return what the front end must hear of it."""
    planned = scheduler.planned.popleft()
    assert planned.plan.step == result.step, "results come in the order of submission"
    scheduler.applied_step = planned.plan.step
    corrupted = find_corrupted(scheduler, planned, result) if np.count_nonzero(result.nonfinite) else []
    events = StepEvents()
    if scheduler.service.leaving:
        _count_waste(scheduler, planned)
    if planned.plan.num_sampled:
        _take_drawn(scheduler, planned, result, corrupted, events)
    if planned.plan.num_prompt_scored:
        events.prompt_logprobs = _prompt_scores(scheduler, planned, result, corrupted)
    if scheduler.config.enable_prefix_caching:
        _publish(scheduler, planned, corrupted)
    if planned.completed:
        _complete_prompts(scheduler, planned, corrupted, events)
    if corrupted:
        _end_corrupted(scheduler, corrupted, events)
    if events.drawn is not None and np.count_nonzero(events.drawn.finish):
        _retire_finished(scheduler, events)
    if scheduler.service.leaving:
        scheduler.release_left()
    _take_told(scheduler, events)
    return events


def idle_events(scheduler: Scheduler) -> StepEvents:
    """Return what there is to tell when no step was applied: stamps, and requests that ended without one."""
    events = StepEvents()
    _take_told(scheduler, events)
    return events


def _take_told(scheduler: Scheduler, events: StepEvents) -> None:
    if scheduler.stamps:
        events.stamps, scheduler.stamps = scheduler.stamps, []
    if scheduler.ended:
        events.ended += scheduler.ended.values()
        scheduler.ended = {}
    if scheduler.usage:
        events.usage += scheduler.usage
        scheduler.usage = []


def _count_waste(scheduler: Scheduler, planned: Planned) -> None:
    plan = planned.plan
    deaf = ~scheduler.rows.listens[plan.row]
    if deaf.any():
        scheduler.counters.finished_row_tokens += int(np.diff(plan.query_start)[deaf].sum())


def _take_drawn(
    scheduler: Scheduler, planned: Planned, result: StepResult, corrupted: list[int], events: StepEvents
) -> None:
    """Store the drawn ids of all rows that still listen, and find out which requests they end."""
    r = scheduler.rows
    rows, ids, place = planned.plan.sample_row, result.sampled_ids, planned.place
    logprobs = result.logprobs
    if scheduler.service.leaving:  # only rows on their way out can have stopped to listen
        index = np.flatnonzero(r.listens[rows])
        if len(index) == 0:
            return
        rows, ids, place = rows[index], ids[index], place[index]
        logprobs = _take(logprobs, index) if logprobs is not None else None
    after = place + _ONE
    r.tokens[rows, place] = ids
    r.applied[rows] = after
    count = len(rows)
    drawn = DrawnRows(
        key=r.key[rows],
        token=ids,
        num_tokens=r.one_token[:count],
        finish=r.going_on[:count],
        stop_token=r.no_stop[:count],
        num_logprobs=r.num_logprobs[rows],
        logprobs=logprobs,
    )
    events.drawn = drawn
    full = after >= r.limit[rows]
    stopped = _stopped(r, rows, ids, place)
    if stopped is not None or corrupted or np.count_nonzero(full):
        _end_drawn(r, rows, drawn, full, stopped)
        if corrupted:
            _blank_corrupted(r, rows, drawn, np.isin(rows, corrupted))


def _end_drawn(r: Rows, rows: I32, drawn: DrawnRows, full: _Bool, stopped: _Bool | None) -> None:
    """Write which rows end with the token they drew, and how."""
    drawn.finish = np.zeros(len(rows), np.uint8)
    drawn.finish[full] = _length_finish(r, rows[full])
    if stopped is not None:
        drawn.finish[stopped] = FinishCode.STOP_TOKEN
        drawn.stop_token = np.where(stopped, drawn.token, np.int32(NO_STOP_TOKEN))


def _blank_corrupted(r: Rows, rows: I32, drawn: DrawnRows, bad: _Bool) -> None:
    """Take back what rows drew from logits that were not finite."""
    drawn.finish[bad] = FinishCode.CORRUPTED
    drawn.num_tokens = np.where(bad, 0, 1).astype(np.uint16)
    drawn.stop_token = np.where(bad, np.int32(NO_STOP_TOKEN), drawn.stop_token)
    r.applied[rows[bad]] -= 1


def _take(columns: LogprobColumns, index: NDArray[np.int64]) -> LogprobColumns:
    return LogprobColumns(columns.value[index], columns.rank[index], columns.top_ids[index], columns.top_values[index])


def _length_finish(r: Rows, rows: I32) -> list[FinishCode]:
    """Which of its two ends each row has reached; a request's own limit is named before the context's."""
    return [
        FinishCode.MAX_TOKENS
        if (request := r.request[row]) is not None and request.prompt_len + request.max_tokens <= r.max_model_len
        else FinishCode.CONTEXT_FULL
        for row in rows.tolist()
    ]


def _stopped(r: Rows, rows: I32, ids: I32, place: I32) -> _Bool | None:
    """bool[n]: whether an id is among its row's stop ids and may end it already; None if none is."""
    hit: _Bool | None = None
    for column in r.stop_ids[: r.num_stop]:
        same = column[rows] == ids
        hit = same if hit is None else hit | same
    for row, stop_ids in r.long_stop.items():
        if hit is None:
            hit = np.zeros(len(rows), bool)
        hit |= (rows == row) & np.isin(ids, stop_ids)
    if hit is None or np.count_nonzero(hit) == 0:
        return None
    return hit & (place - r.prompt_len[rows] >= r.min_tokens[rows])


def _prompt_scores(
    scheduler: Scheduler, planned: Planned, result: StepResult, corrupted: list[int]
) -> list[PromptLogprobs]:
    """Return the scored stretches of the prompts, by request."""
    plan = planned.plan
    columns = result.prompt_logprobs
    assert columns is not None, "the plan scored prompt tokens"
    tokens = plan.logit_token[plan.num_sampled :]
    plan_row = np.searchsorted(plan.query_start, tokens, side="right") - 1
    scores = []
    for i in np.unique(plan_row).tolist():
        row = int(plan.row[i])
        if not scheduler.rows.listens[row] or row in corrupted:
            continue
        request = scheduler.service.request_of(row)
        index = np.flatnonzero(plan_row == i)
        start = int(plan.positions[tokens[index[0]]]) + 1
        request.prompt_sent = start + len(index) - 1
        scores.append(
            PromptLogprobs(request.key, start, len(index), request.num_prompt_logprobs, _take(columns, index))
        )
    return scores


def _complete_prompts(scheduler: Scheduler, planned: Planned, corrupted: list[int], events: StepEvents) -> None:
    """Report prompts that this step completed, once in a request's life, and end those that draw nothing."""
    r = scheduler.rows
    for row in planned.completed:
        if not r.listens[row] or row in corrupted:
            continue
        request = scheduler.service.request_of(row)
        if not request.prefill_reported:
            request.prefill_reported = True
            cached = min(int(scheduler.blocks.num_hit[row]) * scheduler.limits.block_size, request.prompt_len)
            events.prefills.append(Prefill(request.key, request.prompt_len - cached, cached))
        if r.limit[row] <= r.prefill_end[row]:
            scheduler.end(request.key, _length_finish(r, np.array([row], np.int32))[0])


def _end_corrupted(scheduler: Scheduler, corrupted: list[int], events: StepEvents) -> None:
    drawn = set() if events.drawn is None else set(events.drawn.key.tolist())
    for row in corrupted:
        request = scheduler.service.request_of(row)
        scheduler.counters.num_corrupted += 1
        if request.key in drawn:
            events.details[request.key] = _NOT_FINITE
        else:
            events.ended.append(Ended(request.key, FinishCode.CORRUPTED, _NOT_FINITE))
            events.usage.append((request.key, request.num_recomputed))
            scheduler.service.end(row, scheduler.applied_step)


def _publish(scheduler: Scheduler, planned: Planned, corrupted: list[int]) -> None:
    """Make blocks that this step filled findable: their ids have all been applied."""
    blocks, r, plan = scheduler.blocks, scheduler.rows, planned.plan
    num_decodes = plan.num_rows - len(planned.chunks)
    inside = plan.context_len[:num_decodes] % blocks.block_size_array
    filled = [] if np.count_nonzero(inside) == num_decodes else np.flatnonzero(inside == 0).tolist()
    for i in [*filled, *range(num_decodes, plan.num_rows)]:
        row = int(plan.row[i])
        if r.listens[row] and row not in corrupted:
            blocks.publish(row, scheduler.service.request_of(row), r.tokens[row, : plan.context_len[i]])


def _retire_finished(scheduler: Scheduler, events: StepEvents) -> None:
    assert events.drawn is not None
    for key in events.drawn.key[events.drawn.finish != 0].tolist():
        row = scheduler.service.row_of[key]
        events.usage.append((key, scheduler.service.request_of(row).num_recomputed))
        scheduler.service.end(row, scheduler.applied_step)
