"""Floats to 8-bit codes and back, where a network begins and ends."""

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
    Target,
    bytes_of,
    extents,
    float_numbers,
    form_of,
    integer_numbers,
    storage,
    target_floats,
    target_integers,
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


def claim_quantize(node: Node, place: Place) -> Kernel | None:
    """Returns the kernel of a QuantizeLinear of float32 into 8-bit codes of one scale."""
    result, shape = bytes_of(node.output), extents(node.output.type.shape)
    x = node.operand(0)
    if result is None or shape is None or x.quant is not None or x.type.dtype is not DType.FLOAT32:
        return None
    quantize = Quantize(shape, form_of(result, place.cpu), place.threads)
    constants = float_numbers(*target_floats(result)), integer_numbers(*target_integers(result))
    return Kernel("quantize", quantize, build_quantize, (x,), constants, (node.output,))


def claim_dequantize(node: Node, place: Place) -> Kernel | None:
    """Returns the kernel of a DequantizeLinear of 8-bit codes of one scale to float32."""
    source, shape = bytes_of(node.operand(0)), extents(node.output.type.shape)
    if source is None or shape is None or node.output.type.dtype is not DType.FLOAT32:
        return None
    if node.output.quant is not None:
        return None
    dequantize = Dequantize(shape, storage(source), 4 * place.cpu.lanes, place.threads)
    constants = float_numbers(source.scale), integer_numbers(int(source.zero_point))
    return Kernel(
        "dequantize", dequantize, build_dequantize, (node.operand(0),), constants, (node.output,)
    )
