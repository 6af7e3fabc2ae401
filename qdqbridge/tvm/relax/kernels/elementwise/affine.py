"""BatchNormalization of codes: a factor and a summand of floats per channel."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from qdqbridge.core.graph.graph import Node, Value
from qdqbridge.core.graph.numerics import dequantize
from qdqbridge.core.ops.attributes import EpsilonAttrs
from qdqbridge.tvm.relax.kernels.codegen.broadcasting import Formula, Open, Operand, elementwise
from qdqbridge.tvm.relax.kernels.codegen.codes import (
    CodesForm,
    arguments,
    extents,
    form_of,
    numbers,
    storage,
    words_of,
)
from qdqbridge.tvm.relax.kernels.codegen.lanes import Prim, bound, fence
from qdqbridge.tvm.relax.kernels.kernel import Kernel, KernelPlace


@dataclass(frozen=True, slots=True)
class AffineKernel:
    """Codes of which every channel has a factor and a summand.

    Attributes:
        shape: Extents of operand and result, channels second; an open first one is None.
        dtype: Element type of the operand.
        form: The codes of the result.
        tasks: How many threads the work is to be spread over.
    """

    shape: Open
    dtype: str
    form: CodesForm
    tasks: int


def build_affine(affine: AffineKernel) -> Any:
    """Returns a PrimFunc of ``x, factor, summand``, :func:`~.codes.numbers` and the result."""
    column = (affine.shape[1], *(1 for _ in affine.shape[2:]))
    operands = [
        Operand("x", affine.shape, affine.dtype),
        Operand("factor", column, "float32", vector=True),
        Operand("summand", column, "float32", vector=True),
    ]

    def formula() -> Formula:
        target = arguments(affine.form)

        def codes(values: list[Prim], lanes: int) -> Prim:
            code, factor, summand = values
            real = target.source().real(code, lanes)
            return target.quantized(bound(fence(real * factor) + summand), lanes)

        return codes

    result = affine.shape, affine.form.dtype
    return elementwise(operands, result, affine.form.lanes, affine.tasks, formula)


def match_batch_norm(node: Node, place: KernelPlace) -> Kernel | None:
    """Returns the kernel of a BatchNormalization with constant statistics, channels second."""
    source, result = words_of(node.operand(0)), words_of(node.output)
    shape, attributes = extents(node.output.type.shape), node.attributes
    constants = [_affine_constant(node.operand(i)) for i in range(1, 5)]
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
    affine = AffineKernel(shape, storage(source), form_of(result, place.cpu), place.threads)
    return Kernel(
        "batch_norm",
        affine,
        build_affine,
        (node.operand(0),),
        (factor, summand, *numbers(result, source)),
        (node.output,),
    )


def _affine_constant(value: Value) -> NDArray[Any] | None:
    """Returns the real values of a constant."""
    if value.constant is None:
        return None
    array = value.constant.numpy()
    return array if value.quant is None else dequantize(array, value.quant.params)
