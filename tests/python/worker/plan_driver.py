"""A scheduler for tests: makes plans by hand for a list of prompts and collects what an executor draws.

One step ahead like the real one: ids drawn by a step feed the next one on the device. It frees and shares nothing.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

import numpy as np

from proa.executor.interface import Executor
from proa.sched.plan import HOST, LOGPROBS_NONE, PlanLimits, RowExtras, RowUpdates, StepPlan, StepResult
from proa.sched.plan_check import check_plan


@dataclass
class Ask:
    """One request. `known_output` ids of `prompt` count as output (resume after preemption)."""

    prompt: list[int]
    max_tokens: int
    temperature: float = 0.0
    top_p: float = 1.0
    min_p: float = 0.0
    top_k: int = 0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    min_tokens: int = 0
    stream_key: int = 0
    num_logprobs: int = LOGPROBS_NONE
    prompt_k: int = LOGPROBS_NONE
    known_output: int = 0
    extras: RowExtras | None = None

    @property
    def needs_history(self) -> bool:
        penalties = (self.presence_penalty, self.frequency_penalty, self.repetition_penalty)
        return penalties != (0.0, 0.0, 1.0) or (self.extras is not None and bool(self.extras.bad_words))


@dataclass
class Got:
    """What a request brought; the lists have one entry a token."""

    ids: list[int] = field(default_factory=list)
    nonfinite: list[int] = field(default_factory=list)
    values: list[float] = field(default_factory=list)
    ranks: list[int] = field(default_factory=list)
    top_ids: list[list[int]] = field(default_factory=list)
    top_values: list[list[float]] = field(default_factory=list)
    prompt_values: list[float] = field(default_factory=list)
    prompt_ranks: list[int] = field(default_factory=list)
    prompt_top_ids: list[list[int]] = field(default_factory=list)
    prompt_top_values: list[list[float]] = field(default_factory=list)


@dataclass
class _Row:
    ask: Ask
    got: Got
    computed: int = 0
    drawn: int = 0

    @property
    def known(self) -> int:
        return len(self.ask.prompt)

    @property
    def is_done(self) -> bool:
        return self.drawn == self.ask.max_tokens


class Driver:
    """Runs requests through an executor, `chunk` prompt tokens at most at a time; request i is the executor's row i."""

    def __init__(self, executor: Executor, limits: PlanLimits, chunk: int = 1 << 20) -> None:
        self.executor, self.limits, self.chunk = executor, limits, chunk
        self._step = 0
        self._previous: StepPlan | None = None
        self._free_block = 0

    def generate(self, asks: list[Ask], shuffled: np.random.Generator | None = None) -> list[Got]:
        """Return what each request got. `shuffled` draws which physical blocks rows get."""
        rows = [_Row(ask, Got()) for ask in asks]
        size = self.limits.block_size
        order = np.arange(self.limits.num_blocks) if shuffled is None else shuffled.permutation(self.limits.num_blocks)
        needed = [-(-(row.known + row.ask.max_tokens) // size) for row in rows]
        assert sum(needed) <= self.limits.num_blocks
        edges = np.concatenate([[0], np.cumsum(needed)])
        self.blocks = [order[edges[i] : edges[i + 1]].astype(np.int32) for i in range(len(rows))]
        self._named = [0] * len(rows)
        filled: set[int] = set()
        in_flight: deque[tuple[StepPlan, list[tuple[int, int]], object]] = deque()
        while True:
            plan = self._plan(rows, filled)
            if plan is not None:
                check_plan(plan, self.limits, self._previous)
                self._previous = plan
                in_flight.append((plan, [], self.executor.submit(plan)))
            if in_flight and (plan is None or len(in_flight) == 2):
                done, _, ticket = in_flight.popleft()
                self._take(done, self.executor.collect(ticket), rows)
            elif plan is None:
                return [row.got for row in rows]

    def _plan(self, rows: list[_Row], filled: set[int]) -> StepPlan | None:
        c: dict[str, list] = {name: [] for name in _COLUMNS}
        scored: list[tuple[int, int, int]] = []
        budget = self.limits.max_num_batched_tokens
        previous = {} if self._previous is None else {r: i for i, r in enumerate(self._previous.sample_row.tolist())}
        fresh = []
        for index, row in enumerate(rows):
            if row.is_done or not budget or len(c["row"]) == self.limits.max_num_seqs:
                continue
            start = row.computed
            count = min(row.known - start, self.chunk, budget) if start < row.known else 1
            budget -= count
            if index not in filled:
                filled.add(index)
                fresh.append(index)
            self._add_row(c, scored, (index, row, start, count), previous)
        if not c["row"]:
            return None
        self._step += 1
        updates = _updates(fresh, [rows[i].ask for i in fresh]) if fresh else None
        logit = c.pop("logit_token") + [token for token, _, _ in scored]
        arrays = {name: np.array(column, np.int32) for name, column in c.items()}
        arrays["query_start"] = np.array([0, *np.cumsum(arrays.pop("count"))], np.int32)
        arrays["slot_mapping"] = np.array(c["slot"], np.int64)[None]
        del arrays["slot"]
        return StepPlan(
            step=self._step,
            **arrays,
            table_group=np.zeros(len(c["table_row"]), np.int32),
            logit_token=np.array(logit, np.int32),
            prompt_target=np.array([target for _, target, _ in scored], np.int32),
            prompt_k=np.array([k for _, _, k in scored], np.int32),
            updates=updates,
            want_logprobs=any(rows[r].ask.num_logprobs != LOGPROBS_NONE for r in c["sample_row"]),
        )

    def _add_row(self, c: dict, scored: list, what: tuple[int, _Row, int, int], previous: dict[int, int]) -> None:
        index, row, start, count = what
        size, ask = self.limits.block_size, row.ask
        first_token = len(c["token_ids"])
        end = start + count
        for position in range(start, end):
            block = position // size
            if block >= self._named[index]:
                self._named[index] = block + 1
                c["table_row"].append(index)
                c["table_index"].append(block)
                c["table_block"].append(self.blocks[index][block])
            host = position < row.known
            known = ask.prompt[position] if host else 0
            if not host and position - row.known < len(row.got.ids):
                known, host = row.got.ids[position - row.known], True
            c["token_ids"].append(known)
            c["token_source"].append(HOST if host else previous[index])
            c["positions"].append(position)
            c["slot"].append(int(self.blocks[index][block]) * size + position % size)
            if ask.prompt_k != LOGPROBS_NONE and position + 1 < row.known:
                scored.append((first_token + position - start, ask.prompt[position + 1], ask.prompt_k))
        c["row"].append(index)
        c["count"].append(count)
        c["context_len"].append(end)
        row.computed = end
        if end >= row.known:
            c["logit_token"].append(first_token + count - 1)
            c["sample_row"].append(index)
            c["sample_position"].append(end - row.known + ask.known_output)
            row.drawn += 1

    def _take(self, plan: StepPlan, result: StepResult, rows: list[_Row]) -> None:
        assert result.step == plan.step
        for i, index in enumerate(plan.sample_row.tolist()):
            got = rows[index].got
            got.ids.append(int(result.sampled_ids[i]))
            got.nonfinite.append(int(result.nonfinite[i]))
            k = rows[index].ask.num_logprobs
            if k != LOGPROBS_NONE:
                assert result.logprobs is not None
                got.values.append(float(result.logprobs.value[i]))
                got.ranks.append(int(result.logprobs.rank[i]))
                got.top_ids.append(result.logprobs.top_ids[i][:k].tolist())
                got.top_values.append(result.logprobs.top_values[i][:k].tolist())
        token_row = np.repeat(plan.row, np.diff(plan.query_start))
        for q, token in enumerate(plan.logit_token[plan.num_sampled :]):
            got, columns = rows[token_row[token]].got, result.prompt_logprobs
            assert columns is not None
            got.prompt_values.append(float(columns.value[q]))
            got.prompt_ranks.append(int(columns.rank[q]))
            got.prompt_top_ids.append(columns.top_ids[q][: plan.prompt_k[q]].tolist())
            got.prompt_top_values.append(columns.top_values[q][: plan.prompt_k[q]].tolist())


_COLUMNS = (
    "row",
    "count",
    "context_len",
    "token_ids",
    "token_source",
    "positions",
    "slot",
    "table_row",
    "table_index",
    "table_block",
    "logit_token",
    "sample_row",
    "sample_position",
)


def _updates(rows: list[int], asks: list[Ask]) -> RowUpdates:
    history = [ask.prompt if ask.needs_history else [] for ask in asks]

    def column(name: str, dtype: type) -> np.ndarray:
        return np.array([getattr(ask, name) for ask in asks], dtype)

    return RowUpdates(
        row=np.array(rows, np.int32),
        **{name: column(name, np.float32) for name in ("temperature", "top_p", "min_p")},
        **{
            name: column(f"{name}", np.float32)
            for name in ("presence_penalty", "frequency_penalty", "repetition_penalty")
        },
        **{name: column(name, np.int32) for name in ("top_k", "min_tokens", "num_logprobs")},
        stream_key=column("stream_key", np.uint64),
        history_start=np.array([0, *np.cumsum([len(ids) for ids in history])], np.int32),
        history_ids=np.array([i for ids in history for i in ids], np.int32),
        history_prompt_len=np.array([len(ask.prompt) - ask.known_output for ask in asks], np.int32),
        extras=[ask.extras for ask in asks],
    )
