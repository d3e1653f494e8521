"""CPU time of one engine step with the null executor: the loop, the scheduler, the wire, and no model.

Starts `python -m proa.engine` as its own process, plays the front end on a ROUTER socket, keeps a fixed number of
requests decoding, and reads what the engine says about itself: CPU time of the whole process (socket threads included)
and number of steps. The tokens are checked first; a run with a wrong token gives no number.

    PYTHONPATH=python python benchmarks/loop/bench_loop.py [--seconds 4] [--json benchmarks/results/loop-NAME.json]
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
import timeit
from dataclasses import dataclass
from pathlib import Path

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import numpy as np
import zmq

from proa.executor.null import token_of
from proa.wire import (
    LOGPROBS_NONE,
    NO_DEADLINE,
    PROTOCOL_MAJOR,
    PROTOCOL_MINOR,
    AddRequests,
    Direction,
    EngineFailed,
    Hello,
    Message,
    Ready,
    RequestColumns,
    SchedulerStats,
    Shutdown,
    ShutdownMode,
    StepOutputs,
    decode,
    encode,
)

#: Rows -> target in milliseconds of CPU a step (architecture.md section 4).
TARGETS_MS = {1: 0.2, 64: 0.7, 256: 1.5}
PROMPT_LEN = 32
PHASES = ("schedule", "submit", "wait", "apply", "send")


class Engine:
    """One engine process and the socket to it."""

    def __init__(self, max_num_seqs: int, max_model_len: int, logprobs: int) -> None:
        self._folder = tempfile.TemporaryDirectory()
        address = f"ipc://{self._folder.name}/engine.sock"
        self._context = zmq.Context()
        self._socket = self._context.socket(zmq.ROUTER)
        self._socket.setsockopt(zmq.RCVHWM, 0)
        self._socket.setsockopt(zmq.LINGER, 0)
        self._socket.bind(address)
        self.logprobs = logprobs
        document = {
            "schema": 1,
            "connect": address,
            "model_path": "/null",
            "device": "null",
            "max_num_seqs": max_num_seqs,
            "max_model_len": max_model_len,
            "kv_cache_memory_bytes": max_num_seqs * max_model_len,
        }
        read, write = os.pipe()
        os.write(write, json.dumps(document).encode())
        os.close(write)
        self._process = subprocess.Popen(
            [sys.executable, "-m", "proa.engine", "--config-fd", str(read)], pass_fds=[read]
        )
        os.close(read)
        self._identity = b""
        self.ready = self._shake_hands()

    def _shake_hands(self) -> Ready:
        self._identity = self._socket.recv_multipart()[0]
        self.send(Hello(PROTOCOL_MAJOR, PROTOCOL_MINOR, "bench", 0, 1000, bytes(16)))
        while True:
            message = self.receive()
            if isinstance(message, Ready) and message.facts is not None:
                return message

    def send(self, message: Message) -> None:
        self._socket.send_multipart([self._identity, *encode(message)])

    def receive(self) -> Message | None:
        """The next message; None for a knock."""
        if not self._socket.poll(30_000):
            raise TimeoutError("the engine is silent")
        frames = self._socket.recv_multipart()[1:]
        if frames == [b""]:
            return None
        message = decode(Direction.FROM_ENGINE, PROTOCOL_MINOR, frames)
        if isinstance(message, EngineFailed):
            raise RuntimeError(f"{message.cause}\n{message.traceback}")
        return message

    def outputs(self) -> StepOutputs:
        """The next message that carries outputs or statistics."""
        while True:
            message = self.receive()
            if isinstance(message, StepOutputs):
                return message

    def add(self, first_key: int, count: int, max_tokens: int) -> None:
        def column(value: float, dtype: str) -> np.ndarray:
            return np.full(count, value, dtype)

        prompts = np.random.default_rng(7).integers(0, 40_000, count * PROMPT_LEN).astype("<u4")
        self.send(
            AddRequests(
                RequestColumns(
                    request_key=np.arange(first_key, first_key + count).astype("<u8"),
                    prompt_len=column(PROMPT_LEN, "<u4"),
                    prompt_ids=prompts,
                    num_emitted=column(0, "<u4"),
                    max_tokens=column(max_tokens, "<u4"),
                    min_tokens=column(0, "<u4"),
                    temperature=column(0, "<f4"),
                    top_p=column(1, "<f4"),
                    min_p=column(0, "<f4"),
                    presence_penalty=column(0, "<f4"),
                    frequency_penalty=column(0, "<f4"),
                    repetition_penalty=column(1, "<f4"),
                    top_k=column(0, "<u4"),
                    stream_key=np.arange(first_key, first_key + count).astype("<u8"),
                    num_logprobs=column(self.logprobs, "<i4"),
                    num_prompt_logprobs=column(LOGPROBS_NONE, "<i4"),
                    stop_len=column(0, "<u2"),
                    stop_ids=np.zeros(0, "<u4"),
                    priority=column(0, "<i8"),
                    deadline_ms=column(NO_DEADLINE, "<u4"),
                    flags=column(0, "<u4"),
                )
            )
        )

    def close(self) -> None:
        self.send(Shutdown(ShutdownMode.NOW, 1000))
        self._process.wait(10)
        self._context.destroy(linger=0)
        self._folder.cleanup()


@dataclass
class Window:
    """Two snapshots with a process reading, and the messages between them."""

    first: SchedulerStats | None = None
    last: SchedulerStats | None = None

    def take(self, stats: SchedulerStats) -> None:
        if stats.process_cpu_ns is None:
            return
        if self.first is None:
            self.first = stats
        else:
            self.last = stats

    def report(self) -> dict[str, float]:
        assert self.first is not None and self.last is not None
        steps = sum(self.last.num_steps) - sum(self.first.num_steps)
        assert self.last.process_cpu_ns is not None and self.first.process_cpu_ns is not None
        numbers: dict[str, float] = {"steps": steps}
        numbers["cpu_ms_per_step"] = (self.last.process_cpu_ns - self.first.process_cpu_ns) / steps / 1e6
        for name, after, before in zip(PHASES, self.last.step_ns, self.first.step_ns, strict=True):
            numbers[f"{name}_us"] = (after - before) / steps / 1e3
        return numbers


def check(engine: Engine, rows: int, vocab_size: int) -> None:
    """Run `rows` requests to their end and compare every token with the executor's pure function."""
    num_tokens = 40
    engine.add(1, rows, num_tokens)
    got: dict[int, list[int]] = {key: [] for key in range(1, rows + 1)}
    ended = 0
    while ended < rows:
        out = engine.outputs().rows
        if out is None:
            continue
        at = 0
        for key, count, finish in zip(
            out.request_key.tolist(), out.num_tokens.tolist(), out.finish.tolist(), strict=True
        ):
            got[key] += out.token_ids[at : at + count].tolist()
            at += count
            ended += finish == 4
    for key, ids in got.items():
        wanted = token_of(np.full(num_tokens, key, np.uint64), np.arange(num_tokens, dtype=np.int32), vocab_size)
        if ids != wanted.tolist():
            raise SystemExit(f"request {key} got wrong tokens")


def measure(rows: int, seconds: int, logprobs: int) -> dict[str, float]:
    """CPU of a step with `rows` requests decoding."""
    max_model_len = 65_536
    engine = Engine(rows, max_model_len, logprobs)
    assert engine.ready.facts is not None
    check(engine, rows, engine.ready.facts.vocab_size)
    engine.add(rows + 1, rows, max_model_len - PROMPT_LEN)
    window = Window()
    readings = 0
    while readings < seconds + 2:
        stats = engine.outputs().stats
        assert stats is not None
        if stats.process_cpu_ns is not None:
            readings += 1
            # The first reading falls into the admission of the requests.
            if readings > 1 and stats.num_running == rows:
                window.take(stats)
        if stats.num_running == 0 and readings > 1:
            break
    engine.close()
    return window.report()


def commit() -> str:
    """The commit of the sources, so that a result can be told from another."""
    here = Path(__file__).parent
    run = subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=here, capture_output=True, text=True, check=False)
    return run.stdout.strip() or "unknown"


def array_operation_us() -> float:
    """Time of one small numpy addition: the unit this benchmark is made of, to compare machines and loads by."""
    a, b = np.zeros(1, np.int32), np.ones(1, np.int32)
    return min(timeit.repeat(lambda: a + b, number=20_000, repeat=5)) / 20_000 * 1e6


def facts(note: str) -> dict[str, object]:
    """Where and with what a result was measured."""
    return {
        "commit": commit(),
        "device": platform.processor() or platform.machine(),
        "num_cpus": os.cpu_count(),
        "load_average": os.getloadavg()[0],
        "small_array_operation_us": array_operation_us(),
        "python": platform.python_version(),
        "numpy": np.__version__,
        "pyzmq": zmq.__version__,
        "note": note,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, nargs="+", default=list(TARGETS_MS))
    parser.add_argument("--seconds", type=int, default=4)
    parser.add_argument("--logprobs", type=int, default=LOGPROBS_NONE)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--note", default="")
    args = parser.parse_args()
    results = {}
    for rows in args.rows:
        numbers = measure(rows, args.seconds, args.logprobs)
        target = TARGETS_MS.get(rows)
        results[rows] = numbers | ({"target_ms": target} if target is not None else {})
        parts = "  ".join(f"{name} {numbers[f'{name}_us']:6.1f}" for name in PHASES)
        print(
            f"{rows:4} rows  {numbers['cpu_ms_per_step']:.3f} ms CPU a step (target {target})  us: {parts}", flush=True
        )
    if args.json is not None:
        text = json.dumps({**facts(args.note), "rows": results}, indent=1)
        args.json.write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
