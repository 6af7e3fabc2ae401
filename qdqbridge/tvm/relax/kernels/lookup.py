"""Functions of one operand of codes: a table of all of them, made by the interpreter itself."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from qdqbridge.core.graph.dtypes import DType
from qdqbridge.core.graph.graph import Node, Value
from qdqbridge.core.graph.interpreter import evaluate_node
from qdqbridge.core.graph.numerics import codes, dequantize, quantize
from qdqbridge.core.graph.operator import Flow
from qdqbridge.core.graph.types import QuantParams, QuantType
from qdqbridge.core.ops.attributes import EpsilonAttrs
from qdqbridge.core.ops.stored import converted
from qdqbridge.tvm.qnn.dialect.arithmetic import tirx
from qdqbridge.tvm.relax.kernels.codegen.codes import (
    CodesForm,
    TargetCodes,
    arguments,
    broadcasts,
    bytes_of,
    extents,
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
    flat,
    load,
    number,
    splat,
    store,
)
from qdqbridge.tvm.relax.kernels.codegen.loops import (
    Formula,
    Loops,
    Open,
    OpenExtents,
    Operand,
    elementwise,
)
from qdqbridge.tvm.relax.kernels.codegen.processors import ByteLookup
from qdqbridge.tvm.relax.kernels.codegen.script import T, prim_func
from qdqbridge.tvm.relax.kernels.kernel import Kernel, KernelPlace, any_open

TABLE = 256
"""Entries of a table."""


@dataclass(frozen=True, slots=True)
class Lookup:
    """What shapes the code of a function of one operand.

    Attributes:
        shape: Extents of operand and result; open ones are None.
        dtypes: Their element types, of 8 or 16 bits.
        registers: How registers look codes up; None to load every entry.
        tasks: How many threads the work is to be spread over.
    """

    shape: Open
    dtypes: tuple[str, str]
    registers: ByteLookup | None
    tasks: int


def build_lookup(lookup: Lookup) -> Any:
    """Returns a PrimFunc of ``x``, the table by bit pattern, and the result."""

    def body() -> None:
        extents = OpenExtents(lookup.shape)
        shape = extents.of(lookup.shape)
        x = T.arg("x", T.buffer(shape, lookup.dtypes[0]))
        index = f"uint{8 * np.dtype(lookup.dtypes[0]).itemsize}"
        entries = 1 << 8 * np.dtype(index).itemsize
        table = T.arg("table", T.buffer((entries,), lookup.dtypes[1]))
        y = T.arg("y", T.buffer(shape, lookup.dtypes[1]))
        source, result = flat(x), flat(y)
        loops = Loops.over(lookup.shape, [lookup.shape], extents)

        def piece(start: Prim, own: list[Prim], lanes: int) -> None:
            if lookup.registers is not None and lanes == lookup.registers.lanes:
                code = load(source, own[0], lanes)
                found = lookup.registers.looked_up(table, code, lookup.dtypes[1])
                store(result, start, found, lanes)
                return
            for lane in range(lanes):
                # The table is by bit pattern, so that signed codes are an index without an
                # addition.
                entry = tirx.reinterpret(index, load(source, own[0] + lane, 1)).astype("int32")
                store(result, start + lane, load(table, entry, 1), 1)

        loops.emit(lookup.registers.lanes if lookup.registers else 8, lookup.tasks, piece)

    return prim_func(body)


# ---- nodes ----------------------------------------------------------------------------------


def match_byte_lookup(node: Node, place: KernelPlace) -> Kernel | None:
    """Returns the kernel of a node that is a function of one value of 8-bit codes."""
    return _match(node, place, bytes_of)


def match_wide(node: Node, place: KernelPlace) -> Kernel | None:
    """As :func:`match_byte_lookup`, of 8 or 16 bits, with a table of as many as 65,536 entries."""
    return _match(node, place, words_of)


def _match(node: Node, place: KernelPlace, params_of: ParamsOf) -> Kernel | None:
    found = table_of(node, params_of)
    if found is None:
        return None
    source, entries = found
    params, shape = params_of(source), any_open(source.type.shape)
    if params is None or shape is None:
        return None
    dtypes = storage(params), str(entries.dtype)
    bytes_only = all(np.dtype(dtype).itemsize == 1 for dtype in dtypes)
    registers = place.cpu.lookup if bytes_only else None
    lookup = Lookup(shape, dtypes, registers, place.threads)
    return Kernel(node.op.name.lower(), lookup, build_lookup, (source,), (entries,), (node.output,))


ParamsOf = Callable[[Value], QuantParams | None]
"""Returns the parameters of a value whose codes have a type that is wanted, else None."""


def table_of(node: Node, params_of: ParamsOf = bytes_of) -> tuple[Value, NDArray[Any]] | None:
    """Returns the operand that a node is a function of, and the result of every code of it.

    The entries are in the order of the codes' bit patterns. None where the node is no function of
    one value of codes (of 8 bits, by default), element by element, into codes.
    """
    if node.op.flow not in (Flow.ELEMENTWISE, Flow.CONVERT) or len(node.outputs) != 1:
        return None
    dynamic = {value for value in node.inputs if value is not None and value.constant is None}
    if len(dynamic) != 1 or params_of(node.output) is None:
        return None
    (source,) = dynamic
    params = params_of(source)
    if params is None or source.type.shape is None or source.type.shape != node.output.type.shape:
        return None
    operands: list[NDArray[Any] | None] = []
    for value in node.inputs:
        if value is None or value is source:
            operands.append(None if value is None else codes(params))
        elif (
            value.constant is None or value.constant.size != 1 or not _is_float_or_per_tensor(value)
        ):
            return None
        else:
            operands.append(value.constant.numpy().reshape(()))
    (entries,) = evaluate_node(node, operands)
    return source, np.ascontiguousarray(entries)


def _is_float_or_per_tensor(value: Value) -> bool:
    """True for a constant that means the same with no axes."""
    return value.quant is None or value.quant.params.per_tensor


# ---- BatchNormalization of codes: a factor and a summand of floats per channel


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


# ---- Where: codes of one of two operands, each brought to the parameters of the result -----------


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
    # What a call brings comes first and constants behind it, each in ONNX's order: sorting is
    # stable.
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
