"""The loop around an executor whose steps end when the test says so."""

from __future__ import annotations

import json
import threading
from collections import deque
from collections.abc import Iterator

import pytest
from front_end import VOCAB, FrontEnd, ask, expected_tokens

from proa.config.engine_config import parse
from proa.engine import bootstrap
from proa.engine.start import Start
from proa.errors import FinishCode
from proa.executor.interface import StartFailed, StepFailed, Ticket
from proa.executor.null import NullExecutor
from proa.sched.plan import PlanLimits, StepPlan, StepResult
from proa.wire import Shutdown, ShutdownMode


class GatedExecutor(NullExecutor):
    """Keeps each step running until `let_go`."""

    def __init__(self) -> None:
        super().__init__(PlanLimits(8, 64, 256, 64, 16, VOCAB))
        self.held: deque[StepPlan] = deque()
        self.fails = False
        self.is_open = False
        self._lock = threading.Lock()

    def submit(self, plan: StepPlan) -> Ticket:
        with self._lock:
            assert len(self.held) < 2, "at most two steps are outstanding"
            if not self.is_open:
                self.held.append(plan)
                return Ticket(plan.step)
        return super().submit(plan)

    def let_go(self, count: int = 1) -> None:
        """End the oldest `count` steps."""
        with self._lock:
            for _ in range(count):
                super().submit(self.held.popleft())

    def open(self) -> None:
        """End all steps, now and from now on."""
        with self._lock:
            self.is_open = True
            while self.held:
                super().submit(self.held.popleft())

    def collect(self, ticket: Ticket) -> StepResult:
        result = super().collect(ticket)
        if self.fails:
            raise StepFailed("the device said no")
        return result


class Running:
    """An engine in a thread of the test's process."""

    def __init__(self, front: FrontEnd, executor: GatedExecutor, heartbeat_ms: int) -> None:
        self.executor = executor
        self.code: int | None = None
        config = parse(json.dumps(front.document(parent_pid=0)))
        self.thread = threading.Thread(target=self._run, args=(config,))
        self.thread.start()
        front.shake_hands(heartbeat_ms)

    def _run(self, config: object) -> None:
        start = Start(config)  # type: ignore[arg-type]
        try:
            self.code = bootstrap._serve(start)
        except RuntimeError:
            self.code = 1
        finally:
            start.transport.close()


@pytest.fixture
def front() -> Iterator[FrontEnd]:
    with FrontEnd() as made:
        yield made


@pytest.fixture
def gated(monkeypatch: pytest.MonkeyPatch) -> GatedExecutor:
    executor = GatedExecutor()
    monkeypatch.setattr(bootstrap, "make_executor", lambda config: executor)
    return executor


def stop(front: FrontEnd, running: Running) -> None:
    running.executor.open()
    front.send(Shutdown(ShutdownMode.NOW, 1000))
    running.thread.join(20)
    assert running.code == 0


def test_one_step_is_planned_while_another_runs(front: FrontEnd, gated: GatedExecutor) -> None:
    running = Running(front, gated, 1000)
    front.add(ask(1, [1], 5), ask(2, [2], 1))
    front.until(lambda: front.call("is_paused").value is False and len(gated.held) == 2)
    first, second = gated.held
    assert first.num_rows == 2 and second.num_rows == 1, "no surplus row for a request whose last token is drawn"
    assert second.token_source.tolist() == [0] and second.step == first.step + 1
    gated.let_go()
    front.await_finish(2)
    gated.open()
    front.await_finish(1)
    assert front.told[1].tokens == expected_tokens(1, 5)
    stop(front, running)


def test_a_running_step_shows_its_age_in_heartbeats(front: FrontEnd, gated: GatedExecutor) -> None:
    running = Running(front, gated, 10)
    front.add(ask(1, [1], 5))
    front.until(lambda: front.stats is not None and front.stats.step_age_ms > 30)
    assert front.told[1].tokens == []
    gated.open()
    front.await_finish(1)
    front.until(lambda: front.stats is not None and front.stats.step_age_ms == 0)
    stop(front, running)


def test_ends_are_told_while_a_step_runs(front: FrontEnd, gated: GatedExecutor) -> None:
    running = Running(front, gated, 60_000)
    front.add(ask(1, [1], 50))
    front.until(lambda: front.call("is_paused").value is False and len(gated.held) == 2)
    front.add(ask(2, [2], 5, deadline_ms=20), ask(3, [1] * 20, 2, num_logprobs=99))
    front.await_finish(2, 3)
    assert front.told[2].finish == FinishCode.DEADLINE and front.told[3].finish == FinishCode.REFUSED
    assert front.told[1].tokens == []
    stop(front, running)


def test_an_abort_during_a_step_wastes_its_rows_only(front: FrontEnd, gated: GatedExecutor) -> None:
    running = Running(front, gated, 20)
    front.add(ask(1, [1] * 20, 50), ask(2, [2] * 20, 5))
    front.until(lambda: front.call("is_paused").value is False and len(gated.held) == 2)
    front.abort(1)
    assert front.call("block_audit").value["held"] == 4, "blocks of a running step are not given back"
    gated.let_go(2)
    front.until(lambda: front.stats is not None and front.stats.finished_row_tokens > 0)
    gated.open()
    front.await_finish(2)
    front.await_idle()
    assert front.told[1].tokens == [] and front.told[1].finish is None
    assert front.told[2].tokens == expected_tokens(2, 5)
    assert front.call("block_audit").value["leaked"] == 0
    stop(front, running)


def test_a_failed_step_names_its_requests(front: FrontEnd, gated: GatedExecutor) -> None:
    running = Running(front, gated, 1000)
    gated.fails = True
    front.add(ask(11, [1], 50), ask(12, [2], 50))
    front.until(lambda: front.call("is_paused").value is False and len(gated.held) == 2)
    gated.open()
    front.until(lambda: front.failed is not None)
    assert front.failed is not None
    assert (front.failed.kind.value, front.failed.cause) == ("step_failed", "the device said no")
    assert front.failed.request_key.tolist() == [11, 12] and "StepFailed" in front.failed.traceback
    running.thread.join(20)
    assert running.code == 1


@pytest.mark.parametrize(
    ("error", "kind", "code"),
    [
        (StartFailed("start_weights", "a tensor is missing"), "start_weights", 1),
        (StartFailed("start_config", "no such dtype"), "start_config", 2),
        (MemoryError(), "start_memory", 1),
        (RuntimeError("bug"), "internal", 1),
    ],
)
def test_a_start_that_fails_says_why(
    front: FrontEnd, monkeypatch: pytest.MonkeyPatch, error: Exception, kind: str, code: int
) -> None:
    def fail(config: object) -> None:
        raise error

    monkeypatch.setattr(bootstrap, "make_executor", fail)
    ended: list[int] = []

    def serve() -> None:
        start = Start(parse(json.dumps(front.document(parent_pid=0))))
        try:
            ended.append(bootstrap._serve(start))
        except (RuntimeError, MemoryError):
            ended.append(1)
        finally:
            start.transport.close()

    thread = threading.Thread(target=serve)
    thread.start()
    front.await_knock()
    front.send_hello()
    front.until(lambda: front.failed is not None)
    thread.join(20)
    assert front.failed is not None and front.failed.kind.value == kind and ended == [code]
