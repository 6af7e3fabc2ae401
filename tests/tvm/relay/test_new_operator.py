"""Operators that a copy of the package has a row more of, on Relay."""

from __future__ import annotations

from pathlib import Path

from tests.core.ops.new_rows import check_new_rows, with_new_rows


def test_a_new_operator_is_one_row(tmp_path: Path) -> None:
    check_new_rows("tests.tvm.relay.new_operator", tmp_path, with_new_rows(tmp_path))
