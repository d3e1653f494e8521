"""Every `PROA_*` environment variable that the Python side reads. Nothing else in the package reads one.

The front end has a registry of its own (`rust/cli/src/environment.rs`) and refuses unknown names at start; the engine
inherits its environment.
"""

from __future__ import annotations

import os

#: Name -> (default, meaning).
REGISTRY: dict[str, tuple[str, str]] = {
    "PROA_LOG_LEVEL": ("info", "least severity of the engine's log lines on stderr: debug, info, warning, error"),
}


def read(name: str) -> str:
    """Return the value of a registered variable, or its default when it is unset. Raises `KeyError` for others."""
    return os.environ.get(name, REGISTRY[name][0])
