"""A row that cannot become a request harms only itself."""

from __future__ import annotations

import pytest
from front_end import VOCAB, ask, make_add

from proa.engine import intake
from proa.engine.intake import IntakeLimits, to_requests
from proa.errors import ErrorKind, FinishCode, finish_error
from proa.sched.plan import PlanLimits

LIMITS = IntakeLimits(PlanLimits(8, 64, 256, 64, 16, VOCAB), 20, False)


def test_a_request_there_is_no_memory_for_ends_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    make = intake._request

    def starved(add: object, row: int, *others: object) -> object:
        if row == 1:
            raise MemoryError
        return make(add, row, *others)  # type: ignore[arg-type]

    monkeypatch.setattr(intake, "_request", starved)
    requests, refused = to_requests(make_add(ask(1, [1]), ask(2, [2]), ask(3, [3])), LIMITS, 0)
    assert [request.key for request in requests] == [1, 3]
    assert [(refusal.key, refusal.finish) for refusal in refused] == [(2, FinishCode.OUT_OF_MEMORY)]
    assert finish_error(refused[0].finish) == (ErrorKind("OutOfMemory"), "out_of_memory")


def test_a_key_of_zero_has_nobody_to_answer() -> None:
    requests, refused = to_requests(make_add(ask(0, [1]), ask(2, [VOCAB])), LIMITS, 0)
    assert requests == [] and [refusal.key for refusal in refused] == [2]
