"""Sizes that keep the sources readable (ARCHITECTURE.md section 9): lines of files and functions, parameters."""

from __future__ import annotations

import ast

import pytest
from source_tree import ROOT, tracked

MAX_PYTHON_LINES = 600
MAX_RUST_LINES = 800
MAX_FUNCTION_LINES = 60
MAX_PARAMETERS = 5

PYTHON = [name for name in tracked(".py") if name.startswith("python/")]


@pytest.mark.parametrize("name", tracked(".py", ".rs"))
def test_files_are_short(name: str) -> None:
    lines = len((ROOT / name).read_text().splitlines())
    assert lines <= (MAX_PYTHON_LINES if name.endswith(".py") else MAX_RUST_LINES)


@pytest.mark.parametrize("name", PYTHON)
def test_functions_are_short(name: str) -> None:
    for node in ast.walk(ast.parse((ROOT / name).read_text())):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            lines = (node.end_lineno or 0) - node.lineno + 1
            assert lines <= MAX_FUNCTION_LINES, f"{node.name} has {lines} lines"


# An op takes its operands one by one, as its kernel does.
@pytest.mark.parametrize("name", [name for name in PYTHON if not name.startswith("python/proa/ops/")])
def test_functions_have_few_parameters(name: str) -> None:
    for node in ast.walk(ast.parse((ROOT / name).read_text())):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            arguments = node.args.posonlyargs + node.args.args + node.args.kwonlyargs
            counted = [a for a in arguments if a.arg not in ("self", "cls")]
            assert len(counted) <= MAX_PARAMETERS, f"{node.name} has {len(counted)} parameters"
            flags = [a for a in counted if isinstance(a.annotation, ast.Name) and a.annotation.id == "bool"]
            assert len(flags) <= 1, f"{node.name} has {len(flags)} bool parameters"


@pytest.mark.parametrize("name", tracked(".py", ".rs"))
def test_no_file_is_named_after_nothing(name: str) -> None:
    stem = name.rsplit("/", 1)[-1].rsplit(".", 1)[0]
    assert stem not in ("utils", "util", "common", "helpers", "helper", "misc")
    assert not stem.endswith("_v2")


@pytest.mark.parametrize("name", [*PYTHON, *(n for n in tracked(".rs") if "/src/" in n)])
def test_every_file_says_what_it_owns(name: str) -> None:
    text = (ROOT / name).read_text()
    if name.endswith(".rs"):
        assert text.startswith(("//!", "#![")) and "//!" in text
    else:
        assert ast.get_docstring(ast.parse(text))
