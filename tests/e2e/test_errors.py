"""Errors that need more than a bad field: heads, time-outs, connections, deadlines, memory."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator

import pytest
from proa_server import ProaServer, Reply

COMPLETION = "/v1/completions"


@pytest.fixture(scope="module")
def tight() -> Iterator[ProaServer]:
    """A server whose caps are easy to pass; the null executor's pool holds one byte a token, so 256 tokens."""
    flags = ["--header-timeout-s", "1", "--body-idle-timeout-s", "1", "--body-timeout-s", "2", "--max-connections", "8"]
    with ProaServer(["--device", "null", "--kv-cache-memory-bytes", "256", *flags]) as running:
        yield running.wait_ready()


def raw(server: ProaServer, data: bytes) -> Reply:
    """Send bytes, keep the connection open, and read until the server closes it."""
    with socket.create_connection(("127.0.0.1", server.port), timeout=60) as connection:
        connection.sendall(data)
        text = b""
        while piece := connection.recv(65536):
            text += piece
    head, _, body = text.partition(b"\r\n\r\n")
    return Reply(int(head.split(b" ", 2)[1]), {}, body)


def code(reply: Reply) -> tuple[int, str]:
    return reply.status, reply.json["error"]["code"]


def test_fields_that_exclude_each_other(null_server: ProaServer) -> None:
    messages = [{"role": "user", "content": "x"}]
    body = {"messages": messages, "max_tokens": 1, "max_completion_tokens": 2}
    assert code(null_server.post("/v1/chat/completions", body)) == (400, "incompatible_parameters")
    body = {"messages": messages, "top_logprobs": 2}
    assert code(null_server.post("/v1/chat/completions", body)) == (400, "incompatible_parameters")
    body = {"prompt": "x", "stream_options": {"include_usage": True}}
    assert code(null_server.post(COMPLETION, body)) == (400, "incompatible_parameters")


def test_a_request_larger_than_the_pool(tight: ProaServer) -> None:
    reply = tight.post(COMPLETION, {"prompt": [1] * 300, "max_tokens": 1})
    assert code(reply) in ((400, "kv_capacity_exceeded"), (400, "context_length_exceeded"))


def test_a_head_that_does_not_come(tight: ProaServer) -> None:
    with socket.create_connection(("127.0.0.1", tight.port), timeout=60) as connection:
        connection.sendall(b"GET /health HTTP/1.1\r\nhost: x\r\n")
        assert connection.recv(1) == b"", "the connection is closed"


def test_a_body_that_does_not_come(tight: ProaServer) -> None:
    head = f"POST {COMPLETION} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: 50\r\n\r\n"
    assert code(raw(tight, head.encode() + b'{"prompt":')) == (408, "body_timeout")


def test_a_head_that_is_too_large(tight: ProaServer) -> None:
    large = b"GET /health HTTP/1.1\r\nhost: x\r\nx-long: " + b"a" * 9000 + b"\r\n\r\n"
    assert code(raw(tight, large)) == (431, "headers_too_large")
    many = b"GET /health HTTP/1.1\r\nhost: x\r\n" + b"".join(b"x-%d: y\r\n" % i for i in range(120)) + b"\r\n"
    assert code(raw(tight, many)) == (431, "headers_too_large")


def test_a_target_that_is_too_long(tight: ProaServer) -> None:
    assert code(raw(tight, b"GET /" + b"a" * 9000 + b" HTTP/1.1\r\nhost: x\r\n\r\n")) == (414, "uri_too_long")


def test_a_header_with_a_bad_value(null_server: ProaServer) -> None:
    reply = null_server.request("POST", COMPLETION, {"prompt": "x"}, {"Proa-Deadline-Ms": "soon"})
    assert code(reply) == (400, "invalid_header")
    assert reply.json["error"]["param"].lower() == "header.proa-deadline-ms"


def test_more_connections_than_the_cap(tight: ProaServer) -> None:
    open_ones = [socket.create_connection(("127.0.0.1", tight.port)) for _ in range(8)]
    try:
        assert code(raw(tight, b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n")) == (503, "too_many_connections")
    finally:
        for connection in open_ones:
            connection.close()


def test_a_deadline_that_passes_before_a_token(server: ProaServer) -> None:
    prompt = [100 + i % 1000 for i in range(7000)]
    reply = server.post(COMPLETION, {"prompt": prompt, "max_tokens": 1, "deadline_ms": 1})
    assert code(reply) == (504, "deadline_exceeded")


def test_a_client_that_left_is_counted_as_client_closed(null_server: ProaServer) -> None:
    body = json.dumps({"prompt": "x", "max_tokens": 4000, "stream": True, "ignore_eos": True}).encode()
    head = f"POST {COMPLETION} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
    head += f"content-length: {len(body)}\r\n\r\n"
    for _ in range(3):
        with socket.create_connection(("127.0.0.1", null_server.port)) as connection:
            connection.sendall(head.encode() + body)
            connection.recv(100)
    assert null_server.get("/ready").status == 200
