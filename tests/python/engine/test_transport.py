"""The engine's socket when the front end is slow, silent or wrong."""

from __future__ import annotations

import random
from contextlib import closing

import numpy as np
from front_end import PATIENCE_MS, FrontEnd, ask, make_add

from proa.engine.waiter import Waiter
from proa.transport import SEND_QUEUE, Transport, Unreadable, draw_incarnation
from proa.wire import PROTOCOL_MINOR, Direction, StepOutputs, UtilityReply, decode, encode


def meet(front: FrontEnd) -> Transport:
    transport = Transport(front.address, 3, draw_incarnation())
    transport.knock()
    front.await_knock()
    return transport


def receive_some(transport: Transport, waiter: Waiter) -> list[object]:
    """Wait for messages; fails if none come."""
    for _ in range(PATIENCE_MS // 100):
        found = transport.receive()
        if found:
            return list(found)
        waiter.wait(100)
    raise AssertionError("nothing came")


def test_a_full_queue_is_bounded_and_nothing_is_lost_or_reordered() -> None:
    with FrontEnd() as front, closing(meet(front)) as transport:
        sent = 0
        while transport.has_room:
            assert sent < 4 * SEND_QUEUE + 100_000, "the queue has no bound"
            transport.send(UtilityReply(sent, "x" * 1000))
            sent += 1
        assert sent >= SEND_QUEUE // 2
        transport.send(UtilityReply(sent))
        waiter = Waiter(transport, None)
        received: list[int] = []
        while len(received) < sent + 1:
            while front.socket.poll(0 if not transport.has_room else 1000):
                frames = front.socket.recv_multipart()[1:]
                message = decode(Direction.FROM_ENGINE, PROTOCOL_MINOR, frames)
                assert isinstance(message, UtilityReply)
                received.append(message.call_id)
            waiter.wait(1)
        assert received == list(range(sent + 1)) and transport.has_room


def test_the_wait_ends_when_a_message_comes() -> None:
    with FrontEnd() as front, closing(meet(front)) as transport:
        waiter = Waiter(transport, None)
        for call in range(200):
            front.send(make_add(ask(call + 1, [1])))
            # Sending in between is what makes a socket's descriptor fall silent too early.
            transport.send(StepOutputs(call))
            (add,) = receive_some(transport, waiter)
            assert add.columns.request_key.tolist() == [call + 1]


def test_damaged_frames_are_dropped_one_by_one() -> None:
    draw = random.Random(5)
    good = encode(make_add(ask(1, [1, 2, 3]), ask(2, [4])))
    with FrontEnd() as front, closing(meet(front)) as transport:
        waiter = Waiter(transport, None)
        readable = 0
        for _ in range(3000):
            frames = [bytearray(frame) for frame in good]
            frame = draw.choice(frames)
            if frame and draw.random() < 0.7:
                frame[draw.randrange(len(frame))] ^= 1 << draw.randrange(8)
            else:
                del frame[draw.randrange(len(frame) + 1) :]
            front.send_frames([bytes(frame) for frame in frames])
        front.send(make_add(ask(77, [1])))
        last: object = None
        while getattr(last, "columns", None) is None or last.columns.request_key.tolist() != [77]:
            for last in receive_some(transport, waiter):
                if isinstance(last, Unreadable):
                    assert transport.bad_frames["columns"] >= 1
                else:
                    readable += 1
        assert readable + transport.bad_frames.total() == 3001
        assert set(transport.bad_frames) <= {"kind", "decode", "columns"}


def test_incarnations_are_drawn_anew() -> None:
    drawn = {draw_incarnation() for _ in range(100)}
    assert len(drawn) == 100 and 0 not in drawn and max(drawn) < 2**64
    assert np.uint64(max(drawn)) > 0
