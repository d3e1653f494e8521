"""The repository's own files, for tests about the sources: which there are, and what they import."""

from __future__ import annotations

import ast
import subprocess
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

#: Generated files: their lengths and words are those of their sources.
GENERATED = {"python/proa/_tables.py", "rust/limits/src/limit_table.rs", "rust/limits/src/list_table.rs"}


def tracked(*suffixes: str) -> list[str]:
    """Return the repository's files with one of `suffixes`, new files included, relative to its root."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    listing = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    names = {name for name in listing.splitlines() if (ROOT / name).is_file()}
    return sorted(name for name in names if name.endswith(suffixes) and name not in GENERATED)


def package_modules() -> list[tuple[str, Path]]:
    """Return (dotted name, path) of every module of the package."""
    modules = []
    for name in tracked(".py"):
        if name.startswith("python/"):
            parts = list(Path(name).relative_to("python").with_suffix("").parts)
            if parts[-1] == "__init__":
                parts.pop()
            modules.append((".".join(parts), ROOT / name))
    return modules


def imports_of(path: Path) -> Iterator[str]:
    """Yield every module a file imports anywhere in it, functions included, as a dotted name."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
