"""Writes docs/errors.md from rust/limits/errors.toml; with --check it only says whether the page is current."""

from __future__ import annotations

import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "errors.md"

INTRODUCTION = """\
# Errors

Written by `tools/gen_docs.py` from `rust/limits/errors.toml`; do not edit.

Every error has the body `{"error": {"message", "type", "param", "code", "request_id"}}`, whatever the route and the
status; `limit`, `value`, `flag` and `retry_after_ms` stand beside them where they mean something. In a stream that has
begun the same body is the last event. 429 means healthy but full, 503 cannot serve now; both carry `Retry-After`.

| Kind | Status | type | code | When |
|---|---|---|---|---|
"""


def page() -> str:
    """Return the text of docs/errors.md."""
    errors = tomllib.loads((ROOT / "rust" / "limits" / "errors.toml").read_text())["error"]
    lines = []
    for error in errors:
        notes = [str(error["cause"])]
        if error.get("close"):
            notes.append("The connection closes.")
        if error.get("final"):
            notes.append("A retry cannot help.")
        codes = ", ".join(f"`{code}`" for code in error["codes"])
        lines.append(f"| {error['kind']} | {error['status']} | `{error['type']}` | {codes} | {' '.join(notes)} |\n")
    return INTRODUCTION + "".join(lines)


def main() -> int:
    """Write the page, or compare it; 1 = it is not current."""
    text = page()
    if "--check" in sys.argv[1:]:
        if PAGE.exists() and PAGE.read_text() == text:
            return 0
        print("docs/errors.md is not current: run tools/gen_docs.py", file=sys.stderr)
        return 1
    PAGE.write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
