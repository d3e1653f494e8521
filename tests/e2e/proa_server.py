"""A real `proa serve` for tests: started on a free port, watched through its own words, ended without orphans."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from dataclasses import dataclass
from typing import Any

import psutil

#: A start may fetch the default model and load torch on a busy machine.
START_TIMEOUT_S = 300.0
STOP_TIMEOUT_S = 60.0

_LISTENING = re.compile(r"listening on http://([\d.]+):(\d+)")
_READY = re.compile(r"\bready\b.*http://")


@dataclass
class Reply:
    """A status with its body: JSON where the body is JSON."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


class ProaServer:
    """One server process and everything it said.

    Attributes:
        lines: standard error so far, one string a line.
        url: `http://HOST:PORT`, known as soon as the port is bound.
    """

    def __init__(self, arguments: list[str], environment: dict[str, str] | None = None) -> None:
        command = [sys.executable, "-m", "proa.cli", "serve", "--port", "0", *arguments]
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("PROA_")}
        for name in ("PROA_CACHE_DIR",):
            if name in os.environ:
                inherited[name] = os.environ[name]
        self.lines: list[str] = []
        self._news = threading.Condition()
        self._ended = False
        self.process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            env=inherited | (environment or {}),
            start_new_session=True,
        )
        self.url = ""
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            with self._news:
                self.lines.append(line.rstrip("\n"))
                self._news.notify_all()
        with self._news:
            self._ended = True
            self._news.notify_all()

    def wait_for_line(
        self, pattern: str | re.Pattern[str], start: int = 0, timeout_s: float = START_TIMEOUT_S
    ) -> re.Match[str]:
        """Return the match in the first line from `start` on that matches, waiting for it."""
        deadline = time.monotonic() + timeout_s
        at = start
        with self._news:
            while True:
                while at < len(self.lines):
                    found = re.search(pattern, self.lines[at])
                    if found:
                        return found
                    at += 1
                left = deadline - time.monotonic()
                if self._ended or left <= 0:
                    raise AssertionError(f"no line matches {pattern!r}:\n" + self.log())
                self._news.wait(left)

    def wait_listening(self) -> ProaServer:
        """Return when the port is bound."""
        host, port = self.wait_for_line(_LISTENING).groups()
        self.url = f"http://{host}:{port}"
        return self

    def wait_ready(self) -> ProaServer:
        """Return when the model answers."""
        self.wait_listening()
        self.wait_for_line(_READY)
        return self

    @property
    def port(self) -> int:
        return int(self.url.rsplit(":", 1)[1])

    def log(self) -> str:
        """Return the last lines it said."""
        return "\n".join(self.lines[-60:])

    def engine(self) -> psutil.Process:
        """Return the engine's process."""
        children = psutil.Process(self.process.pid).children()
        engines = [child for child in children if "proa.engine" in " ".join(child.cmdline())]
        assert len(engines) == 1, f"{engines}\n{self.log()}"
        return engines[0]

    def request(
        self, method: str, path: str, body: Any = None, headers: dict[str, str] | None = None, timeout_s: float = 120
    ) -> Reply:
        """Send one request; `body` is bytes, or anything JSON can hold."""
        data = body if isinstance(body, bytes) or body is None else json.dumps(body).encode()
        asked = {"content-type": "application/json"} if data is not None else {}
        request = urllib.request.Request(self.url + path, data, asked | (headers or {}), method=method)
        try:
            with urllib.request.urlopen(request, timeout=timeout_s) as reply:
                return Reply(reply.status, dict(reply.headers), reply.read())
        except urllib.error.HTTPError as error:
            with error:
                return Reply(error.code, dict(error.headers), error.read())

    def get(self, path: str) -> Reply:
        return self.request("GET", path)

    def post(self, path: str, body: Any) -> Reply:
        return self.request("POST", path, body)

    def metric(self, name: str) -> float:
        """Return the sum of a metric's samples over all labels."""
        text = self.get("/metrics").body.decode()
        values = re.findall(rf"^{re.escape(name)}(?:\{{[^}}]*\}})? ([0-9.eE+-]+|NaN)$", text, re.MULTILINE)
        assert values, f"no sample of {name}"
        return sum(float(value) for value in values)

    def audit(self) -> dict[str, int]:
        """Return the engine's block audit."""
        reply = self.request("POST", "/v1/block_audit")
        assert reply.status == 200, reply.body
        (engine,) = reply.json["engines"]
        return engine

    def stop(self, with_signal: int = signal.SIGTERM) -> int:
        """End the server, and fail if it leaves a process behind. Return its exit code."""
        if self.process.poll() is not None:
            return self.process.returncode
        family = psutil.Process(self.process.pid).children(recursive=True)
        self.process.send_signal(with_signal)
        try:
            code = self.process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            for child in family:
                if child.is_running():
                    child.kill()
            raise AssertionError("the server did not end:\n" + self.log()) from None
        _, alive = psutil.wait_procs(family, timeout=10)
        for child in alive:
            child.kill()
        assert not alive, f"processes left behind: {alive}\n{self.log()}"
        self._reader.join(10)
        return code

    def __enter__(self) -> ProaServer:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
