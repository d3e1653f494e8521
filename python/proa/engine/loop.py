"""The engine's one loop: receive, plan and launch, then apply the step before and send.

Step N + 1 is planned and launched before step N's tokens are read; while a step runs the loop waits for it and for the
socket together. Nothing here waits blindly: every wait ends with a message, a finished step, or a time that is due.
"""

from __future__ import annotations

import gc

from proa.engine.core import EngineCore
from proa.engine.waiter import Waiter

#: Steps between two collections of the youngest garbage while the engine is busy.
_STEPS_BETWEEN_COLLECTIONS = 2048


def run(core: EngineCore) -> None:
    """Serve until the front end says Shutdown. Raises whatever a whole step raises."""
    waiter = Waiter(core.transport, core.executor.completion_fd)
    gc.collect()
    gc.freeze()  # what start-up made lives for ever: no collection looks at it again
    gc.disable()  # collections happen below, never in the middle of a step
    while True:
        core.receive()
        if core.has_ended:
            return
        if core.launch() and core.may_launch:
            continue  # one step runs: plan the next one at once
        timeout_ms = core.prepare_wait()
        if waiter.wait(timeout_ms):
            core.finish_step()
            _collect_garbage(core.num_applied)


def _collect_garbage(num_applied: int) -> None:
    if num_applied % _STEPS_BETWEEN_COLLECTIONS == 0:
        gc.collect(0)
