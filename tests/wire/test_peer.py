"""Both languages on the same messages: what one writes the other reads, and both refuse the same damage.

The Rust side is the example `wire_peer` of the crate, built here. PROA_TEST_WIRE_MESSAGES sets the number of messages.
"""

from __future__ import annotations

import io
import os
import struct
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from random_messages import RandomMessages

from proa import wire

ROOT = Path(__file__).resolve().parents[2]
COUNT = int(os.environ.get("PROA_TEST_WIRE_MESSAGES", "10000"))
DIRECTIONS = (wire.Direction.FROM_FRONT_END, wire.Direction.FROM_ENGINE)
VERDICTS = {2: wire.Reason.KIND, 3: wire.Reason.DECODE, 4: wire.Reason.COLUMNS}
Sent = tuple[wire.Direction, list[bytes]]


@pytest.fixture(scope="module")
def peer() -> Path:
    """The path of the built example."""
    build = ["cargo", "build", "-q", "-p", "proa-wire", "--example", "wire_peer"]
    subprocess.run(build, cwd=ROOT, check=True)
    target = Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target"))
    return target / "debug" / "examples" / "wire_peer"


def call(peer: Path, *args: str, data: bytes = b"") -> bytes:
    return subprocess.run([peer, *args], input=data, stdout=subprocess.PIPE, check=True).stdout


def join(messages: list[Sent]) -> bytes:
    parts = []
    for direction, frames in messages:
        parts.append(struct.pack("<BI", DIRECTIONS.index(direction), len(frames)))
        parts += [struct.pack("<I", len(frame)) + frame for frame in frames]
    return b"".join(parts)


def read_message(data: io.BytesIO) -> Sent | None:
    head = data.read(5)
    if not head:
        return None
    direction, count = struct.unpack("<BI", head)
    return DIRECTIONS[direction], [data.read(*struct.unpack("<I", data.read(4))) for _ in range(count)]


def read_messages(raw: bytes) -> Iterator[Sent]:
    data = io.BytesIO(raw)
    while (message := read_message(data)) is not None:
        yield message


def python_verdict(sent: Sent) -> tuple[wire.Reason | None, bool, list[bytes]]:
    """The reason of refusal, whether the snapshot was faulty, and the message encoded anew."""
    try:
        message = wire.decode(sent[0], 0, sent[1])
    except wire.BadFrame as bad:
        return bad.reason, False, []
    return None, getattr(message, "stats_faulty", False), wire.encode(message)


def rust_verdicts(peer: Path, messages: list[Sent]) -> Iterator[tuple[wire.Reason | None, bool, list[bytes]]]:
    data = io.BytesIO(call(peer, "echo", data=join(messages)))
    for _ in messages:
        verdict = data.read(1)[0]
        if verdict in VERDICTS:
            yield VERDICTS[verdict], False, []
        else:
            message = read_message(data)
            assert message is not None
            yield None, verdict == 1, message[1]


def test_what_rust_writes_python_reads(peer: Path) -> None:
    seen = set()
    for sent in read_messages(call(peer, "generate", "3", str(COUNT))):
        assert python_verdict(sent) == (None, False, sent[1])
        seen.add(sent[1][0])
    assert len(seen) == len(wire.Kind)


def test_what_python_writes_rust_reads(peer: Path) -> None:
    random = RandomMessages(4)
    messages = []
    for _ in range(COUNT):
        message = random.message()
        messages.append((wire.KINDS[type(message)].direction, wire.encode(message)))
    for sent, verdict in zip(messages, rust_verdicts(peer, messages), strict=True):
        assert verdict == (None, False, sent[1])
        assert python_verdict(sent) == verdict


def test_both_refuse_the_same_damage(peer: Path) -> None:
    """No crash, no exception but BadFrame, and one verdict in both languages."""
    messages = list(read_messages(call(peer, "mutate", "5", str(COUNT))))
    refused = 0
    for sent, verdict in zip(messages, rust_verdicts(peer, messages), strict=True):
        assert python_verdict(sent) == verdict, sent
        refused += verdict[0] is not None
    assert refused > len(messages) / 2
