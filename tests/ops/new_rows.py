"""Rows of operators that the package has not, as they would be written into its files."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).parents[2]

UNARY = """
ATAN = unary("Atan", _rounded(np.arctan), _ROUNDED.format("atan(x)"), magnitude=Magnitude.OPERAND)

OPERATORS = (*OPERATORS, ATAN)
"""
UNARY_WITH_ATTRIBUTES = '''
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ShrinkAttrs(Attributes):
    """Shrink: what lies within ``lambd`` is 0, the rest moves by ``bias`` towards it."""

    lambd: float
    bias: float


def _shrink(x: Array, a: ShrinkAttrs) -> Array:
    lambd, bias = x.dtype.type(a.lambd), x.dtype.type(a.bias)
    return np.where(x < -lambd, x + bias, np.where(x > lambd, x - bias, x.dtype.type(0)))


_ABOVE = ("Where", ("Greater", "x", "#lambd"), ("Sub", "x", "#bias"), 0.0)
SHRINK = unary(
    "Shrink",
    _with(_shrink, rounded=False),
    _EXACT.format("x - bias, 0 or x + bias"),
    attributes=ShrinkAttrs,
    defaults={"lambd": 0.5, "bias": 0.0},
    forms=_forms(("Where", ("Less", "x", ("Neg", "#lambd")), ("Add", "x", "#bias"), _ABOVE)),
)

OPERATORS = (*OPERATORS, SHRINK)
'''
BINARY = """
MEAN = binary(
    "Mean",
    lambda a, b: (a + b) * a.dtype.type(0.5),
    "(a + b) / 2",
    qnn="mean_of_two",
    forms=(Form(("Mul", ("Add", "a", "b"), 0.5)),),
)

OPERATORS = (*OPERATORS, MEAN)
"""
REDUCTION = """
from qdqbridge.graph.operator import Pattern
from qdqbridge.ops.bodies import function


def _euclidean(a: ReduceAttrs) -> Pattern:
    return ("Sqrt", ("ReduceSum", ("Mul", "x", "x"), a))


REDUCE_L2 = function(
    "ReduceL2",
    _euclidean,
    _check,
    attributes=ReduceAttrs,
    onnx=_onnx("ReduceL2", axes_operand=18),
    numerics="quantize(sqrt(sum(x * x))) in float32, x dequantized.",
)

OPERATORS = (*OPERATORS, REDUCE_L2)
"""
MOVER = """
def _gather_elements(attributes: AxisAttrs, operands: Operands) -> tuple[Array, ...]:
    x, indices = present(operands, 2)
    return (np.take_along_axis(x, indices.astype(np.int64), axis=attributes.axis),)


GATHER_ELEMENTS = data_movement(
    "GatherElements",
    AxisAttrs,
    _gather_elements,
    _check_gather,
    onnx=(OnnxOp(name="GatherElements", defaults={"axis": 0}),),
    tvm="gather_elements",
)

OPERATORS = (*OPERATORS, GATHER_ELEMENTS)
"""
POOL = '''
import math
from dataclasses import dataclass

from qdqbridge.graph.operator import Attributes, OnnxOp, Pattern
from qdqbridge.ops.attributes import Dilations, Kernel, Pads, Strides
from qdqbridge.ops.bodies import function


@dataclass(frozen=True, slots=True)
class LpPoolAttrs(Attributes):
    """LpPool: the windows of a pool, and which norm is taken of each."""

    kernel_shape: Kernel
    strides: Strides
    dilations: Dilations
    pads: Pads
    ceil_mode: bool
    p: int


def _norm_of_windows(a: LpPoolAttrs) -> Pattern:
    windows = (a.kernel_shape, a.strides, a.dilations, a.pads, a.ceil_mode)
    mean = ("AveragePool", ("Pow", ("Abs", "x"), float(a.p)), PoolAttrs(*windows, True))
    return ("Pow", ("Mul", mean, float(math.prod(a.kernel_shape))), 1 / a.p)


LP_POOL = function(
    "LpPool",
    _norm_of_windows,
    _check_global,
    attributes=LpPoolAttrs,
    onnx=(OnnxOp(name="LpPool", defaults={"p": 2}),),
    numerics="quantize((sum |x| ** p) ** (1 / p)) in float32, x dequantized.",
)

OPERATORS = (*OPERATORS, LP_POOL)
'''
NORM = '''
from qdqbridge.graph.operator import Attributes, Pattern
from qdqbridge.ops.attributes import Axis, ReduceAttrs
from qdqbridge.ops.bodies import function


@dataclass(frozen=True, slots=True)
class LpNormAttrs(Attributes):
    """LpNormalization: along which axis, and which norm."""

    axis: Axis
    p: int


def _by_norm(a: LpNormAttrs) -> Pattern:
    along = ReduceAttrs((a.axis,))
    if a.p == 1:
        return ("Div", "x", ("ReduceSum", ("Abs", "x"), along))
    return ("Div", "x", ("Sqrt", ("ReduceSum", ("Mul", "x", "x"), along)))


def _check_lp(node: Node) -> Iterator[str]:
    if node.attributes.p not in (1, 2):
        yield f"p is {node.attributes.p}"


LP_NORM = function(
    "LpNormalization",
    _by_norm,
    _check_lp,
    attributes=LpNormAttrs,
    onnx=(OnnxOp(name="LpNormalization", defaults={"axis": -1, "p": 2}),),
    numerics="quantize(x / norm(x)) in float32, x dequantized.",
)

OPERATORS = (*OPERATORS, LP_NORM)
'''
ROWS: Mapping[str, str] = {
    "unary": UNARY + UNARY_WITH_ATTRIBUTES, "elementwise": BINARY, "reduction": REDUCTION,
    "selection": MOVER, "pooling": POOL, "normalization": NORM,
}  # fmt: skip
"""What is added to a file of ``qdqbridge/ops/``; no other file of the package changes."""


def with_new_rows(folder: Path) -> dict[str, str]:
    """Copies the package with the rows into ``folder``; returns the environment that has it."""
    ignored = shutil.ignore_patterns("__pycache__")
    shutil.copytree(ROOT / "qdqbridge", folder / "qdqbridge", ignore=ignored)
    for name, text in ROWS.items():
        path = folder / "qdqbridge" / "ops" / f"{name}.py"
        path.write_text(path.read_text("utf-8") + text, "utf-8")
    return {**os.environ, "PYTHONPATH": str(folder)}
