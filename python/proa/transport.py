"""The engine's socket: a DEALER to the front end's ROUTER, with messages decoded and bad frames counted.

Owns the socket, the identity, the knock and what could not be sent yet. Knows nothing of what a message does. Sending
never waits: what the socket does not take stays here in order, and the engine plans no step until it is gone. A bad
frame is dropped and counted; nothing that arrives raises past `receive`.
"""

from __future__ import annotations

import logging
import secrets
import struct
from collections import Counter, deque
from dataclasses import dataclass

import zmq

from proa.wire import BadFrame, Direction, Message, decode, encode

#: Messages the socket may queue (libzmq's mark is approximate).
SEND_QUEUE = 4096
#: Messages waiting here above which none are taken in: answers to them would only pile up.
_MAX_UNSENT = 1024
_IDENTITY = struct.Struct("<BHQ")
#: Plain ints: combining the library's enum members costs more than sending a frame.
_DONTWAIT = int(zmq.DONTWAIT)
_MORE = int(zmq.DONTWAIT | zmq.SNDMORE)
_POLLIN = int(zmq.POLLIN)
_IDENTITY_MARK = 0x50
_LOG = logging.getLogger("proa.transport")


@dataclass(slots=True, frozen=True)
class Unreadable:
    """An AddRequests whose columns do not match: each of its keys is to be answered, none can be served."""

    keys: list[int]
    reason: str


def draw_incarnation() -> int:
    """Return a number for this engine process, from the OS, never 0."""
    return secrets.randbelow(2**64 - 1) + 1


class Transport:
    """A connection to one front end.

    Attributes:
        bad_frames: messages dropped, by reason.
        peer_minor: minor version of the front end's Hello.
    """

    def __init__(self, address: str, engine_index: int, incarnation: int) -> None:
        self.bad_frames: Counter[str] = Counter()
        self.peer_minor = 0
        self._unsent: deque[list[bytes]] = deque()
        self._context = zmq.Context()
        self._socket = self._context.socket(zmq.DEALER)
        self._socket.setsockopt(zmq.IDENTITY, _IDENTITY.pack(_IDENTITY_MARK, engine_index, incarnation))
        self._socket.setsockopt(zmq.SNDHWM, SEND_QUEUE)
        self._socket.setsockopt(zmq.RCVHWM, 0)
        self._socket.setsockopt(zmq.LINGER, 1000)
        self._socket.connect(address)

    @property
    def fd(self) -> int:
        """Becomes readable when `has_message` or `has_room` may have changed; ask them before waiting for it."""
        return int(self._socket.getsockopt(zmq.FD))

    @property
    def has_message(self) -> bool:
        """Whether `receive` would return something."""
        return bool(self._events & _POLLIN) and len(self._unsent) <= _MAX_UNSENT

    @property
    def has_room(self) -> bool:
        """Whether the front end takes what is sent: if not, no new step is planned."""
        if self._unsent:
            self._flush()
        return not self._unsent

    @property
    def _events(self) -> int:
        return int(self._socket.getsockopt(zmq.EVENTS))

    def knock(self) -> None:
        """Make the identity known to the front end; repeated until it says Hello."""
        if self._events & zmq.POLLOUT:
            self._socket.send(b"", zmq.DONTWAIT)

    def send(self, message: Message) -> None:
        """Send a message, behind whatever could not be sent before."""
        self._unsent.append(encode(message))
        self._flush()

    def _flush(self) -> None:
        send = self._socket.send
        while self._unsent:
            frames = self._unsent[0]
            try:
                for frame in frames[:-1]:
                    send(frame, _MORE)
                send(frames[-1], _DONTWAIT)
            except zmq.Again:
                return  # before the first frame: the rest of a message is never refused
            self._unsent.popleft()

    def receive(self) -> list[Message | Unreadable]:
        """Return every message that has arrived, without waiting."""
        messages: list[Message | Unreadable] = []
        while self.has_message:
            frames = self._socket.recv_multipart(zmq.DONTWAIT)
            try:
                messages.append(decode(Direction.FROM_FRONT_END, self.peer_minor, frames))
            except BadFrame as fault:
                self.count_bad(fault.reason.value, fault.what)
                if fault.request_keys:
                    messages.append(Unreadable(fault.request_keys, fault.what))
        return messages

    def count_bad(self, reason: str, what: str) -> None:
        """Count a dropped message; `what` names the rule and holds nothing of the message."""
        self.bad_frames[reason] += 1
        if self.bad_frames[reason].bit_count() == 1:  # at 1, 2, 4, 8...: a flood must not fill the log
            _LOG.warning("dropped a bad frame (%s, %d so far): %s", reason, self.bad_frames[reason], what)

    def close(self) -> None:
        """Send what is queued (for at most a second), then close."""
        if self._unsent:
            self._socket.setsockopt(zmq.SNDTIMEO, 1000)
        try:
            while self._unsent:
                self._socket.send_multipart(self._unsent.popleft())
        except zmq.Again:
            _LOG.warning("the front end takes nothing; %d messages are lost", len(self._unsent) + 1)
        self._socket.close()
        self._context.term()
