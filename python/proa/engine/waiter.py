"""The loop's one place of rest: until a message has come, a step can be collected, or something is due."""

from __future__ import annotations

import select

from proa.transport import Transport


class Waiter:
    """Polls the socket and, where there is one, the executor's completion descriptor together."""

    def __init__(self, transport: Transport, completion_fd: int | None) -> None:
        self._transport = transport
        self._completion_fd = completion_fd
        self._poll = select.poll()
        if completion_fd is not None:
            self._poll.register(completion_fd, select.POLLIN)
        self._poll.register(transport.fd, select.POLLIN)

    def wait(self, timeout_ms: int) -> bool:
        """Wait at most `timeout_ms`; returns whether the oldest step can be collected."""
        # The socket's descriptor only tells of changes: what has come before must be asked for.
        ready = self._poll.poll(0 if self._transport.has_message else timeout_ms)
        return any(fd == self._completion_fd for fd, _ in ready)
