"""The four changes of type on an edge: quantize, dequantize, requantize and reinterpret.

As real-valued operators they are the identity; what they do to stored values follows from the
types alone and lives in their contracts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from qdqbridge.core.graph.dtypes import DType
from qdqbridge.core.graph.graph import Node, Value
from qdqbridge.core.graph.numerics import dequantize, quantize
from qdqbridge.core.graph.operator import (
    Array,
    Attributes,
    Flow,
    NoAttributes,
    OnnxOp,
    Operands,
    Row,
    Types,
)
from qdqbridge.core.graph.types import QuantType, TensorType
from qdqbridge.core.ops.attributes import CastAttrs, QuantizeAttrs
from qdqbridge.core.ops.shapes import differ, known
from qdqbridge.core.ops.stored import present


def _pass_codes_through(attributes: Attributes, operands: Operands) -> tuple[Array, ...]:
    del attributes
    return present(operands, 1)


def _quantize(
    attributes: QuantizeAttrs, operands: Operands, types: Types, results: Types
) -> tuple[Array, ...] | None:
    del types
    (x,), result = present(operands, 1), results[0]
    if not isinstance(result, QuantType):
        return None
    return (quantize(x, result.params, attributes.precision),)


def _dequantize(
    attributes: NoAttributes, operands: Operands, types: Types, results: Types
) -> tuple[Array, ...] | None:
    del attributes
    (x,), source, result = present(operands, 1), types[0], results[0]
    if not isinstance(source, QuantType):
        return None
    # float32 first, then the type that is asked for: ONNX rounds a dequantized half float so.
    real = dequantize(x, source.params)
    return (real.astype(result.dtype.numpy) if isinstance(result, TensorType) else real,)


def _requantize(
    attributes: NoAttributes, operands: Operands, types: Types, results: Types
) -> tuple[Array, ...] | None:
    del attributes
    (x,), source, result = present(operands, 1), types[0], results[0]
    if not isinstance(source, QuantType) or not isinstance(result, QuantType):
        return None
    return (quantize(dequantize(x, source.params), result.params),)


def _reinterpret(
    attributes: NoAttributes, operands: Operands, types: Types, results: Types
) -> tuple[Array, ...] | None:
    del attributes, types
    (x,), result = present(operands, 1), results[0]
    if result is None or result.dtype.numpy == x.dtype:
        return (x,)
    return (np.asarray(x, order="C").view(result.dtype.numpy),)


def _quantized_ends_check(
    *, quantized_operand: bool, quantized_result: bool
) -> Callable[[Node, Any], Iterator[str]]:
    """Returns a ``check`` of which sides have to be quantized, and of equal shapes."""

    def check(node: Node, _: Attributes) -> Iterator[str]:
        x, y = node.operand(0), node.output
        for value, wanted, what in (
            (x, quantized_operand, "operand"),
            (y, quantized_result, "result"),
        ):
            if isinstance(value.type, QuantType) != wanted:
                yield f"the {what} is {'not ' if wanted else ''}quantized"
        if x.rank is not None and y.rank is not None and x.rank != y.rank:
            yield f"the operand has rank {x.rank}, the result {y.rank}"
        for axis in range(min(x.rank or 0, y.rank or 0)):
            if differ(known(x, axis), known(y, axis)):
                yield f"axis {axis} is {known(x, axis)} before and {known(y, axis)} after"

    return check


def _check_reinterpret(node: Node, _: Attributes) -> Iterator[str]:
    before, after = node.operand(0).type.dtype, node.output.type.dtype
    if before.bits != after.bits:
        yield f"{before} and {after} differ in width"


QUANTIZE = Row(
    name="quantize",
    flow=Flow.CONVERT,
    attributes=QuantizeAttrs,
    compute=_pass_codes_through,
    contract=_quantize,
    check=_quantized_ends_check(quantized_operand=False, quantized_result=True),
    numerics="sat(rint(x / s) + z): float32 division (or in the type that precision says), half to "
    "even. NaN gives qmin, "
    "so that the range holds what it says (ONNX leaves NaN open: onnxruntime's gives the smallest "
    "value of the storage, and a Clip behind it makes that qmin, but not one in front of it). "
    "Otherwise equals onnxruntime 1.31.",
)
DEQUANTIZE = Row(
    name="dequantize",
    flow=Flow.CONVERT,
    attributes=NoAttributes,
    compute=_pass_codes_through,
    contract=_dequantize,
    check=_quantized_ends_check(quantized_operand=True, quantized_result=False),
    numerics="f32(q - z) * s. Equals onnxruntime 1.31 in every bit.",
)
REQUANTIZE = Row(
    name="requantize",
    flow=Flow.CONVERT,
    attributes=NoAttributes,
    compute=_pass_codes_through,
    contract=_requantize,
    check=_quantized_ends_check(quantized_operand=True, quantized_result=True),
    numerics="dequantize, then quantize: sat(rint(f32(q - z) * s / s') + z'). Equals "
    "onnxruntime 1.31 on every code. With graph optimizations onnxruntime 1.32 makes one "
    "QuantizeLinear of Q, DQ, Q of one storage type, with a scale of its own: a step or more away.",
)
REINTERPRET = Row(
    name="reinterpret",
    flow=Flow.REINTERPRET,
    attributes=NoAttributes,
    compute=_pass_codes_through,
    contract=_reinterpret,
    check=_check_reinterpret,
    numerics="The same stored bits under other parameters. Exact.",
)


def is_finite(value: Value) -> bool:
    """Returns whether a value is a number whatever runs: quantized as integers, or dequantized."""
    node = value.producer
    stored = node.operand(0) if value.quant is None and node and node.op is DEQUANTIZE else value
    if stored.quant is None or not stored.quant.params.storage_dtype.is_integer:
        return False
    params = stored.quant.params
    real = params.expressed_dtype if value.quant is not None else value.type.dtype
    with np.errstate(over="ignore"):
        # No code less a zero point is larger. A scale near the end of the type makes infinity of
        # it.
        largest = np.abs(params.scale) * np.float32(2.0 ** (params.storage_dtype.bits + 1))
        return bool(np.isfinite(np.asarray(largest).astype(real.numpy)).all())


# ---- Cast: the same numbers in another element type ----------------------------------------------


def _compute_cast(attributes: CastAttrs, operands: Operands) -> tuple[Array, ...]:
    (x,) = present(operands, 1)
    target = attributes.to.numpy
    with np.errstate(over="ignore", invalid="ignore"):
        return (np.asarray(x.astype(target)),)


_NEWER = {DType.INT4: 21, DType.UINT4: 21, DType.INT2: 25, DType.UINT2: 25}
CAST = Row(
    name="Cast", flow=Flow.FLOAT, attributes=CastAttrs, compute=_compute_cast,
    onnx=(
        OnnxOp(name="Cast", newer={"to": _NEWER}),
        OnnxOp(name="CastLike", read_only=True),
    ),
    numerics="The element type changes; float to float rounds half to even.",
)  # fmt: skip


OPERATORS = (
    QUANTIZE,
    DEQUANTIZE,
    REQUANTIZE,
    REINTERPRET,
    CAST,
)
