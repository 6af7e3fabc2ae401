"""Floats to codes and back, where a network begins and ends, and codes to others within it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from qdqbridge.core.graph.dtypes import DType
from qdqbridge.core.graph.graph import Node, Value
from qdqbridge.core.ops.attributes import QuantizeAttrs
from qdqbridge.tvm.relax.kernels.codegen.broadcasting import Formula, Open, Operand, elementwise
from qdqbridge.tvm.relax.kernels.codegen.codes import (
    CodesForm,
    arguments,
    form_of,
    numbers,
    storage,
    words_of,
)
from qdqbridge.tvm.relax.kernels.codegen.lanes import Prim, floats, splat, wide
from qdqbridge.tvm.relax.kernels.codegen.script import T
from qdqbridge.tvm.relax.kernels.kernel import Kernel, KernelPlace
from qdqbridge.tvm.relax.kernels.operands import any_open

_REAL = "float32"


@dataclass(frozen=True, slots=True)
class ConversionKernel:
    """What shapes the code of a change of type or of parameters.

    Attributes:
        shape: Extents; open ones are None.
        dtype: Element type of the operand: of codes, or ``float32``.
        form: The codes of the result; None for float32.
        lanes: Elements that are worked on at once.
        tasks: How many threads the work is to be spread over.
    """

    shape: Open
    dtype: str
    form: CodesForm | None
    lanes: int
    tasks: int


def build_conversion(conversion: ConversionKernel) -> Any:
    """Returns a PrimFunc of ``x``, numbers and the result.

    The numbers are :func:`~.codes.numbers`; of floats from codes, a scale and a zero point.
    """
    form, coded = conversion.form, conversion.dtype != _REAL

    def into_codes() -> Formula:
        assert form is not None
        target = arguments(form, int(coded), int(coded))

        def codes(values: list[Prim], lanes: int) -> Prim:
            (x,) = values
            return target.quantized(target.source().real(x, lanes) if coded else x, lanes)

        return codes

    def into_floats() -> Formula:
        scale = T.arg("scale", T.buffer((1,), "float32"))
        zero_point = T.arg("zero_point", T.buffer((1,), "int32"))

        def real(values: list[Prim], lanes: int) -> Prim:
            code = wide(values[0], lanes) - splat(zero_point[0], lanes)
            return floats(code, lanes) * splat(scale[0], lanes)

        return real

    operands = [Operand("x", conversion.shape, conversion.dtype)]
    result = conversion.shape, _REAL if form is None else form.dtype
    formula = into_floats if form is None else into_codes
    return elementwise(operands, result, conversion.lanes, conversion.tasks, formula)


def match_conversion(node: Node, place: KernelPlace) -> Kernel | None:
    """Returns the kernel of a conversion of codes of one scale, into such codes, or of float32."""
    if isinstance(node.attributes, QuantizeAttrs) and node.attributes.precision is not None:
        return None
    x, y = node.operand(0), node.output
    source, result, shape = words_of(x), words_of(y), any_open(y.type.shape)
    if shape is None or not (_is_real(x) or source) or not (_is_real(y) or result):
        return None
    if result is None:
        if source is None:
            return None
        form, lanes = None, 4 * place.cpu.lanes
        zero_point = source.zero_point.astype(np.int32)
        constants = [source.scale.astype(np.float32).reshape(1), zero_point.reshape(1)]
    else:
        if source is not None and (x.is_constant or source.same_mapping(result)):
            return None
        form = form_of(result, place.cpu)
        lanes, constants = form.lanes, numbers(result, *([] if source is None else [source]))
    dtype = _REAL if source is None else storage(source)
    conversion = ConversionKernel(shape, dtype, form, lanes, place.threads)
    return Kernel(node.op.name, conversion, build_conversion, (x,), tuple(constants), (y,))


def _is_real(value: Value) -> bool:
    return value.quant is None and value.type.dtype is DType.FLOAT32
