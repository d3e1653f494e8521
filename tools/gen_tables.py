"""Writes the closed lists of `rust/limits/*.toml` as Rust and Python tables.

    python tools/gen_tables.py           write rust/limits/src/*_table.rs and python/proa/_tables.py
    python tools/gen_tables.py --check   exit 1 and name the file that is not as generated

The TOML files are the only source; both outputs are checked in, so neither build needs this tool.
"""

from __future__ import annotations

import re
import sys
import tomllib
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
SOURCE = ROOT / "rust" / "limits"
LISTS_OUT = SOURCE / "src" / "list_table.rs"
LIMITS_OUT = SOURCE / "src" / "limit_table.rs"
PYTHON_OUT = ROOT / "python" / "proa" / "_tables.py"

Row = dict[str, Any]
Tables = dict[str, list[Any]]


def load() -> Tables:
    """Reads the four TOML files into one map from list name to rows."""
    tables: Tables = {}
    for name in ("errors", "finish", "causes", "limits"):
        with (SOURCE / f"{name}.toml").open("rb") as file:
            tables |= tomllib.load(file)
    for row in tables["finish"] + tables["abort"]:
        row["label"] = _snake(row["name"])
    return tables


def _snake(name: str) -> str:
    return re.sub(r"(?<!^)(?=[A-Z])", "_", name).lower()


def _quote(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def _wrap(items: list[str], indent: str) -> list[str]:
    """The items, each with its comma, in lines of at most 100 columns; an item is never broken."""
    lines = [indent]
    for item in items:
        if len(lines[-1]) + len(item) + 1 > 100 and lines[-1] != indent:
            lines[-1] = lines[-1].rstrip()
            lines.append(indent)
        lines[-1] += f"{item}, "
    return [*lines[:-1], lines[-1].rstrip()]


# ---- Rust


def _rust_enum(name: str, doc: str, variants: list[tuple[str, str]], repr_: str = "") -> str:
    lines = [f"/// {doc}", "#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]"]
    if repr_:
        lines.append(f"#[repr({repr_})]")
    lines.append(f"pub enum {name} {{")
    for variant, text in variants:
        lines += [f"    /// {text}", f"    {variant},"]
    lines += ["}", "", f"impl {name} {{", f"    /// Every {name}, in the order of its table."]
    names = [variant.split(" ")[0] for variant, _ in variants]
    lines.append(f"    pub const ALL: &'static [{name}] = &[")
    lines += _wrap([f"{name}::{variant}" for variant in names], " " * 8)
    lines += ["    ];", "}", ""]
    return "\n".join(lines)


def _rust_match(owner: str, head: str, doc: str, arms: list[tuple[str, str]]) -> str:
    """A method with one arm per variant; arms of equal value share a line as clippy asks."""
    by_value: dict[str, list[str]] = {}
    for variant, value in arms:
        by_value.setdefault(value, []).append(f"{owner}::{variant}")
    lines = [f"impl {owner} {{", f"    /// {doc}", f"    pub const fn {head} {{", "        match self {"]
    for value, variants in by_value.items():
        joined = f"            {' | '.join(variants)} => {value},"
        if len(joined) > 100:
            joined = "            " + "\n            | ".join(variants) + f" => {value},"
        lines.append(joined)
    lines += ["        }", "    }", "}", ""]
    return "\n".join(lines)


def _rust_errors(rows: list[Row]) -> str:
    def arms(value: Any) -> list[tuple[str, str]]:
        return [(row["kind"], value(row)) for row in rows]

    def flag(key: str) -> list[tuple[str, str]]:
        return arms(lambda row: "true" if row.get(key, False) else "false")

    def codes(row: Row) -> str:
        return "&[" + ", ".join(_quote(code) for code in row["codes"]) + "]"

    owner = "ErrorKind"
    return "\n".join(
        [
            _rust_enum(owner, "What went wrong, as a client may see it.", [(r["kind"], r["cause"]) for r in rows]),
            _rust_match(
                owner,
                "name(self) -> &'static str",
                "The kind's name, as both languages write it.",
                arms(lambda row: _quote(row["kind"])),
            ),
            _rust_match(owner, "status(self) -> u16", "The HTTP status.", arms(lambda row: str(row["status"]))),
            _rust_match(
                owner,
                "error_type(self) -> &'static str",
                "The value of `error.type`.",
                arms(lambda row: _quote(row["type"])),
            ),
            _rust_match(
                owner,
                "codes(self) -> &'static [&'static str]",
                "The values `error.code` may take; the first is the default.",
                arms(codes),
            ),
            _rust_match(
                owner, "closes_connection(self) -> bool", "Whether the connection ends after the reply.", flag("close")
            ),
            _rust_match(
                owner, "is_final(self) -> bool", "Whether a retry cannot help (`X-Should-Retry: false`).", flag("final")
            ),
        ]
    )


def _rust_finish(rows: list[Row]) -> str:
    owner = "Finish"

    def some(prefix: str, key: str) -> list[tuple[str, str]]:
        return [(row["name"], f"Some({prefix}::{row[key]})" if key in row else "None") for row in rows]

    failures = [
        (row["name"], f"Some((ErrorKind::{row['error']}, {_quote(row['error_code'])}))" if "error" in row else "None")
        for row in rows
    ]
    return "\n".join(
        [
            _rust_enum(
                owner,
                "How the engine ended a row: the column `finish`.",
                [(f"{row['name']} = {row['code']}", row["doc"]) for row in rows],
                "u8",
            ),
            _rust_match(
                owner,
                "label(self) -> &'static str",
                "The code's name in snake case.",
                [(row["name"], _quote(row["label"])) for row in rows],
            ),
            _rust_match(
                owner,
                "end_cause(self) -> Option<EndCause>",
                "The metrics cause; the front end refines eos and aborts. None while the row goes on.",
                some("EndCause", "end"),
            ),
            _rust_match(
                owner,
                "error(self) -> Option<(ErrorKind, &'static str)>",
                "Kind and code of the reply when this ending is a failure.",
                failures,
            ),
        ]
    )


def _rust_abort_and_end(abort: list[Row], end: list[Row]) -> str:
    reasons = list(dict.fromkeys(row["reason"] for row in end))
    to_reason = [(row["name"], f"FinishedReason::{row['reason']}") for row in end]
    abort_variants = [(f"{row['name']} = {row['code']}", row["doc"]) for row in abort]
    end_doc = "Why a request ended: the label `cause` of `request_ended_total`."
    return "\n".join(
        [
            _rust_enum("AbortCause", "Why the front end aborts a request: the column `cause`.", abort_variants, "u8"),
            _rust_labels("AbortCause", abort),
            _rust_enum(
                "FinishedReason",
                "The label `finished_reason` of the metrics.",
                [(reason, f"`{_snake(reason)}`.") for reason in reasons],
            ),
            _rust_labels("FinishedReason", [{"name": reason, "label": _snake(reason)} for reason in reasons]),
            _rust_enum("EndCause", end_doc, [(row["name"], f"`{row['label']}`.") for row in end]),
            _rust_labels("EndCause", end),
            _rust_match(
                "EndCause",
                "finished_reason(self) -> FinishedReason",
                "The one reason this cause counts under.",
                to_reason,
            ),
        ]
    )


def _rust_failures(rows: list[Row]) -> str:
    owner = "FailureKind"

    def flag(key: str) -> list[tuple[str, str]]:
        return [(row["name"], str(row[key]).lower()) for row in rows]

    variants = [(row["name"], f"`{row['label']}`.") for row in rows]
    strike_doc = "Whether the step's requests become suspects."
    return "\n".join(
        [
            _rust_enum(owner, "Why an engine gave up: `kind` of EngineFailed.", variants),
            _rust_labels(owner, rows),
            _rust_match(owner, "is_retried(self) -> bool", "Whether the engine is started again.", flag("retry")),
            _rust_match(owner, "is_strike(self) -> bool", strike_doc, flag("strike")),
        ]
    )


def _rust_waiting(names: list[str]) -> str:
    doc = "/// Why a request waits: order of the gauge `waiting_causes`, value of `prog_reason`."
    items = ", ".join(_quote(name) for name in names)
    return f"{doc}\npub const WAITING_CAUSES: [&str; {len(names)}] = [{items}];\n"


def _rust_labels(owner: str, rows: list[Row]) -> str:
    arms = [(row["name"], _quote(row["label"])) for row in rows]
    return _rust_match(
        owner, "label(self) -> &'static str", "The name in snake case, as wire and metrics write it.", arms
    )


def _option(value: Any) -> str:
    return "None" if value is None else f"Some({value})"


def _rust_limits(rows: list[Row]) -> str:
    lines = []
    for row in rows:
        flag = _option(_quote(row["flag"]) if "flag" in row else None)
        fields = [
            f"name: {_quote(row['name'])}",
            f"default: {_option(row.get('default'))}",
            f"min: {row.get('min', 'i64::MIN')}",
            f"max: {row.get('max', 'i64::MAX')}",
            f"flag: {flag}",
            f"live: {str(row.get('live', False)).lower()}",
            f"unit: {_quote(row['unit'])}",
            f"doc: {_quote(row['doc'])}",
        ]
        lines += [f"/// {row['doc']}", f"pub const {row['name'].upper()}: Limit = Limit {{"]
        lines += [*_wrap(fields, "    "), "};"]
    lines += ["", "/// Every limit, in the order of the table.", "pub const LIMITS: &[Limit] = &["]
    lines += [*_wrap([row["name"].upper() for row in rows], "    "), "];", ""]
    return "\n".join(lines)


_LIMIT_VALUES = """\
/// The values in force of every limit that has a flag.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LimitValues {{
{fields}
}}

impl Default for LimitValues {{
    fn default() -> Self {{
        LimitValues {{
{defaults}
        }}
    }}
}}

impl LimitValues {{
    /// The value in force of the limit `name`; None if it is unset or has no flag.
    pub fn get(&self, name: &str) -> Option<i64> {{
        match name {{
{getters}
            _ => None,
        }}
    }}

    /// Stores a value already checked by [`Limit::check`]; false if no limit of that name has a flag.
    pub fn store(&mut self, name: &str, value: i64) -> bool {{
        match name {{
{setters}
            _ => return false,
        }}
        true
    }}
}}
"""


def _rust_limit_values(rows: list[Row]) -> str:
    fields, defaults, getters, setters = [], [], [], []
    for row in rows:
        if "flag" not in row:
            continue
        name, key, is_set = row["name"], _quote(row["name"]), "default" in row
        fields += [f"    /// {row['doc']}", f"    pub {name}: {'i64' if is_set else 'Option<i64>'},"]
        defaults.append(f"{name}: {row.get('default', 'None')}")
        getters.append(f"{key} => {f'Some(self.{name})' if is_set else f'self.{name}'}")
        setters.append(f"{key} => self.{name} = {'value' if is_set else 'Some(value)'}")
    return _LIMIT_VALUES.format(
        fields="\n".join(fields),
        defaults="\n".join(_wrap(defaults, " " * 12)),
        getters="\n".join(_wrap(getters, " " * 12)),
        setters="\n".join(_wrap(setters, " " * 12)),
    )


_RUST_HEAD = "//! Generated by `tools/gen_tables.py` from the TOML files beside `src`; do not edit.\n"


def list_text(tables: Tables) -> str:
    """The whole of `rust/limits/src/list_table.rs`: error kinds, finish codes, causes."""
    return "\n".join(
        [
            _RUST_HEAD,
            _rust_errors(tables["error"]),
            _rust_finish(tables["finish"]),
            _rust_abort_and_end(tables["abort"], tables["end"]),
            _rust_failures(tables["failure"]),
            _rust_waiting(tables["waiting"]),
        ]
    )


def limit_text(tables: Tables) -> str:
    """The whole of `rust/limits/src/limit_table.rs`: limits and their values."""
    return "\n".join(
        [_RUST_HEAD, "use crate::limit::Limit;\n", _rust_limits(tables["limit"]), _rust_limit_values(tables["limit"])]
    )


# ---- Python


def _python_rows(name: str, doc: str, rows: list[tuple[Any, ...]], type_: str) -> list[str]:
    lines = ["", f"# {doc}", f"{name}: tuple[{type_}, ...] = ("]
    lines += [f"    {_python_value(row)}," for row in rows]
    return [*lines, ")"]


def _python_enum(head: str, doc: str, members: list[tuple[str, str, str]]) -> list[str]:
    lines = ["", "", f"class {head}:", f'    """{doc}"""', ""]
    lines += [f"    {_snake(name).upper()} = {value}  # {text}" for name, value, text in members]
    return lines


def _python_value(value: Any) -> str:
    if isinstance(value, tuple):
        inner = ", ".join(_python_value(item) for item in value)
        return f"({inner},)" if len(value) == 1 else f"({inner})"
    return _quote(value) if isinstance(value, str) else repr(value)


def python_text(tables: Tables) -> str:
    """The whole of `python/proa/_tables.py`."""
    lines = [
        '"""Generated by `tools/gen_tables.py` from `rust/limits/*.toml`; do not edit."""',
        "",
        "# fmt: off",
        "# ruff: noqa: E501",
        "",
        "from enum import Enum, IntEnum",
        *_python_enums(tables),
        "",
        *_python_lists(tables),
    ]
    return "\n".join(lines) + "\n"


def _python_enums(tables: Tables) -> list[str]:
    errors = [(row["kind"], _quote(row["kind"]), row["cause"]) for row in tables["error"]]
    finish = [(row["name"], str(row["code"]), row["doc"]) for row in tables["finish"]]
    abort = [(row["name"], str(row["code"]), row["doc"]) for row in tables["abort"]]
    failure = [(row["name"], _quote(row["label"]), f"`{row['label']}`.") for row in tables["failure"]]
    return [
        *_python_enum("ErrorKind(Enum)", "What went wrong, as a client may see it.", errors),
        *_python_enum("FinishCode(IntEnum)", "How the engine ended a row: the column `finish`.", finish),
        *_python_enum("AbortCause(IntEnum)", "Why the front end aborts a request: the column `cause`.", abort),
        *_python_enum("FailureKind(Enum)", "Why an engine gave up: `kind` of EngineFailed.", failure),
    ]


def _python_lists(tables: Tables) -> list[str]:
    errors = [(r["kind"], r["status"], r["type"], tuple(r["codes"])) for r in tables["error"]]
    finish = [(r["code"], r["label"], r.get("end"), r.get("error"), r.get("error_code")) for r in tables["finish"]]
    abort = [(r["code"], r["label"]) for r in tables["abort"]]
    end = [(r["name"], r["label"], _snake(r["reason"])) for r in tables["end"]]
    failure = [(r["label"], r["retry"], r["strike"]) for r in tables["failure"]]
    limits = [
        (r["name"], r.get("default"), r.get("min"), r.get("max"), r.get("flag"), r.get("live", False))
        for r in tables["limit"]
    ]
    number, text = "int | None", "str | None"
    error_type, finish_type = "tuple[str, int, str, tuple[str, ...]]", f"tuple[int, str, {text}, {text}, {text}]"
    limit_type = f"tuple[str, {number}, {number}, {number}, {text}, bool]"
    failure_doc = "(kind, engine is started again, requests of the step are suspects)."
    return [
        *_python_rows("ERRORS", "(kind, status, type, codes), the first code is the default.", errors, error_type),
        *_python_rows("FINISH", "(code, name, end cause, error kind, error code).", finish, finish_type),
        *_python_rows("ABORT_CAUSES", "(code, name).", abort, "tuple[int, str]"),
        *_python_rows("END_CAUSES", "(name, label, finished_reason).", end, "tuple[str, str, str]"),
        *_python_rows("WAITING_CAUSES", "In the order of the gauge `waiting_causes`.", tables["waiting"], "str"),
        *_python_rows("FAILURE_KINDS", failure_doc, failure, "tuple[str, bool, bool]"),
        *_python_rows("LIMITS", "(name, default, min, max, flag, live).", limits, limit_type),
    ]


def main(args: list[str]) -> int:
    """Writes both tables, or with `--check` compares them; returns the exit code."""
    tables = load()
    outputs = {LISTS_OUT: list_text(tables), LIMITS_OUT: limit_text(tables), PYTHON_OUT: python_text(tables)}
    if args == ["--check"]:
        stale = [path for path, text in outputs.items() if not path.is_file() or path.read_text() != text]
        for path in stale:
            print(f"{path.relative_to(ROOT)} is not as generated: run python tools/gen_tables.py", file=sys.stderr)
        return 1 if stale else 0
    if args:
        print(__doc__, file=sys.stderr)
        return 2
    for path, text in outputs.items():
        path.write_text(text)
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
