"""BatchNormalization of codes: a factor and a summand of floats per channel."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from qdqbridge.graph.graph import Node, Value
from qdqbridge.graph.numerics import dequantize
from qdqbridge.ops.attributes import EpsilonAttrs
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
from qdqbridge.relax.kernels.lanes import Prim, bound, fence, flat, load, store
from qdqbridge.relax.kernels.script import T, prim_func


@dataclass(frozen=True, slots=True)
class Affine:
    """Codes of which every channel has a factor and a summand.

    Attributes:
        shape: Extents of operand and result, channels second; an open first one is None.
        dtype: Element type of the operand.
        form: The codes of the result.
        tasks: How many threads the work is to be spread over.
    """

    shape: Open
    dtype: str
    form: Form
    tasks: int


def build(affine: Affine) -> Any:
    """Returns a PrimFunc of ``x, factors, summands, floats, integers`` and the result.

    The floats are the scale of ``x`` and :func:`~.codes.target_floats`, the integers its zero
    point and :func:`~.codes.target_integers`.
    """

    def body() -> None:
        batch = batch_of(affine.shape)
        shape = known(affine.shape, batch)
        x = T.arg("x", T.buffer(shape, affine.dtype))
        vectors = [T.arg(name, T.buffer((shape[1],), "float32")) for name in ("factor", "summand")]
        reals = T.arg("floats", T.buffer((1 + FLOATS,), "float32"))
        integers = T.arg("integers", T.buffer((1 + INTEGERS,), "int32"))
        y = T.arg("y", T.buffer(shape, affine.form.dtype))
        origin, result = flat(x), flat(y)
        source, target = Source(reals[0], integers[0]), Target(affine.form, reals, integers, 1, 1)
        column = (affine.shape[1], *(1 for _ in shape[2:]))
        loops = Loops.over(affine.shape, (affine.shape, column, column), batch)

        def piece(start: Prim, own: list[Prim], lanes: int) -> None:
            real = source.real(load(origin, own[0], lanes), lanes)
            factor, summand = (
                loops.read(i, vector, own[i], lanes) for i, vector in enumerate(vectors, 1)
            )
            value = bound(fence(real * factor) + summand)
            store(result, start, target.quantized(value, lanes), lanes)

        loops.emit(affine.form.lanes, affine.tasks, piece)

    return prim_func(body)


def claim(node: Node, place: Place) -> Kernel | None:
    """Returns the kernel of a BatchNormalization with constant statistics, channels second."""
    source, result = words_of(node.operand(0)), words_of(node.output)
    shape, attributes = extents(node.output.type.shape), node.attributes
    constants = [_real(node.operand(i)) for i in range(1, 5)]
    if source is None or result is None or not isinstance(attributes, EpsilonAttrs):
        return None
    if shape is None or len(shape) < 2 or place.channels_last:
        return None
    reals = [array.astype(np.float32) for array in constants if array is not None]
    if len(reals) < len(constants) or any(array.shape != (shape[1],) for array in reals):
        return None
    gamma, beta, mean, variance = reals
    with np.errstate(all="ignore"):
        inverse = np.float32(1) / np.sqrt(variance + np.float32(attributes.epsilon))
        factor = inverse * gamma
        summand = beta - mean * factor
    affine = Affine(shape, storage(source), form_of(result, place.cpu), place.threads)
    numbers = (
        float_numbers(source.scale, *target_floats(result)),
        integer_numbers(int(source.zero_point), *target_integers(result)),
    )
    return Kernel(
        "batch_norm",
        affine,
        build,
        (node.operand(0),),
        (factor, summand, *numbers),
        (node.output,),
    )


def _real(value: Value) -> NDArray[Any] | None:
    """Returns the real values of a constant."""
    if value.constant is None:
        return None
    array = value.constant.numpy()
    return array if value.quant is None else dequantize(array, value.quant.params)
