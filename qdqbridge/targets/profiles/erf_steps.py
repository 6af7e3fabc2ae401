"""Erf, and Gelu of floats, in steps that a backend without Erf has.

``erf(x) = x / |x| (1 - p(t) exp(-x x))`` with ``t = 1 / (1 + 0.3275911 |x|)`` and a polynomial of
degree 5 without a constant: formula 7.1.26 of Abramowitz and Stegun, Handbook of Mathematical
Functions, off by at most 1.5e-7, little more than float32 itself.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from qdqbridge.core.graph.dtypes import DType
from qdqbridge.core.graph.graph import Node, Note, Value
from qdqbridge.core.graph.operator import NO_ATTRIBUTES, Attributes, Operator
from qdqbridge.core.graph.types import TensorType
from qdqbridge.core.ops.attributes import GeluAttrs
from qdqbridge.core.ops.build import constant, dequantized, quantized, result
from qdqbridge.core.ops.composition import CompositionAttrs
from qdqbridge.core.ops.elementwise import ADD, DIV, MUL, SUB
from qdqbridge.core.ops.unary import ABS, ERF, EXP, GELU, NEG, RELU, TANH
from qdqbridge.core.rewrite.rule import Proposal, Replace, RuleContext, rule

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
        node: The node.
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
