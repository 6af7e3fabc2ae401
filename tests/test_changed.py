"""What ``scripts/test --changed`` runs, and what ``scripts/checks/mutants.py`` makes of a line."""

from __future__ import annotations

import ast

from scripts.changed import reached
from scripts.checks.mutants import changed_source, places

_LINES = """
def clamped(x, low):
    if x < low and not x:
        raise ValueError(low)
    x += 1
    notify(x, low)
    return x - low if x else 2 * low
"""


def test_a_change_is_reached_by_its_part_what_is_beside_it_and_what_is_above() -> None:
    found = reached(["qdqbridge/core/canonical/pools.py"])
    assert {"tests/core/canonical", "tests/onnx_io", "tests/tvm", "tests/app"} <= set(found)
    assert not {"tests/core/graph", "tests/core/ops"} & set(found)
    assert not {"tests/core", "tests/tvm"} & set(reached(["qdqbridge/app/pipeline.py"]))


def test_what_all_rooms_read_reaches_all_tests() -> None:
    for file in ("qdqbridge/errors.py", "qdqbridge/__init__.py", "pyproject.toml"):
        assert reached([file]) == ["tests"]


def test_what_tests_share_is_reached_by_those_that_import_it() -> None:
    everywhere = set(reached(["docs/numerics.md"]))
    assert "tests/test_layers.py" in everywhere
    assert not any(path.count("/") > 1 for path in everywhere)
    found = set(reached(["tests/tvm/relax/single_ops.py"])) - everywhere
    assert "tests/tvm/relax/test_emit_rows.py" in found
    assert "tests/tvm/relax/test_loops.py" not in found
    only = set(reached(["tests/core/ops/test_unary.py"])) - everywhere
    assert only == {"tests/core/ops/test_unary.py"}


def test_every_mutant_is_another_program() -> None:
    kinds = [kind for _, kind, _ in places(ast.parse(_LINES))]
    assert set(kinds) == {
        "compare", "operator", "constant", "negated", "return", "swapped", "removed",
    }  # fmt: skip
    made = {changed_source(_LINES, number) for number in range(len(kinds))}
    assert len(made) == len(kinds)
    assert ast.unparse(ast.parse(_LINES)) not in made
