"""A new element-wise operator is one row in one file, and nothing else."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("tvm")

pytestmark = pytest.mark.relax
ROOT = Path(__file__).parents[2]

UNARY = '''
@dataclass(frozen=True, slots=True)
class ShrinkAttrs(Attributes):
    """Shrink: what lies within ``lambd`` is 0, the rest moves by ``bias`` towards it."""

    lambd: float
    bias: float


def _shrink(x: Array, a: ShrinkAttrs) -> Array:
    lambd, bias = x.dtype.type(a.lambd), x.dtype.type(a.bias)
    return np.where(x < -lambd, x + bias, np.where(x > lambd, x - bias, x.dtype.type(0)))


OPERATORS = (
    *OPERATORS,
    unary("Atan", _rounded(np.arctan), _ROUNDED.format("atan(x)"), magnitude=Magnitude.OPERAND),
    unary("Shrink", _with(_shrink, rounded=False), _EXACT.format("x - bias, 0 or x + bias"),
          attributes=ShrinkAttrs, defaults={"lambd": 0.5, "bias": 0.0}, forms=_forms(
        ("Where", ("Less", "x", ("Neg", "#lambd")), ("Add", "x", "#bias"),
         ("Where", ("Greater", "x", "#lambd"), ("Sub", "x", "#bias"), 0.0)))),
)
'''
BINARY = """
OPERATORS = (
    *OPERATORS,
    binary("Mean", lambda a, b: (a + b) * a.dtype.type(0.5), "(a + b) / 2",
           forms=(Form(("Mul", ("Add", "a", "b"), 0.5)),)),
)
"""


def test_a_new_operator_is_one_row(tmp_path: Path) -> None:
    shutil.copytree(
        ROOT / "qdqbridge", tmp_path / "qdqbridge", ignore=shutil.ignore_patterns("__pycache__")
    )
    unary = tmp_path / "qdqbridge" / "ops" / "unary.py"
    imported = "import math\nfrom dataclasses import dataclass\n"
    text = unary.read_text("utf-8").replace("import math\n", imported, 1)
    unary.write_text(text + UNARY, "utf-8")
    binary = tmp_path / "qdqbridge" / "ops" / "elementwise.py"
    binary.write_text(binary.read_text("utf-8") + BINARY, "utf-8")
    script = Path(__file__).with_name("new_operator.py")
    run = subprocess.run(
        [sys.executable, str(script), str(tmp_path)],
        env={**os.environ, "PYTHONPATH": str(tmp_path)}, capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    assert run.returncode == 0, run.stderr[-3000:]
