"""SIGTERM: running requests end, new ones are refused, the exit code is 0."""

from __future__ import annotations

import asyncio
import signal
import time

import pytest
from event_stream import EventStream, Terminal
from proa_server import ProaServer


async def stream_over_signal(server: ProaServer, max_tokens: int, signals: list[int]) -> Terminal:
    """Return how a stream ended under which the signals arrived."""
    terminal = Terminal()
    body = {"prompt": "Once upon a time", "max_tokens": max_tokens, "ignore_eos": True, "stream": True}
    async with EventStream(server.port, "/v1/completions", body) as stream:
        events = stream.events()
        terminal.take(await anext(events))
        for number in signals:
            server.process.send_signal(number)
        async for data in events:
            terminal.take(data)
    return terminal


@pytest.mark.parametrize("with_signal", [signal.SIGTERM, signal.SIGINT])
def test_a_running_stream_ends_whole(with_signal: int) -> None:
    with ProaServer([]) as server:
        server.wait_ready()
        terminal = asyncio.run(stream_over_signal(server, 48, [with_signal]))
        assert (terminal.finish, terminal.errors, terminal.done) == (["length"], [], True)
        assert server.process.wait(60) == 0


def test_the_timeout_ends_what_is_left_with_an_error() -> None:
    with ProaServer(["--shutdown-timeout", "0.5", "--max-model-len", "8192"]) as server:
        server.wait_ready()
        terminal = asyncio.run(stream_over_signal(server, 8000, [signal.SIGTERM]))
        assert [error["code"] for error in terminal.errors] == ["shutting_down"]
        assert server.process.wait(60) == 0


def test_a_second_signal_ends_at_once() -> None:
    with ProaServer(["--max-model-len", "8192"]) as server:
        server.wait_ready()
        began = time.monotonic()

        async def run() -> None:
            body = {"prompt": "Once", "max_tokens": 8000, "ignore_eos": True, "stream": True}
            async with EventStream(server.port, "/v1/completions", body) as stream:
                await anext(stream.events())
                server.process.send_signal(signal.SIGTERM)
                await asyncio.to_thread(server.wait_for_line, "draining")
                server.process.send_signal(signal.SIGTERM)
                await asyncio.to_thread(server.process.wait, 60)

        asyncio.run(run())
        assert server.process.returncode == 0
        assert time.monotonic() - began < 25  # well under the time-out of 30 s that the first signal began


def test_new_requests_are_refused_while_draining() -> None:
    with ProaServer(["--max-model-len", "8192", "--shutdown-timeout", "20"]) as server:
        server.wait_ready()

        async def run() -> None:
            body = {"prompt": "Once", "max_tokens": 8000, "ignore_eos": True, "stream": True}
            async with EventStream(server.port, "/v1/completions", body) as stream:
                await anext(stream.events())
                server.process.send_signal(signal.SIGTERM)
                await asyncio.to_thread(server.wait_for_line, "draining")
                ready = await asyncio.to_thread(server.get, "/ready")
                assert ready.status == 503
                refused = await asyncio.to_thread(server.post, "/v1/completions", {"prompt": "x", "max_tokens": 1})
                assert (refused.status, refused.json["error"]["code"]) == (503, "shutting_down")
                server.process.send_signal(signal.SIGTERM)

        asyncio.run(run())
        assert server.process.wait(60) == 0
