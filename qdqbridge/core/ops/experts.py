"""Mixtures of experts of com.microsoft: a few of many networks of two products, per token."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from qdqbridge.core.graph.graph import Node
from qdqbridge.core.graph.operator import Array, Attributes, Flow, Operands, Row
from qdqbridge.core.ops.dynamic import block_codes
from qdqbridge.core.ops.shapes import differ, known
from qdqbridge.core.ops.stored import optional, present

ACTIVATIONS = ("relu", "relu2", "gelu", "silu", "swiglu", "geglu", "identity")
GATED = ("swiglu", "geglu")
"""Activations of two products: one bends and gates the other."""
INTERLEAVED, HALVES = 1, 2
_ROUNDED = ((8, None), (4, 4))
"""Bits of weights in blocks that are multiplied in 8 bits, and the accuracy_level that says so."""


@dataclass(frozen=True, slots=True)
class ExpertsAttrs(Attributes):
    """MoE and QMoE.

    Attributes:
        k: How many experts a token is given to.
        activation_type: What stands between the two products.
        activation_alpha: Of SwiGLU: ``g * sigmoid(alpha * g) * (l + beta)``.
        activation_beta: Of SwiGLU.
        swiglu_limit: g is at most that, and l within it; 0: as they are.
        swiglu_fusion: Where g and l of SwiGLU and GEGLU are: 0 two products, 1 pairs of one, 2
            halves of one.
        normalize_routing_weights: The weights of the chosen experts add up to 1.
        expert_weight_bits: The bits of a stored weight; 0 where they are floats.
        block_size: How many weights of a row have one scale; 0: all.
        accuracy_level: How exactly onnxruntime has to multiply; 4: in 8 bits.
    """

    k: int = 1
    activation_type: str = "relu"
    activation_alpha: float = 1.0
    activation_beta: float = 0.0
    swiglu_limit: float = 0.0
    swiglu_fusion: int = 0
    normalize_routing_weights: bool = False
    expert_weight_bits: int = 0
    block_size: int = 0
    accuracy_level: int = 0

    def rounded(self, terms: int) -> int:
        """Returns how many neighbours of what is multiplied are rounded to 8 bits together.

        0 where none are: onnxruntime multiplies rows that are no whole blocks as floats.

        Args:
            terms: How many terms a product has.
        """
        given, block = (self.expert_weight_bits, self.accuracy_level), self.block_size
        rounds = any(bits == given[0] and level in (None, given[1]) for bits, level in _ROUNDED)
        return block if rounds and block > 0 and terms % block == 0 else 0


@dataclass(frozen=True, slots=True)
class _Layer:
    """One product of every expert.

    Attributes:
        weights: (experts, results, terms).
        bias: (experts, results).
        block: How many neighbours of what it multiplies are rounded to 8 bits together; 0: none.
    """

    weights: Array
    bias: Array | None
    block: int = 0

    def of(self, expert: int, x: Array) -> Array:
        if self.block:
            codes, scale = block_codes(x.astype(np.float32), self.block)
            real = (codes * scale[..., None]).reshape(len(x), -1)
            x = real[:, : x.shape[1]].astype(x.dtype)
        result = x @ self.weights[expert].astype(x.dtype).T
        return result if self.bias is None else result + self.bias[expert].astype(x.dtype)


def chosen(logits: Array, attributes: ExpertsAttrs) -> tuple[Array, Array]:
    """Returns the experts of each token, the greatest first, and their weights.

    Of equal ones the last comes first, as in onnxruntime.
    """
    last = logits.shape[-1] - 1
    # A stable order of the mirrored logits puts the last of equal ones first.
    order = last - np.argsort(-logits[:, ::-1], axis=-1, kind="stable")[:, : attributes.k]
    raised = np.exp(logits - logits.max(axis=-1, keepdims=True))
    shares = np.take_along_axis(raised, order, axis=-1)
    whole = shares if attributes.normalize_routing_weights else raised
    return order, shares / whole.sum(axis=-1, keepdims=True)


def _activated(a: ExpertsAttrs, x: Array, other: Array | None) -> Array:
    kind = a.activation_type
    if kind in GATED and a.swiglu_fusion == INTERLEAVED:
        x, other = x[..., ::2], x[..., 1::2]
    elif kind in GATED and a.swiglu_fusion == HALVES:
        x, other = np.split(x, 2, axis=-1)
    if kind == "swiglu":
        assert other is not None
        if a.swiglu_limit:
            x = np.minimum(x, x.dtype.type(a.swiglu_limit))
            other = np.clip(other, -a.swiglu_limit, a.swiglu_limit).astype(x.dtype)
        swish = x / (1 + np.exp(-x.dtype.type(a.activation_alpha) * x))
        return swish * (other + other.dtype.type(a.activation_beta))
    if kind in ("relu", "relu2"):
        x = np.maximum(x, 0)
        x = x * x if kind == "relu2" else x
    elif kind == "silu":
        x = x / (1 + np.exp(-x))
    elif kind in ("gelu", "geglu"):
        inner = (x + x * x * x * x.dtype.type(0.044715)) * x.dtype.type(math.sqrt(2 / math.pi))
        x = x * x.dtype.type(0.5) * (1 + np.tanh(inner))
    return x if other is None else x * other


def _mixed(a: ExpertsAttrs, x: Array, logits: Array, layers: list[_Layer | None]) -> Array:
    tokens = x.reshape(-1, x.shape[-1])
    wide = tokens.astype(np.float32) if tokens.dtype.itemsize < 4 else tokens
    order, shares = chosen(logits.reshape(len(tokens), -1).astype(wide.dtype), a)
    first, second, third = layers
    assert first is not None and second is not None
    result = np.zeros((len(tokens), second.weights.shape[1]), wide.dtype)
    for expert in range(first.weights.shape[0]):
        rows, place = np.nonzero(order == expert)
        if not len(rows):
            continue
        own = wide[rows]
        other = None if third is None else third.of(expert, own)
        made = second.of(expert, _activated(a, first.of(expert, own), other))
        np.add.at(result, rows, made * shares[rows, place][:, None])
    return result.reshape(x.shape).astype(x.dtype)


def _experts(a: ExpertsAttrs, operands: Operands) -> tuple[Array, ...]:
    """See the contract of the row."""
    x, logits = present(operands, 2)
    layers: list[_Layer | None] = []
    for index in (2, 4, 6):
        weights = optional(operands, index)
        layer = None if weights is None else _Layer(weights, optional(operands, index + 1))
        layers.append(layer)
    return (_mixed(a, x, logits, layers),)


def _stored_experts(a: ExpertsAttrs, operands: Operands) -> tuple[Array, ...]:
    """See the contract of the row."""
    x, logits = present(operands, 2)
    layers: list[_Layer | None] = []
    for index, points in ((2, 11), (5, 12), (8, 13)):
        codes, scales = optional(operands, index), optional(operands, index + 1)
        if codes is None or scales is None:
            layers.append(None)
            continue
        real = expert_weights(a, codes, scales, optional(operands, points))
        bias = optional(operands, index + 2)
        layers.append(_Layer(real, bias, a.rounded(real.shape[2])))
    return (_mixed(replace(a, normalize_routing_weights=True), x, logits, layers),)


def expert_weights(a: ExpertsAttrs, codes: Array, scales: Array, points: Array | None) -> Array:
    """Returns weights as float32, ``(code - zero point) * scale``; a last block may be short."""
    bits = a.expert_weight_bits
    numbers = _unpacked(codes, bits)
    experts, rows, terms = numbers.shape
    blocks = 1 if scales.ndim == 2 else scales.shape[2]
    # Without zero points codes lie around the middle of their type.
    zero: Array = np.full((experts, rows, blocks), 1 << (bits - 1), np.int32)
    if points is not None:
        flat = points.reshape(experts, rows, -1) if scales.ndim == 3 else points
        zero = _unpacked(flat, bits)
        zero = zero[..., :blocks] if scales.ndim == 3 else zero[:, :rows, None]
    size = a.block_size or terms
    factor = scales.reshape(experts, rows, blocks).astype(np.float32)
    zero, factor = (np.repeat(each, size, axis=2)[..., :terms] for each in (zero, factor))
    return (numbers - zero).astype(np.float32) * factor


def _unpacked(stored: Array, bits: int) -> Array:
    """Returns the codes in bytes, the lowest bits first."""
    each = [(stored >> shift) & ((1 << bits) - 1) for shift in range(0, 8, bits)]
    wide = np.stack(each, axis=-1).astype(np.int32)
    return wide.reshape(*stored.shape[:-1], -1)


def _check_moe(node: Node, a: ExpertsAttrs) -> Iterator[str]:
    experts = known(node.optional(1), -1)
    if a.k < 1 or (experts is not None and a.k > experts):
        yield f"it chooses {a.k} of {experts} experts"
    if a.activation_type not in ACTIVATIONS:
        yield f"its activation is {a.activation_type}"
    if a.swiglu_fusion not in (0, INTERLEAVED, HALVES):
        yield f"swiglu_fusion is {a.swiglu_fusion}"
    elif a.activation_type == "geglu" and not a.swiglu_fusion:
        yield "its geglu has the gate in a product of its own"
    if differ(known(node.optional(2), 0), experts):
        yield f"it has the weights of {known(node.optional(2), 0)} experts, not of {experts}"


EXPERTS = Row(
    name="MoE",
    flow=Flow.FLOAT,
    attributes=ExpertsAttrs,
    compute=_experts,
    check=_check_moe,
    apart=True,
    numerics="The k experts of the greatest logits, of equal ones the last as in onnxruntime; y = "
    "sum of share * (act(x @ w1' + b1) @ w2' + b2), shares the softmax of all logits, or of the "
    "chosen ones. Sums in float32 in NumPy's order. Against onnxruntime 1.32 on 125 random "
    "nodes: at most 2e-6 off. Its CPU has no geglu (gelu(g, approximate='tanh') * l) and relu2 "
    "(max(x, 0) ** 2): as its text says.",
)
STORED_EXPERTS = Row(
    name="QMoE",
    flow=Flow.FLOAT,
    attributes=ExpertsAttrs,
    compute=_stored_experts,
    check=_check_moe,
    apart=True,
    numerics="MoE with weights (code - zero point) * scale in float32, and shares of the chosen "
    "experts alone. What weights in blocks multiply is rounded to 8 bits as by DynamicBlockDense: "
    "of 8 bits always, of 4 with accuracy_level 4, as onnxruntime's text says. Against onnxruntime "
    "1.32 on 280 random nodes: at most 2e-6 off, but where a code lies between two. Where weights "
    "are no initializers it rounds nothing. Of 2 bits in blocks of 32 or more its text has no "
    "rounding, but where a product has rows by the 128 its kernel adds sums of four activations "
    "each out of tables of 8 bits (computed so, all results are within 5e-7 of its): up to 1 % of "
    "the largest result from exact arithmetic, which is here.",
)

OPERATORS = (EXPERTS, STORED_EXPERTS)
