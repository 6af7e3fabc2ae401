"""Values as TFLite's tensors: how they are declared, and stored for its integer kernels."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from qdqbridge.core.graph.constant import Constant
from qdqbridge.core.graph.copying import copied
from qdqbridge.core.graph.dtypes import DType
from qdqbridge.core.graph.edit import Editor, rewire
from qdqbridge.core.graph.graph import NO_ORIGIN, Graph, Node, Note, Origin, Value
from qdqbridge.core.graph.numerics import dequantize, quantize
from qdqbridge.core.graph.operator import Flow
from qdqbridge.core.graph.types import (
    QuantParams,
    QuantType,
    Shape,
    shifted_constant,
    shifted_params,
    sound_scales,
    static_shape,
)
from qdqbridge.core.ops.attributes import PadAttrs
from qdqbridge.core.ops.build import requantized
from qdqbridge.core.ops.conversion import CAST, DEQUANTIZE, REINTERPRET
from qdqbridge.core.ops.convolution import CONV
from qdqbridge.core.ops.matmul import DENSE
from qdqbridge.core.ops.shape_values import SHAPE
from qdqbridge.core.rewrite import stored_behind
from qdqbridge.errors import UnsupportedTargetError
from qdqbridge.tflite_io.conversion import DTYPES
from qdqbridge.tflite_io.writer.flatbuffer import TensorQuantization

# ---- The graph's values as TFLite declares tensors: types, extents and parameters, or why not ----


TYPE_NAMES: Mapping[DType, str] = {dtype: name for name, dtype in DTYPES.items()}
"""TFLite's names of element types."""


class NoCounterpart(Exception):
    """A node that TFLite cannot say.

    Args:
        reason: Why.
        fix: What could be done about it.
    """

    def __init__(self, reason: str, fix: str = "") -> None:
        super().__init__(reason)
        self.fix = fix


_OTHER_FLOATS = (DType.FLOAT16, DType.BFLOAT16, DType.FLOAT64)


def refuse(
    target: str, refused: Mapping[tuple[str, str, str], Sequence[str]], where: str = ""
) -> None:
    """Raises the complete list of what has no counterpart; nothing where the list is empty.

    Args:
        target: In what there is none.
        refused: The names of nodes, by operator, reason and fix.
        where: Of which model.

    Raises:
        UnsupportedTargetError: Naming each operator.
    """
    if not refused:
        return
    lines = [
        f"{op} ({len(nodes)}, '{nodes[0]}'): {reason}" for (op, reason, _), nodes in refused.items()
    ]
    fixes = dict.fromkeys(fix for _, _, fix in refused if fix)
    raise UnsupportedTargetError(
        f"{target} cannot take this graph",
        where=where,
        why="; ".join(lines),
        fix="; ".join(fixes) or "replace these operators, or cut the model before them",
    )


def refuse_other_floats(node: Node) -> None:
    """TFLite's kernels compute in float32; others are moved and cast only.

    Raises:
        NoCounterpart: The node computes in another one.
    """
    if node.op.flow is Flow.MOVE or node.op in (CAST, SHAPE):
        return
    for value in (*node.inputs, *node.outputs):
        if value is not None and value.quant is None and value.type.dtype in _OTHER_FLOATS:
            raise NoCounterpart(
                f"it computes in {value.type.dtype.label}", "convert the model to float32"
            )


def is_late(node: Node | None) -> bool:
    """True for a dequantized constant, which is written where somebody reads it."""
    return node is not None and node.op is DEQUANTIZE and node.operand(0).is_constant


def is_weight(value: Value) -> bool:
    """True for a constant, also one that is dequantized."""
    return (stored_behind(value) or value).is_constant


def axis_in(shape: tuple[int, ...], value: Value, axis: int) -> int:
    """Returns where a weight's axis is after a reshape that only adds or drops extents of 1."""
    assert value.constant is not None
    before = math.prod(value.constant.shape[:axis])
    for place in range(len(shape)):
        if math.prod(shape[:place]) == before and shape[place] == value.constant.shape[axis]:
            return place
    raise NoCounterpart(f"the scales of '{value.name}' lie along an axis that is reshaped")


def quantization_of(params: QuantParams) -> TensorQuantization:
    """Returns parameters as TFLite stores them.

    Raises:
        NoCounterpart: TFLite has no such parameters.
    """
    if params.blocked:
        raise NoCounterpart("its scales are per block", "use scales per channel")
    if params.expressed_dtype is not DType.FLOAT32 or not params.storage_dtype.is_integer:
        raise NoCounterpart(
            f"it is {params.storage_dtype.label} with scales of {params.scale_dtype.label}",
            "quantize to int8 or int16 with float32 scales",
        )
    if not sound_scales(params.scale, params.storage_dtype).all():
        raise NoCounterpart(
            "its scale is too large or too small, or no number", "calibrate it again"
        )
    return TensorQuantization(
        np.asarray(params.scale, np.float32), params.zero_point.astype(np.int64), params.axis or 0
    )


def narrowed(numbers: Sequence[int]) -> Sequence[int]:
    """Returns numbers that 32 bits hold.

    Raises:
        NoCounterpart: One is larger.
    """
    if any(abs(number) > DType.INT32.qmax for number in numbers):
        raise NoCounterpart(
            f"it counts to {max(map(abs, numbers)):,}, TFLite to {DType.INT32.qmax:,}"
        )
    return numbers


def extents(value: Value) -> tuple[int, ...]:
    """Returns a value's extents, -1 where open.

    Raises:
        NoCounterpart: Its rank is not known.
    """
    shape: Shape = value.type.shape
    if shape is None:
        raise NoCounterpart(f"the rank of '{value.name}' is not known")
    return tuple(-1 if isinstance(e, str) else e for e in shape)


def fixed_extents(value: Value) -> tuple[int, ...]:
    """Returns a value's extents, all of which are known.

    Raises:
        NoCounterpart: One is open.
    """
    shape = static_shape(value.type.shape)
    if shape is None:
        raise NoCounterpart(f"the shape of '{value.name}' is open", "fix it with --extent")
    return shape


# ---- Every activation stored as TFLite's integer kernels take it: int8, or int16 around zero -----
# The same real numbers, bit for bit: unsigned integers are shifted with their zero points, and
# narrower ones keep their range in a wider type. What the model takes and gives keeps its own type,
# behind or before a requantize that changes no real number.


_SHIFTED = (DType.UINT8, DType.UINT16)
_NARROW = (DType.INT4, DType.UINT4, DType.INT2, DType.UINT2)
AROUND_ZERO = "around-zero"
"""The note of a result that has lost its zero point, and is rounded more coarsely."""
_PRODUCTS = (CONV, DENSE)
"""Operators whose kernels take weights of 4 bits."""


def stored_signed(graph: Graph, *, four_bits: bool = True) -> Graph:
    """Returns a copy of a graph in which activations are int8 or int16.

    Args:
        graph: A canonical graph.
        four_bits: Weights of 4 bits stay so where a kernel takes them.
    """
    copy = copied(graph).graph
    editor = Editor(copy)
    kept = _kept(copy)
    for value in list(copy.values()):
        quant = value.quant
        if quant is None or value in kept or (four_bits and _is_weight(value)):
            continue
        params = signed(quant.params)
        if params is None:
            continue
        if value in copy.inputs and not _takes(quant.params):
            continue  # refused by its type
        if value in copy.inputs:
            inner = requantized(value, params, _origin(value), f"{value.name}:signed")
            readers = [place for place in value.users if place[0].op is not REINTERPRET]
            for node, index in readers:
                rewire(node, index, inner)
            continue
        old = quant.params
        if _coarser(old, params) and value.constant is None:
            copy.notes.append(_storage_note(value, old, params))
        value.type = QuantType(params, value.type.shape)
        if value.constant is not None:
            value.constant = _requantize_constant(value.constant, old, params)
        for slot, output in enumerate(copy.outputs):
            if output is value:
                name = copy.output_names[slot]
                copy.outputs[slot] = requantized(value, old, _origin(value), name)
    for node in copy.nodes:
        _round_filling(node)
    editor.finish()
    return copy


def _round_filling(node: Node) -> None:
    """Gives a Pad a value that its type has, where that has become a coarser one."""
    attributes, quant = node.attributes, node.output.quant if node.outputs else None
    if not isinstance(attributes, PadAttrs) or quant is None or quant.dtype is not DType.INT16:
        return
    params = quant.params.widened()
    code = quantize(np.asarray(attributes.value, np.float32), params)
    node.attributes = replace(attributes, value=float(dequantize(np.asarray(code), params)))


def _coarser(old: QuantParams, new: QuantParams) -> bool:
    return not np.array_equal(old.scale, new.scale)


def _storage_note(value: Value, old: QuantParams, new: QuantParams) -> Note:
    reason = (
        f"TFLite's 16-bit numbers have zero point 0; the scale {old.scale.flat[0]:g} becomes "
        f"{new.scale.flat[0]:g}, and '{value.name}' is rounded to it"
    )
    node = value.producer
    return Note(AROUND_ZERO, value.name if node is None else node.name, reason)


def _origin(value: Value) -> Origin:
    return NO_ORIGIN if value.producer is None else value.producer.origin


def _kept(graph: Graph) -> set[Value]:
    """Returns values whose bits something looks at."""
    kept: set[Value] = set()
    for node in graph.nodes:
        if node.op.flow in (Flow.REINTERPRET, Flow.FLOAT):
            kept.update(v for v in (*node.inputs, *node.outputs) if v is not None)
    return kept


def _is_weight(value: Value) -> bool:
    """True for a constant of 4 bits that products keep so."""
    return (
        value.constant is not None
        and value.type.dtype is DType.INT4
        and bool(value.users)
        and all(node.op in _PRODUCTS and index == 1 for node, index in value.users)
    )


def signed(params: QuantParams) -> QuantParams | None:
    """Returns the parameters of the same numbers in int8 or int16; None where they are in these."""
    if params.storage_dtype in _SHIFTED:
        return _around_zero(shifted_params(params))
    if params.storage_dtype is DType.INT16 and not params.symmetric:
        return _around_zero(params)
    if params.storage_dtype in _NARROW:
        qmin, qmax = params.qmin, params.qmax
        return replace(params, storage_dtype=DType.INT8, qmin=qmin, qmax=qmax)
    return None


def _takes(params: QuantParams) -> bool:
    """True where a QUANTIZE makes int8 of it."""
    return params.storage_dtype not in (DType.UINT16, DType.INT16)


def _around_zero(params: QuantParams) -> QuantParams:
    """Returns parameters of 16 bits with zero point 0, whose scale is widened to hold all numbers.

    TFLite has no other ones; of those that had a zero point the results are rounded more coarsely.
    """
    if params.storage_dtype is not DType.INT16 or params.symmetric:
        return params
    if not sound_scales(params.scale, params.storage_dtype).all():
        return params  # refused where it is written
    zero, scale = params.zero_point.astype(np.float64), params.scale.astype(np.float64)
    low, high = (params.qmin - zero) * scale, (params.qmax - zero) * scale
    wider = (np.maximum(np.abs(low), np.abs(high)) / DType.INT16.qmax).astype(np.float32)
    wider = np.where(wider > 0, wider, params.scale)  # of a range that is zero alone
    return replace(
        params, scale=wider, zero_point=np.zeros_like(params.zero_point),
        qmin=max(-DType.INT16.qmax, int(np.floor((low / wider).min() + 0.5))),
        qmax=min(DType.INT16.qmax, int(np.floor((high / wider).max() + 0.5))),
    )  # fmt: skip


def _requantize_constant(constant: Constant, old: QuantParams, params: QuantParams) -> Constant:
    if not np.array_equal(old.scale, params.scale):
        return constant.map(
            lambda array: quantize(dequantize(array, old), params), dtype=params.storage_dtype
        )
    if constant.dtype in _SHIFTED:
        return shifted_constant(constant)
    return constant.map(lambda array: array.astype(np.int8), dtype=params.storage_dtype)
