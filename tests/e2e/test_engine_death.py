"""kill -9 of the engine under load: typed errors at once, back by itself, no orphan."""

from __future__ import annotations

import asyncio
import signal
import time

import psutil
import pytest
from event_stream import EventStream, Terminal
from proa_server import ProaServer

STREAMS = 16


async def kill_under_load(server: ProaServer) -> tuple[list[Terminal], float, set[int]]:
    """Return how the streams ended, the seconds from the kill to the last end, and the statuses /ready had."""
    engine = server.engine()
    started = asyncio.Barrier(STREAMS + 1)
    terminals = [Terminal() for _ in range(STREAMS)]
    ended_at = [0.0] * STREAMS

    async def one(index: int) -> None:
        body = {"prompt": f"Story {index}:", "max_tokens": 2000, "ignore_eos": True, "stream": True}
        async with EventStream(server.port, "/v1/completions", body) as stream:
            events = stream.events()
            terminals[index].take(await anext(events))
            await started.wait()
            async for data in events:
                terminals[index].take(data)
        ended_at[index] = time.monotonic()

    streams = [asyncio.create_task(one(index)) for index in range(STREAMS)]
    await started.wait()
    killed_at = time.monotonic()
    engine.send_signal(signal.SIGKILL)
    await asyncio.gather(*streams)
    status = (await asyncio.to_thread(server.get, "/ready")).status
    return terminals, max(ended_at) - killed_at, {status}


def test_the_engine_dies_under_sixteen_streams() -> None:
    with ProaServer(["--max-model-len", "4096"]) as server:
        server.wait_ready()
        said = len(server.lines)
        before = server.engine().pid
        terminals, seconds, statuses = asyncio.run(kill_under_load(server))
        for terminal in terminals:
            assert [error["code"] for error in terminal.errors] == ["engine_lost"], terminal.errors
            assert terminal.finish == []
        # The acceptance of the design, not a benchmark: a death is noticed within one second.
        assert seconds < 1.0
        assert statuses == {503}
        server.wait_for_line(r"\bready\b.*http://", start=said)
        assert server.get("/ready").status == 200
        reply = server.post("/v1/completions", {"prompt": "The capital of France is", "max_tokens": 4})
        assert reply.status == 200
        assert not psutil.pid_exists(before)
        assert server.engine().pid != before
        assert server.audit()["leaked"] == 0


def test_the_engine_dies_with_its_parent() -> None:
    server = ProaServer(["--device", "null"]).wait_ready()
    engine = server.engine()
    server.process.kill()
    server.process.wait()
    _, alive = psutil.wait_procs([engine], timeout=10)
    for process in alive:
        process.kill()
    assert not alive


def test_too_many_deaths_end_the_server() -> None:
    with ProaServer(["--device", "null", "--max-engine-restarts", "0"]) as server:
        server.wait_ready()
        server.engine().send_signal(signal.SIGKILL)
        assert server.process.wait(60) == 70


@pytest.mark.parametrize("with_signal", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_before_ready_ends_at_once(with_signal: int) -> None:
    server = ProaServer([]).wait_listening()
    assert server.stop(with_signal) == 0
