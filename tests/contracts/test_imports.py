"""Lower never imports higher, in both languages; torch stays where devices are; the front end's half has none of it."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib

import pytest
from source_tree import ROOT, imports_of, package_modules

#: Python modules from low to high, by prefix; a module imports from its own layer and lower ones.
LAYERS: list[list[str]] = [
    ["proa._tables", "proa._rust"],
    ["proa.errors", "proa.env"],
    ["proa.config", "proa.sched.plan", "proa.sched.plan_check", "proa.wire"],
    ["proa.request", "proa.transport", "proa.executor.interface"],
    ["proa.kvcache"],
    ["proa.sched"],
    ["proa.platform"],
    ["proa.ops"],
    ["proa.layers"],
    ["proa.models"],
    ["proa.weights"],
    ["proa.sample"],
    ["proa.program"],
    ["proa.worker"],
    ["proa.executor"],
    ["proa.engine"],
    ["proa.cli", "proa.llm"],
]

#: Where torch may be imported; transformers nowhere in the package.
TORCH = ("proa.ops", "proa.worker", "proa.executor.torch")

#: Rust crates and what they may depend on (ARCHITECTURE.md section 6); not written = nothing of ours.
CRATES: dict[str, set[str]] = {
    "limits": set(),
    "wire": {"limits"},
    "metrics": {"limits"},
    "engine-client": {"wire", "metrics", "limits"},
    "model-files": set(),
    "text": {"limits", "model-files"},
    "chat": {"text", "limits", "model-files"},
    "server": {"chat", "text", "engine-client", "metrics", "limits", "wire", "model-files"},
    "cli": {"server", "chat", "text", "engine-client", "metrics", "limits", "wire", "model-files"},
    "cpu": set(),
    "cuda": set(),
    "pyext": {"cli", "chat", "text", "wire", "model-files", "limits", "cpu"},
    "mock-engine": {"limits", "wire"},
}


def layer_of(module: str) -> int:
    """Return the layer of the longest prefix that names the module."""
    best = (-1, -1)
    for index, prefixes in enumerate(LAYERS):
        for prefix in prefixes:
            if module == prefix or module.startswith(
                (prefix + ".", "proa.wire_" if prefix == "proa.wire" else prefix + ".")
            ):
                best = max(best, (len(prefix), index))
    if best[1] < 0:
        raise AssertionError(f"{module} has no layer: add it to LAYERS and to ARCHITECTURE.md")
    return best[1]


MODULES = [(name, path) for name, path in package_modules() if name != "proa"]


@pytest.mark.parametrize(("module", "path"), MODULES, ids=[name for name, _ in MODULES])
def test_lower_never_imports_higher(module: str, path) -> None:
    known = {name for name, _ in package_modules()} | {"proa._rust"}
    for imported in imports_of(path):
        if imported.startswith("proa.") and imported in known:
            assert layer_of(imported) <= layer_of(module), f"{module} imports {imported}"


@pytest.mark.parametrize(("module", "path"), MODULES, ids=[name for name, _ in MODULES])
def test_torch_is_imported_only_where_devices_are(module: str, path) -> None:
    heavy = {imported.split(".")[0] for imported in imports_of(path)} & {"torch", "triton", "transformers"}
    if module.startswith(TORCH):
        heavy -= {"torch", "triton"}
    assert not heavy, f"{module} imports {heavy}"


def test_policy_runs_in_a_process_without_torch() -> None:
    policy = ("proa.sched", "proa.kvcache", "proa.engine", "proa.wire", "proa.transport", "proa.config", "proa.request")
    modules = [m for m, _ in MODULES if m.startswith(policy) and not m.endswith("__main__")]
    assert len(modules) > 10
    program = f"import importlib, sys\nfor m in {modules!r}: importlib.import_module(m)\n"
    program += "print(sorted({m.split('.')[0] for m in sys.modules} & {'torch', 'transformers', 'triton'}))"
    run = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT / "python", capture_output=True, text=True, check=True
    )
    assert run.stdout.strip() == "[]"


@pytest.mark.parametrize("manifest", sorted((ROOT / "rust").glob("*/Cargo.toml")), ids=lambda path: path.parent.name)
def test_crates_depend_downwards_only(manifest) -> None:
    table = tomllib.loads(manifest.read_text())
    crate = manifest.parent.name
    assert crate in CRATES, f"{crate}: add it to CRATES and to ARCHITECTURE.md"
    ours = {name for name in table.get("dependencies", {}) if (ROOT / "rust" / name).is_dir()}
    assert ours <= CRATES[crate], f"{crate} depends on {sorted(ours - CRATES[crate])}"


def test_every_dependency_of_rust_is_a_workspace_dependency() -> None:
    for manifest in (ROOT / "rust").glob("*/Cargo.toml"):
        table = tomllib.loads(manifest.read_text())
        for section in ("dependencies", "dev-dependencies", "build-dependencies"):
            for name, value in table.get(section, {}).items():
                assert isinstance(value, dict) and value.get("workspace"), f"{manifest}: {name}"


def test_the_command_imports_only_the_extension() -> None:
    ours = {imported for imported in imports_of(ROOT / "python/proa/cli.py") if imported.startswith("proa")}
    assert ours == {"proa", "proa._rust"}
    assert not set(imports_of(ROOT / "python/proa/__init__.py"))


def test_every_dependency_has_its_reason_in_contributing() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text()
    workspace = tomllib.loads((ROOT / "Cargo.toml").read_text())["workspace"]["dependencies"]
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    python = [*project["dependencies"], *(d for extra in project["optional-dependencies"].values() for d in extra)]
    names = [name for name, value in workspace.items() if not (isinstance(value, dict) and "path" in value)]
    names += [re.match(r"[\w-]+", requirement)[0] for requirement in python]
    missing = [name for name in names if f"`{name}`" not in text]
    assert not missing
