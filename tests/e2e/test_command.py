"""The command itself: refusals, the start-up report, what the front end's process holds."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
import zmq
from proa_server import ProaServer


def proa(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run the command to its end."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("PROA_")}
    command = [sys.executable, "-m", "proa.cli", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, env=inherited | environment)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["serve", "--max-model-length", "1"], "unknown flag --max-model-length; did you mean --max-model-len?"),
        (["serve", "--api-key", "x"], "not supported yet: API keys (--api-key)"),
        (["serve", "--ssl-certfile", "x"], "not supported yet: TLS"),
        (["serve", "meta-llama/Llama-3.2-1B"], "not supported yet: downloads from a hub"),
        (["serve", "/nonexistent.gguf"], "no such file or folder"),
        (["serve", "--config", "/nonexistent.yaml"], "--config /nonexistent.yaml"),
        (["bench"], "not supported yet: proa bench"),
        (["frontend"], "not supported yet: proa frontend"),
        (["engine"], "--connect"),
        (["sreve"], "unknown command"),
    ],
)
def test_refusals_are_one_line_and_exit_2(arguments: list[str], text: str) -> None:
    run = proa(*arguments)
    assert run.returncode == 2
    assert text in run.stderr
    assert len(run.stderr.strip().splitlines()) == 1
    assert run.stdout == ""


def test_unknown_variables_and_keys_end_the_start(tmp_path: Path) -> None:
    run = proa("check-config", PROA_MAX_MODEL_LENGTH="1")
    assert (run.returncode, "PROA_MAX_MODEL_LEN?" in run.stderr) == (2, True)
    config = tmp_path / "proa.yaml"
    config.write_text("max_model_length: 1\n")
    run = proa("check-config", "--config", str(config))
    assert (run.returncode, "did you mean max_model_len?" in run.stderr) == (2, True)
    config.write_text("max_model_len: 4K # tokens\nhost: [127.0.0.1]\n")
    assert proa("check-config", "--config", str(config)).returncode == 0


def test_help_and_version() -> None:
    assert proa("--version").stdout == "proa 0.1.0\n"
    assert "proa serve [MODEL]" in proa("--help").stdout
    assert "--max-model-len" in proa("serve", "--help", "context-length").stdout


def test_a_file_that_is_no_model_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.gguf"
    path.write_bytes(b"not a model")
    run = proa("serve", "--port", "0", str(path))
    assert run.returncode == 2
    assert "GGUF" in run.stderr


def test_a_taken_port_is_refused() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        run = proa("serve", "--port", str(taken.getsockname()[1]), "--device", "null")
    assert run.returncode == 2
    assert "in use" in run.stderr


def test_the_report_has_phases_memory_and_choices(server: ProaServer) -> None:
    log = "\n".join(server.lines)
    for phase in ("arguments", "model", "tokenizer", "device", "weights", "kv"):
        assert re.search(rf"\b{phase}\b.* ms", log), phase
    assert re.search(r"\bweights\b.*MiB", log) and re.search(r"\bkv\b.*MiB", log)
    assert re.search(r"kernel \w+: \w+ \(.+\)", log)
    capabilities = server.get("/v1/capabilities").json
    assert {entry["phase"] for entry in capabilities["startup"] if "phase" in entry} >= {"weights", "kv"}
    assert capabilities["kernels"]
    assert capabilities["routes"]["/v1/completions"]["fields"]["temperature"]["class"] == "honoured"


def test_the_front_end_holds_no_python_library_that_computes(server: ProaServer) -> None:
    maps = Path(f"/proc/{server.process.pid}/maps").read_text()
    for name in ("torch", "transformers", "numpy"):
        assert f"/{name}/" not in maps
    assert "_rust" in maps


def test_the_engine_holds_no_transformers(server: ProaServer) -> None:
    files = {Path(entry.path) for entry in server.engine().memory_maps()}
    assert not [path for path in files if "transformers" in path.parts or "tokenizers" in path.parts]


def test_two_servers_side_by_side() -> None:
    with ProaServer(["--device", "null"]) as one, ProaServer(["--device", "null"]) as two:
        one.wait_ready()
        two.wait_ready()
        assert one.port != two.port
        assert one.engine().pid != two.engine().pid
        folder = Path("/tmp")
        assert folder.is_dir()
    assert not psutil.pid_exists(one.process.pid) or one.process.poll() is not None


def test_dummy_weights_serve(tmp_path: Path) -> None:
    with ProaServer(["--load-format", "dummy"]) as dummy:
        dummy.wait_ready()
        reply = dummy.post("/v1/completions", {"prompt": "x", "max_tokens": 3, "ignore_eos": True})
        assert (reply.status, reply.json["usage"]["completion_tokens"]) == (200, 3)


@pytest.mark.parametrize("command", [["engine"], ["serve", "--headless"]])
def test_the_engine_alone_knocks_at_its_front_end(tmp_path: Path, command: list[str]) -> None:
    address = f"ipc://{tmp_path}/engine.sock"
    with zmq.Context() as context, context.socket(zmq.ROUTER) as front:
        front.bind(address)
        arguments = [*command, "--connect", address, "--engine-index", "3", "--device", "null"]
        engine = subprocess.Popen([sys.executable, "-m", "proa.cli", *arguments])
        try:
            assert front.poll(60_000), "no knock came"
            identity, frame = front.recv_multipart()
            assert (identity[:3], frame) == (b"\x50\x03\x00", b"")
            assert psutil.Process(engine.pid).cmdline()[1:3] == ["-m", "proa.engine"]
        finally:
            engine.kill()
            engine.wait()
