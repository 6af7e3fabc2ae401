"""Element-wise operators of two operands, codes of 8 or 16 bits, with broadcasting."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from qdqbridge.core.graph.dtypes import DType
from qdqbridge.core.graph.graph import Node, Value
from qdqbridge.core.graph.numerics import dequantize
from qdqbridge.core.graph.types import QuantParams
from qdqbridge.core.ops.attributes import QuantizeAttrs
from qdqbridge.core.ops.elementwise import DIV, MUL
from qdqbridge.core.ops.table import BY_NAME
from qdqbridge.tvm.qnn.dialect.elementwise import computable, formula
from qdqbridge.tvm.relax.kernels.codegen.codes import (
    BYTES,
    REACH,
    CodesForm,
    TargetCodes,
    arguments,
    broadcasts,
    form_of,
    numbers,
    operand_extents,
    storage,
    words_of,
)
from qdqbridge.tvm.relax.kernels.codegen.lanes import (
    Prim,
    bound,
    fence,
    floats,
    fused,
    load,
    number,
    splat,
    wide,
)
from qdqbridge.tvm.relax.kernels.codegen.loops import Formula, Open, Operand, elementwise
from qdqbridge.tvm.relax.kernels.codegen.script import T
from qdqbridge.tvm.relax.kernels.epilogues import fused_operators
from qdqbridge.tvm.relax.kernels.epilogues.fused_operators import Fit
from qdqbridge.tvm.relax.kernels.kernel import Kernel, KernelPlace, any_open

LINEAR, PRODUCT = "linear", "product"
"""Formulas of :mod:`~qdqbridge.tvm.relax.kernels.epilogues.fused_operators`; else operators."""


@dataclass(frozen=True, slots=True)
class BinaryKernel:
    """What shapes the code of an operator of two operands.

    Attributes:
        formula: ``linear``, ``product``, or the operator's name: then both operands are
            dequantized and the result is divided by its scale.
        shapes: Extents of both operands and of the result; open ones are None.
        dtypes: Element types of both operands: of codes, or ``float32``.
        swapped: True where the right operand comes first among the arguments, because the left one
            is a constant.
        form: The codes of the result.
        bounded: True where the real value of every result is within the reach of its scale.
        tasks: How many threads the work is to be spread over.
    """

    formula: str
    shapes: tuple[Open, Open, Open]
    dtypes: tuple[str, str]
    swapped: bool
    form: CodesForm
    bounded: bool
    tasks: int


def build_binary(binary: BinaryKernel) -> Any:
    """Returns a PrimFunc of both operands, ``floats``, ``integers`` and the result.

    ``floats`` and ``integers`` are those of a fit, or, with the operator's own formula,
    :func:`~.codes.numbers`. The smallest and largest code are the last two integers always.
    """
    order = (1, 0) if binary.swapped else (0, 1)
    operands = [Operand("ab"[i], binary.shapes[i], binary.dtypes[i]) for i in order]

    def formula() -> Formula:
        if binary.formula in _FITTED:
            target = arguments(binary.form, 0, *_FITTED[binary.formula])
        else:
            target = arguments(binary.form, 2, 2)
        codes_of = _FORMULAS.get(binary.formula, _exact)
        a, b = order
        return lambda values, lanes: codes_of(binary, target, values[a], values[b], lanes)

    result = binary.shapes[2], binary.form.dtype
    return elementwise(operands, result, binary.form.lanes, binary.tasks, formula)


def _linear(binary: BinaryKernel, target: TargetCodes, a: Prim, b: Prim, lanes: int) -> Prim:
    del binary
    first, second, shift = (splat(load(target.floats, i, 1), lanes) for i in range(3))
    inner = fused(floats(wide(b, lanes), lanes), second, shift)
    return target.rounded(fused(floats(wide(a, lanes), lanes), first, inner), lanes)


def _multiply_codes(
    binary: BinaryKernel, target: TargetCodes, a: Prim, b: Prim, lanes: int
) -> Prim:
    del binary
    centred = [
        floats(wide(code, lanes) - splat(load(target.integers, i, 1), lanes), lanes)
        for i, code in enumerate((a, b))
    ]
    factor = splat(load(target.floats, 0, 1), lanes)
    return target.rounded(centred[0] * centred[1] * factor, lanes)


def _exact(binary: BinaryKernel, target: TargetCodes, a: Prim, b: Prim, lanes: int) -> Prim:
    values = [
        target.source(i).real(code, lanes) if dtype != "float32" else code
        for i, (code, dtype) in enumerate(zip((a, b), binary.dtypes, strict=True))
    ]
    values = [bound(value) for value in values]
    compute = formula(BY_NAME[binary.formula], lambda value: number(value, "float32", lanes), fence)
    value = bound(compute(*values))
    return target.quantized(value, lanes, bounded=binary.bounded)


_FORMULAS = {LINEAR: _linear, PRODUCT: _multiply_codes}
_FITTED = {LINEAR: (0, 3), PRODUCT: (2, 1)}
"""How many zero points of operands, and how many factors, a formula that is fitted takes."""


# ---- nodes ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, eq=False)
class _Operand:
    """An operand: codes with parameters, or float32; its array where it is a constant."""

    shape: Open
    params: QuantParams | None
    array: NDArray[Any] | None

    @property
    def dtype(self) -> str:
        return "float32" if self.params is None else storage(self.params)


def match_binary(node: Node, place: KernelPlace) -> Kernel | None:
    """Returns the kernel of an operator of two operands into codes."""
    if not computable(node.op) or len(node.inputs) != 2:
        return None
    result, shape = words_of(node.output), any_open(node.output.type.shape)
    operands = [_operand(node.operand(i)) for i in (0, 1)]
    a, b = operands
    if result is None or shape is None or a is None or b is None:
        return None
    if a.array is not None and b.array is not None:
        return None
    if not broadcasts(node.inputs, node.output):
        return None
    name, fit = _formula(node, (a, b), result, place)
    binary = BinaryKernel(
        name, (a.shape, b.shape, shape), (a.dtype, b.dtype), a.array is not None,
        form_of(result, place.cpu), _bounded(node, (a, b), result), place.threads,
    )  # fmt: skip
    constants = [array for array in (a.array, b.array) if array is not None]
    fitted = numbers(result, a.params, b.params) if fit is None else _fitted(fit, result)
    dynamic = [node.operand(i) for i in (0, 1) if not node.operand(i).is_constant]
    return Kernel(
        node.op.name.lower(),
        binary,
        build_binary,
        tuple(dynamic),
        (*constants, *fitted),
        (node.output,),
    )


def _operand(value: Value) -> _Operand | None:
    """Returns an operand as codes, or as float32; None where it is neither."""
    params, constant = words_of(value), value.constant
    array = None if constant is None else constant.numpy()
    shape = operand_extents(value)
    if shape is None:
        return None
    if params is not None:
        return _Operand(shape, params, None if array is None else np.ascontiguousarray(array))
    if value.quant is not None:
        if array is None:
            return None
        array = dequantize(array, value.quant.params)
    if array is None:
        return _Operand(shape, None, None) if value.type.dtype is DType.FLOAT32 else None
    real = np.ascontiguousarray(array, np.float32)  # which makes an axis of a number
    return _Operand(shape, None, real) if np.array_equal(real.reshape(array.shape), array) else None


def _formula(
    node: Node, operands: tuple[_Operand, _Operand], result: QuantParams, place: KernelPlace
) -> tuple[str, Fit | None]:
    """Returns the formula of a node: a cheap one where its codes are the contract's."""
    a, b = (operand.params for operand in operands)
    find = {
        "Add": fused_operators.linear,
        "Sub": fused_operators.linear,
        "Mul": fused_operators.product,
    }.get(node.op.name)
    if find is None or a is None or b is None or not place.cpu.fuses:
        return node.op.name, None
    if any(params.storage_dtype not in BYTES for params in (a, b, result)):
        return node.op.name, None
    fit = find(node.op, a, b, result)
    name = PRODUCT if node.op is MUL else LINEAR
    return (node.op.name, None) if fit is None else (name, fit)


def _bounded(node: Node, operands: tuple[_Operand, _Operand], result: QuantParams) -> bool:
    """True where codes cannot bring results beyond the reach of the scale."""
    params = [operand.params for operand in operands]
    if node.op is DIV or None in params:
        return False
    a, b = (((1 << p.storage_dtype.bits) - 1) * float(p.scale) for p in params if p is not None)
    return max(a * b, a + b) < REACH * float(result.scale)


def _fitted(fit: Fit, result: QuantParams) -> list[NDArray[Any]]:
    limits = [result.qmin, result.qmax]
    return [fit.factors, np.asarray([*fit.integers, *limits], np.int32)]


# ---- Floats to codes and back, where a network begins and ends, and codes to others within it ----


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
