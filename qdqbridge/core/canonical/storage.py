"""Rules for quantized constants: one storage, zero point 0, the coarsest granularity."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from qdqbridge.core.canonical.conversions import covers
from qdqbridge.core.canonical.data_movement import moves
from qdqbridge.core.graph.constant import Constant
from qdqbridge.core.graph.dtypes import DType
from qdqbridge.core.graph.edit import Editor, rewire
from qdqbridge.core.graph.graph import Graph, Node, Value
from qdqbridge.core.graph.numerics import dequantize
from qdqbridge.core.graph.operator import Flow
from qdqbridge.core.graph.types import (
    QuantParams,
    QuantType,
    shiftable,
    shifted_constant,
    shifted_params,
)
from qdqbridge.core.ops.build import constant, inverse, permuted_params, retyped
from qdqbridge.core.ops.conversion import DEQUANTIZE, REQUANTIZE
from qdqbridge.core.ops.normalization import (
    BATCH_NORMALIZATION,
    GROUP_NORMALIZATION,
    INSTANCE_NORMALIZATION,
    LAYER_NORMALIZATION,
)
from qdqbridge.core.rewrite import Proposal, Reject, Replace, RuleContext, rule

# ---- weights -------------------------------------------------------------------------------------
# Rules for quantized constants: signed, zero point 0, positive scales, coarsest granularity.


_COMPUTING = (Flow.ACCUMULATE, Flow.AVERAGE, Flow.ELEMENTWISE, Flow.ROUND)
NORMS = frozenset(
    (LAYER_NORMALIZATION, INSTANCE_NORMALIZATION, GROUP_NORMALIZATION, BATCH_NORMALIZATION)
)


@rule("coarsest-granularity", DEQUANTIZE)
def coarsest_granularity(node: Node, context: RuleContext) -> Proposal:
    """``const`` with equal blocks or channels ``-> const`` with one scale for them."""
    del context
    value = node.operand(0)
    if value.constant is None or value.quant is None:
        return None
    return _with(node, value, value.constant, coarsest(value.quant.params.widened()))


@rule("positive-scale", DEQUANTIZE)
def positive_scale(node: Node, context: RuleContext) -> Proposal:
    """``const`` with a negative scale ``-> const`` with the integers mirrored."""
    del context
    value = node.operand(0)
    if value.constant is None or value.quant is None:
        return None
    mirrored = mirror(value.constant, value.quant.params)
    if mirrored is None:
        return Reject("a negative scale cannot be folded: a mirrored weight exceeds its type")
    return _with(node, value, *mirrored)


@rule("signed-weight", DEQUANTIZE)
def signed_weight(node: Node, context: RuleContext) -> Proposal:
    """A weight ``-> `` the signed integers ``w - zero_point`` where they fit, else ``w`` signed."""
    value, readers = node.operand(0), context.readers(node.output)
    if value.constant is None or value.quant is None or context.is_output(node.output):
        return None
    if not readers or not all(is_weight(reader, node.output) for reader in readers):
        return None
    return _with(node, value, *signed_constant(value.constant, value.quant.params))


@rule("normal-operands")
def normal_operands(node: Node, context: RuleContext) -> Proposal:
    """These rules, for a constant that an operator took before they looked at it."""
    del context
    if node.op.flow not in _COMPUTING or len(node.outputs) != 1:
        return None
    operands = list(node.inputs)
    for index, value in node.data_operands():
        if value.constant is None or value.quant is None:
            continue
        # An int32 operand is a bias: its units follow from the product's, and are not chosen here.
        if value.type.dtype is DType.INT32:
            if node.op in NORMS:
                operands[index] = _float_offset(value)
            continue
        data, params = value.constant, value.quant.params
        data, params = mirror(data, params) or (data, params)
        params = coarsest(params.widened())
        # Only weights become signed. Other constants keep the type that their file has, as
        # activations do.
        if index == 1 and is_weight(node, value):
            data, params = signed_constant(data, params)
        if params != value.quant.params:
            operands[index] = constant(data, params, value.name)
    if operands == node.inputs:
        return None
    return Replace({node.output: retyped(node, operands, node.output.type, node.output.name)})


def mirror(data: Constant, params: QuantParams) -> tuple[Constant, QuantParams] | None:
    """Returns the constant with positive scales, None where its integers would not fit."""
    negative = params.scale.astype(np.float32, copy=False) < 0
    if not negative.any():
        return data, params
    base, perm = data.unpermuted()
    stored = permuted_params(params, inverse(perm)) if perm else params
    for rows in _axis0_slices(base.shape, stored):
        array, part = base.rows(rows), _of_rows(stored, rows)
        mirrored = _mirrored(array.astype(np.int64), part)
        if mirrored.min(initial=0) < params.qmin or mirrored.max(initial=0) > params.qmax:
            return None
    positive, kept = replace(params, scale=np.abs(params.scale)), params.storage_dtype.numpy
    whole = base.map(lambda array: _mirrored(array.astype(np.int64), stored).astype(kept))
    return whole.permuted(perm) if perm else whole, positive


_PART = 1 << 20
"""Elements of a weight that are looked at at once."""


def _mirrored(stored: NDArray[np.int64], params: QuantParams) -> NDArray[np.int64]:
    """Returns integers that mean the same with positive scales."""
    negative = params.scale.astype(np.float32, copy=False) < 0
    flip = np.broadcast_to(params.aligned(negative, stored.shape), stored.shape)
    zero_point = params.aligned(params.zero_point, stored.shape).astype(np.int64)
    return np.where(flip, 2 * zero_point - stored, stored)


def _axis0_slices(shape: Sequence[int], params: QuantParams) -> Iterator[slice]:
    """Yields ranges of the first axis; all of it where blocks lie along it."""
    if not shape or (params.blocked and params.axis == 0):
        yield slice(None)
        return
    size = math.prod(shape)
    step = max(1, _PART * shape[0] // max(size, 1))
    yield from (slice(start, start + step) for start in range(0, shape[0], step))


def _of_rows(params: QuantParams, rows: slice) -> QuantParams:
    """Returns the parameters of a part of the first axis."""
    if params.axis is None or not (params.blocked or params.axis == 0):
        return params
    return replace(params, scale=params.scale[rows], zero_point=params.zero_point[rows])


def signed_constant(data: Constant, params: QuantParams) -> tuple[Constant, QuantParams]:
    """Returns the constant as signed integers, with zero point 0 where they fit."""
    if params.symmetric and params.storage_dtype.is_signed:
        return data, params
    if not (params.storage_dtype.is_signed or shiftable(params)):
        return data, params
    unsigned = not params.storage_dtype.is_signed
    signed = shifted_params(params).storage_dtype if unsigned else params.storage_dtype
    if not _fits(data, params, signed):
        return (shifted_constant(data), shifted_params(params)) if unsigned else (data, params)
    target = replace(
        params, storage_dtype=signed, zero_point=np.zeros_like(params.zero_point), qmin=0, qmax=-1
    )
    if unsigned and (params.zero_point == params.storage_dtype.qmin - signed.qmin).all():
        return shifted_constant(data), target
    return data.map(lambda array: _shifted(array, params, signed), dtype=signed), target


def is_weight(node: Node, value: Value) -> bool:
    """True where ``value`` is the operand that ``node`` multiplies its data by, term by term."""
    weighted = node.op.flow is Flow.ACCUMULATE or node.op in NORMS
    return weighted and len(node.inputs) > 1 and node.inputs[1] is value


@rule("float-norm-offset", DEQUANTIZE)
def float_norm_offset(node: Node, context: RuleContext) -> Proposal:
    """``LayerNormalization(x, gamma, dequantize(int32)) -> LayerNormalization(x, gamma, float)``.

    A norm has no accumulator whose units an int32 offset could share (idioms C5, C8).
    """
    value, readers = node.operand(0), context.readers(node.output)
    if value.constant is None or value.quant is None or value.type.dtype is not DType.INT32:
        return None
    if context.is_output(node.output) or any(r.op not in NORMS for r in readers):
        return None
    return Replace({node.output: _float_offset(value)})


def _float_offset(value: Value) -> Value:
    assert value.constant is not None and value.quant is not None
    params, data = value.quant.params, value.constant
    real = Constant(params.expressed_dtype, data.shape, lambda: _dequantized_weights(data, params))
    return constant(real, None, value.name)


def _fits(data: Constant, params: QuantParams, signed: DType) -> bool:
    middle = params.storage_dtype.qmin - signed.qmin
    if (params.zero_point == middle).all():
        return True
    base, perm = data.unpermuted()
    params = permuted_params(params, inverse(perm)) if perm else params
    for rows in _axis0_slices(base.shape, params):
        stored, part = base.rows(rows).astype(np.int64), _of_rows(params, rows)
        shifted = stored - part.aligned(part.zero_point, stored.shape).astype(np.int64)
        if shifted.min(initial=0) < signed.qmin or shifted.max(initial=0) > signed.qmax:
            return False
    return True


def _shifted(array: NDArray[Any], params: QuantParams, signed: DType) -> NDArray[Any]:
    zero_point = params.aligned(params.zero_point, array.shape).astype(np.int32)
    return (array.astype(np.int32) - zero_point).astype(signed.numpy)


def _dequantized_weights(data: Constant, params: QuantParams) -> NDArray[Any]:
    """Returns what the file's DequantizeLinear yields."""
    return dequantize(data.numpy(), params).astype(params.expressed_dtype.numpy)


def coarsest(params: QuantParams) -> QuantParams:
    """Returns the same parameters in the coarsest granularity that says the same thing."""
    if params.axis is None:
        return params
    scale, zero_point = params.scale, params.zero_point
    varying = [i for i in range(scale.ndim) if _varies(scale, i) or _varies(zero_point, i)]
    if not varying:
        first = (0,) * scale.ndim
        return replace(
            params, scale=scale[first], zero_point=zero_point[first], axis=None, block_size=None
        )
    if params.blocked and len(varying) == 1 and varying[0] != params.axis:
        index = tuple(slice(None) if i == varying[0] else 0 for i in range(scale.ndim))
        return replace(
            params,
            scale=scale[index],
            zero_point=zero_point[index],
            axis=varying[0],
            block_size=None,
        )
    return params


def _varies(array: NDArray[Any], axis: int) -> bool:
    before = (slice(None),) * axis
    first = array[(*before, slice(0, 1))]
    if array.shape[axis] > 1 and not np.array_equal(first, array[(*before, slice(1, 2))]):
        return True
    return not np.array_equal(np.broadcast_to(first, array.shape), array, equal_nan=False)


def _with(node: Node, value: Value, data: Constant, params: QuantParams) -> Proposal:
    if value.quant is None or (data is value.constant and params == value.quant.params):
        return None
    fresh = constant(data, params, value.name)
    output = Value(node.output.type, node.output.name)
    Node(node.op, node.attributes, [fresh], [output], node.origin)
    return Replace({node.output: output})


# ---- storage -------------------------------------------------------------------------------------
# The storage of constants: uint8 around 128 and int8 around 0 are one constant, as are 8 and -120.
#
# A weight is stored signed around 0 wherever that is possible
# (:mod:`qdqbridge.core.canonical.storage`).
# Any other constant is as signed as what it is combined with, so that kernels and runtimes find one
# type on both sides: a constant addend of uint8 activations is uint8. So is a table that a Gather
# reads, with all data movement behind it, up to where something computes with the values. Constants
# that nothing quantized decides about are signed. None of this looks at an element.
#
# Constants that are equal then are dequantized once.


def shifted_as(value: Value, params: QuantParams) -> Value | None:
    """Returns a constant in the signedness of ``params`` where that makes their types equal."""
    if value.constant is None or value.quant is None or not shiftable(value.quant.params):
        return None
    own = value.quant.params
    if own.same_mapping(params) or not shifted_params(own).same_mapping(params):
        return None
    return constant(shifted_constant(value.constant), shifted_params(own), value.name)


def propagate_storage(graph: Graph) -> bool:
    """Gives constants the signedness that their readers have; returns whether any changed."""
    editor = Editor(graph)
    changed = _Storage(editor, graph.nodes).propagate()
    if changed:
        editor.finish()
    return changed


def share_dequantized(graph: Graph) -> bool:
    """Makes one node of the dequantizes of equal constants; returns whether there were several.

    Elements are compared only where types and shapes agree, so hardly ever.
    """
    editor = Editor(graph)
    kept: dict[object, list[Node]] = {}
    changed = False
    for node in graph.nodes:
        source = node.inputs[0] if node.inputs else None
        if node.op is not DEQUANTIZE or source is None or source.constant is None:
            continue
        alike = kept.setdefault((source.type, node.output.type), [])
        for other in alike:
            first = other.operand(0).constant
            if first is not None and first.same_bits(source.constant):
                editor.replace_value(node.output, other.output)
                changed = True
                break
        else:
            alike.append(node)
    if changed:
        editor.finish()
    return changed


@dataclass(slots=True)
class _ConstantRegion:
    """A constant and what data-movement operators make of it.

    Attributes:
        values: The results of the data-movement operators, in whatever order.
        shifts: Results of requantizes that change nothing but the signedness.
        overrides: Whether the readers want signed values, one entry for each that cares.
        fixed: Somebody looks at the bits.
    """

    values: list[Value] = field(default_factory=list[Value])
    shifts: list[Value] = field(default_factory=list[Value])
    overrides: set[bool] = field(default_factory=set[bool])
    fixed: bool = False

    @property
    def signed(self) -> bool:
        return True in self.overrides or not self.overrides


class _Storage:
    def __init__(self, editor: Editor, nodes: Sequence[Node]) -> None:
        self.editor, self.nodes = editor, nodes
        self.rooted: set[Value] = set()
        self.shifted: dict[tuple[Constant, QuantParams], Constant] = {}

    def propagate(self) -> bool:
        changed = False
        for node in self.nodes:
            source = node.inputs[0] if node.inputs else None
            rooted = source is not None and (source.is_constant or source in self.rooted)
            if rooted and _passes(node):
                self.rooted.update(node.outputs)
        for node in self.nodes:
            if _passes(node):
                changed |= self._propagate_table(node)
            elif node.op.flow in _COMPUTING or node.op is DEQUANTIZE:
                changed |= self._propagate_operands(node)
        return changed

    def _propagate_operands(self, node: Node) -> bool:
        changed = False
        for index, value in node.data_operands():
            quant = value.quant
            if value.constant is None or quant is None or not shiftable(quant.params):
                continue
            if index == 1 and is_weight(node, value):
                continue
            wish = self._wish(node, value)
            if (wish is None or wish) != quant.params.storage_dtype.is_signed:
                rewire(node, index, self._shifted(value, value.constant, quant))
                changed = True
        return changed

    def _propagate_table(self, node: Node) -> bool:
        """Settles what the data-movement operators behind a table make, once for each table."""
        table = node.operand(0)
        if table.constant is None or table.quant is None:
            return False
        region = self._region(node)
        signed = table.quant.params.storage_dtype.is_signed
        if region.fixed or (signed == region.signed and not region.shifts):
            return False
        if signed != region.signed:
            rewire(node, 0, self._shifted(table, table.constant, table.quant))
        for value in region.values:
            assert isinstance(value.type, QuantType)
            if value.type.dtype.is_signed != region.signed:
                value.type = value.type.with_params(shifted_params(value.type.params))
        for value in region.shifts:
            assert value.producer is not None
            self.editor.replace_value(value, value.producer.operand(0))
        return True

    def _region(self, node: Node) -> _ConstantRegion:
        region = _ConstantRegion()
        pending = [node]
        while pending:
            current = pending.pop()
            target = region.shifts if current.op is REQUANTIZE else region.values
            target += current.outputs
            for value in current.outputs:
                region.fixed |= self.editor.is_output(value)
                for reader, index in value.users:
                    if index == 0 and _passes(reader):
                        pending.append(reader)
                    elif reader.op.flow in (Flow.REINTERPRET, Flow.FLOAT):
                        region.fixed = True
                    elif (wish := self._wish(reader, value)) is not None:
                        region.overrides.add(wish)
        return region

    def _wish(self, reader: Node, value: Value) -> bool | None:
        """Returns whether ``reader`` wants ``value`` signed, None where it does not care."""
        parameter = reader.op in NORMS and value is not reader.inputs[0]
        if parameter or is_weight(reader, value):
            return True
        others = (v for _, v in reader.data_operands() if not v.is_constant)
        running = (v for v in others if v is not value and v not in self.rooted)
        kinds = _signedness((*reader.outputs, *running))
        return next(kinds, None)

    def _shifted(self, value: Value, data: Constant, quant: QuantType) -> Value:
        key = data, quant.params
        if key not in self.shifted:
            self.shifted[key] = shifted_constant(data)
        return constant(self.shifted[key], shifted_params(quant.params), value.name)


def _signedness(values: tuple[Value, ...]) -> Iterator[bool]:
    for value in values:
        if value.quant is not None and shiftable(value.quant.params):
            yield value.quant.params.storage_dtype.is_signed


def _passes(node: Node) -> bool:
    """True where the results of ``node`` are the stored values of its first operand, moved.

    Also where they are shifted to the other signedness, and nothing else.
    """
    source = node.inputs[0] if node.inputs else None
    if source is None or source.quant is None or not shiftable(source.quant.params):
        return False
    if any(value.quant is None for value in node.outputs):
        return False
    own, result = source.quant.params, node.output.quant
    if node.op is REQUANTIZE:
        return result is not None and covers(result.params, shifted_params(own))
    return moves(node) and all(v.type.dtype is own.storage_dtype for v in node.outputs)
