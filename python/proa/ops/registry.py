"""Chooses an implementation for each op from facts, and says why.

Owns the choice and its words. Does not know what an implementation does. An explicit choice that does not fit ends the
start; nothing is replaced quietly.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from proa.executor.interface import KernelChoice, StartFailed


@dataclass(frozen=True, slots=True)
class Facts:
    """What choices are made from.

    Attributes:
        device: `cpu` or `cuda`.
        dtype, cache_dtype: of activations, and of K and V.
        head_dim: width of a head.
        capability: compute capability of a CUDA device, else None.
    """

    device: str
    dtype: str
    cache_dtype: str
    head_dim: int
    capability: tuple[int, int] | None = None


def _fits_everywhere(facts: Facts) -> str | None:
    return None


@dataclass(frozen=True, slots=True)
class Implementation:
    """One way to run an op.

    Attributes:
        name: as in `--kernel OP=NAME`.
        function: what is called.
        reason: why it is taken where it fits.
        refuses: returns the fact that forbids it, or None.
    """

    name: str
    function: Callable[..., Any]
    reason: str
    refuses: Callable[[Facts], str | None] = _fits_everywhere


def choose(
    table: Mapping[str, Sequence[Implementation]], facts: Facts, forced: Mapping[str, str]
) -> tuple[dict[str, Callable[..., Any]], tuple[KernelChoice, ...]]:
    """Return the function of every op, and the lines of the start-up report.

    Args:
        table: implementations by op, the preferred first.
        facts: of this start.
        forced: op -> name, from `--kernel`.

    Raises:
        StartFailed: start_config, for an unknown op or name, or a forced one that does not fit.
    """
    unknown = sorted(set(forced) - set(table))
    if unknown:
        raise StartFailed("start_config", f"--kernel: no op {unknown[0]!r}; there are {', '.join(sorted(table))}")
    functions, choices = {}, []
    for op, candidates in table.items():
        chosen, reason = _forced(op, candidates, facts, forced[op]) if op in forced else _first_fit(candidates, facts)
        functions[op] = chosen.function
        choices.append(KernelChoice(op, chosen.name, reason))
    return functions, tuple(choices)


def _forced(op: str, candidates: Sequence[Implementation], facts: Facts, name: str) -> tuple[Implementation, str]:
    for candidate in candidates:
        if candidate.name == name:
            fact = candidate.refuses(facts)
            if fact is not None:
                raise StartFailed("start_config", f"--kernel {op}={name} does not fit: {fact}")
            return candidate, f"forced by --kernel {op}={name}"
    names = ", ".join(candidate.name for candidate in candidates)
    raise StartFailed("start_config", f"--kernel {op}={name}: no such implementation; there are {names}")


def _first_fit(candidates: Sequence[Implementation], facts: Facts) -> tuple[Implementation, str]:
    passed: list[str] = []
    for candidate in candidates:
        fact = candidate.refuses(facts)
        if fact is None:
            return candidate, "; ".join([candidate.reason, *passed])
        passed.append(f"not {candidate.name}: {fact}")
    raise AssertionError("every op has an implementation that fits everywhere")
