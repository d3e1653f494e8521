"""The engine's socket: a DEALER to the front end's ROUTER, with messages decoded and bad frames counted.

Owns the socket, the identity and the knock. Knows nothing of what a message does. A bad frame is dropped and counted;
nothing that arrives raises past `receive`.
"""

from __future__ import annotations

import secrets
import struct
from collections import Counter

import zmq

from proa.wire import BadFrame, Direction, Message, decode, encode

#: Messages the sending side may queue before no new step is planned; libzmq's mark is approximate.
SEND_QUEUE = 4096
_IDENTITY = struct.Struct("<BHQ")


def draw_incarnation() -> int:
    """Return a number for this engine process, from the OS, never 0."""
    return secrets.randbelow(2**64 - 1) + 1


class Transport:
    """A connection to one front end."""

    def __init__(self, address: str, engine_index: int, incarnation: int) -> None:
        self.bad_frames: Counter[str] = Counter()
        self.peer_minor = 0
        self._context = zmq.Context()
        self._socket = self._context.socket(zmq.DEALER)
        self._socket.setsockopt(zmq.IDENTITY, _IDENTITY.pack(0x50, engine_index, incarnation))
        self._socket.setsockopt(zmq.SNDHWM, SEND_QUEUE)
        self._socket.setsockopt(zmq.RCVHWM, 0)
        self._socket.setsockopt(zmq.LINGER, 1000)
        self._socket.connect(address)

    @property
    def socket(self) -> zmq.Socket[bytes]:
        """For polling only."""
        return self._socket

    def knock(self) -> None:
        """Make the identity known to the front end; repeated until it says Hello."""
        try:
            self._socket.send(b"", zmq.DONTWAIT)
        except zmq.Again:
            return  # nobody there yet: the next knock tries again

    def send(self, message: Message) -> None:
        """Send a message; waits if the queue is full."""
        self._socket.send_multipart(encode(message), copy=True)

    @property
    def can_send(self) -> bool:
        """Whether the queue has room: without it no new step is planned."""
        return bool(int(self._socket.getsockopt(zmq.EVENTS)) & zmq.POLLOUT)

    def receive(self) -> list[Message]:
        """Return every message that has arrived, without waiting."""
        messages: list[Message] = []
        while True:
            try:
                frames = self._socket.recv_multipart(zmq.DONTWAIT)
            except zmq.Again:
                return messages
            try:
                messages.append(decode(Direction.FROM_FRONT_END, self.peer_minor, frames))
            except BadFrame as fault:
                self.bad_frames[fault.reason.value] += 1

    def close(self) -> None:
        """Send what is queued (for at most a second), then close."""
        self._socket.close()
        self._context.term()
