"""Floats to codes and back, where a network begins and ends, and codes to others within it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from qdqbridge.graph.dtypes import DType
from qdqbridge.graph.graph import Node
from qdqbridge.relax.kernels.broadcasting import Loops, Open, batch_of, known
from qdqbridge.relax.kernels.codes import (
    FLOATS,
    INTEGERS,
    Form,
    Source,
    Target,
    extents,
    float_numbers,
    form_of,
    integer_numbers,
    storage,
    target_floats,
    target_integers,
    words_of,
)
from qdqbridge.relax.kernels.kernel import Kernel, Place
from qdqbridge.relax.kernels.lanes import Prim, flat, floats, load, splat, store, wide
from qdqbridge.relax.kernels.script import T, prim_func


@dataclass(frozen=True, slots=True)
class Quantize:
    """What shapes the code of a QuantizeLinear of float32.

    Attributes:
        shape: Extents; an open first one is None.
        form: The codes.
        tasks: How many threads the work is to be spread over.
    """

    shape: Open
    form: Form
    tasks: int


@dataclass(frozen=True, slots=True)
class Dequantize:
    """What shapes the code of a DequantizeLinear to float32.

    Attributes:
        shape: Extents; an open first one is None.
        dtype: Element type of the codes.
        lanes: Elements that are worked on at once.
        tasks: How many threads the work is to be spread over.
    """

    shape: Open
    dtype: str
    lanes: int
    tasks: int


def build_quantize(quantize: Quantize) -> Any:
    """Returns a PrimFunc of ``x``, :func:`~.codes.target_floats`, integers and the result."""

    def body() -> None:
        batch = batch_of(quantize.shape)
        shape = known(quantize.shape, batch)
        x = T.arg("x", T.buffer(shape, "float32"))
        reals = T.arg("floats", T.buffer((FLOATS,), "float32"))
        integers = T.arg("integers", T.buffer((INTEGERS,), "int32"))
        y = T.arg("y", T.buffer(shape, quantize.form.dtype))
        source, result = flat(x), flat(y)
        target = Target(quantize.form, reals, integers, 0, 0)

        def piece(start: Prim, own: list[Prim], lanes: int) -> None:
            store(result, start, target.quantized(load(source, own[0], lanes), lanes), lanes)

        loops = Loops.over(quantize.shape, [quantize.shape], batch)
        loops.emit(quantize.form.lanes, quantize.tasks, piece)

    return prim_func(body)


def build_dequantize(dequantize: Dequantize) -> Any:
    """Returns a PrimFunc of ``x``, its scale (float32), its zero point (int32) and the result."""

    def body() -> None:
        batch = batch_of(dequantize.shape)
        shape = known(dequantize.shape, batch)
        x = T.arg("x", T.buffer(shape, dequantize.dtype))
        scale = T.arg("scale", T.buffer((1,), "float32"))
        zero_point = T.arg("zero_point", T.buffer((1,), "int32"))
        y = T.arg("y", T.buffer(shape, "float32"))
        source, result = flat(x), flat(y)

        def piece(start: Prim, own: list[Prim], lanes: int) -> None:
            code = wide(load(source, own[0], lanes), lanes) - splat(zero_point[0], lanes)
            store(result, start, floats(code, lanes) * splat(scale[0], lanes), lanes)

        loops = Loops.over(dequantize.shape, [dequantize.shape], batch)
        loops.emit(dequantize.lanes, dequantize.tasks, piece)

    return prim_func(body)


@dataclass(frozen=True, slots=True)
class Requantize:
    """What shapes the code that gives codes other parameters.

    Attributes:
        shape: Extents; an open first one is None.
        dtype: Element type of the operand.
        form: The codes of the result.
        tasks: How many threads the work is to be spread over.
    """

    shape: Open
    dtype: str
    form: Form
    tasks: int


def build_requantize(requantize: Requantize) -> Any:
    """Returns a PrimFunc of ``x``, floats, integers and the result.

    The floats are the scale of ``x`` and :func:`~.codes.target_floats`, the integers its zero
    point and :func:`~.codes.target_integers`.
    """

    def body() -> None:
        batch = batch_of(requantize.shape)
        shape = known(requantize.shape, batch)
        x = T.arg("x", T.buffer(shape, requantize.dtype))
        reals = T.arg("floats", T.buffer((1 + FLOATS,), "float32"))
        integers = T.arg("integers", T.buffer((1 + INTEGERS,), "int32"))
        y = T.arg("y", T.buffer(shape, requantize.form.dtype))
        origin, result = flat(x), flat(y)
        source = Source(reals[0], integers[0])
        target = Target(requantize.form, reals, integers, 1, 1)

        def piece(start: Prim, own: list[Prim], lanes: int) -> None:
            real = source.real(load(origin, own[0], lanes), lanes)
            store(result, start, target.quantized(real, lanes), lanes)

        loops = Loops.over(requantize.shape, [requantize.shape], batch)
        loops.emit(requantize.form.lanes, requantize.tasks, piece)

    return prim_func(body)


def claim_requantize(node: Node, place: Place) -> Kernel | None:
    """Returns the kernel of a change of parameters, each of one scale, that is no table."""
    x = node.operand(0)
    source, result = words_of(x), words_of(node.output)
    shape = extents(node.output.type.shape)
    if source is None or result is None or shape is None or x.is_constant:
        return None
    if source.same_mapping(result):
        return None
    requantize = Requantize(shape, storage(source), form_of(result, place.cpu), place.threads)
    constants = (
        float_numbers(source.scale, *target_floats(result)),
        integer_numbers(int(source.zero_point), *target_integers(result)),
    )
    return Kernel("requantize", requantize, build_requantize, (x,), constants, (node.output,))


def claim_quantize(node: Node, place: Place) -> Kernel | None:
    """Returns the kernel of a QuantizeLinear of float32 into codes of one scale."""
    result, shape = words_of(node.output), extents(node.output.type.shape)
    x = node.operand(0)
    if result is None or shape is None or x.quant is not None or x.type.dtype is not DType.FLOAT32:
        return None
    quantize = Quantize(shape, form_of(result, place.cpu), place.threads)
    constants = float_numbers(*target_floats(result)), integer_numbers(*target_integers(result))
    return Kernel("quantize", quantize, build_quantize, (x,), constants, (node.output,))


def claim_dequantize(node: Node, place: Place) -> Kernel | None:
    """Returns the kernel of a DequantizeLinear of codes of one scale to float32."""
    source, shape = words_of(node.operand(0)), extents(node.output.type.shape)
    if source is None or shape is None or node.output.type.dtype is not DType.FLOAT32:
        return None
    if node.output.quant is not None:
        return None
    dequantize = Dequantize(shape, storage(source), 4 * place.cpu.lanes, place.threads)
    constants = float_numbers(source.scale), integer_numbers(int(source.zero_point))
    return Kernel(
        "dequantize", dequantize, build_dequantize, (node.operand(0),), constants, (node.output,)
    )
