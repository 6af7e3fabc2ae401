"""Operators that TFLite and ONNX have alike: a row each, from which reading and writing follow.

What differs between the two (layouts, weights, operands that are attributes) has a function for
each way, in ``operators/`` and ``writer/rows/``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum, auto
from types import MappingProxyType

from qdqbridge.core.graph.dtypes import DType
from qdqbridge.core.graph.operator import Operator
from qdqbridge.core.graph.types import QuantParams, params_of_interval, per_tensor
from qdqbridge.core.ops.normalization import SOFTMAX
from qdqbridge.core.ops.unary import SIGMOID, TANH


class Family(Enum):
    """How an operator's operands and options are said."""

    UNARY = auto()
    """One operand."""
    ARITHMETIC = auto()
    """Two operands, and an activation that is fused."""
    EXTREME = auto()
    """Two operands; ONNX takes more."""
    BINARY = auto()
    """Two operands."""
    COMPARISON = auto()
    """Two operands; the result is boolean. Kept as the file has it."""
    LOGICAL = auto()
    """One or two booleans. Kept as the file has it."""
    REDUCTION = auto()
    """The second operand lists axes."""
    POOL = auto()
    """Windows over an image whose channels are the last axis."""
    SOFTMAX = auto()
    """Along the last axis."""
    BLOCKS = auto()
    """Blocks of an image whose channels are the last axis."""
    INDEX = auto()
    """Where along an axis an extreme lies. Kept as the file has it."""


@dataclass(frozen=True, slots=True)
class Counterpart:
    """One operator under its two names.

    Attributes:
        tflite: TFLite's name.
        onnx: ONNX's, and the graph's.
        family: How operands and options are said.
        options: The table of its options in TFLite's schema.
        stored: On which stored integers LiteRT has a kernel; on others it is a float region.
        same: That kernel wants one scale and zero point for operands and result.
        results: What that kernel gives its result, whatever it is asked for.
        also: Other names under which TFLite has it; they are read only.
    """

    tflite: str
    onnx: str
    family: Family
    options: str = ""
    stored: tuple[DType, ...] = ()
    same: bool = False
    results: tuple[QuantParams, ...] = ()
    also: tuple[str, ...] = ()


_BYTES = (DType.INT8,)
_BOTH = (DType.INT8, DType.INT16)


def _results(row: Operator) -> tuple[QuantParams, ...]:
    """Returns what kernels give results in an interval: of 16 bits that of -1 to 1."""
    assert row.interval is not None
    return params_of_interval(row.interval, DType.INT8), params_of_interval(
        (-1.0, 1.0), DType.INT16
    )


_U, _A, _E = Family.UNARY, Family.ARITHMETIC, Family.EXTREME
_C, _L, _R = Family.COMPARISON, Family.LOGICAL, Family.REDUCTION

COUNTERPARTS: tuple[Counterpart, ...] = (
    Counterpart("ABS", "Abs", _U, stored=_BOTH, also=("STABLEHLO_ABS",)),
    Counterpart("CEIL", "Ceil", _U),
    Counterpart("COS", "Cos", _U, also=("STABLEHLO_COSINE",)),
    Counterpart("EXP", "Exp", _U, "ExpOptions", _BYTES, also=("STABLEHLO_EXPONENTIAL",)),
    Counterpart("FLOOR", "Floor", _U, also=("STABLEHLO_FLOOR",)),
    Counterpart("LOG", "Log", _U, also=("STABLEHLO_LOG",)),
    Counterpart(
        "LOGISTIC", "Sigmoid", _U, "", _BOTH,
        results=_results(SIGMOID), also=("STABLEHLO_LOGISTIC",),
    ),
    Counterpart("NEG", "Neg", _U, "NegOptions", also=("STABLEHLO_NEGATE",)),
    Counterpart("RELU", "Relu", _U),
    Counterpart("ROUND", "Round", _U),
    Counterpart("SIGN", "Sign", _U, "SignOptions"),
    Counterpart("SIN", "Sin", _U),
    Counterpart("SQRT", "Sqrt", _U),
    Counterpart(
        "TANH", "Tanh", _U, "", _BOTH,
        results=_results(TANH), also=("STABLEHLO_TANH",),
    ),
    Counterpart("ADD", "Add", _A, "AddOptions", _BOTH, also=("STABLEHLO_ADD",)),
    Counterpart("DIV", "Div", _A, "DivOptions", also=("STABLEHLO_DIVIDE",)),
    Counterpart("MUL", "Mul", _A, "MulOptions", _BOTH, also=("STABLEHLO_MULTIPLY",)),
    Counterpart("SUB", "Sub", _A, "SubOptions", _BOTH, also=("STABLEHLO_SUBTRACT",)),
    Counterpart("MAXIMUM", "Max", _E, "MaximumMinimumOptions", _BOTH, True,
                also=("STABLEHLO_MAXIMUM",)),
    Counterpart("MINIMUM", "Min", _E, "MaximumMinimumOptions", _BOTH, True,
                also=("STABLEHLO_MINIMUM",)),
    Counterpart("POW", "Pow", Family.BINARY, "PowOptions", also=("STABLEHLO_POWER",)),
    Counterpart("EQUAL", "Equal", _C, "EqualOptions"),
    Counterpart("GREATER", "Greater", _C, "GreaterOptions"),
    Counterpart("GREATER_EQUAL", "GreaterOrEqual", _C, "GreaterEqualOptions"),
    Counterpart("LESS", "Less", _C, "LessOptions"),
    Counterpart("LESS_EQUAL", "LessOrEqual", _C, "LessEqualOptions"),
    Counterpart("LOGICAL_AND", "And", _L, "LogicalAndOptions", also=("STABLEHLO_AND",)),
    Counterpart("LOGICAL_NOT", "Not", _L, "LogicalNotOptions"),
    Counterpart("LOGICAL_OR", "Or", _L, "LogicalOrOptions", also=("STABLEHLO_OR",)),
    Counterpart("MEAN", "ReduceMean", _R, "ReducerOptions", _BOTH),
    Counterpart("SUM", "ReduceSum", _R, "ReducerOptions", _BOTH),
    Counterpart("REDUCE_MAX", "ReduceMax", _R, "ReducerOptions", _BOTH, True),
    Counterpart("REDUCE_MIN", "ReduceMin", _R, "ReducerOptions", _BOTH, True),
    Counterpart("AVERAGE_POOL_2D", "AveragePool", Family.POOL, "Pool2DOptions", _BOTH, True),
    Counterpart("MAX_POOL_2D", "MaxPool", Family.POOL, "Pool2DOptions", _BOTH, True),
    Counterpart(
        "SOFTMAX", "Softmax", Family.SOFTMAX, "SoftmaxOptions", _BOTH,
        results=_results(SOFTMAX),
    ),
    Counterpart(
        "LOG_SOFTMAX", "LogSoftmax", Family.SOFTMAX, "LogSoftmaxOptions", _BYTES,
        results=(per_tensor(DType.INT8, 16 / 256, 127),),
    ),
    Counterpart("DEPTH_TO_SPACE", "DepthToSpace", Family.BLOCKS, "DepthToSpaceOptions"),
    Counterpart("SPACE_TO_DEPTH", "SpaceToDepth", Family.BLOCKS, "SpaceToDepthOptions"),
    Counterpart("ARG_MAX", "ArgMax", Family.INDEX, "ArgMaxOptions"),
    Counterpart("ARG_MIN", "ArgMin", Family.INDEX, "ArgMinOptions"),
)  # fmt: skip


def of_families(*families: Family) -> Iterable[Counterpart]:
    """Yields the rows of some families."""
    return (row for row in COUNTERPARTS if row.family in families)


RESIZE_PLACES: Mapping[tuple[bool, bool], tuple[str, str]] = MappingProxyType({
    (False, False): ("asymmetric", "floor"),
    (False, True): ("half_pixel", "round_prefer_ceil"),
    (True, False): ("align_corners", "round_prefer_ceil"),
})  # fmt: skip
"""By a resize's flags (aligned corners, half-pixel centers): ONNX's coordinates, and how its
nearest rounds."""
