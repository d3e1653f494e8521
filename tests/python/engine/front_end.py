"""A front end for tests: a ROUTER socket that speaks the wire and remembers what the engine said."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import zmq

import proa
from proa.executor.null import token_of
from proa.wire import (
    LOGPROBS_NONE,
    NO_DEADLINE,
    PROTOCOL_MAJOR,
    PROTOCOL_MINOR,
    Abort,
    AddRequests,
    Direction,
    EngineFailed,
    Hello,
    Message,
    Rare,
    Ready,
    RequestColumns,
    SchedulerStats,
    StepOutputs,
    Utility,
    UtilityReply,
    decode,
    encode,
)

#: How long a test waits for something that must come; a failure, never a measurement.
PATIENCE_MS = 20_000
VOCAB = 1000


@dataclass
class Told:
    """What the engine said of one request."""

    tokens: list[int] = field(default_factory=list)
    finish: int | None = None
    stop_token: int = -1
    detail: str = ""
    prefill: tuple[int, int] | None = None
    stamps: list[int] = field(default_factory=list)
    progress: list[tuple[int, int]] = field(default_factory=list)
    logprobs: list[tuple[float, int, list[int]]] = field(default_factory=list)
    prompt_logprobs: dict[int, tuple[float, int, list[int]]] = field(default_factory=dict)


class FrontEnd:
    """One front end with at most one engine."""

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="proa-")
        self.address = f"ipc://{self._folder.name}/engine.sock"
        self._context = zmq.Context()
        self.socket = self._context.socket(zmq.ROUTER)
        self.socket.setsockopt(zmq.ROUTER_MANDATORY, 1)
        self.socket.setsockopt(zmq.LINGER, 0)
        self.socket.bind(self.address)
        self.identity = b""
        self.process: subprocess.Popen[bytes] | None = None
        self.told: dict[int, Told] = {}
        self.stats: SchedulerStats | None = None
        self.loading: list[Ready] = []
        self.ready: Ready | None = None
        self.failed: EngineFailed | None = None
        self.replies: dict[int, UtilityReply] = {}
        self.num_messages = 0
        self._calls = 0

    def __enter__(self) -> FrontEnd:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process is not None and self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        self._context.destroy(linger=0)
        self._folder.cleanup()

    # ---- the process ------------------------------------------------------------------------------------------------

    def document(self, **changes: object) -> dict[str, object]:
        """A configuration with the null executor and small limits."""
        values: dict[str, object] = {
            "schema": 1,
            "connect": self.address,
            "model_path": "/null",
            "device": "null",
            "tokenizer_vocab_size": VOCAB,
            "max_model_len": 256,
            "max_num_seqs": 8,
            "max_num_batched_tokens": 64,
            "kv_cache_memory_bytes": 2048,
            "parent_pid": os.getpid(),
        }
        return values | changes

    def spawn(self, **changes: object) -> None:
        """Start an engine process."""
        self.spawn_document(json.dumps(self.document(**changes)))

    def spawn_document(self, text: str) -> None:
        read, write = os.pipe()
        os.write(write, text.encode())
        os.close(write)
        command = [sys.executable, "-m", "proa.engine", "--config-fd", str(read)]
        environment = os.environ | {"PYTHONPATH": str(Path(proa.__file__).parents[1])}
        self.process = subprocess.Popen(command, pass_fds=[read], stderr=subprocess.PIPE, env=environment)
        os.close(read)

    def exit_code(self) -> int:
        assert self.process is not None
        return self.process.wait(PATIENCE_MS / 1000)

    # ---- talking ----------------------------------------------------------------------------------------------------

    def await_knock(self) -> None:
        assert self.socket.poll(PATIENCE_MS), "no knock"
        self.identity, body = self.socket.recv_multipart()
        assert body == b"" and len(self.identity) == 11 and self.identity[0] == 0x50

    def start(self, **changes: object) -> Ready:
        """Spawn, shake hands, and wait until the engine is ready."""
        self.spawn(**changes)
        return self.shake_hands()

    def shake_hands(self, heartbeat_ms: int = 1000) -> Ready:
        self.await_knock()
        self.send_hello(heartbeat_ms)
        self.until(lambda: self.ready is not None)
        assert self.ready is not None
        return self.ready

    def send_hello(self, heartbeat_ms: int = 1000, major: int = PROTOCOL_MAJOR) -> None:
        self.send(Hello(major, PROTOCOL_MINOR, "test", 0, heartbeat_ms, bytes(16)))

    def send(self, message: Message) -> None:
        self.send_frames(encode(message))

    def send_frames(self, frames: list[bytes]) -> None:
        self.socket.send_multipart([self.identity, *frames])

    def call(self, method: str, **args: object) -> UtilityReply:
        """Make a utility call and wait for its reply."""
        self._calls += 1
        call_id = self._calls
        self.send(Utility(call_id, method, args))
        self.until(lambda: call_id in self.replies)
        return self.replies[call_id]

    def abort(self, *keys: int, cause: int = 1) -> None:
        self.send(Abort(np.array(keys, np.uint64), np.full(len(keys), cause, np.uint8)))

    def until(self, done: Callable[[], bool]) -> None:
        """Take in messages until `done`."""
        deadline = time.monotonic() + PATIENCE_MS / 1000
        while not done():
            left_ms = int((deadline - time.monotonic()) * 1000)
            if left_ms <= 0 or not self.socket.poll(left_ms):
                raise AssertionError("the engine did not do it")
            self.take()

    def take(self) -> None:
        """Take in one message."""
        _, *frames = self.socket.recv_multipart()
        if frames == [b""]:
            return
        self.num_messages += 1
        message = decode(Direction.FROM_ENGINE, PROTOCOL_MINOR, frames)
        if isinstance(message, StepOutputs):
            self._take_outputs(message)
        elif isinstance(message, UtilityReply):
            self.replies[message.call_id] = message
        elif isinstance(message, EngineFailed):
            self.failed = message
        elif isinstance(message, Ready):
            if message.facts is None:
                self.loading.append(message)
            else:
                assert self.ready is None, "ready is said once"
                self.ready = message

    def _take_outputs(self, out: StepOutputs) -> None:
        assert out.stats is not None and not out.stats_faulty
        assert sum(out.stats.waiting_causes) == out.stats.num_waiting
        if self.stats is not None:
            assert out.stats.seq == self.stats.seq + 1
        self.stats = out.stats
        if out.rows is not None:
            self._take_rows(out)
        if out.stamps is not None:
            for key, kind in zip(out.stamps.stamp_key.tolist(), out.stamps.stamp_kind.tolist(), strict=True):
                self.told.setdefault(key, Told()).stamps.append(kind)
        if out.progress is not None:
            columns = (out.progress.prog_key, out.progress.prog_reason, out.progress.prog_computed)
            for key, reason, computed in zip(*(column.tolist() for column in columns), strict=True):
                self.told[key].progress.append((reason, computed))
        if out.prompt_logprobs is not None:
            self._take_prompt_logprobs(out)

    def _take_rows(self, out: StepOutputs) -> None:
        rows = out.rows
        assert rows is not None
        keys = rows.request_key.tolist()
        assert len(set(keys)) == len(keys), "a key stands once in a message"
        at = lp_at = top_at = 0
        for i, key in enumerate(keys):
            told = self.told.setdefault(key, Told())
            assert told.finish is None, "a finished key never appears again"
            count = int(rows.num_tokens[i])
            told.tokens += rows.token_ids[at : at + count].tolist()
            at += count
            if rows.finish[i]:
                told.finish, told.stop_token = int(rows.finish[i]), int(rows.stop_token[i])
            lp = out.sampled_logprobs
            if lp is not None and lp.lp_k[i] >= 0:
                k = int(lp.lp_k[i])
                for _ in range(count):
                    ids = lp.lp_top_ids[top_at : top_at + k].tolist()
                    told.logprobs.append((float(lp.lp_value[lp_at]), int(lp.lp_rank[lp_at]), ids))
                    lp_at, top_at = lp_at + 1, top_at + k
        for detail in out.details:
            self.told[keys[detail.row]].detail = detail.message
        if out.prefill is not None:
            columns = (out.prefill.prefill_row, out.prefill.num_computed, out.prefill.num_cached_device)
            for row, computed, cached in zip(*(column.tolist() for column in columns), strict=True):
                assert self.told[keys[row]].prefill is None
                self.told[keys[row]].prefill = (computed, cached)

    def _take_prompt_logprobs(self, out: StepOutputs) -> None:
        group = out.prompt_logprobs
        assert group is not None
        at = top_at = 0
        for i, key in enumerate(group.plp_key.tolist()):
            k = int(group.plp_k[i])
            for position in range(int(group.plp_start[i]), int(group.plp_start[i]) + int(group.plp_count[i])):
                ids = group.plp_top_ids[top_at : top_at + k].tolist()
                scores = self.told[key].prompt_logprobs
                assert position not in scores
                scores[position] = (float(group.plp_value[at]), int(group.plp_rank[at]), ids)
                at, top_at = at + 1, top_at + k

    # ---- requests ---------------------------------------------------------------------------------------------------

    def add(self, *requests: dict[str, object]) -> None:
        """Send requests made by `ask`."""
        self.send(make_add(*requests))
        for request in requests:
            self.told.setdefault(int(request["request_key"]), Told())  # type: ignore[call-overload]

    def finished(self, *keys: int) -> bool:
        return all(key in self.told and self.told[key].finish is not None for key in keys)

    def await_finish(self, *keys: int) -> None:
        self.until(lambda: self.finished(*keys))

    def await_idle(self) -> None:
        """Wait until the stats say that nothing is held and nothing waits."""
        self.until(
            lambda: (
                self.stats is not None
                and self.stats.num_running == self.stats.num_waiting == self.stats.kv_blocks_used == 0
            )
        )


def ask(key: int, prompt: list[int], max_tokens: int = 8, **changes: object) -> dict[str, object]:
    """One row of AddRequests by column names; `rare` is its entry among the rare ones."""
    values: dict[str, object] = {
        "request_key": key,
        "prompt_ids": prompt,
        "num_emitted": 0,
        "max_tokens": max_tokens,
        "min_tokens": 0,
        "temperature": 0.0,
        "top_p": 1.0,
        "min_p": 0.0,
        "presence_penalty": 0.0,
        "frequency_penalty": 0.0,
        "repetition_penalty": 1.0,
        "top_k": 0,
        "stream_key": key,
        "num_logprobs": LOGPROBS_NONE,
        "num_prompt_logprobs": LOGPROBS_NONE,
        "stop_ids": [],
        "priority": 0,
        "deadline_ms": NO_DEADLINE,
        "flags": 0,
        "rare": None,
    }
    unknown = changes.keys() - values.keys()
    assert not unknown, unknown
    return values | changes


_DTYPES = {
    "request_key": "<u8", "prompt_len": "<u4", "prompt_ids": "<u4", "num_emitted": "<u4", "max_tokens": "<u4",
    "min_tokens": "<u4", "temperature": "<f4", "top_p": "<f4", "min_p": "<f4", "presence_penalty": "<f4",
    "frequency_penalty": "<f4", "repetition_penalty": "<f4", "top_k": "<u4", "stream_key": "<u8",
    "num_logprobs": "<i4", "num_prompt_logprobs": "<i4", "stop_len": "<u2", "stop_ids": "<u4", "priority": "<i8",
    "deadline_ms": "<u4", "flags": "<u4",
}  # fmt: skip


def make_add(*requests: dict[str, object]) -> AddRequests:
    """The message of some rows made by `ask`."""
    columns: dict[str, np.ndarray] = {}
    for name, dtype in _DTYPES.items():
        if name in ("prompt_ids", "stop_ids"):
            columns[name] = np.array([i for r in requests for i in r[name]], dtype)  # type: ignore[attr-defined]
        elif name in ("prompt_len", "stop_len"):
            source = name.replace("_len", "_ids")
            columns[name] = np.array([len(r[source]) for r in requests], dtype)  # type: ignore[arg-type]
        else:
            columns[name] = np.array([r[name] for r in requests], dtype)
    rare = [Rare(row, **r["rare"]) for row, r in enumerate(requests) if r["rare"]]  # type: ignore[arg-type]
    return AddRequests(RequestColumns(**columns), rare)


def expected_tokens(stream_key: int, count: int, first: int = 0) -> list[int]:
    """What the null executor draws."""
    positions = np.arange(first, first + count, dtype=np.int32)
    ids: list[int] = token_of(np.full(count, stream_key, np.uint64), positions, VOCAB).tolist()
    return ids
