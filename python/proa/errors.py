"""Errors of the closed list, as the engine raises them and as they cross the wire.

Owns the exception class and the look-ups on the generated tables. Knows no HTTP beyond the status
number of a kind, and never carries prompt text, keys, paths or addresses in a message.
"""

from __future__ import annotations

from proa import _tables
from proa._tables import AbortCause, ErrorKind, FailureKind, FinishCode

__all__ = [
    "AbortCause",
    "EngineStartError",
    "ErrorKind",
    "FailureKind",
    "FinishCode",
    "ProaError",
    "codes_of",
    "finish_error",
    "status_of",
]

_STATUS = {kind: status for kind, status, _, _ in _tables.ERRORS}
_CODES = {kind: codes for kind, _, _, codes in _tables.ERRORS}
_FINISH_ERROR = {
    FinishCode(code): (ErrorKind(error), error_code)
    for code, _, _, error, error_code in _tables.FINISH
    if error is not None and error_code is not None
}


def status_of(kind: ErrorKind) -> int:
    """The one HTTP status of `kind`."""
    return _STATUS[kind.value]


def codes_of(kind: ErrorKind) -> tuple[str, ...]:
    """The values `error.code` may take for `kind`; the first is the default."""
    return _CODES[kind.value]


def finish_error(finish: FinishCode) -> tuple[ErrorKind, str] | None:
    """Kind and code of the reply when a row ends with `finish`; None when that is no failure."""
    return _FINISH_ERROR.get(finish)


class ProaError(Exception):
    """An error of the closed list.

    Args:
        kind: decides the status.
        message: one or two sentences for people.
        code: one of `codes_of(kind)`; None = the kind's default.

    Raises:
        ValueError: `code` is no code of `kind`.
    """

    def __init__(self, kind: ErrorKind, message: str, code: str | None = None) -> None:
        codes = codes_of(kind)
        if code is not None and code not in codes:
            raise ValueError(f"{code} is no code of {kind.value}")
        super().__init__(message)
        self.kind = kind
        self.code = code if code is not None else codes[0]
        self.message = message

    @property
    def status(self) -> int:
        """The HTTP status of the error's kind."""
        return status_of(self.kind)


class EngineStartError(Exception):
    """The engine cannot start; the process reports `EngineFailed` of this kind and exits.

    Args:
        kind: one of the `START_*` kinds.
        cause: one line naming the fact that forbids the start.
    """

    def __init__(self, kind: FailureKind, cause: str) -> None:
        super().__init__(cause)
        self.kind = kind
        self.cause = cause
