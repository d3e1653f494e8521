"""No flag is accepted and ignored: whoever reads a built flag or limit is found in the sources."""

from __future__ import annotations

import re
import tomllib

import pytest
from source_tree import ROOT, tracked

TABLE = (ROOT / "rust/cli/src/flag_table.rs").read_text()
ROWS = re.split(r"\n\s*Flag::new\(", TABLE[TABLE.index("pub const FLAGS") : TABLE.index("pub const LIMIT_ALIASES")])[1:]


def built_flags() -> list[str]:
    """Return the names of rows without a refusal."""
    names = []
    for row in ROWS:
        name = re.match(r'\s*"(\w+)"', row)
        assert name is not None, row
        if ".later(" not in row and ".refused(" not in row:
            names.append(name[1])
    return names


def built_limits() -> list[str]:
    """Return the names of settable limits of built features."""
    later = set(
        re.findall(r'^\s*\("(\w+)", \w+\),$|^\s*\("(\w+)", "', TABLE[TABLE.index("LATER_LIMITS") :], re.MULTILINE)
    )
    later_names = {name for pair in later for name in pair if name}
    limits = tomllib.loads((ROOT / "rust/limits/limits.toml").read_text())["limit"]
    return [row["name"] for row in limits if "flag" in row and row["name"] not in later_names]


def sources(*folders: str) -> str:
    """Return the text of the Rust sources of some crates, without their tests."""
    texts = []
    for name in tracked(".rs"):
        if name.startswith(folders) and not name.endswith(("flag_table.rs", "foreign_table.rs")):
            texts.append((ROOT / name).read_text().partition("#[cfg(test)]")[0])
    return "\n".join(texts)


CLI = sources("rust/cli/src")
READERS = sources("rust/server/src", "rust/engine-client/src", "rust/cli/src", "rust/chat/src")


@pytest.mark.parametrize("name", built_flags())
def test_every_built_flag_is_read(name: str) -> None:
    assert f'"{name}"' in CLI or f".{name}" in READERS


@pytest.mark.parametrize("name", built_limits())
def test_every_built_limit_is_read(name: str) -> None:
    assert re.search(rf"\.{name}\b|\"{name}\"", READERS)


def test_the_tables_were_read() -> None:
    assert len(built_flags()) > 40
    assert len(built_limits()) > 30
