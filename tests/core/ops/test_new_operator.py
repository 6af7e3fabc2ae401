"""A new operator is one row in one file, and nothing else; those of other families too."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.core.ops.new_rows import ELEMENTWISE, OTHERS, changed, check_new_rows, with_new_rows

pytest.importorskip("tvm")

pytestmark = pytest.mark.relax


def test_a_new_operator_is_one_row(tmp_path: Path) -> None:
    environment = with_new_rows(tmp_path)
    assert changed(tmp_path) == {
        name for kind in (ELEMENTWISE, OTHERS) for e in kind.values() for name in e
    }
    assert all(len(edits) == 1 for edits in ELEMENTWISE.values())
    moving = OTHERS["data movement"]  # a row, and Relay's name for it in two places of one room
    assert all(len(edits) == 1 for edits in OTHERS.values() if edits is not moving)
    assert {name.partition("/")[0] for name in moving} == {"core", "tvm"} and len(moving) == 3
    check_new_rows("tests.core.ops.new_operator", tmp_path, environment)
