"""A graph without its quantization: the float model, as far as the integers still say it."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np

from qdqbridge.core.canonical.form import canonicalize
from qdqbridge.core.canonical.interface import METADATA
from qdqbridge.core.graph.constant import Constant
from qdqbridge.core.graph.copying import copied
from qdqbridge.core.graph.edit import Editor
from qdqbridge.core.graph.graph import Graph, Node, Value
from qdqbridge.core.graph.numerics import dequantize
from qdqbridge.core.graph.operator import NO_ATTRIBUTES, Flow, Operator
from qdqbridge.core.graph.types import QuantParams, TensorType
from qdqbridge.core.ops.attributes import CastAttrs, ClipAttrs
from qdqbridge.core.ops.build import result
from qdqbridge.core.ops.conversion import CAST, DEQUANTIZE, QUANTIZE, REINTERPRET, REQUANTIZE
from qdqbridge.core.ops.convolution import CONV
from qdqbridge.core.ops.dynamic import DYNAMIC_BLOCK_DENSE, DYNAMIC_CONV, DYNAMIC_DENSE
from qdqbridge.core.ops.elementwise import ADD, CONCAT, MUL
from qdqbridge.core.ops.matmul import DENSE
from qdqbridge.core.ops.normalization import SOFTMAX
from qdqbridge.core.ops.pooling import MAX_POOL
from qdqbridge.core.ops.shape_values import SHAPE
from qdqbridge.core.ops.unary import CLIP, RELU, SIGMOID
from qdqbridge.errors import UnsupportedTargetError

_CONVERSIONS = (QUANTIZE, DEQUANTIZE, REQUANTIZE)
_OF_FLOATS: Mapping[Operator, Operator] = MappingProxyType(
    {DYNAMIC_DENSE: DENSE, DYNAMIC_CONV: CONV, DYNAMIC_BLOCK_DENSE: DENSE}
)
"""The product of floats that one of dynamically quantized activations becomes."""
_KEEP_SIGN = (CONCAT, MAX_POOL, ADD, MUL)
_POSITIVE = (RELU, SIGMOID, SOFTMAX)
_RELU6 = 6.0


def is_quantized(graph: Graph) -> bool:
    """True where anything in a graph is quantized, before it runs or while it does."""
    stored = any(value.quant is not None for value in graph.values())
    return stored or any(node.op in _OF_FLOATS for node in graph.nodes)


@dataclass(frozen=True, slots=True)
class FloatForm:
    """A quantized graph as operators on real numbers, beside what they were stored as.

    Attributes:
        graph: The float graph, not canonical: each value is one of the quantized graph's.
        stored: What values were stored as.
        otherwise: Values that some readers had in other parameters, or as real numbers.
    """

    graph: Graph
    stored: Mapping[Value, QuantParams]
    otherwise: tuple[Value, ...]


def unquantized(graph: Graph) -> Graph:
    """Returns the float graph of a quantized one, canonical; see :func:`float_form`.

    Args:
        graph: A canonical graph; it is not changed.

    Raises:
        UnsupportedTargetError: An operator looks at stored integers as plain numbers.
    """
    return canonicalize(float_form(graph).graph)


def float_form(graph: Graph) -> FloatForm:
    """Returns the float graph of a quantized one: its operators on real numbers, nothing rounded.

    Constants are their dequantized numbers. A result whose type begins at 0 gets the Relu that the
    type stands for, unless it cannot be negative; where the type ends at 6 as well, a Clip. A
    narrower range that a Clip left gets that Clip back. Other ranges saturate no more.

    Args:
        graph: A canonical graph; it is not changed.

    Raises:
        UnsupportedTargetError: An operator looks at stored integers as plain numbers.
    """
    found = [node for node in graph.nodes if node.op is REINTERPRET]
    if found:
        raise UnsupportedTargetError(
            "the model has no float form",
            where=graph.name,
            why=f"{len(found)} operators look at stored integers as plain numbers, "
            f"the first at '{found[0].inputs[0].name if found[0].inputs[0] else ''}'",
        )
    own = copied(graph).graph
    own.canonical = False
    own.metadata.pop(METADATA, None)  # what it says of integers is true no more
    ranges = {v: v.quant.params for v in own.values() if v.quant is not None}
    for value, params in ranges.items():
        value.type = TensorType(params.expressed_dtype, value.type.shape)
        if value.constant is not None:
            real = dequantize(value.constant.numpy(), params).astype(value.type.dtype.numpy)
            value.constant, value.written = Constant.of(real), None
    editor = Editor(own)
    positive: set[Value] = set()
    stored = {value: params for value, params in ranges.items() if value.producer is None}
    otherwise: dict[Value, None] = {}
    for node in list(own.nodes):
        _of_floats(node)
        if node.op in _CONVERSIONS:
            given = node.operand(0)
            asked = ranges.get(node.output)
            full = given.producer is None and asked is not None and asked.full_range
            # what an input is cut off to is its calibration
            new = _clamped(_as_type(node), None if full else asked, positive)
            if asked is not None:
                alone = new is not given or not _read_otherwise(node, editor)
                if not alone or stored.setdefault(new, asked) != asked:
                    otherwise[new] = None
                stored.setdefault(new, asked)
            editor.replace_value(node.output, new)
            editor.insert(new)
            continue
        for value in node.outputs:
            if _never_negative(node, positive):
                positive.add(value)
            new = _clamped(value, ranges.get(value), positive)
            if value in ranges:
                stored[new] = ranges[value]
            if new is not value:
                editor.replace_value(value, new)
                editor.insert(new)
    editor.finish()
    return FloatForm(own, stored, tuple(otherwise))


def _read_otherwise(node: Node, editor: Editor) -> bool:
    """True where something but a quantize reads the real numbers that ``node`` quantizes."""
    given = node.operand(0)
    readers = (reader for reader, _ in given.users)
    others = any(reader.op not in (*_CONVERSIONS, SHAPE) for reader in readers)
    return node.op is QUANTIZE and (others or editor.is_output(given))


def _of_floats(node: Node) -> None:
    """Makes a product of dynamically quantized activations one of floats, in place."""
    op = _OF_FLOATS.get(node.op)
    if op is not None:
        node.op = op
        node.attributes = NO_ATTRIBUTES if op is DENSE else node.attributes


def _as_type(node: Node) -> Value:
    """Returns the operand of a conversion, in the type of its result."""
    value, dtype = node.operand(0), node.output.type.dtype
    if value.type.dtype is dtype:
        return value
    type_ = TensorType(dtype, value.type.shape)
    return result(CAST, CastAttrs(dtype), [value], type_, node.origin, node.output.name)


def _never_negative(node: Node, positive: Collection[Value]) -> bool:
    """True where no result of ``node`` can be negative."""
    if node.op in _POSITIVE:
        return True
    if node.op not in _KEEP_SIGN and node.op.flow not in (Flow.MOVE, Flow.AVERAGE):
        return False
    return all(
        v in positive if v.constant is None else not np.less(v.constant.numpy(), 0).any()
        for _, v in node.data_operands()
    )


def _clamped(value: Value, params: QuantParams | None, positive: set[Value]) -> Value:
    """Returns ``value`` within what the range of its type says beyond where calibration ended."""
    if params is None or not params.per_tensor or not params.storage_dtype.is_integer:
        return value
    stored, zero_point = params.storage_dtype, int(params.zero_point)
    if stored.is_signed and params.qmin == -stored.qmax and params.qmax == stored.qmax:
        return value  # no clamp, but weights' way to be symmetric
    low, high = ((q - zero_point) * float(params.scale) for q in (params.qmin, params.qmax))
    begins = params.qmin > stored.qmin or low == 0
    ends = params.qmax < stored.qmax or (low == 0 and math.isclose(high, _RELU6, rel_tol=1e-5))
    if low == 0 and value in positive:
        begins = False
    if not (begins or ends):
        return value
    bounds = ClipAttrs(low if begins else None, high if ends else None)
    relu = bounds == ClipAttrs(0.0, None)
    made = result(RELU if relu else CLIP, NO_ATTRIBUTES if relu else bounds, [value], value.type)
    if begins and low >= 0:
        positive.add(made)
    return made
