"""On which stored integers TFLite has kernels.

Source: the kernels of LiteRT 2.3, run with these types (``scripts/engines/litert_rounding.py``).
"""

from __future__ import annotations

from collections.abc import Iterable

from qdqbridge.core.graph.dtypes import DType
from qdqbridge.core.graph.graph import Node, Value
from qdqbridge.core.graph.types import QuantParams, QuantType
from qdqbridge.core.ops.accumulator import leaves_int32
from qdqbridge.tflite_io.counterparts import Counterpart
from qdqbridge.tflite_io.writer.emission import Integers

ACTIVATIONS = (DType.INT8, DType.INT16)
"""Storage types of activations; int16 has zero point 0."""


def never(node: Node) -> bool:
    """TFLite has a float kernel only."""
    del node
    return False


def activation(value: Value | None, kinds: Iterable[DType] = ACTIVATIONS) -> bool:
    """True for a value that is quantized as TFLite quantizes activations."""
    if value is None or value.quant is None:
        return False
    params = value.quant.params
    if params.storage_dtype not in kinds or not params.per_tensor:
        return False
    if params.expressed_dtype is not DType.FLOAT32:
        return False
    return params.storage_dtype is DType.INT8 or params.symmetric


def values(node: Node) -> list[Value]:
    """Returns the data operands and the results of a node."""
    return [*(value for _, value in node.data_operands()), *node.outputs]


def stored(*kinds: DType, same: bool = False) -> Integers:
    """Returns the rule of a kernel whose operands and results have one of some storage types.

    Args:
        kinds: The storage types.
        same: All operands and results have one scale and zero point.
    """

    def integers(node: Node) -> bool:
        found = values(node)
        if not all(activation(value, kinds) for value in found):
            return False
        params = [value.quant.params.widened() for value in found if value.quant is not None]
        if len({p.storage_dtype for p in params}) != 1:
            return False
        return not same or len(set(params)) == 1

    return integers


def fixed(*allowed: QuantParams) -> Integers:
    """Returns the rule of a kernel whose result has parameters that TFLite prescribes."""
    plain = stored(*ACTIVATIONS)

    def integers(node: Node) -> bool:
        quant = node.output.quant
        return plain(node) and quant is not None and quant.params.widened() in allowed

    return integers


def of_counterpart(row: Counterpart) -> Integers:
    """Returns the rule of an operator that TFLite and ONNX have alike."""
    if not row.stored:
        return never
    if row.results:
        return fixed(*row.results)
    return stored(*row.stored, same=row.same)


def moves(node: Node) -> bool:
    """True where a node only moves stored values: no parameter changes."""
    types = [value.type for value in values(node)]
    found = {t.params.widened() if isinstance(t, QuantType) else t.dtype for t in types}
    return len(found) == 1


def product(node: Node) -> bool:
    """True for an integer product of an activation with a symmetric weight and an int32 bias.

    Its sums fit: of 8-bit activations they are added in 32 bits, and wrap.
    """
    x, weight, bias, y = node.operand(0), node.operand(1), node.optional(2), node.output
    if not activation(x) or not activation(y) or x.type.dtype is not y.type.dtype:
        return False
    quant = weight.quant
    if quant is None or weight.constant is None or not quant.params.symmetric:
        return False
    kinds = (DType.INT8, DType.INT4) if x.type.dtype is DType.INT8 else (DType.INT8,)
    if quant.params.storage_dtype not in kinds or quant.params.blocked:
        return False
    if bias is not None and (bias.quant is None or bias.type.dtype is not DType.INT32):
        return False
    return x.type.dtype is not DType.INT8 or not leaves_int32(node)


def of_products(node: Node) -> bool:
    """True for a product of two activations, or of one and a constant matrix of one scale."""
    return stored(*ACTIVATIONS)(node)
