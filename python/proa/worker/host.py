"""What this process may use of its machine: cores and memory, by affinity and by cgroup (versions 1 and 2).

Owns the paths of the kernel's files. A file that is absent or says `max` sets no limit.
"""

from __future__ import annotations

import math
import os
from pathlib import Path

_PROC = Path("/proc")
_CGROUP = Path("/sys/fs/cgroup")


def num_cores(cgroup: Path = _CGROUP) -> int:
    """Return the cores the process may run on: its affinity, or its cgroup's share of time where that is less."""
    allowed = len(os.sched_getaffinity(0))
    quota, period = (_words(cgroup / "cpu.max") + ["", ""])[:2]
    if not quota:
        quota = "".join(_words(cgroup / "cpu/cpu.cfs_quota_us"))
        period = "".join(_words(cgroup / "cpu/cpu.cfs_period_us"))
    if quota.isdigit() and period.isdigit() and int(period):  # version 1 says -1 for no limit
        allowed = min(allowed, max(1, math.ceil(int(quota) / int(period))))
    return allowed


def available_bytes(cgroup: Path = _CGROUP, proc: Path = _PROC) -> int:
    """Return the memory the process may still take: the machine's, or its cgroup's where that is less."""
    facts = dict(line.split(":", 1) for line in (proc / "meminfo").read_text().splitlines())
    available = int(facts["MemAvailable"].split()[0]) * 1024
    for limit, used in (
        ("memory.max", "memory.current"),
        ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes"),
    ):
        most, taken = "".join(_words(cgroup / limit)), "".join(_words(cgroup / used))
        if most.isdigit() and taken.isdigit():
            available = min(available, max(0, int(most) - int(taken)))
    return available


def _words(path: Path) -> list[str]:
    return path.read_text().split() if path.is_file() else []
