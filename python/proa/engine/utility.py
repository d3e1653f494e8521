"""The methods a front end may call between steps (wire.md section 3). One the engine lacks is `NotSupported`."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from proa.errors import ErrorKind, FinishCode, ProaError
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


def _argument(args: dict[str, Any], name: str, kind: type) -> Any:
    value = args.get(name)
    if not isinstance(value, kind):
        raise ProaError(ErrorKind.INVALID_TYPE, f"{name} must be a {kind.__name__}")
    return value


def _pause(core: EngineCore, args: dict[str, Any]) -> bool:
    mode = _argument(args, "mode", str)
    clear_cache = _argument(args, "clear_cache", bool)
    if mode not in ("abort", "wait", "keep"):
        raise ProaError(ErrorKind.INVALID_VALUE, f"pause mode {mode!r}; known: abort, wait, keep")
    scheduler = core.scheduler
    if mode == "abort":
        for key in list(scheduler.row_of):
            scheduler.end(key, FinishCode.PAUSED)
    scheduler.admits = False
    scheduler.frozen = mode == "keep"
    if clear_cache:
        scheduler.pool.reset_cache()
    return True


def _resume(core: EngineCore, args: dict[str, Any]) -> bool:
    core.scheduler.admits = True
    core.scheduler.frozen = False
    return True


def _is_paused(core: EngineCore, args: dict[str, Any]) -> bool:
    return not core.scheduler.admits or core.scheduler.frozen


def _reset_prefix_cache(core: EngineCore, args: dict[str, Any]) -> bool:
    """True if nothing was held, so that no block of before can be found again."""
    idle = core.scheduler.pool.num_held == 0
    if idle:
        core.scheduler.pool.reset_cache()
    return idle


def _block_audit(core: EngineCore, args: dict[str, Any]) -> dict[str, int]:
    audit = core.scheduler.audit()
    return {"held": audit.held, "cached": audit.cached, "free": audit.free, "leaked": audit.leaked}


def _explain(core: EngineCore, args: dict[str, Any]) -> dict[str, bytes]:
    """Columns over the asked keys that are known: where each stands and why it waits."""
    wanted = np.frombuffer(_argument(args, "keys", bytes), "<u8").tolist()
    scheduler = core.scheduler
    place = {request.key: index for index, request in enumerate(scheduler.waiting.in_order())}
    rows: list[tuple[int, ...]] = []
    for key in wanted:
        if key in scheduler.row_of:
            row = scheduler.row_of[key]
            r = scheduler.rows
            prompt = bool(r.prefill_end[row])
            state = _FINISHING if scheduler.is_leaving(row) else _PREFILL if prompt else _DECODE
            rows.append(
                (key, state, _NOT_QUEUED, 0, int(r.cached_tokens[row]), int(r.computed[row]), int(r.num_blocks[row]))
            )
        elif key in place:
            cause = scheduler.cause_of.get(key, scheduler.head_cause or 0)
            rows.append((key, _QUEUED, int(cause), place[key], 0, 0, 0))
    names = ("key", "state", "reason", "position", "cached", "computed", "blocks")
    types = ("<u8", "u1", "u1", "<u4", "<u4", "<u4", "<u4")
    return {
        name: np.array([row[i] for row in rows], dtype).tobytes()
        for i, (name, dtype) in enumerate(zip(names, types, strict=True))
    }


def _get_settings(core: EngineCore, args: dict[str, Any]) -> dict[str, Any]:
    """No engine setting is live in this release."""
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
