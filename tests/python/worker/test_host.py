"""Cores and memory as the kernel's files of either cgroup version say."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from proa.worker.host import available_bytes, num_cores

ALLOWED = len(os.sched_getaffinity(0))


def write(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


@pytest.mark.parametrize(
    ("files", "cores"),
    [
        ({}, ALLOWED),
        ({"cpu.max": "max 100000\n"}, ALLOWED),
        ({"cpu.max": "50000 100000\n"}, 1),
        ({"cpu.max": "100000000 100000\n"}, ALLOWED),
        ({"cpu/cpu.cfs_quota_us": "-1\n", "cpu/cpu.cfs_period_us": "100000\n"}, ALLOWED),
        ({"cpu/cpu.cfs_quota_us": "100000\n", "cpu/cpu.cfs_period_us": "100000\n"}, 1),
    ],
)
def test_cores(files: dict[str, str], cores: int, tmp_path: Path) -> None:
    assert num_cores(write(tmp_path, files)) == cores


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({}, 1000 * 1024),
        ({"memory.max": "max\n", "memory.current": "5\n"}, 1000 * 1024),
        ({"memory.max": "9000\n", "memory.current": "5000\n"}, 4000),
        ({"memory.max": "9000\n", "memory.current": "9500\n"}, 0),
        ({"memory/memory.limit_in_bytes": "8000\n", "memory/memory.usage_in_bytes": "1000\n"}, 7000),
    ],
)
def test_memory(files: dict[str, str], expected: int, tmp_path: Path) -> None:
    root = write(tmp_path, files | {"meminfo": "MemTotal: 2000 kB\nMemAvailable:    1000 kB\n"})
    assert available_bytes(root, root) == expected
