"""The plan checker: proves that a `StepPlan` keeps every rule of `sched/plan.py`.

Tests check every plan the scheduler makes; `--debug-kernels` checks them in a running engine. It costs some tens of
microseconds a step and is off otherwise.
"""

from __future__ import annotations

import numpy as np

from proa.sched.plan import HOST, LOGPROBS_VOCABULARY, PLAN_DTYPES, PlanLimits, StepPlan


class PlanError(ValueError):
    """A plan broke a rule; the message names the column and the rule."""


def check_plan(plan: StepPlan, limits: PlanLimits, previous: StepPlan | None) -> None:
    """Raise `PlanError` unless `plan` is well formed.

    Args:
        plan: the plan to be submitted.
        limits: what the executor has allocated.
        previous: the plan submitted before it, None for the first; `token_source` refers to its sampled rows.
    """
    _check_types(plan)
    _check_rows(plan, limits)
    _check_tokens(plan, limits, previous)
    _check_tables(plan, limits)
    _check_logits(plan, limits)


def _require(holds: bool | np.bool_, rule: str) -> None:
    if not holds:
        raise PlanError(rule)


def _within(column: np.ndarray, low: int, high: int, name: str) -> None:
    _require(len(column) == 0 or (column.min() >= low and column.max() < high), f"{name}: outside {low}..{high - 1}")


def _check_types(plan: StepPlan) -> None:
    for name, dtype in PLAN_DTYPES.items():
        column = getattr(plan, name)
        _require(column.dtype == dtype, f"{name}: dtype {column.dtype}, not {dtype}")
        _require(column.flags.c_contiguous, f"{name}: not contiguous")


def _check_rows(plan: StepPlan, limits: PlanLimits) -> None:
    num_rows = plan.num_rows
    _require(len(plan.query_start) == num_rows + 1, "query_start: length is not R + 1")
    _require(len(plan.context_len) == num_rows, "context_len: length is not R")
    _require(len(np.unique(plan.row)) == num_rows, "row: a row stands twice")
    _within(plan.row, 0, limits.max_num_seqs, "row")
    _require(plan.query_start[0] == 0 and plan.query_start[-1] == plan.num_tokens, "query_start: does not span T")
    _require(bool((np.diff(plan.query_start) > 0).all()), "query_start: a row without tokens")
    _within(plan.context_len, 1, limits.max_model_len + 1, "context_len")


def _check_tokens(plan: StepPlan, limits: PlanLimits, previous: StepPlan | None) -> None:
    num_tokens = plan.num_tokens
    _require(num_tokens <= limits.max_num_batched_tokens, f"T: {num_tokens} above {limits.max_num_batched_tokens}")
    for name in ("token_source", "positions"):
        _require(len(getattr(plan, name)) == num_tokens, f"{name}: length is not T")
    _require(plan.slot_mapping.shape == (limits.num_groups, num_tokens), "slot_mapping: shape is not [G, T]")
    _within(plan.slot_mapping.reshape(-1), 0, limits.num_blocks * limits.block_size, "slot_mapping")
    for group_slots in plan.slot_mapping:
        _require(len(np.unique(group_slots)) == num_tokens, "slot_mapping: a slot is written twice")
    _within(plan.token_ids, 0, limits.vocab_size, "token_ids")
    num_previous = previous.num_sampled if previous is not None else 0
    _within(plan.token_source, HOST, num_previous, "token_source")
    if previous is not None:
        _require(plan.step == previous.step + 1, "step: not the one after the previous")
        _check_carried_rows(plan, previous)
    lengths = np.diff(plan.query_start)
    first = np.repeat(plan.context_len - lengths, lengths)
    offset = np.arange(num_tokens) - np.repeat(plan.query_start[:-1], lengths)
    _require(np.array_equal(plan.positions, first + offset), "positions: not the last ones of context_len")


def _check_carried_rows(plan: StepPlan, previous: StepPlan) -> None:
    carried = plan.token_source != HOST
    token_row = np.repeat(plan.row, np.diff(plan.query_start))
    same = previous.sample_row[plan.token_source[carried]] == token_row[carried]
    _require(bool(same.all()), "token_source: an id of another row")


def _check_tables(plan: StepPlan, limits: PlanLimits) -> None:
    count = len(plan.table_block)
    for name in ("table_group", "table_row", "table_index"):
        _require(len(getattr(plan, name)) == count, f"{name}: length is not D")
    blocks_per_row = -(-limits.max_model_len // limits.block_size)
    _within(plan.table_group, 0, limits.num_groups, "table_group")
    _within(plan.table_row, 0, limits.max_num_seqs, "table_row")
    _within(plan.table_index, 0, blocks_per_row, "table_index")
    _within(plan.table_block, 0, limits.num_blocks, "table_block")


def _check_logits(plan: StepPlan, limits: PlanLimits) -> None:
    num_sampled, num_scored = plan.num_sampled, plan.num_prompt_scored
    _require(len(plan.logit_token) == num_sampled + num_scored, "logit_token: length is not S + Q")
    _require(len(plan.sample_position) == num_sampled, "sample_position: length is not S")
    _require(len(plan.prompt_k) == num_scored, "prompt_k: length is not Q")
    _within(plan.logit_token, 0, plan.num_tokens, "logit_token")
    token_row = np.repeat(plan.row, np.diff(plan.query_start))
    _require(np.array_equal(token_row[plan.logit_token[:num_sampled]], plan.sample_row), "sample_row: of another token")
    _within(plan.sample_position, 0, limits.max_model_len, "sample_position")
    _within(plan.prompt_target, 0, limits.vocab_size, "prompt_target")
    _within(plan.prompt_k, LOGPROBS_VOCABULARY, limits.vocab_size + 1, "prompt_k")
    if plan.updates is not None:
        updates = plan.updates
        _within(updates.row, 0, limits.max_num_seqs, "updates.row")
        _require(len(updates.extras) == len(updates.row), "updates.extras: length is not A")
        _require(len(updates.history_start) == len(updates.row) + 1, "updates.history_start: length is not A + 1")
        _require(updates.history_start[-1] == len(updates.history_ids), "updates.history_ids: not spanned")
