"""Bodies that are no requests: the right 4xx, no memory, an engine that does not notice."""

from __future__ import annotations

import json
import socket

import psutil
import pytest
from proa_server import ProaServer

MAX_GROWTH_BYTES = 64 << 20
HUGE = ["1e400", "-1e400", "1e308", "-1", "9223372036854775808", "-9223372036854775809", "1.5"]

#: Every numeric field of both routes, with values of HUGE that are legal there.
NUMBERS: dict[str, set[str]] = {
    "temperature": {"1.5"},
    "top_p": set(),
    "top_k": {"-1"},
    "min_p": set(),
    "presence_penalty": {"-1", "1.5"},
    "frequency_penalty": {"-1", "1.5"},
    "repetition_penalty": {"1.5"},
    "seed": {"-1"},
    "n": set(),
    "min_tokens": set(),
    "max_tokens": set(),
    "deadline_ms": set(),
    "priority": {"-1"},
    "prompt_logprobs": set(),
}


@pytest.fixture(scope="module")
def steady(null_server: ProaServer):
    """The server, whose memory may not have grown when the module is done."""
    processes = [psutil.Process(null_server.process.pid), null_server.engine()]
    null_server.post("/v1/completions", {"prompt": "x", "max_tokens": 1})
    before = [process.memory_info().rss for process in processes]
    engine = null_server.engine().pid
    yield null_server
    assert null_server.engine().pid == engine, "the engine died"
    assert null_server.post("/v1/completions", {"prompt": "x", "max_tokens": 1}).status == 200
    for process, rss in zip(processes, before):
        assert process.memory_info().rss - rss < MAX_GROWTH_BYTES
    assert null_server.audit()["leaked"] == 0


ROUTES = ["/v1/completions", "/v1/chat/completions", "/tokenize", "/detokenize"]


@pytest.mark.parametrize("path", ROUTES)
@pytest.mark.parametrize(
    "body",
    [
        b'{"prompt": "\xff\xfe"}',
        b'\xef\xbb\xbf{"prompt": "x"}',
        b"",
        b"[]",
        b'"x"',
        b"null",
        b'{"prompt": "x"',
        b'{"prompt": "x"} x',
        b'{"prompt": "x", "prompt": "y"}',
        b'{"prompt": "\\ud800"}',
        b'{"prompt": NaN}',
        b"\x00" * 100,
        b"[" * 100_000,
        b'{"a":' * 100_000,
        b'{"prompt":' + b"[" * 100_000 + b"]" * 100_000 + b"}",
    ],
    ids=range(15),
)
def test_what_is_no_json_object(steady: ProaServer, path: str, body: bytes) -> None:
    reply = steady.post(path, body)
    assert reply.status == 400
    assert reply.json["error"]["code"] == "invalid_json"


@pytest.mark.parametrize("path", ROUTES)
def test_ten_megabytes(steady: ProaServer, path: str) -> None:
    head = f"POST {path} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: 10485760\r\n\r\n"
    with socket.create_connection(("127.0.0.1", steady.port), timeout=30) as connection:
        connection.sendall(head.encode())
        reply = b""
        while piece := connection.recv(65536):
            reply += piece
    assert reply.startswith(b"HTTP/1.1 413"), reply[:200]
    assert json.loads(reply.split(b"\r\n\r\n", 1)[1])["error"]["code"] == "body_too_large"


@pytest.mark.parametrize("path", ROUTES[:2])
@pytest.mark.parametrize("field", NUMBERS)
@pytest.mark.parametrize("value", HUGE)
def test_numbers_out_of_range(steady: ProaServer, path: str, field: str, value: str) -> None:
    if value in NUMBERS[field]:
        pytest.skip("a legal value")
    start = {
        "/v1/completions": '"prompt": "x"',
        "/v1/chat/completions": '"messages": [{"role": "user", "content": "x"}]',
    }
    reply = steady.post(path, f'{{{start[path]}, "{field}": {value}}}'.encode())
    assert reply.status == 400, reply.body
    assert reply.json["error"]["param"] == field


@pytest.mark.parametrize("ids", ["[-1]", "[49152]", "[1e400]", "[9223372036854775808]", "[1.5]", "[[0], [-1]]"])
def test_token_ids_out_of_range(steady: ProaServer, ids: str) -> None:
    reply = steady.post("/v1/completions", f'{{"prompt": {ids}, "max_tokens": 1}}'.encode())
    assert reply.status == 400
    assert reply.json["error"]["param"].startswith("prompt[")


def test_what_can_never_fit_is_refused(steady: ProaServer) -> None:
    reply = steady.post("/v1/completions", {"prompt": [1] * 100_000, "max_tokens": 1})
    assert reply.status == 400
    assert reply.json["error"]["code"] == "context_length_exceeded"


def test_heads_over_the_caps(steady: ProaServer) -> None:
    assert steady.request("GET", "/health", headers={"x-long": "a" * 9000}).status == 431
    assert steady.get("/" + "a" * 9000).status == 414
    assert steady.get("/v1/nothing").json["error"]["code"] == "unknown_url"
    reply = steady.request("DELETE", "/v1/completions")
    assert (reply.status, reply.json["error"]["code"]) == (405, "method_not_allowed")
    reply = steady.request("POST", "/v1/completions", b"a=b", {"content-type": "application/x-www-form-urlencoded"})
    assert (reply.status, reply.json["error"]["code"]) == (415, "unsupported_media_type")
