"""What no source may hold, and what every name in a text must point at."""

from __future__ import annotations

import re

import pytest
from source_tree import ROOT, imports_of, package_modules, tracked

SOURCES = tracked(".py", ".rs", ".toml", ".md", ".sh", "Makefile", "run", "fresh")
VARIABLE = re.compile(r"\bPROA_[A-Z0-9_]*[A-Z0-9]\b")


def flag_variables() -> set[str]:
    """Return the environment variables that set a flag, from the tables of flags and limits."""
    table = (ROOT / "rust/cli/src/flag_table.rs").read_text()
    limits = (ROOT / "rust/limits/limits.toml").read_text()
    names = re.findall(r'Flag::new\(\s*"(\w+)"', table)
    names += [flag.strip("-").replace("-", "_") for flag in re.findall(r'flag = "(--[\w-]+)"', limits)]
    assert len(names) > 150
    return {f"PROA_{name.upper()}" for name in names}


def registered_variables() -> set[str]:
    """Return every environment variable Proa reads."""
    table = (ROOT / "rust/cli/src/environment.rs").read_text()
    block = table[table.index("pub const VARIABLES") : table.index("];", table.index("pub const VARIABLES"))]
    return set(re.findall(r'\(\s*"(PROA_\w+)"', block)) | flag_variables()


@pytest.mark.parametrize("name", [n for n in SOURCES if not n.endswith(("environment.rs", "settings.rs"))])
def test_every_environment_variable_is_registered(name: str) -> None:
    if name in ("tests/contracts/test_words.py", "tests/e2e/test_command.py"):
        return  # both name variables that must be unknown
    used = set(VARIABLE.findall((ROOT / name).read_text()))
    used = {variable for variable in used if not variable.startswith("PROA_TEST_") and variable != "PROA_NAME"}
    if name.startswith(("csrc/", "rust/cpu/", "rust/cuda/")):
        used = {variable for variable in used if f'"{variable}"' in (ROOT / name).read_text()}
    assert used <= registered_variables(), f"{name}: {sorted(used - registered_variables())}"


@pytest.mark.parametrize(("module", "path"), package_modules(), ids=[name for name, _ in package_modules()])
def test_no_unsafe_loading(module: str, path) -> None:
    forbidden = {"pickle", "marshal", "shelve", "dill", "cloudpickle"}
    assert not {imported.split(".")[0] for imported in imports_of(path)} & forbidden
    text = path.read_text()
    assert not re.search(r"(?<![\w.])(eval|exec)\(", text)
    assert not re.search(r"torch\.load\(", text)
    assert not re.search(r"^\s*except\s*:", text, re.MULTILINE)


@pytest.mark.parametrize("name", [n for n in SOURCES if n != "tests/contracts/test_words.py"])
def test_no_path_or_host_of_one_machine(name: str) -> None:
    text = (ROOT / name).read_text()
    assert not re.search(r"/work/|/root/", text.replace("${HOME:-/root}", ""))
    assert not re.search(r"pypi\.org|pythonhosted|crates\.io|download\.pytorch", text)


# The scripted engine plays an engine's death.
@pytest.mark.parametrize("name", [name for name in tracked(".rs") if not name.startswith("rust/mock-engine/")])
def test_rust_never_aborts_on_panic(name: str) -> None:
    assert "process::abort" not in (ROOT / name).read_text()


def test_profiles_unwind() -> None:
    assert 'panic = "abort"' not in (ROOT / "Cargo.toml").read_text()


def layout_paths() -> list[tuple[str, bool]]:
    """Return (path, is planned) of every path in ARCHITECTURE.md: in backticks with a slash, or in the layout block."""
    text = (ROOT / "ARCHITECTURE.md").read_text()
    found: dict[str, bool] = {}
    for line in text.splitlines():
        planned = "planned" in line
        for quoted in re.findall(r"`([\w.\-/]+)`", line):
            top = quoted.split("/")[0]
            if "/" in quoted and top in (
                "rust",
                "python",
                "csrc",
                "tests",
                "benchmarks",
                "docs",
                "proto",
                ".ci",
                "tools",
            ):
                found[quoted] = found.get(quoted, False) or planned
    assert len(found) > 40
    return sorted(found.items())


def test_every_path_in_the_architecture_exists_or_is_planned() -> None:
    wrong = []
    for path, planned in layout_paths():
        exists = (ROOT / path).exists()
        if exists == planned:
            wrong.append(
                f"{path} {'exists, yet is marked planned' if exists else 'is neither there nor marked planned'}"
            )
    assert not wrong


def test_every_folder_of_sources_is_in_the_architecture() -> None:
    known = {path.rstrip("/") for path, _ in layout_paths()}
    folders = {"/".join(name.split("/")[:2]) for name in tracked(".rs") if name.startswith("rust/")}
    folders |= {"/".join(n.split("/")[:3]) for n in tracked(".py") if n.startswith("python/proa/") and n.count("/") > 2}
    assert not sorted(folders - known)


def test_every_folder_of_tests_is_run() -> None:
    text = (ROOT / "pyproject.toml").read_text()
    assert 'testpaths = ["tests"]' in text
    for name in tracked(".py"):
        if name.startswith("tests/") and name.rsplit("/", 1)[-1].startswith("test_"):
            assert name.split("/")[1] in ("contracts", "wire", "python", "e2e", "kernels"), name


def test_every_error_kind_is_met_by_a_test() -> None:
    import tomllib

    kinds = tomllib.loads((ROOT / "rust/limits/errors.toml").read_text())["error"]
    tests = [(ROOT / n).read_text() for n in tracked(".py") if n.startswith("tests/") and "contracts" not in n]
    for name in tracked(".rs"):
        text = (ROOT / name).read_text()
        tests.append(text if "/tests/" in name else text.partition("#[cfg(test)]")[2])
    everything = "\n".join(tests)
    for row in kinds:
        if row["kind"] in KINDS_OF_LATER_FEATURES:
            continue
        words = [row["kind"], *row["codes"]]
        assert any(word in everything for word in words), f"no test meets {row['kind']}"


#: Kinds that only features which are not built can raise; a test of the feature brings each in.
KINDS_OF_LATER_FEATURES = {
    "InvalidGrammar",
    "InvalidSchema",
    "Unauthenticated",
    "Forbidden",
    "Conflict",
    "UnprocessableMedia",
    "KeyLimit",
}
