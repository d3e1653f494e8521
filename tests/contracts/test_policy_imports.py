"""Policy and transport never bring in a model library: importing them is cheap, and the front end stays small."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[2] / "python" / "proa"
POLICY = ("sched", "kvcache", "engine", "wire", "transport", "request", "config", "env", "errors", "executor.null")
FORBIDDEN = ("torch", "transformers", "triton")


def test_importing_policy_loads_no_model_library() -> None:
    names = [f"proa.{name}" for name in POLICY]
    names += [
        ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts)
        for folder in ("sched", "kvcache", "engine", "config")
        for path in sorted((PACKAGE / folder).glob("*.py"))
        if path.stem not in ("__init__", "__main__")
    ]
    code = f"import sys\nfor name in {names!r}: __import__(name)\nprint([m for m in {FORBIDDEN!r} if m in sys.modules])"
    found = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=PACKAGE.parent
    ).stdout
    assert found.strip() == "[]"


def imported(path: Path) -> set[str]:
    """Every module a file names in an import, wherever it stands."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            names.add(node.module)
    return names


#: Folder or file -> the parts of the package it must not import: lower never imports higher.
RULES = {
    "kvcache": ("sched.scheduler", "sched.apply", "engine", "executor", "transport", "worker", "ops", "models"),
    "sched": ("engine", "executor", "transport", "worker", "ops", "models", "wire"),
    "transport.py": ("sched", "engine", "executor", "kvcache"),
    "wire.py": ("sched", "engine", "executor", "kvcache", "transport", "request"),
    "request.py": ("engine", "executor", "kvcache", "transport", "wire"),
    "executor": ("engine", "transport", "sched.scheduler", "sched.apply", "kvcache"),
}


@pytest.mark.parametrize("place", RULES)
def test_lower_parts_do_not_import_higher_ones(place: str) -> None:
    root = PACKAGE / place
    for path in [root] if root.is_file() else sorted(root.rglob("*.py")):
        for name in imported(path):
            assert not any(name == f"proa.{part}" or name.startswith(f"proa.{part}.") for part in RULES[place]), (
                f"{path.name} imports {name}"
            )


@pytest.mark.parametrize("folder", ["sched", "kvcache", "engine", "config"])
def test_policy_names_no_model_library(folder: str) -> None:
    for path in (PACKAGE / folder).rglob("*.py"):
        assert not imported(path) & set(FORBIDDEN), path.name


def test_no_pickle_marshal_or_eval_is_reachable_from_the_socket() -> None:
    for path in [*PACKAGE.glob("wire*.py"), PACKAGE / "transport.py", *(PACKAGE / "engine").glob("*.py")]:
        assert not imported(path) & {"pickle", "marshal", "shelve", "cloudpickle"}
        calls = [
            n.func.id
            for n in ast.walk(ast.parse(path.read_text()))
            if isinstance(n, ast.Call) and isinstance(n.func, ast.Name)
        ]
        assert not {"eval", "exec", "compile"} & set(calls), path.name


def test_environment_variables_are_read_in_one_place() -> None:
    for path in PACKAGE.rglob("*.py"):
        text = path.read_text(encoding="utf-8")
        if path.name != "env.py":
            assert "PROA_" not in text or "env.read(" in text, f"{path.name} names a PROA_ variable"
