"""Clients that leave: every request still ends in one terminal event, and nothing leaks."""

from __future__ import annotations

import asyncio
import random

import psutil
import pytest
from event_stream import EventStream, Terminal, read_to_end
from proa_server import ProaServer

ROUNDS = 10
STREAMS = 200
LEAVING = 0.3
MAX_GROWTH_BYTES = 64 << 20


async def one(port: int, rng: random.Random, longest: int) -> Terminal | None:
    """Return how a stream ended, or None if it was left before its end."""
    length = rng.randint(1, longest)
    body = {"prompt": [rng.randrange(1000) for _ in range(rng.randint(1, 40))], "max_tokens": length, "stream": True}
    body |= {"ignore_eos": True, "seed": rng.randrange(1 << 30)}
    if rng.random() >= LEAVING:
        return await read_to_end(port, "/v1/completions", body)
    leave_after = rng.randint(0, length)
    async with EventStream(port, "/v1/completions", body) as stream:
        seen = 0
        async for _ in stream.events():
            seen += 1
            if seen > leave_after:
                break
    return None


async def one_round(port: int, seed: int, longest: int) -> None:
    rngs = [random.Random(seed * STREAMS + i) for i in range(STREAMS)]
    ends = await asyncio.gather(*(one(port, rng, longest) for rng in rngs))
    stayed = [end for end in ends if end is not None]
    assert len(stayed) > STREAMS / 2
    for end in stayed:
        assert (end.finish, end.errors, end.done) == (["length"], [], True)


def settle(server: ProaServer) -> None:
    """Return when no request is open any more: an audit between steps finds no held block."""
    for _ in range(200):
        if server.audit()["held"] == 0:
            return
    raise AssertionError(f"blocks are still held: {server.audit()}")


def check(server: ProaServer, longest: int) -> None:
    processes = [psutil.Process(server.process.pid), server.engine()]
    asyncio.run(one_round(server.port, 0, longest))  # fills caches and pools once
    settle(server)
    files = [process.num_fds() for process in processes]
    memory = [process.memory_info().rss for process in processes]
    for number in range(1, ROUNDS + 1):
        asyncio.run(one_round(server.port, number, longest))
    settle(server)
    assert server.audit()["leaked"] == 0
    for process, before, now in zip(processes, files, [p.num_fds() for p in processes]):
        assert now <= before + 2, process.cmdline()  # the probe's own connection may still be closing
    for process, before in zip(processes, memory):
        assert process.memory_info().rss - before < MAX_GROWTH_BYTES, process.cmdline()
    assert server.get("/ready").status == 200


def test_two_hundred_streams_on_the_null_executor(null_server: ProaServer) -> None:
    check(null_server, 64)


@pytest.mark.timeout(900)
def test_two_hundred_streams_on_the_model(server: ProaServer) -> None:
    check(server, 8)
