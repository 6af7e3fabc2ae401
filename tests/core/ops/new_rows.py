"""Rows of operators that the package has not, as they would be written into its files."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TypeAlias

from tests.places import ROOT

UNARY = """
ATAN = unary(
    "Atan", _compute_in_float64(np.arctan), _ROUNDED.format("atan(x)"), magnitude=Magnitude.OPERAND
)

OPERATORS = (*OPERATORS, ATAN)
"""
UNARY_WITH_ATTRIBUTES = '''
from dataclasses import dataclass

from qdqbridge.core.graph.operator import Attributes


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
from qdqbridge.core.graph.patterns import Pattern
from qdqbridge.core.ops.bodies import Open, function


def _euclidean(a: ReduceAttrs, shape: Open) -> Pattern:
    return ("Sqrt", ("ReduceSum", ("Mul", "x", "x"), a))


REDUCE_L2 = function(
    "ReduceL2",
    _euclidean,
    _check_reduce,
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

from qdqbridge.core.graph.operator import Attributes, OnnxOp
from qdqbridge.core.graph.patterns import Pattern
from qdqbridge.core.ops.attributes import Dilations, Kernel, Pads, Strides
from qdqbridge.core.ops.bodies import Open, function


@dataclass(frozen=True, slots=True)
class LpPoolAttrs(Attributes):
    """LpPool: the windows of a pool, and which norm is taken of each."""

    kernel_shape: Kernel
    strides: Strides
    dilations: Dilations
    pads: Pads
    ceil_mode: bool
    p: int


def _norm_of_windows(a: LpPoolAttrs, shape: Open) -> Pattern:
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
MIN_POOL = """
from qdqbridge.core.graph.patterns import Pattern
from qdqbridge.core.ops.bodies import Open, function


def _least(a: PoolAttrs, shape: Open) -> Pattern:
    return ("Neg", ("MaxPool", ("Neg", "x"), a))


MIN_POOL = function(
    "MinPool",
    _least,
    _check_pool,
    attributes=PoolAttrs,
    onnx=(OnnxOp(name="MinPool", domain="toys", defaults={"count_include_pad": False}),),
    numerics="quantize(min(x)) of every window, x dequantized.",
)

OPERATORS = (*OPERATORS, MIN_POOL)
"""
ROOT_MEAN_SQUARE_POOL = """
def _root_mean_square(a: PoolAttrs, shape: Open) -> Pattern:
    return ("Sqrt", ("AveragePool", ("Mul", "x", "x"), a))


RMS_POOL = function(
    "RmsPool",
    _root_mean_square,
    _check_pool,
    attributes=PoolAttrs,
    onnx=(OnnxOp(name="RmsPool", domain="toys", defaults={"count_include_pad": False}),),
    numerics="quantize(sqrt(mean(x * x))) in float32, x dequantized.",
)

OPERATORS = (*OPERATORS, RMS_POOL)
"""
OWN_REDUCTION = """
def _range(a: ReduceAttrs, shape: Open) -> Pattern:
    return ("Sub", ("ReduceMax", "x", a), ("ReduceMin", "x", a))


REDUCE_RANGE = function(
    "ReduceRange",
    _range,
    _check_reduce,
    attributes=ReduceAttrs,
    onnx=(OnnxOp(name="ReduceRange", domain="toys", defaults={"keepdims": True}),),
    numerics="quantize(max(x) - min(x)) in float32, x dequantized.",
)

OPERATORS = (*OPERATORS, REDUCE_RANGE)
"""
OWN_NORM = """
from qdqbridge.core.ops.bodies import function


def _by_mean_deviation(a: NormAttrs, shape: Open) -> Pattern:
    over = ReduceAttrs(tuple(range(a.axis, len(shape))))
    centred = ("Sub", "a", ("ReduceMean", "a", over))
    spread = ("Add", ("ReduceMean", ("Abs", centred), over), a.epsilon)
    return ("Add", ("Mul", ("Div", centred, spread), "b"), "c?")


MEAN_DEVIATION_NORM = function(
    "MeanDeviationNormalization",
    _by_mean_deviation,
    _check_axis,
    attributes=NormAttrs,
    onnx=(OnnxOp(name="MeanDeviationNormalization", domain="toys", defaults=_ALONG),),
    numerics="quantize((x - mean(x)) / (mean(|x - mean(x)|) + epsilon) * gamma + beta) in float32.",
)

OPERATORS = (*OPERATORS, MEAN_DEVIATION_NORM)
"""
OWN_SOFTMAX = """
def _beside_one(a: SoftmaxAttrs, shape: Open) -> Pattern:
    over = ReduceAttrs(a.axes)
    top = ("ReduceMax", "x", over)
    powers = ("Exp", ("Sub", "x", top))
    return ("Div", powers, ("Add", ("ReduceSum", powers, over), ("Exp", ("Neg", top))))


SOFTMAX_ONE = function(
    "SoftmaxOne",
    _beside_one,
    _check_softmax,
    attributes=SoftmaxAttrs,
    onnx=(OnnxOp(name="SoftmaxOne", domain="toys", defaults={"axes": -1}),),
    numerics="quantize(exp(x) / (1 + sum(exp(x)))) in float32, x dequantized.",
)

OPERATORS = (*OPERATORS, SOFTMAX_ONE)
"""
NORM_OF_CHANNELS = """
def _channels_by_largest(a: EpsilonAttrs, shape: Open) -> Pattern:
    largest = ("ReduceMax", ("Abs", "a"), ReduceAttrs(tuple(range(2, len(shape)))))
    normal = ("Div", "a", ("Add", largest, a.epsilon))
    return ("Add", ("Mul", normal, _column("b", shape)), _column("c", shape))


LARGEST_NORM = function(
    "LargestNormalization",
    _channels_by_largest,
    _check_channels,
    attributes=EpsilonAttrs,
    onnx=(OnnxOp(name="LargestNormalization", domain="toys", defaults=_EPSILON),),
    numerics="quantize(x / (max(|x|) + epsilon) * gamma + beta) in float32, x dequantized.",
)

OPERATORS = (*OPERATORS, LARGEST_NORM)
"""
NORM = '''
from qdqbridge.core.graph.operator import Attributes
from qdqbridge.core.graph.patterns import Pattern
from qdqbridge.core.ops.attributes import Axis, ReduceAttrs
from qdqbridge.core.ops.bodies import Open, function


@dataclass(frozen=True, slots=True)
class LpNormAttrs(Attributes):
    """LpNormalization: along which axis, and which norm."""

    axis: Axis
    p: int


def _by_norm(a: LpNormAttrs, shape: Open) -> Pattern:
    along = ReduceAttrs((a.axis,))
    if a.p == 1:
        return ("Div", "x", ("ReduceSum", ("Abs", "x"), along))
    return ("Div", "x", ("Sqrt", ("ReduceSum", ("Mul", "x", "x"), along)))


def _check_lp(node: Node, a: LpNormAttrs) -> Iterator[str]:
    if a.p not in (1, 2):
        yield f"p is {a.p}"


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
PRODUCT = '''
from dataclasses import dataclass

from qdqbridge.core.graph.operator import Attributes, OnnxOp
from qdqbridge.core.graph.patterns import Pattern
from qdqbridge.core.ops.attributes import AxesAttrs, TransposeAttrs
from qdqbridge.core.ops.bodies import Open
from qdqbridge.core.ops.matmul import product


@dataclass(frozen=True, slots=True)
class EinsumAttrs(Attributes):
    """Einsum: which letters of two operands are summed over."""

    equation: str


def _of_pixels(a: EinsumAttrs, shape: Open) -> Pattern:
    """``bchw,co->bohw``: a convolution of single pixels, its weight transposed."""
    axes = tuple(range(2, len(a.equation.split(",")[0])))
    ones = (1,) * len(axes)
    weight = "b" if _outputs_first(a) else ("Transpose", "b", TransposeAttrs((1, 0)))
    weight = ("Unsqueeze", weight, AxesAttrs(axes))
    return ("Conv", "a", weight, ConvAttrs(ones, ones, 2 * (0,) * len(axes)))


def _outputs_first(a: EinsumAttrs) -> bool:
    operands, _, result = a.equation.partition("->")
    return operands.split(",")[1][0] == result[1]


def _check_equation(node: Node, a: EinsumAttrs) -> Iterator[str]:
    data, _, rest = a.equation.partition(",")
    weight, _, result = rest.partition("->")
    if len(weight) != 2 or len(data) < 3 or {data[1], result[1]} != set(weight):
        yield f"{a.equation} is not a product of the channels of images with a matrix"


EINSUM = product(
    "Einsum",
    _of_pixels,
    _check_equation,
    attributes=EinsumAttrs,
    onnx=(OnnxOp(name="Einsum", since=12),),
    weight=lambda a, rank: WeightGeometry(0 if _outputs_first(a) else 1, image=True),
    numerics=_NUMERICS + "As the Conv that it stands for.",
)

OPERATORS = (*OPERATORS, EINSUM)
'''
PIXELS = """
from qdqbridge.core.graph.operator import NoAttributes


def _pixels(a: NoAttributes, shape: Open) -> Pattern:
    weight = ("Unsqueeze", "b", AxesAttrs((2, 3)))
    return ("Conv", "a", weight, "c", ConvAttrs((1, 1), (1, 1), (0, 0, 0, 0)))


PIXELS = product(
    "Pixels",
    _pixels,
    lambda node, a: iter(()),
    attributes=NoAttributes,
    onnx=(),
    weight=lambda a, rank: WeightGeometry(0, image=True),
    bias=True,
    numerics="As the Conv that it stands for.",
)

OPERATORS = (*OPERATORS, PIXELS)
"""
RELAY_EMISSION = '''
    @staticmethod
    def gather_elements(x: Expr, indices: Expr, axis: int) -> Expr:
        """Takes single elements along an axis; Relay's name is another one."""
        return relay.gather(x, axis, indices)
'''
RELAY_READING = """

def _gather(reader: CallReader) -> Read:
    return moved_alike(BY_NAME["GatherElements"])(reader.reading, reader.call)


ROWS = {**ROWS, "gather": _gather}
"""
END = ""
Edits: TypeAlias = "Mapping[str, Mapping[str, str]]"
"""By file, what is written before a line of it; before :data:`END`, at its end."""
ELEMENTWISE: Mapping[str, Edits] = {
    "unary": {"core/ops/unary.py": {END: UNARY}},
    "unary with attributes": {"core/ops/unary.py": {END: UNARY_WITH_ATTRIBUTES}},
    "binary": {"core/ops/elementwise.py": {END: BINARY}},
}
"""One row in one file each; no other file of the package changes."""
OTHERS: Mapping[str, Edits] = {
    "reduction": {"core/ops/reduction.py": {END: REDUCTION}},
    "reduction that ONNX has not": {"core/ops/reduction.py": {END: OWN_REDUCTION}},
    "pool": {"core/ops/pooling.py": {END: POOL}},
    "pool that ONNX has not": {"core/ops/pooling.py": {END: MIN_POOL}},
    "pool of squares": {"core/ops/pooling.py": {END: ROOT_MEAN_SQUARE_POOL}},
    "norm": {"core/ops/normalization.py": {END: NORM}},
    "norm that ONNX has not": {"core/ops/normalization.py": {END: OWN_NORM}},
    "norm of channels": {"core/ops/normalization.py": {END: NORM_OF_CHANNELS}},
    "softmax that ONNX has not": {"core/ops/normalization.py": {END: OWN_SOFTMAX}},
    "product": {"core/ops/convolution.py": {END: PRODUCT}},
    "product with a bias": {"core/ops/convolution.py": {END: PIXELS}},
    "data movement": {
        "core/ops/selection.py": {END: MOVER},
        "tvm/relay/emit/operators.py": {
            "    @staticmethod\n    def astype(": RELAY_EMISSION + "\n"
        },
        "tvm/relay/read/data_movement.py": {
            "from qdqbridge.core.layout": "from qdqbridge.core.ops.table import BY_NAME\n"
            "from qdqbridge.tvm.qnn.read.gather_concat import moved_alike\n",
            END: RELAY_READING,
        },
    },
}
"""One row in one file each too; a name of Relay's own is said in Relay's room."""


def with_new_rows(folder: Path) -> dict[str, str]:
    """Copies the package with the rows into ``folder``; returns the environment that has it."""
    ignored = shutil.ignore_patterns("__pycache__")
    shutil.copytree(ROOT / "qdqbridge", folder / "qdqbridge", ignore=ignored)
    for edits in (*ELEMENTWISE.values(), *OTHERS.values()):
        for name, places in edits.items():
            path = folder / "qdqbridge" / name
            for place, text in places.items():
                path.write_text(_with(path.read_text("utf-8"), place, text), "utf-8")
    return {**os.environ, "PYTHONPATH": str(folder)}


def check_new_rows(module: str, folder: Path, environment: Mapping[str, str]) -> None:
    """Runs a module of these tests on the copy of the package in ``folder``."""
    paths = environment["PYTHONPATH"] + os.pathsep + str(ROOT)
    done = subprocess.run(
        [sys.executable, "-m", module, str(folder)], env={**environment, "PYTHONPATH": paths},
        cwd=folder, capture_output=True, text=True, check=False, timeout=480,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]


def _with(source: str, place: str, text: str) -> str:
    if place == END:
        return source + text
    before, found, after = source.partition(place)
    assert found, f"there is no {place!r}"
    return f"{before}{text.lstrip(chr(10))}{found}{after}"


def changed(folder: Path) -> set[str]:
    """Returns the files of the package that differ from those of the copy in ``folder``."""
    own, copy = ROOT / "qdqbridge", folder / "qdqbridge"
    paths = {path.relative_to(root) for root in (own, copy) for path in root.rglob("*.py")}
    return {
        path.as_posix()
        for path in paths
        if not (own / path).exists()
        or not (copy / path).exists()
        or (own / path).read_bytes() != (copy / path).read_bytes()
    }
