"""How a graph is put for one runtime before it is written: other nodes, the same numbers.

A profile's legalizations are rules (:mod:`qdqbridge.core.rewrite`) that rewrite a copy of the graph
where a rule of the runtime's would be broken otherwise. Where one cannot keep the numbers, its note
has the name of that rule, and says what is otherwise and how far off.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from qdqbridge.core.graph import copying
from qdqbridge.core.graph.copying import copied
from qdqbridge.core.graph.dtypes import DType
from qdqbridge.core.graph.graph import Graph, Node, Note, Value
from qdqbridge.core.graph.numerics import dequantize
from qdqbridge.core.graph.operator import NO_ATTRIBUTES, Attributes, Flow, Operator
from qdqbridge.core.graph.types import (
    QuantParams,
    QuantType,
    TensorType,
    params_of_interval,
    per_tensor,
)
from qdqbridge.core.ops.attributes import GeluAttrs
from qdqbridge.core.ops.build import constant, dequantized, quantized, requantized, result, retyped
from qdqbridge.core.ops.composition import CompositionAttrs
from qdqbridge.core.ops.convolution import CONV
from qdqbridge.core.ops.elementwise import ADD, CONCAT, DIV, MUL, SUB, WHERE
from qdqbridge.core.ops.matmul import MATMUL
from qdqbridge.core.ops.normalization import (
    BATCH_NORMALIZATION,
    GROUP_NORMALIZATION,
    INSTANCE_NORMALIZATION,
    LAYER_NORMALIZATION,
    SOFTMAX,
)
from qdqbridge.core.ops.unary import ABS, ERF, EXP, GELU, HARD_SIGMOID, NEG, RELU, SIGMOID, TANH
from qdqbridge.core.rewrite import Proposal, Replace, Rule, RuleContext, rule, run
from qdqbridge.targets.profiles.hexagon.units import kept


def legalized(graph: Graph, legalizations: Sequence[Rule]) -> Graph:
    """Returns a copy of a graph as a profile puts it; its notes are what that costs."""
    own = copied(graph).graph
    own.notes = []
    for each in legalizations:  # in this order: the next one sees what this one has put
        run(own, (each,))
    return own


def is_attention_score(node: Node) -> bool:
    """True for what a Softmax reads in front of a MatMul."""
    softmaxes = [user for user in readers(node.output) if user.op is SOFTMAX]
    return any(user.op is MATMUL for each in softmaxes for user in readers(each.output))


def enters(value: Value) -> bool:
    """True for an input of the graph, converted or not."""
    made = value.producer
    while made is not None and made.op.flow is Flow.CONVERT:
        value = made.operand(0)
        made = value.producer
    return made is None and value.constant is None


def readers(value: Value) -> list[Node]:
    """Returns what reads a value, conversions aside."""
    found: list[Node] = []
    pending = [value]
    while pending:
        for node, _ in pending.pop().users:
            if node.op.flow is Flow.CONVERT:
                pending.append(node.output)
            else:
                found.append(node)
    return found


# ---- Results in the encoding that a backend gives them in any case, and a conversion behind them

_HALF = 128
_NEAR = 2 / (1 << 16)
"""How near a scale is to the backend's own: two steps of the largest number."""


@rule("own-encoding", SOFTMAX, SIGMOID, HARD_SIGMOID, TANH)
def result_encodings(node: Node, context: RuleContext) -> Proposal:
    """``Softmax(x) -> requantize(Softmax(x) in 1/256)``, and the same for Sigmoids and Tanh.

    The backend computes Softmax of 8 bits as if the smallest number were 0.0, and Sigmoid (the hard
    one too) and Tanh of 16 bits, where they leave the graph, in steps of 1/65536 and 1/32768.
    """
    output, quant = node.output, node.output.quant
    own = None if quant is None else _own(node, quant.params, context)
    if own is None or quant is None:
        return None
    inside = retyped(node, node.inputs, QuantType(own, output.type.shape), f"{output.name}_own")
    value = requantized(inside, quant.params, node.origin, output.name)
    text = f"it is rounded to steps of {float(own.scale.reshape(-1)[0]):.6g} first"
    return Replace({output: value}, (Note("fixed-encodings", node.name, text),))


def _own(node: Node, params: QuantParams, context: RuleContext) -> QuantParams | None:
    """Returns the encoding that the backend wants, None where it is that."""
    dtype, operand = params.storage_dtype, node.inputs[0]
    if not params.per_tensor or operand is None or operand.quant is None:
        return None
    zero = int(params.zero_point.reshape(-1)[0])
    assert node.op.interval is not None  # the rule's operators have one
    if node.op is SOFTMAX and dtype in (DType.UINT8, DType.INT8):
        low = int(dtype.qmin)
        right = zero == low or (dtype is DType.UINT8 and zero == _HALF)
        # unsigned, as all becomes then: int8 is not clipped behind it, in front of an Add
        return None if right else params_of_interval(node.op.interval, DType.UINT8)
    if node.op is SOFTMAX or dtype not in (DType.UINT16, DType.INT16):
        return None
    own = params_of_interval(node.op.interval, dtype)
    near = abs(float(params.scale.reshape(-1)[0]) / float(own.scale) - 1) <= _NEAR
    leaves = dtype is DType.UINT16 and context.is_output(node.output)  # int16 is converted there
    return None if near and (zero == int(own.zero_point) or not leaves) else own


# ---- 8 bits in 16 where Hexagon computes right with 16 only: the same real numbers
#
# What the backend reads of a result of 8 bits in floats, or beside 16 bits, it takes from before
# or behind the rounding, with up to 9 steps of difference behind a Tanh, and one step of the 8
# bits in front of an Add; of 16 bits it does not. A product with weights is one of integers where
# operand and result have one type (onnxruntime-qnn 2.7.0, host build).

_BYTE = 8
_FINER = 1 << _BYTE
"""How many steps of 16 bits are one of 8: a power of 2, so that scales stay exact."""
_MOVED = (Flow.MOVE, Flow.CONVERT, Flow.REINTERPRET)
_ELEMENTS = (Flow.ELEMENTWISE, Flow.FLOAT)


@rule("wide-before-floats")
def wide_operands(node: Node, context: RuleContext) -> Proposal:
    """``Tanh(dequantize(x)) -> Tanh(dequantize(requantize(x)))``, 16 bits between: the same."""
    if not (computes_in_floats(node) or _of_two_widths(node)):
        return None
    operands: dict[tuple[Node, int], Value] = {}
    for index, value in enumerate(node.inputs):
        made = None if value is None else value.producer
        if value is None or made is None or value.constant is not None:
            continue
        if value.quant is None:  # behind a dequantize, which others may read as well
            if made.op.flow is Flow.CONVERT and _narrow(made.operand(0)):
                operands[made, 0] = context.once(_in_16_bits, made.operand(0))
        elif _narrow(value):
            stored = value if computes_in_floats(node) else kept(value)
            operands[node, index] = context.once(_in_16_bits, stored)
    return Replace(operands=operands) if operands else None


@rule("one-width")
def one_width(node: Node, context: RuleContext) -> Proposal:
    """``Conv(x, w)`` of 8 bits whose result has 16, and the other way round: 16 bits on both sides.

    Otherwise parameters that the backend takes only as part of a product are left to the CPU.
    """
    del context
    x, end = (node.operand(0), node.output) if node.inputs else (None, None)
    if node.op.flow is not Flow.ACCUMULATE or x is None or end is None:
        return None
    if not (x.quant and end.quant and x.quant.params.per_tensor and _of_parameters(node)):
        return None
    narrow = [value for value in (x, end) if _bits(value) == _BYTE]
    if len(narrow) != 1 or _bits(x) == _bits(end):
        return None
    if narrow[0] is x:
        return Replace(operands={(node, 0): _in_16_bits(x)})
    type_ = QuantType(_finer(end.quant.params), end.type.shape)
    inside = retyped(node, node.inputs, type_, f"{end.name}_wide")
    value = requantized(inside, end.quant.params, node.origin, end.name)
    cost = Note("one-width", node.name, "it is rounded to 1/256 of a step first")
    return Replace({end: value}, (cost,))


def _of_parameters(node: Node) -> bool:
    """True for a product with a bias, or with weights per channel."""
    weight = node.operand(1).quant
    return weight is not None and (len(node.inputs) > _PAIR or not weight.params.per_tensor)


_PAIR = 2


def _bits(value: Value) -> int:
    return 0 if value.quant is None else value.quant.params.storage_dtype.bits


def _of_two_widths(node: Node) -> bool:
    """True for elements of 8 bits that are computed with together with some of 16."""
    if node.op.flow not in _ELEMENTS:
        return False
    return {_BYTE, 2 * _BYTE} <= {_bits(value) for value in node.inputs if value is not None}


def computes_in_floats(node: Node) -> bool:
    """True for what has no integers on both sides, or several steps between them."""
    if node.op.flow in _MOVED or not node.inputs:
        return False
    if node.op.flow is Flow.ACCUMULATE:
        return node.output.quant is None
    if isinstance(node.attributes, CompositionAttrs) or any(v.quant is None for v in node.outputs):
        return True
    if node.op is WHERE:
        return False  # one whose result is quantized is whole, also with a float number
    operands = node.inputs if node.op.flow in _ELEMENTS else node.inputs[:1]
    return any(value is not None and value.quant is None for value in operands)


def _narrow(value: Value) -> bool:
    """True for a result of 8 bits with one scale; inputs have no rounding that could be lost."""
    made, quant = value.producer, value.quant
    while made is not None and made.op.flow is Flow.MOVE:
        made = made.operand(0).producer
    if made is None or quant is None:
        return False
    params = quant.params
    single = params.per_tensor and params.expressed_dtype is DType.FLOAT32
    return single and params.storage_dtype in (DType.UINT8, DType.INT8)


def _in_16_bits(value: Value) -> Value:
    assert value.quant is not None
    return requantized(value, _finer(value.quant.params), name=f"{value.name}_wide")


def _finer(params: QuantParams) -> QuantParams:
    """Returns uint16 parameters in which every number of the 8-bit ones is exact."""
    zero = int(params.zero_point.reshape(-1)[0]) - int(params.storage_dtype.qmin)
    scale = np.float32(params.scale.reshape(-1)[0]) / np.float32(_FINER)
    return per_tensor(DType.UINT16, scale, zero * _FINER)


# ---- Erf, and Gelu of floats, in steps that a backend without Erf has
#
# ``erf(x) = x / |x| (1 - p(t) exp(-x x))`` with ``t = 1 / (1 + 0.3275911 |x|)`` and a polynomial of
# degree 5 without a constant: formula 7.1.26 of Abramowitz and Stegun, Handbook of Mathematical
# Functions, off by at most 1.5e-7, little more than float32 itself.

_SLOPE = 0.3275911
_POLYNOMIAL = (1.061405429, -1.453152027, 1.421413741, -0.284496736, 0.254829592)
"""From the power 5 down to 1."""
_CUBE = 0.044715
_TINY = 2.0**-24
"""What makes a sign of ``x / (|x| + tiny)``: a Sign of floats is not taken either."""
_OFF = "4e-7"
"""What the steps are off in float32 at most, for numbers from -8 to 8."""


@rule("erf-in-steps")
def erfs_in_steps(node: Node, context: RuleContext) -> Proposal:
    """``Erf(x) -> x / |x| (1 - p(t) exp(-x x))``; the same for a Gelu that is not whole."""
    del context
    if not _concerned(node):
        return None
    dtype = next((v.type.dtype for v in _floats(node)), None)
    steps = _Steps(node, dtype or DType.FLOAT32)
    operands = [steps.real(value) for value in node.inputs]
    value = steps.of(node.op, node.attributes, operands)
    quant = node.output.quant
    if quant is not None:
        value = quantized(value, quant.params, node.origin, node.output.name)
    rest = "" if steps.dtype is DType.FLOAT32 else f", rounded to {steps.dtype} in each step"
    text = f"erf is written in steps: at most {_OFF} off{rest}"
    return Replace({node.output: value}, (Note("no-erf", node.name, text),))


def _concerned(node: Node) -> bool:
    if isinstance(node.attributes, CompositionAttrs):
        return any(step.op in (ERF, GELU) for step in node.attributes.steps)
    whole = (
        bool(node.inputs) and node.operand(0).quant is not None and node.output.quant is not None
    )
    return node.op is ERF or (node.op is GELU and not whole)


def _floats(node: Node) -> Iterator[Value]:
    """Yields operands and results that are floats."""
    for value in (*node.inputs, node.output):
        if value is not None and value.quant is None and value.type.dtype.is_float:
            yield value


@dataclass(frozen=True, slots=True)
class _Steps:
    """Steps in the place of a node.

    Attributes:
        dtype: The floats of the steps.
    """

    node: Node
    dtype: DType

    def real(self, value: Value | None) -> Value:
        """Returns an operand as floats."""
        assert value is not None
        if value.quant is None:
            return value
        return dequantized(value, self.dtype, self.node.origin, f"{value.name}_real")

    def of(self, op: Operator, attributes: Attributes, operands: Sequence[Value]) -> Value:
        """Returns what an operator makes of floats."""
        if isinstance(attributes, CompositionAttrs):
            values = list(operands)
            for step in attributes.steps:
                inputs = [values[index] for index in step.operands]
                values.append(self.of(step.op, step.attributes, inputs))
            return values[-1]
        if op is ERF:
            return self._erf(operands[0])
        if isinstance(attributes, GeluAttrs):
            exact = attributes.approximate == "none"
            return self._gelu(operands[0]) if exact else self._near_gelu(operands[0])
        return self._made(op, operands, attributes)

    def _erf(self, x: Value) -> Value:
        rest = self._made(SUB, [self._number(1), self._beside(x)])
        size = self._made(ADD, [self._made(ABS, [x]), self._number(_TINY)])
        return self._made(MUL, [self._made(DIV, [x, size]), rest])

    def _gelu(self, x: Value) -> Value:
        """Returns ``max(x, 0) - |x| / 2 erfc(|x| / sqrt 2)``."""
        scaled = self._made(MUL, [x, self._number(0.5**0.5)])
        half = self._made(MUL, [self._made(ABS, [x]), self._number(0.5)])
        low = self._made(MUL, [half, self._beside(scaled)])
        return self._made(SUB, [self._made(RELU, [x]), low])

    def _near_gelu(self, x: Value) -> Value:
        """Returns ``x / 2 (1 + tanh(sqrt(2 / pi) x (1 + 0.044715 x x)))``."""
        bent = self._made(MUL, [self._made(MUL, [x, x]), self._number(_CUBE)])
        slope = self._made(MUL, [x, self._number(math.sqrt(2 / math.pi))])
        inner = self._made(MUL, [slope, self._made(ADD, [bent, self._number(1)])])
        gate = self._made(ADD, [self._made(TANH, [inner]), self._number(1)])
        return self._made(MUL, [self._made(MUL, [x, self._number(0.5)]), gate])

    def _beside(self, x: Value) -> Value:
        """Returns ``erfc(|x|)``."""
        slope = self._made(MUL, [self._made(ABS, [x]), self._number(_SLOPE)])
        t = self._made(DIV, [self._number(1), self._made(ADD, [slope, self._number(1)])])
        sum_, *rest = map(self._number, _POLYNOMIAL)
        for factor in rest:
            sum_ = self._made(ADD, [self._made(MUL, [sum_, t]), factor])
        square = self._made(NEG, [self._made(MUL, [x, x])])
        return self._made(MUL, [self._made(MUL, [sum_, t]), self._made(EXP, [square])])

    def _number(self, number: float) -> Value:
        return constant(np.asarray(number, self.dtype.numpy), None, f"{self.node.output.name}_erf")

    def _made(
        self, op: Operator, operands: Sequence[Value], attributes: Attributes = NO_ATTRIBUTES
    ) -> Value:
        type_ = TensorType(self.dtype, self.node.output.type.shape)
        return result(op, attributes, operands, type_, self.node.origin)


# ---- Gelu that a graph writes out step by step, with roundings in between, as one operator

_WHOLE_GELU_STEPS = 10
"""Operators that a Gelu is made of, conversions among them, and some to spare."""
_AT = np.linspace(-6, 6, 193)
"""Where a chain of operators is compared with Gelu."""
_WHOLE_GELU_NEAR = 2e-3
"""How far apart they may be: constants are rounded to 8 bits in some files."""
_WANTED = GELU.compute(GeluAttrs(), [_AT])[0]
_PLAIN = frozenset((DIV, MUL, ADD, ERF))


@rule("gelu-in-whole")
def whole_gelus(node: Node, context: RuleContext) -> Proposal:
    """``Mul(x, Add(Erf(Div(x, sqrt 2)), 1)) / 2 -> Gelu(x)``, in whatever order, rounded once."""
    del context
    if not _has_erf(node):
        return None
    root = _root(node)
    found = _find_gelu_result(root, _WANTED) if root.quant is not None else None
    if found is None or found[0].quant is None:
        return None  # the backend takes no Gelu of floats either
    end, rounded = found
    assert end.producer is not None
    value = result(GELU, GeluAttrs(), [root], end.type, end.producer.origin, end.name)
    cost = Note("no-erf", node.name, f"Gelu is rounded once, not {rounded + 1} times")
    return Replace({end: value}, (cost,) if rounded else ())


def _has_erf(node: Node) -> bool:
    if isinstance(node.attributes, CompositionAttrs):
        return any(step.op is ERF for step in node.attributes.steps)
    return node.op is ERF


def _root(node: Node) -> Value:
    """Returns what is scaled in front of an Erf, before any conversion of it."""
    value = node.operand(0)
    for _ in range(_WHOLE_GELU_STEPS):
        made = value.producer
        if made is None or (made.op.flow is not Flow.CONVERT and not _scales(made)):
            return value
        if made.op.flow is Flow.CONVERT and made.operand(0).constant is not None:
            return value
        if made.op.flow is Flow.CONVERT and len(made.operand(0).users) == 1:
            return value  # nothing else reads it: it is the operand itself that is converted
        value = made.operand(0)
    return value


def _scales(node: Node) -> bool:
    return node.op in (DIV, MUL) and _real_scalar(node.inputs[1]) is not None


def _real_scalar(value: Value | None) -> NDArray[Any] | None:
    """Returns the real number that a constant is, dequantized or not; None for other values."""
    made = None if value is None else value.producer
    if made is not None and made.op.flow is Flow.CONVERT:
        value = made.inputs[0]
    if value is None or value.constant is None or value.constant.size != 1:
        return None
    array = value.constant.numpy()
    real = array if value.quant is None else dequantize(array, value.quant.params)
    return real.astype(np.float64).reshape(())


def _find_gelu_result(root: Value, wanted: NDArray[Any]) -> tuple[Value, int] | None:
    """Returns the value behind ``root`` that is its Gelu, and how often it is rounded before."""
    known: dict[Value, NDArray[Any]] = {root: _AT}
    pending, rounded = [root], 0
    for _ in range(_WHOLE_GELU_STEPS):
        if not pending:
            return None
        for node, _ in list(pending.pop(0).users):
            if node.output in known:
                continue
            array = _computed(node, known)
            if array is None:
                continue
            known[node.output] = array
            if np.abs(array - wanted).max() < _WHOLE_GELU_NEAR and node.op.flow is not Flow.CONVERT:
                return node.output, rounded
            rounded += node.output.quant is not None
            pending.append(node.output)
    return None


def _computed(node: Node, known: dict[Value, NDArray[Any]]) -> NDArray[Any] | None:
    """Returns what a node makes of the real numbers that are known; None where it needs others."""
    whole = isinstance(node.attributes, CompositionAttrs)
    if not (whole or node.op.flow is Flow.CONVERT or node.op in _PLAIN):
        return None
    operands: list[NDArray[Any]] = []
    for value in node.inputs:
        array = _real_scalar(value) if value not in known else known[value]
        if array is None:
            return None
        operands.append(array)
    if node.op.flow is Flow.CONVERT:
        return operands[0]
    with np.errstate(all="ignore"):
        (array,) = node.op.compute(node.attributes, operands)
    return array if array.dtype == DType.FLOAT64.numpy and array.shape == _AT.shape else None


# ---- uint8 as int8 for one runtime, int8 as uint8 for another: the same real numbers, bit for bit

_NORMS = (LAYER_NORMALIZATION, INSTANCE_NORMALIZATION, GROUP_NORMALIZATION, BATCH_NORMALIZATION)


def recentered(graph: Graph) -> Graph:
    """Returns a copy of a graph whose uint8 values around 128 are int8 values around 0.

    Inputs, outputs and values whose bits something else looks at keep their type.

    Args:
        graph: The graph; it is not changed.
    """
    return copying.recentered(graph, only=_around_half)


def unsigned(graph: Graph, source: DType = DType.INT8) -> Graph:
    """Returns a copy of a graph whose int8 activations are uint8, zero points shifted by 128.

    onnxruntime's kernels for x86 are several times faster that way. Weights stay int8; inputs,
    outputs and values whose bits something else looks at keep their type.

    Args:
        graph: The graph; it is not changed.
        source: ``int8``, or ``int16`` (to become uint16).
    """
    weights = {
        value
        for node in graph.nodes
        for index, value in enumerate(node.inputs)
        if value is not None and value.constant is not None
        if (node.op.flow is Flow.ACCUMULATE or node.op in _NORMS) and index
    }
    return copying.recentered(graph, source, only=lambda value: value not in weights)


def convolvable(graph: Graph) -> Graph:
    """Returns a copy of a graph whose int8 activations are uint8 where that is computed better.

    OpenVINO's convolutions subtract the zero point of uint8 only, and compute something else from
    int8 that a Concat made. What is int8 around 0 stays so elsewhere: products of two activations
    and transposed convolutions want no zero point at all.

    Args:
        graph: The graph; it is not changed.
    """

    def better(value: Value) -> bool:
        if value.constant is not None or value.quant is None:
            return False
        if value.quant.params.zero_point.any():
            return True
        made = value.producer is not None and value.producer.op is CONCAT
        return made and any(node.op is CONV for node, _ in value.users)

    return copying.recentered(graph, DType.INT8, only=better)


def _around_half(value: Value) -> bool:
    quant = value.quant
    return quant is not None and not (quant.params.zero_point != _HALF).any()
