"""qnn operators that dequantize, compute and round once: elementwise ones, averages, norms."""

from __future__ import annotations

from dataclasses import replace

from qdqbridge.core.graph.attribute_codecs import read_attributes
from qdqbridge.core.graph.graph import Value
from qdqbridge.core.graph.operator import NO_ATTRIBUTES, Attributes, Operator
from qdqbridge.core.graph.types import QuantType
from qdqbridge.core.ops.attributes import (
    AxisAttrs,
    EpsilonAttrs,
    SoftmaxAttrs,
)
from qdqbridge.core.ops.normalization import BATCH_NORMALIZATION, NORMS
from qdqbridge.core.ops.table import OPERATORS
from qdqbridge.tvm.qnn.origin import is_swapped
from qdqbridge.tvm.qnn.ranges import BATCH_NORM, CHOICE, NORM, ONE, TWO, Signature
from qdqbridge.tvm.qnn.read import accumulate, parameters
from qdqbridge.tvm.qnn.read.call import Call
from qdqbridge.tvm.qnn.read.conversions import (
    dequantize,
    dequantize_minifloat,
    lookup,
    quantize,
    quantize_minifloat,
    requantize,
    unpack,
)
from qdqbridge.tvm.qnn.read.reading import Reading, Row, flat
from qdqbridge.tvm.qnn.read.resize import RESIZE

# ---- elementwise -------------------------------------------------------------------------------


def unary(row: Operator) -> Row:
    """Returns the row of ``qnn.<op>(x, sx, zx, sy, zy)``, whose attributes are the operator's."""

    def read(reading: Reading, call: Call) -> Value:
        (data,) = parameters.operands(reading, call, ONE)
        given = read_attributes(row.attributes, call.attrs, data.rank or 0)
        return _quantized_result_node(reading, call, row.name, row.attributes(**given), [data], ONE)

    return read


def _quantized_result_node(
    reading: Reading, call: Call, name: str, attributes: Attributes, operands: list[Value],
    signature: Signature,
) -> Value:  # fmt: skip
    params = parameters.result(reading, call, signature)
    type_ = QuantType(params, call.result.shape)
    return reading.node(name, attributes, operands, type_, call)


def binary(name: str, signature: Signature = TWO) -> Row:
    """Returns the row of ``qnn.<op>(a, b, sa, za, sb, zb, sy, zy)``.

    Args:
        name: The graph's operator.
        signature: What stands where; arguments before ``a`` are operands as they are.
    """

    def read(reading: Reading, call: Call) -> Value:
        if name == "Add" and call.provenance is not None and is_swapped(call.provenance):
            call = _swapped(call)
        lead = [reading.plain(entry) for entry in call.args[: signature.operands[0].data]]
        a, b = parameters.operands(reading, call, signature)
        operands = _folded(call, name, a, b) or [*lead, a, b]
        return _quantized_result_node(reading, call, name, NO_ATTRIBUTES, operands, signature)

    return read


def _swapped(call: Call) -> Call:
    """Returns a sum with its operands in the other order, in which the file has them."""
    a, b, sa, za, sb, zb, *rest = call.args
    axes = {"lhs_axis": call.get("rhs_axis", -1), "rhs_axis": call.get("lhs_axis", -1)}
    return replace(call, args=(b, a, sb, zb, sa, za, *rest), attrs={**call.attrs, **axes})


def _folded(call: Call, name: str, a: Value, b: Value) -> list[Value] | None:
    """Returns the operands of a Min or Max of several, of which this call takes in one more."""
    provenance, inner = call.provenance, a.producer
    if provenance is None or inner is None or provenance.op != name or len(provenance.operands) < 3:
        return None
    if inner.op.name != name or inner.output.name != provenance.name:
        return None
    return [*(v for v in inner.inputs if v is not None), b]


def concatenate(reading: Reading, call: Call) -> Value:
    """``qnn.concatenate(data, scales, zero_points, sy, zy)``, the first three tuples."""
    data, scales, zeros = (flat([entry]) for entry in call.args[:3])
    parts: list[Value] = []
    for position, (entry, scale, zero) in enumerate(zip(data, scales, zeros, strict=True)):
        single = Call(call.op, (entry, scale, zero), call.attrs, call.results, call.provenance)
        parts.append(parameters.operand(reading, single, ONE.operands[0], position=position))
    attributes = AxisAttrs(call.integer("axis") % max(parts[0].rank or 0, 1))
    return _quantized_result_node(reading, call, "Concat", attributes, parts, ONE)


# ---- averages, softmax, norms ------------------------------------------------------------------


def norm(row: Operator) -> Row:
    """Returns the row of ``qnn.<norm>(x, gamma, beta, sx, zx, sg, zg, sb, zb, sy, zy)``."""

    def read(reading: Reading, call: Call) -> Value:
        operands = stated_operands(call, parameters.operands(reading, call, NORM))
        given = read_attributes(row.attributes, call.attrs, operands[0].rank or 0)
        return _quantized_result_node(
            reading, call, row.name, row.attributes(**given), operands, NORM
        )

    return read


def stated_operands(call: Call, operands: list[Value]) -> list[Value]:
    """Returns the operands of a norm; a beta of zeros that its span does not name is left out."""
    if call.provenance is None or len(call.provenance.operands) != 2 or len(operands) != 3:
        return operands
    beta = operands[2].constant
    return operands if beta is None or beta.numpy().any() else operands[:2]


def batch_norm(reading: Reading, call: Call) -> Value:
    """``qnn.batch_norm(x, gamma, beta, mean, var, sx, zx, sy, zy)``."""
    (data,) = parameters.operands(reading, call, BATCH_NORM)
    rest = [reading.value(entry) for entry in call.args[1:5]]
    attributes = EpsilonAttrs(float(call.attrs["epsilon"]))
    return _quantized_result_node(
        reading, call, BATCH_NORMALIZATION.name, attributes, [data, *rest], BATCH_NORM
    )


QNN: dict[str, Row] = {
    "qnn.quantize": quantize,
    "qnn.dequantize": dequantize,
    "quantize": quantize,
    "dequantize": dequantize,
    "qnn.quantize_minifloat": quantize_minifloat,
    "qnn.dequantize_minifloat": dequantize_minifloat,
    "qnn.requantize": requantize,
    "qnn.concatenate": concatenate,
    "qnn.lookup": lookup,
    "qnn.unpack": unpack,
    "qnn.where": binary("Where", CHOICE),
    **{f"qnn.{row.qnn}": norm(row) for row in NORMS if row is not BATCH_NORMALIZATION},
    f"qnn.{BATCH_NORMALIZATION.qnn}": batch_norm,
    "qnn.dense": accumulate.dense,
    "qnn.batch_matmul": accumulate.batch_matmul,
    "qnn.dynamic_dense": accumulate.dynamic_dense,
    "qnn.dynamic_block_dense": accumulate.dynamic_block_dense,
    **{f"qnn.dynamic_conv{rank}d": accumulate.dynamic_convolution(rank) for rank in (1, 2, 3)},
    **{
        f"qnn.{row.qnn}": unary(row)
        for row in OPERATORS
        if row.qnn and (row.arity == 1 or row.attributes is SoftmaxAttrs)
    },
    **{f"qnn.{row.qnn}": binary(row.name) for row in OPERATORS if row.qnn and row.arity == 2},
    **RESIZE,
    **{
        f"qnn.conv{rank}d{suffix}": accumulate.convolution(rank, transpose=bool(suffix))
        for rank in (1, 2, 3)
        for suffix in ("", "_transpose")
    },
}
"""One row per operator of the dialect, by its name."""
