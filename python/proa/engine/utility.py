"""The methods a front end may call between steps (wire.md section 3). One the engine lacks is `NotSupported`."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from proa.errors import ErrorKind, FinishCode, ProaError
from proa.sched.scheduler import Pause, Scheduler
from proa.wire import Utility, UtilityReply

if TYPE_CHECKING:
    from proa.engine.core import EngineCore

_QUEUED, _PREFILL, _DECODE, _FINISHING = range(4)
_NOT_QUEUED = 255


def call_utility(core: EngineCore, call: Utility) -> UtilityReply:
    """Run a call and return its reply; a failed call fails alone."""
    method = METHODS.get(call.method)
    if method is None:
        return UtilityReply.failed(call.call_id, ErrorKind.NOT_SUPPORTED, f"this engine has no method {call.method}")
    try:
        return UtilityReply(call.call_id, method(core, call.args))
    except ProaError as error:
        return UtilityReply.failed(call.call_id, error.kind, error.message)


def _only(args: dict[str, Any], *names: str) -> None:
    """Nothing is accepted and ignored."""
    for name in args:
        if name not in names:
            raise ProaError(ErrorKind.UNKNOWN_FIELD, f"unknown argument {name}")


def _argument(args: dict[str, Any], name: str, default: Any) -> Any:
    value = args.get(name, default)
    if type(value) is not type(default):
        raise ProaError(ErrorKind.INVALID_TYPE, f"{name} must be a {type(default).__name__}")
    return value


def _pause(core: EngineCore, args: dict[str, Any]) -> bool:
    """Set the state (beam-search-and-pause.md section 5); that it is reached shows as `paused` in the stats."""
    _only(args, "mode", "clear_cache")
    mode = _argument(args, "mode", "abort")
    clears = _argument(args, "clear_cache", mode != "keep")
    scheduler = core.scheduler
    if mode not in ("abort", "wait", "keep"):
        raise ProaError(ErrorKind.INVALID_VALUE, "mode must be abort, wait or keep")
    if mode == "keep" and clears:
        raise ProaError(ErrorKind.INVALID_VALUE, "clear_cache does not go with mode keep: frozen requests hold blocks")
    if mode == "wait" and scheduler.pause is Pause.ALL:
        raise ProaError(ErrorKind.CONFLICT, "the engine is paused with mode keep", "already_active")
    scheduler.pause = Pause.ALL if mode == "keep" else Pause.NEW
    core.clears_cache = clears
    if mode == "abort":
        for key in scheduler.in_flight_keys():
            scheduler.end(key, FinishCode.PAUSED)
    return True


def _resume(core: EngineCore, args: dict[str, Any]) -> bool:
    _only(args)
    core.scheduler.pause = Pause.RUNNING
    core.clears_cache = False
    return True


def _is_paused(core: EngineCore, args: dict[str, Any]) -> bool:
    _only(args)
    return core.scheduler.pause is not Pause.RUNNING


def _reset_prefix_cache(core: EngineCore, args: dict[str, Any]) -> bool:
    """True if no block of before can be found again: nothing was held, or all who held one are computed again."""
    _only(args, "running", "external")
    running = _argument(args, "running", False)
    _argument(args, "external", False)  # there is no other tier: nothing of it is left either way
    if not running and core.scheduler.pool.num_held:
        return False
    core.scheduler.reset_cache()
    return True


def _block_audit(core: EngineCore, args: dict[str, Any]) -> dict[str, int]:
    _only(args)
    audit = core.scheduler.audit()
    return {"held": audit.held, "cached": audit.cached, "free": audit.free, "leaked": audit.leaked}


def _explain(core: EngineCore, args: dict[str, Any]) -> dict[str, bytes]:
    """Columns over the asked keys that are known: where each stands and why it waits."""
    _only(args, "keys")
    keys = _argument(args, "keys", b"")
    if len(keys) % 8:
        raise ProaError(ErrorKind.INVALID_VALUE, "keys must be u64 numbers")
    rows = [row for key in np.frombuffer(keys, "<u8").tolist() if (row := _standing(core.scheduler, key)) is not None]
    names = ("key", "state", "reason", "position", "cached", "computed", "blocks")
    types = ("<u8", "u1", "u1", "<u4", "<u4", "<u4", "<u4")
    return {
        name: np.array([row[i] for row in rows], dtype).tobytes()
        for i, (name, dtype) in enumerate(zip(names, types, strict=True))
    }


def _standing(scheduler: Scheduler, key: int) -> tuple[int, ...] | None:
    waiting = scheduler.waiting.get(key)
    if waiting is not None:
        return (key, _QUEUED, scheduler.waiting.cause_of(key), scheduler.waiting.place(waiting), 0, 0, 0)
    row = scheduler.service.row_of.get(key)
    if row is None:
        return None
    computed = int(scheduler.rows.computed[row])
    state = _PREFILL if computed < scheduler.rows.prefill_end[row] else _DECODE
    if not scheduler.service.has(row):
        state = _FINISHING
    num_cached = int(scheduler.blocks.num_hit[row]) * scheduler.limits.block_size
    return (key, state, _NOT_QUEUED, 0, num_cached, computed - num_cached, int(scheduler.blocks.num_blocks[row]))


def _get_settings(core: EngineCore, args: dict[str, Any]) -> dict[str, Any]:
    """No engine setting is live in this release."""
    _only(args)
    return {}


def _set_settings(core: EngineCore, args: dict[str, Any]) -> dict[str, Any]:
    for name in args:
        raise ProaError(ErrorKind.CONFLICT, f"{name} cannot change while the engine runs", "restart_required")
    return {}


METHODS: dict[str, Callable[[EngineCore, dict[str, Any]], Any]] = {
    "pause": _pause,
    "resume": _resume,
    "is_paused": _is_paused,
    "reset_prefix_cache": _reset_prefix_cache,
    "block_audit": _block_audit,
    "explain": _explain,
    "get_settings": _get_settings,
    "set_settings": _set_settings,
}
