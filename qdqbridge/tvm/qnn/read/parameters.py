"""Scales and zero points of a call as quantization parameters."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from qdqbridge.core.graph.dtypes import DType
from qdqbridge.core.graph.graph import Value
from qdqbridge.core.graph.types import QuantParams, ValueType
from qdqbridge.core.ops.attributes import TransposeAttrs
from qdqbridge.core.ops.build import Perm, inverse, permuted_constant, permuted_type
from qdqbridge.core.ops.conversion import REINTERPRET
from qdqbridge.tvm.qnn.origin import element
from qdqbridge.tvm.qnn.ranges import QuantizedArgument, Signature, data_letters, kernel_letters
from qdqbridge.tvm.qnn.read.call import Call, Entry, constant_of
from qdqbridge.tvm.qnn.read.reading import Reading


def array(reading: Reading, entry: Entry, what: str) -> NDArray[Any]:
    """Returns the elements of an argument that must be constant.

    Raises:
        UnsupportedModelError: It is not.
    """
    found = constant_of(reading.value(entry))
    if found is None:
        raise reading.refused(f"its {what} is not constant")
    return found


def operand(
    reading: Reading, call: Call, argument: QuantizedArgument, *,
    axis: int | None = None, position: int = -1, block: int = 0,
) -> Value:  # fmt: skip
    """Returns an operand as a quantized value; a float one as it is.

    Args:
        reading: The graph so far.
        argument: Where its data and parameters stand.
        axis: Axis of a vector of scales, where no attribute of the call names it.
        position: Index of the operand in the graph's node, where a record of it may be found;
            by default that of its data.
        block: How many elements of the last axis share an entry, where parameters are a matrix.
    """
    value = reading.value(call.args[argument.data])
    if value.type.dtype.is_float:
        return value
    if axis is None:
        axis = call.integer(argument.axis, -1) if argument.axis else -1
    storage, (scale, zero_point) = value.type.dtype, (argument.scale, argument.zero_point)
    params = parameters(
        reading, call, scale, zero_point, storage, axis=axis, rank=value.rank, block=block
    )
    # Hosts store 4 bits in bytes and know scales of float32; the span has what was written so.
    wanted = () if call.provenance is None else call.provenance.operands
    position = argument.data if position < 0 else position
    if position < len(wanted) and wanted[position]:
        params = as_stated(params, wanted[position], value)
    return reading.stored(value, params)


def operands(reading: Reading, call: Call, signature: Signature) -> list[Value]:
    """Returns the operands of a call that have parameters."""
    return [operand(reading, call, argument) for argument in signature.operands]


def parameters(
    reading: Reading, call: Call, scale: int, zero_point: int, storage: DType, *,
    axis: int = -1, rank: int | None = None, block: int = 0,
) -> QuantParams:  # fmt: skip
    """Returns the parameters that two arguments of a call give."""
    scales = array(reading, call.args[scale], "scale")
    zeros = array(reading, call.args[zero_point], "zero point")
    return from_arrays(scales, zeros, storage, axis=axis, rank=rank, block=block)


def from_arrays(
    scales: NDArray[Any], zeros: NDArray[Any], storage: DType, *,
    axis: int = -1, rank: int | None = None, block: int = 0,
) -> QuantParams:  # fmt: skip
    """Returns parameters; vectors of one entry are numbers, an axis is made non-negative.

    Matrices are those of blocks along the last axis.
    """
    # The type of a scale says which floats a dequantize makes.
    expressed = DType.of(scales.dtype) if scales.dtype in _HALVES else DType.FLOAT32
    zeros = np.asarray(zeros, np.int32)
    # Vectors of one entry: per channel of one channel is per tensor, whatever axis is stated.
    if scales.size == 1 and zeros.size == 1:
        return QuantParams(
            storage, scales.reshape(()), zeros.reshape(()), expressed_dtype=expressed
        )
    if scales.ndim == 2:
        zeros = np.broadcast_to(zeros, scales.shape)
        return QuantParams(
            storage, scales, zeros, axis=1, block_size=block, expressed_dtype=expressed
        )
    scales, zeros = np.broadcast_arrays(scales.reshape(-1), zeros.reshape(-1))
    if axis < 0:
        axis += len(scales.shape) if rank is None else rank
    return QuantParams(storage, scales, zeros, axis=axis, expressed_dtype=expressed)


_HALVES = (DType.FLOAT16.numpy, DType.BFLOAT16.numpy)
"""Types of scales that a model computes in; every other one is written as float32."""


def result(reading: Reading, call: Call, signature: Signature, *, axis: int = -1) -> QuantParams:
    """Returns the parameters of a call's result."""
    shape, scale = call.result.shape, signature.result
    assert scale is not None, f"{call.op} states no parameters of its result"
    params = parameters(
        reading, call, scale, scale + 1, call.dtype, axis=axis,
        rank=None if shape is None else len(shape),
    )  # fmt: skip
    records = () if call.provenance is None else call.provenance.results
    if not records or not records[0]:
        return params
    return expressed(params, records[0])


def as_stated(params: QuantParams, text: str, value: Value) -> QuantParams:
    """Returns an operand's parameters with recorded storage and scale types, if they fit."""
    storage = element(text)[0]
    params = expressed(params, text)
    if storage is params.storage_dtype or not holds(params.storage_dtype, storage):
        return params
    if value.constant is not None:
        stored = value.constant.numpy()
        fits = stored.min(initial=0) >= storage.qmin and stored.max(initial=0) <= storage.qmax
    else:
        # Nothing says which codes a computed value has; its own node would have stated them.
        fits = value.producer is None
    return changed(params, storage) if fits else params


def as_moved(params: QuantParams, source: Value) -> QuantParams:
    """Returns the parameters of moved values in the sub-byte type of their source, if it is one."""
    quant = source.quant
    if quant is None or not holds(params.storage_dtype, quant.params.storage_dtype):
        return params
    narrow = changed(params, quant.params.storage_dtype)
    return narrow if narrow.same_mapping(quant.params) else params


def small_float_as_stated(params: QuantParams, records: Sequence[str]) -> QuantParams:
    """Returns parameters of 8- or 4-bit floats with a recorded scale type, where one is theirs."""
    own = (text for text in records if text and element(text)[0] is params.storage_dtype)
    text = next(own, "")
    return expressed(params, text) if text else params


def holds(wide: DType, narrow: DType) -> bool:
    """True where ``narrow`` is a sub-byte type that hosts store as ``wide``."""
    return narrow.bits < 8 and wide.bits == 8 and narrow.is_signed == wide.is_signed


def changed(params: QuantParams, storage: DType, qmin: int = 0, qmax: int = -1) -> QuantParams:
    """Returns the same mapping stored as another type."""
    return QuantParams(
        storage, params.scale, params.zero_point, axis=params.axis, block_size=params.block_size,
        qmin=qmin, qmax=qmax, expressed_dtype=params.expressed_dtype,
    )  # fmt: skip


def expressed(params: QuantParams, text: str) -> QuantParams:
    """Returns parameters whose scale has the recorded type, where it has the very same value."""
    _, expressed, kind = element(text)
    scale = params.scale.astype(kind.numpy)
    if (expressed, kind) == (params.expressed_dtype, params.scale_dtype):
        return params
    # A rewrite of the module changed the number since it was recorded: the call counts.
    if not np.array_equal(scale.astype(np.float32), params.scale.astype(np.float32)):
        return params
    return replace(params, scale=scale, expressed_dtype=expressed)


# ---- Layouts of a host's data and kernels; the graph's own is channels first ---------------------


def channels_first(
    reading: Reading, value: Value, layout: str, rank: int
) -> tuple[Value, tuple[int, ...] | None]:
    """Returns data with its channels on axis 1, and how to lay out a result like the data.

    Args:
        reading: The graph so far.
        value: The data.
        layout: Its layout, ``NHWC`` for example; empty is channels first.
        rank: Number of spatial axes.
    """
    letters = data_letters(rank)
    if not layout or layout == letters:
        return value, None
    if sorted(layout) != sorted(letters):
        raise reading.refused(f"its data has layout {layout}")
    perm = tuple(layout.index(letter) for letter in letters)
    return transposed(reading, value, perm), tuple(letters.index(letter) for letter in layout)


def weight_first(
    reading: Reading, call: Call, data: Value, layout: str, rank: int, *, transpose: bool
) -> tuple[Call, int]:
    """Returns the call with its kernel as the graph has it, and the axis of its output channels.

    Args:
        reading: The graph so far.
        call: The convolution.
        data: What it convolves, channels on axis 1.
        layout: The kernel's layout; empty is the graph's.
        rank: Number of spatial axes.
        transpose: True for a transposed convolution.
    """
    letters, axis = kernel_letters(rank, transposed=transpose), 1 if transpose else 0
    weight = reading.value(call.args[1])
    if layout and layout != letters:
        if sorted(layout) != sorted(letters):
            raise reading.refused(f"its kernel has layout {layout}")
        weight = transposed(reading, weight, tuple(layout.index(letter) for letter in letters))
    groups, shape = call.integer("groups", 1), data.type.shape
    if not transpose and shape is not None and len(shape) > 1 and shape[1] == groups:
        weight = _depthwise(weight, groups)
    return replace(call, args=(call.args[0], weight, *call.args[2:])), axis


def _depthwise(weight: Value, groups: int) -> Value:
    """Several results per channel: Relay's (channels, multiplier, …) as (results, 1, …).

    One input channel per group is what makes a convolution depthwise; the kernel's shape alone
    could also be that of one result per group of several channels.
    """
    data, shape = weight.constant, weight.type.shape
    if data is None or shape is None or groups == 1 or data.shape[0] != groups:
        return weight
    multiplier = data.shape[1]
    if multiplier == 1:
        return weight
    to = (groups * multiplier, 1, *data.shape[2:])
    flat = data.map(lambda a: a.reshape(to), shape=to)
    return Value(weight.type.with_shape(to), weight.name, constant=flat)


def transposed(reading: Reading, value: Value, perm: tuple[int, ...]) -> Value:
    """Returns a value with its axes permuted; a constant at once, as a view."""
    key = ("transposed", value, perm)
    if key not in reading.memory:
        reading.memory[key] = _transposed(reading, value, perm)
    return reading.memory[key]


def _transposed(reading: Reading, value: Value, perm: tuple[int, ...]) -> Value:
    data = value.constant
    if data is not None:
        return permuted_constant(value, perm)
    before = _untransposed(reading, value, perm)
    if before is not None:
        return before
    type_ = permuted_type(value.type, perm)
    return reading.node("Transpose", TransposeAttrs(perm), [value], type_)


def _untransposed(reading: Reading, value: Value, perm: tuple[int, ...]) -> Value | None:
    """Returns what a transposition was made of that this one undoes."""
    node = value.producer
    if node is not None and node.op is REINTERPRET:
        node = node.operand(0).producer
    if node is None or not isinstance(node.attributes, TransposeAttrs):
        return None
    if tuple(node.attributes.perm[axis] for axis in perm) != tuple(range(len(perm))):
        return None
    source = node.operand(0)
    if value.quant is None:
        return source
    return reading.stored(source, value.quant.params) if value.quant.params.per_tensor else None


def laid_out(
    reading: Reading, type_: ValueType, back: Perm | None, make: Callable[[ValueType], Value]
) -> Value:
    """Returns a result as the host lays it out, of a node in the graph's layout.

    Args:
        reading: The graph so far.
        type_: The result's type on the host.
        back: How its axes lie there, as :func:`channels_first` says; None as in the graph.
        make: Adds the node, given the type of its result in the graph's layout.
    """
    if back is None:
        return make(type_)
    value = make(permuted_type(type_, inverse(back)))
    return reading.node("Transpose", TransposeAttrs(back), [value], type_)


def pads(call: Call, rank: int, name: str = "padding") -> tuple[int, ...]:
    """Returns padding as begins and ends of every spatial axis."""
    given = call.ints(name, 2 * rank)
    if len(given) == 1:
        return given * (2 * rank)
    return given if len(given) == 2 * rank else given * 2
