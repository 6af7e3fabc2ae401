"""Layouts of a host's data and kernels; the graph's own is channels first."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from qdqbridge.core.graph.graph import Value
from qdqbridge.core.graph.types import ValueType
from qdqbridge.core.ops.attributes import TransposeAttrs
from qdqbridge.core.ops.build import Perm, inverse, permuted_constant, permuted_type
from qdqbridge.core.ops.conversion import REINTERPRET
from qdqbridge.tvm.qnn.read.call import Call
from qdqbridge.tvm.qnn.read.reading import Reading
from qdqbridge.tvm.qnn.signatures import data_letters, kernel_letters


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
