"""What a piece of hardware wants: formats, and which operators run on integers.

A target is plain data. To describe another one, take one of these and ``replace`` what differs, or
put rules before its own::

    npu = replace(
        ORT,
        name="npu",
        rules=(
            OperatorRule("pointwise", ops={"Conv"}, when=pointwise, weights=PER_TENSOR),
            *ORT.rules,
        ),
    )
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

from qdqbridge.autoquant.choosers import MSE, Chooser, Extrapolated, MinMax, Percentile
from qdqbridge.autoquant.hardware.arithmetic import CONTRACT, IntegerArithmetic, Rescaling
from qdqbridge.autoquant.planning.formats import Format, Unstored
from qdqbridge.autoquant.planning.unstored import RECURRENT
from qdqbridge.core.graph.dtypes import DType
from qdqbridge.core.graph.graph import Node
from qdqbridge.core.graph.operator import Flow
from qdqbridge.core.ops.table import OPERATORS
from qdqbridge.core.ops.unary import CLIP, RELU
from qdqbridge.onnx_io.runtime.operators import is_lstm
from qdqbridge.onnx_io.runtime.products import Order
from qdqbridge.options import ProfileName
from qdqbridge.targets.profiles.openvino import rules as openvino
from qdqbridge.tflite_io.writer.rows import ROWS
from qdqbridge.tflite_io.writer.rows.kernels import never
from qdqbridge.tflite_io.writer.rules.scales import KEPT

CLAMPS = (RELU, CLIP)
"""What belongs to the operator before it, whose range it narrows."""
U8 = Format(DType.UINT8)
S8 = Format(DType.INT8)
SYMMETRIC_S8 = Format(DType.INT8, symmetric=True)
SYMMETRIC_S16 = Format(DType.INT16, symmetric=True)
U16 = Format(DType.UINT16)
PER_TENSOR = SYMMETRIC_S8
PER_CHANNEL = Format(DType.INT8, symmetric=True, axis=0)
E4M3 = Format(DType.FLOAT8_E4M3FN, symmetric=True)
E5M2 = Format(DType.FLOAT8_E5M2, symmetric=True)
_MX_BLOCK = 32


def _microscaled(storage: DType) -> Format:
    """Returns a format of blocks of 32 with a power of two for each (MX)."""
    return Format(storage, symmetric=True, axis=0, block=_MX_BLOCK, microscaled=True)


WEIGHTS: Mapping[str, Format] = MappingProxyType(
    {
        "int2": Format(DType.INT2, symmetric=True, restricted=False, axis=0),
        "int4": Format(DType.INT4, symmetric=True, axis=0),
        "int8": PER_CHANNEL,
        "int16": Format(DType.INT16, symmetric=True, axis=0),
        "uint2": Format(DType.UINT2, axis=0),
        "uint4": Format(DType.UINT4, axis=0),
        "uint8": Format(DType.UINT8, axis=0),
        "float8_e4m3fn": Format(DType.FLOAT8_E4M3FN, symmetric=True, axis=0),
        "float8_e5m2": Format(DType.FLOAT8_E5M2, symmetric=True, axis=0),
        "mxfp8_e4m3": _microscaled(DType.FLOAT8_E4M3FN),
        "mxfp8_e5m2": _microscaled(DType.FLOAT8_E5M2),
        "mxfp4_e2m1": _microscaled(DType.FLOAT4_E2M1),
    }
)
"""Formats of weights by name: signed ones and floats symmetric, unsigned ones not."""


CANDIDATES: tuple[Chooser, ...] = (
    MSE(), MSE(saturation=10.0), Percentile(99.99), MinMax(), MinMax(1.1), Extrapolated(),
)  # fmt: skip
"""Choosers of activations worth trying, from those that clip most to those that leave room."""
WEIGHT_CANDIDATES: tuple[Chooser, ...] = (MinMax(), MSE())


def always(node: Node) -> bool:
    """True: for rules that do not look at the node."""
    del node
    return True


@dataclass(frozen=True, slots=True)
class OperatorRule:
    """How a target treats some operators; the first rule of a target that matches decides.

    Attributes:
        name: Kebab-case; reports say by which rule a node was treated.
        ops: Names of ONNX operators.
        when: Looks at a node of these operators.
        quantized: Whether they run on integers at all.
        operands: Format of activations that they read, or how products read them that nobody
            stores; None for the target's.
        weights: Format of constant weights; ``axis`` other than None means the axis that numbers
            the results, wherever the operator has it, and with a ``block`` that of the terms.
            None for the target's.
        result: Format of what they compute; None for the target's.
        fixed: The real range of the result where it is known in advance, as [0, 1] of a Softmax.
        shares: Operands and result have one pair of parameters, so that nothing is rescaled: of
            the result for operators that join tensors, of the operand for those of one tensor.
        whole_reciprocal: The result's scale has a whole reciprocal, see :class:`Format`.
        reason: Why they stay float where it does not quantize them; by default that the target
            has none of them.
    """

    name: str
    ops: Collection[str]
    when: Callable[[Node], bool] = always
    quantized: bool = True
    operands: Format | Unstored | None = None
    weights: Format | None = None
    result: Format | None = None
    fixed: tuple[float, float] | None = None
    shares: bool = False
    whole_reciprocal: bool = False
    reason: str = ""

    def matches(self, node: Node) -> bool:
        """True where the rule is about ``node``."""
        return node.op.name in self.ops and self.when(node)


class Wide(Enum):
    """What an engine makes of 16-bit activations."""

    INTEGERS = "integer kernels"
    FLOATS = "floats between the roundings: right, but slower than what is not rounded"
    REFUSED = "it does not take them of every operator"
    ABSENT = "it has none"


@dataclass(frozen=True, slots=True)
class Target:
    """A description of what runs on integers, and how.

    Attributes:
        name: What users call it.
        profile: The export profile that suits it.
        activations: Format of activations, or how products read them that nobody stores.
        weights: Format of weights.
        rules: Looked at in order; an operator that none matches stays float.
        constants: Quantize constant operands of elementwise operators as well.
        outputs: Quantize the graph's outputs.
        float_results: Operators whose results leave the graph unrounded all the same: where the
            kernel scales its sums to float32 as readily as it rounds them.
        float_biases: Biases of sums that leave unrounded stay real numbers; else they are int32.
        functions: Elementwise operators in a row that are one function of one tensor are rounded
            once; else each of them is.
        wide: What the engine makes of 16-bit activations. Where it has integer kernels for them,
            what loses too much in 8 bits is tried in 16 before it stays float.
        residuals: Quantize the results of products that an Add of two tensors reads. TensorRT
            fuses the Add with the product where that operand is float.
        arithmetic: How its products are added and rounded.
        proven: Sums must fit its accumulators whatever the input; else those of the data must.
        avoided_pairs: In which order some of the engine's processors add pairs of products in 16
            bits, others exactly: weights get scales with which none saturates that was seen.
        saturating: The names of products whose weights get no such scales: pairs of few of their
            sums saturate, and the others would be worse.
        least_scales: As of a plan; found by :mod:`qdqbridge.autoquant.hardware.fit`.
        chooser: Parameters of activations.
        candidates: Choosers that are tried against it, for all activations and for single ones,
            where there are samples to try on; none to leave it at ``chooser``.
        weight_chooser: Parameters of weights; by default those of the extremes for 8 bits and
            more, and of the smallest error below, with ``weight_candidates`` tried against them.
        weight_candidates: Choosers that are tried where there is no ``weight_chooser``.
    """

    name: str
    profile: ProfileName
    activations: Format | Unstored
    weights: Format
    rules: tuple[OperatorRule, ...]
    constants: bool = True
    outputs: bool = True
    float_results: Collection[str] = ()
    float_biases: bool = False
    functions: bool = True
    wide: Wide = Wide.REFUSED
    residuals: bool = True
    arithmetic: IntegerArithmetic = CONTRACT
    proven: bool = True
    avoided_pairs: Order | None = None
    saturating: frozenset[str] = frozenset()
    least_scales: Mapping[str, NDArray[np.float64]] = field(
        default_factory=dict["str", "NDArray[np.float64]"]
    )
    chooser: Chooser = field(default_factory=MSE)
    candidates: tuple[Chooser, ...] = CANDIDATES
    weight_chooser: Chooser | None = None
    weight_candidates: tuple[Chooser, ...] = WEIGHT_CANDIDATES

    def chooser_of_weights(self, format: Format) -> Chooser:
        """Returns the chooser for constants that are stored as ``format``."""
        if self.weight_chooser is not None:
            return self.weight_chooser
        return MinMax() if format.storage.bits >= 8 else MSE()

    def rule_for(self, node: Node) -> OperatorRule | None:
        """Returns the rule that decides about ``node``; None where it stays float."""
        for rule in self.rules:
            if rule.matches(node):
                return rule if rule.quantized else None
        return None

    def why_float(self, node: Node) -> str:
        """Returns why a node stays float that no rule quantizes."""
        deciding = next((rule for rule in self.rules if rule.matches(node)), None)
        reason = "" if deciding is None else deciding.reason
        return reason or f"target {self.name} leaves {node.op.name} in float"


def _op_names_by_flow(*flows: Flow) -> tuple[str, ...]:
    """Returns the operators of the table that targets quantize and quantization flows through so.

    Those whose results lie in a known interval have rules of their own.
    """
    return tuple(
        row.name for row in OPERATORS if row.flow in flows and row.quantize and row.interval is None
    )


def _bounded(name: str, interval: tuple[float, float]) -> OperatorRule:
    names = tuple(row.name for row in OPERATORS if row.interval == interval and row.quantize)
    return OperatorRule(name, names, fixed=interval)


ACCUMULATORS = _op_names_by_flow(Flow.ACCUMULATE)
ELEMENTWISE = _op_names_by_flow(Flow.ELEMENTWISE)
POOLS = _op_names_by_flow(Flow.AVERAGE)
ROWS_AND_WINDOWS = _op_names_by_flow(Flow.ROUND)
BOUNDED = (
    _bounded("unit-range", (0.0, 1.0)),
    _bounded("signed-unit-range", (-1.0, 1.0)),
)
"""Operators whose results lie in a known interval: where it is fixed, a scale of 1/256 or 1/128 for
8 bits."""


def moves(node: Node) -> bool:
    """True for operators that only move values."""
    return node.op.flow is Flow.MOVE


_UNBOUNDED = (
    OperatorRule("products", ACCUMULATORS),
    OperatorRule("averages", POOLS),
    OperatorRule("elementwise", ELEMENTWISE),
    OperatorRule("rows-and-windows", ROWS_AND_WINDOWS),
)
EVERYTHING = (*(replace(rule, fixed=None) for rule in BOUNDED), *_UNBOUNDED)
"""Rules of a target that runs every operator on integers. A Softmax of many numbers fills little of
its interval, a gate rarely all: choosers decide, and no range reaches beyond the interval."""
PRESCRIBED = (*BOUNDED, *_UNBOUNDED)
"""The same where kernels have the scales of known intervals built in."""

_FLOAT_IN_ORT = ("Gemm", "MatMul", "Dense", "ConvTranspose")
"""QGemm and MatMulIntegerToFloat give floats; there is no integer ConvTranspose."""
RECURRENT_WEIGHTS = OperatorRule("recurrent", RECURRENT, operands=Unstored.FLOAT)
"""LSTM, GRU and RNN have no integer kernel that reads stored activations: weights alone."""
_IN_ORT = (
    OperatorRule("softmax", ("Softmax",), whole_reciprocal=True),
    *EVERYTHING,
    replace(
        RECURRENT_WEIGHTS,
        quantized=False,
        reason="onnxruntime has no static integer kernel of it; --format NAME=float stores its "
        "weights in 8 bits, which takes longer to run, and LSTM=dynamic is its own fast kernel",
    ),
)
"""onnxruntime 1.32 makes stored weights of an LSTM or GRU real numbers in every run: a quarter of
the size, and 1.2 to 1.5 times the time. Its QLinearSoftmax multiplies with the whole part of the
scale's reciprocal: where that is 254.99998, 1.0 is stored as 254."""
ORT = Target(
    "ort",
    "ort",
    U8,
    PER_CHANNEL,
    _IN_ORT,
    float_results=_FLOAT_IN_ORT,
    wide=Wide.FLOATS,
    avoided_pairs="channels-last",
)
ORT_S8 = replace(ORT, name="ort-s8", activations=S8)
TENSORRT = Target(
    "tensorrt",
    "tensorrt",
    SYMMETRIC_S8,
    PER_CHANNEL,
    (
        OperatorRule("one-scale-concat", ("Concat",), shares=True),
        OperatorRule("transposed", ("ConvTranspose",), weights=PER_TENSOR),
        *EVERYTHING,
    ),
    float_results=ACCUMULATORS,
    float_biases=True,
    functions=False,
    residuals=False,
    wide=Wide.ABSENT,
)
QNN = Target("qnn", "qnn", U8, PER_CHANNEL, PRESCRIBED, functions=False, wide=Wide.INTEGERS)
A16W8 = Target("a16w8", "qnn", U16, PER_CHANNEL, PRESCRIBED, functions=False)


def _of_activations(node: Node) -> bool:
    return not any(value.is_constant for _, value in node.data_operands())


OPENVINO = Target(
    "openvino",
    "openvino",
    U8,
    PER_CHANNEL,
    (
        OperatorRule("float-kernels", openvino.FLOAT_KERNELS, quantized=False),
        OperatorRule(
            "products-of-activations",
            ("MatMul",),
            _of_activations,
            operands=Format(openvino.SECOND_FACTOR, symmetric=True),
        ),
        OperatorRule("unshifted", openvino.UNSHIFTED, operands=SYMMETRIC_S8),
        *EVERYTHING,
    ),
    float_results=ACCUMULATORS,
    functions=False,
    wide=Wide.FLOATS,
)


def _on_floats(node: Node) -> bool:
    """True for what TFLite has float kernels of only; clamps belong to what is before them."""
    row = ROWS.get(node.op.name)
    if node.op in CLAMPS or node.op.flow is Flow.ACCUMULATE:  # a Gemm of a weight is a Dense
        return False
    return row is None or row.integers is never


TFLITE = Target(
    "tflite",
    "portable",
    S8,
    PER_CHANNEL,
    (
        OperatorRule("scale-kept", KEPT, shares=True),
        OperatorRule("float-kernels", _op_names_by_flow(*Flow), _on_floats, quantized=False),
        *PRESCRIBED,
    ),
    functions=False,
)
TOSA = replace(TFLITE, name="tosa", arithmetic=IntegerArithmetic(requantize=Rescaling.DOUBLE_ROUND))
"""Written through TFLite, and computed with TOSA's RESCALE; what that adds on given samples says
nothing of what it adds on others (docs/tosa.md), so the search rounds floats."""
POWER_OF_TWO = Target(
    "power-of-two",
    "ort",
    Format(DType.INT8, symmetric=True, power_of_two=True),
    Format(DType.INT8, symmetric=True, power_of_two=True),
    EVERYTHING,
)
FLOAT8 = Target(
    "float8",
    "portable",
    E4M3,
    replace(E4M3, axis=0),
    tuple(OperatorRule(rule.name, rule.ops) for rule in EVERYTHING),
    float_results=ACCUMULATORS,
    float_biases=True,
)
"""float8 everywhere, each product's sums and biases floats."""
PRODUCTS = (OperatorRule("products", ACCUMULATORS), RECURRENT_WEIGHTS)
"""Rules of a target that stores weights and nothing else."""
LSTM_DYNAMIC = OperatorRule("lstm", ("LSTM",), is_lstm, operands=Unstored.DYNAMIC)
"""onnxruntime's DynamicQuantizeLSTM, 5 times as fast as a float LSTM of 512 elements; GRU and RNN
have no such kernel."""
_DYNAMICALLY = (LSTM_DYNAMIC, *PRODUCTS)
WEIGHT_ONLY = Target("weight-only", "ort", Unstored.FLOAT, PER_CHANNEL, PRODUCTS)
DYNAMIC = Target(
    "dynamic", "ort", Unstored.DYNAMIC, PER_CHANNEL, _DYNAMICALLY, avoided_pairs="channels-last"
)
DYNAMIC_ROWS = replace(DYNAMIC, name="dynamic-rows", activations=Unstored.DYNAMIC_ROWS)
_ALL = (
    ORT, ORT_S8, TENSORRT, QNN, A16W8, OPENVINO, TFLITE, TOSA, POWER_OF_TWO, WEIGHT_ONLY, DYNAMIC,
    DYNAMIC_ROWS, FLOAT8,
)  # fmt: skip
TARGETS: Mapping[str, Target] = MappingProxyType({t.name: t for t in _ALL})
"""The targets that have a name."""
