"""A client that reads server-sent events from a plain socket, so that a test can leave whenever it wants."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any


class EventStream:
    """One POST whose reply is read event by event."""

    def __init__(self, port: int, path: str, body: dict[str, Any]) -> None:
        self.port, self.path, self.body = port, path, body
        self.status = 0

    async def __aenter__(self) -> EventStream:
        self._reader, self._writer = await asyncio.open_connection("127.0.0.1", self.port)
        data = json.dumps(self.body).encode()
        head = f"POST {self.path} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\nconnection: close\r\n"
        self._writer.write(head.encode() + f"content-length: {len(data)}\r\n\r\n".encode() + data)
        await self._writer.drain()
        head_bytes = await self._reader.readuntil(b"\r\n\r\n")
        self.status = int(head_bytes.split(b" ", 2)[1])
        self.chunked = b"transfer-encoding: chunked" in head_bytes.lower()
        return self

    async def __aexit__(self, *_: object) -> None:
        self._writer.close()

    async def body_bytes(self) -> bytes:
        """Return the whole body, for a reply that is no stream."""
        return b"".join([piece async for piece in self._pieces()])

    async def events(self) -> AsyncIterator[str]:
        """Yield the data of each event until the body ends."""
        text = b""
        async for piece in self._pieces():
            text += piece
            while b"\n\n" in text:
                event, text = text.split(b"\n\n", 1)
                data = [line[6:] for line in event.decode().split("\n") if line.startswith("data: ")]
                if data:
                    yield "\n".join(data)

    async def _pieces(self) -> AsyncIterator[bytes]:
        if not self.chunked:
            while piece := await self._reader.read(65536):
                yield piece
            return
        while True:
            line = await self._reader.readline()
            if not line.strip():
                raise ConnectionError("the connection ended inside the body")
            size = int(line, 16)
            piece = await self._reader.readexactly(size + 2)
            if size == 0:
                return
            yield piece[:-2]


class Terminal:
    """How one stream ended: exactly one of a finish reason and an error, then `[DONE]`.

    Attributes:
        finish: the finish reasons that were seen.
        errors: the error bodies that were seen.
        text: everything generated.
        done: whether `[DONE]` came.
    """

    def __init__(self) -> None:
        self.finish: list[str] = []
        self.errors: list[dict[str, Any]] = []
        self.text = ""
        self.done = False

    def take(self, data: str) -> None:
        """Note one event."""
        if data == "[DONE]":
            self.done = True
            return
        event = json.loads(data)
        if "error" in event:
            self.errors.append(event["error"])
            return
        for choice in event.get("choices", []):
            self.text += choice.get("text") or choice.get("delta", {}).get("content") or ""
            if choice.get("finish_reason"):
                self.finish.append(choice["finish_reason"])

    @property
    def count(self) -> int:
        return len(self.finish) + len(self.errors)


async def read_to_end(port: int, path: str, body: dict[str, Any]) -> Terminal:
    """Return how a stream ended that was read to its end."""
    terminal = Terminal()
    async with EventStream(port, path, body) as stream:
        if stream.status != 200:
            terminal.errors.append(json.loads(await stream.body_bytes())["error"])
            terminal.done = True
            return terminal
        async for data in stream.events():
            terminal.take(data)
    return terminal
