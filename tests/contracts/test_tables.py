"""The closed lists: both languages' tables are those of the TOML files, and each list is consistent."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from proa import _tables
from proa.errors import AbortCause, ErrorKind, FinishCode, ProaError, codes_of, finish_error, status_of

ROOT = Path(__file__).resolve().parents[2]


def toml(name: str) -> dict[str, list[dict[str, object]]]:
    with (ROOT / "rust" / "limits" / f"{name}.toml").open("rb") as file:
        return tomllib.load(file)


def test_generated_tables_are_those_of_the_toml_files() -> None:
    run = subprocess.run([sys.executable, "tools/gen_tables.py", "--check"], cwd=ROOT, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr


@pytest.mark.parametrize("row", toml("errors")["error"], ids=lambda row: str(row["kind"]))
def test_every_error_kind_has_one_status_in_both_languages(row: dict[str, object]) -> None:
    kind = ErrorKind(row["kind"])
    assert status_of(kind) == row["status"]
    assert list(codes_of(kind)) == row["codes"]
    rust = (ROOT / "rust" / "limits" / "src" / "list_table.rs").read_text()
    statuses = rust[rust.index("fn status(") : rust.index("fn error_type(")]
    arms = re.findall(r"((?:ErrorKind::\w+[\s|]*)+)=> (\d+),", statuses)
    found = [int(status) for kinds, status in arms if f"ErrorKind::{row['kind']}" in re.split(r"[\s|]+", kinds)]
    assert found == [row["status"]]


def test_no_code_belongs_to_two_kinds() -> None:
    codes = [code for kind in ErrorKind for code in codes_of(kind)]
    assert len(codes) == len(set(codes))


def test_finish_codes_are_dense_and_failures_name_a_code_of_their_kind() -> None:
    assert [code for code, *_ in _tables.FINISH] == list(range(17)) == [int(code) for code in FinishCode]
    for code in FinishCode:
        error = finish_error(code)
        assert (error is not None) == (code >= FinishCode.CORRUPTED)
        assert error is None or error[1] in codes_of(error[0])


def test_every_finish_and_abort_cause_ends_under_a_known_cause() -> None:
    ends = {name: label for name, label, _ in _tables.END_CAUSES}
    assert all(end in ends for code, _, end, _, _ in _tables.FINISH if code != 0)
    labels = set(ends.values())
    assert all(cause.name.lower() in labels or cause is AbortCause.STOP_STRING for cause in AbortCause)
    assert {reason for _, _, reason in _tables.END_CAUSES} == {"stop", "length", "abort", "error", "repetition"}


def test_limits_have_their_default_within_bounds_and_a_flag_of_their_name() -> None:
    for name, default, low, high, flag, live in _tables.LIMITS:
        assert (flag is None) == (low is None) == (high is None), name
        assert flag is None or flag == "--" + name.replace("_", "-")
        assert not live or flag is not None, f"{name} cannot be set"
        if low is not None and high is not None and default is not None:
            assert low <= default <= high, name


def test_an_error_refuses_a_code_of_another_kind() -> None:
    assert ProaError(ErrorKind.QUEUE_FULL, "full").status == 429
    with pytest.raises(ValueError, match="no code of QueueFull"):
        ProaError(ErrorKind.QUEUE_FULL, "full", "not_found")
