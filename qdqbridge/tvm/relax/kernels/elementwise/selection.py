"""Where: codes of one of two operands, each brought to the parameters of the result."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from qdqbridge.core.graph.dtypes import DType
from qdqbridge.core.graph.graph import Node, Value
from qdqbridge.core.graph.numerics import quantize
from qdqbridge.core.graph.quantization import QuantParams
from qdqbridge.core.graph.types import QuantType
from qdqbridge.core.ops.stored import converted
from qdqbridge.tvm.qnn.dialect.arithmetic import tirx
from qdqbridge.tvm.relax.kernels.codegen.broadcasting import Formula, Open, Operand, elementwise
from qdqbridge.tvm.relax.kernels.codegen.codes import (
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
from qdqbridge.tvm.relax.kernels.codegen.lanes import Prim, bound, load, number, splat
from qdqbridge.tvm.relax.kernels.kernel import Kernel, KernelPlace

KEPT, CLIPPED, CODES, REALS = "kept", "clipped", "codes", "reals"
"""What an operand is: codes of the result, those of which some lie outside its range, codes with
other parameters, or floats."""


@dataclass(frozen=True, slots=True)
class Where:
    """What shapes the code of a choice.

    Attributes:
        shapes: Extents of the condition, of both operands, and of the result.
        dtypes: Element types of the condition (``bool``, or ``uint8`` of a constant) and of both
            operands.
        kinds: What both operands are.
        fixed: Which of condition and operands are constants; these are the last arguments.
        form: The codes of the result.
        tasks: How many threads the work is to be spread over.
    """

    shapes: tuple[Open, Open, Open, Open]
    dtypes: tuple[str, str, str]
    kinds: tuple[str, str]
    fixed: tuple[bool, bool, bool]
    form: CodesForm
    tasks: int


def build_where(where: Where) -> Any:
    """Returns a PrimFunc of the operands that are not constant, the others, numbers, the result.

    The numbers are :func:`~.codes.numbers` of both operands to choose from.
    """
    order = sorted(range(3), key=lambda i: where.fixed[i])
    operands = [Operand("cab"[i], where.shapes[i], where.dtypes[i]) for i in order]

    def formula() -> Formula:
        sides = _Branches(where, arguments(where.form, 2, 2))

        def chosen(values: list[Prim], lanes: int) -> Prim:
            read = [values[order.index(i)] for i in range(3)]
            test = read[0] if where.dtypes[0] == "bool" else read[0] != number(0, "uint8", lanes)
            a, b = (bound(sides.codes(i, read[i + 1], lanes)) for i in range(2))
            return tirx.Select(test, a, b)

        return chosen

    result = where.shapes[3], where.form.dtype
    return elementwise(operands, result, where.form.lanes, where.tasks, formula)


@dataclass(frozen=True, slots=True)
class _Branches:
    where: Where
    target: TargetCodes

    def codes(self, side: int, value: Prim, lanes: int) -> Prim:
        """Returns an operand as codes of the result."""
        kind, target, dtype = self.where.kinds[side], self.target, self.where.form.dtype
        if kind == KEPT:
            return value
        if kind == CLIPPED:
            low, high = (
                splat(load(target.integers, target.zero + i, 1).astype(dtype), lanes)
                for i in (1, 2)
            )
            return tirx.max(tirx.min(value, high), low)
        if kind == CODES:
            value = target.source(side).real(value, lanes)
        return target.quantized(bound(value), lanes)


# ---- nodes ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, eq=False)
class _Side:
    """An operand; its codes where it is a constant, which are then those of the result."""

    kind: str
    dtype: str
    params: QuantParams | None
    array: NDArray[Any] | None


def match_where(node: Node, place: KernelPlace) -> Kernel | None:
    """Returns the kernel of a Where into codes."""
    result, condition = words_of(node.output), node.operand(0)
    values = [node.operand(i) for i in range(3)]
    shapes = [operand_extents(value) for value in (*values, node.output)]
    found = [shape for shape in shapes if shape is not None]
    if result is None or len(found) < len(shapes):
        return None
    if not broadcasts(values, node.output):
        return None
    sides = [_side(value, result) for value in values[1:]]
    a, b = sides
    if a is None or b is None or condition.type.dtype is not DType.BOOL:
        return None
    mask = None if condition.constant is None else condition.constant.numpy().astype(np.uint8)
    arrays = (mask, a.array, b.array)
    dynamic = [value for value, array in zip(values, arrays, strict=True) if array is None]
    if not dynamic:
        return None
    where = Where(
        (found[0], found[1], found[2], found[3]),
        ("bool" if mask is None else "uint8", a.dtype, b.dtype), (a.kind, b.kind),
        (mask is not None, a.array is not None, b.array is not None),
        form_of(result, place.cpu), place.threads,
    )  # fmt: skip
    constants = [np.ascontiguousarray(array) for array in arrays if array is not None]
    fitted = numbers(result, a.params, b.params)
    return Kernel(
        "where", where, build_where, tuple(dynamic), (*constants, *fitted), (node.output,)
    )


def _side(value: Value, result: QuantParams) -> _Side | None:
    """Returns what an operand is; None where it is neither codes nor float32."""
    params = words_of(value)
    if value.constant is not None:
        stored, quant = value.constant.numpy(), value.quant
        codes = (
            quantize(stored.astype(np.float32), result)
            if quant is None
            else converted(stored, quant.params, QuantType(result, None))
        )
        return _Side(KEPT, storage(result), None, codes)
    if params is None:
        real = value.quant is None and value.type.dtype is DType.FLOAT32
        return _Side(REALS, "float32", None, None) if real else None
    if not params.same_mapping(result):
        return _Side(CODES, storage(params), params, None)
    inside = params.qmin >= result.qmin and params.qmax <= result.qmax
    return _Side(KEPT if inside else CLIPPED, storage(params), params, None)
