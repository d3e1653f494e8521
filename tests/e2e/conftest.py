"""Servers shared by the end-to-end tests: the default model in fp32, and the null executor."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from proa_server import ProaServer
from reference import Reference


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if "/e2e/" in str(item.path):
            item.add_marker(pytest.mark.e2e)


@pytest.fixture(scope="session")
def server() -> Iterator[ProaServer]:
    """The default model in fp32, prefix cache on."""
    with ProaServer(["--dtype", "float32"]) as running:
        yield running.wait_ready()


@pytest.fixture(scope="session")
def null_server() -> Iterator[ProaServer]:
    """The null executor with the default model's tokenizer: tokens at once."""
    with ProaServer(["--device", "null"]) as running:
        yield running.wait_ready()


@pytest.fixture(scope="session")
def reference(default_model: Path) -> Reference:
    """What transformers says on the same file, with its logprobs computed once."""
    return Reference.load(default_model)
