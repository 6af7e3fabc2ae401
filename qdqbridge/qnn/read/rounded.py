"""qnn operators that dequantize, compute and round once: elementwise ones, averages, norms."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from qdqbridge.graph.graph import Value
from qdqbridge.graph.operator import NO_ATTRIBUTES, Attributes, Operator
from qdqbridge.graph.quantization import QuantParams
from qdqbridge.graph.types import QuantType
from qdqbridge.ops.attributes import (
    AxisAttrs,
    EpsilonAttrs,
    GroupNormAttrs,
    NormAttrs,
    PoolAttrs,
    ReduceAttrs,
    ResizeAttrs,
    SoftmaxAttrs,
    TransposeAttrs,
)
from qdqbridge.ops.table import OPERATORS
from qdqbridge.qnn.layout.remap import restored
from qdqbridge.qnn.origin import is_swapped
from qdqbridge.qnn.read import accumulate, parameters
from qdqbridge.qnn.read.call import Call
from qdqbridge.qnn.read.conversions import (
    dequantize,
    dequantize_minifloat,
    lookup,
    quantize,
    quantize_minifloat,
    requantize,
)
from qdqbridge.qnn.read.layout import channels_first, pads, permuted_shape
from qdqbridge.qnn.read.reading import Reading, Row, flat

_METHODS = {"nearest_neighbor": "nearest", "linear": "linear", "cubic": "cubic"}


# ---- elementwise -------------------------------------------------------------------------------


def unary(row: Operator) -> Row:
    """Returns the row of ``qnn.<op>(x, sx, zx, sy, zy)``, whose attributes are the operator's."""

    def read(reading: Reading, call: Call) -> Value:
        data = parameters.operand(reading, call, 0, 1, 2)
        return _result(reading, call, row.name, record(row, call.attrs), [data], 3)

    return read


def record(row: Operator, attrs: Mapping[str, Any]) -> Attributes:
    """Returns an operator's attributes from those of a call, which have the same names."""
    kinds = {name: type(default) for name, default in row.onnx[0].defaults.items()}
    return row.attributes(**{name: kinds[name](attrs[name]) for name in row.fields})


def _result(
    reading: Reading, call: Call, name: str, attributes: Attributes, operands: list[Value],
    scale: int,
) -> Value:  # fmt: skip
    params = parameters.result(reading, call, scale, scale + 1)
    type_ = QuantType(params, call.result.shape)
    return reading.node(name, attributes, operands, type_, call)


def binary(name: str, *, condition: int = 0) -> Row:
    """Returns the row of ``qnn.<op>(a, b, sa, za, sb, zb, sy, zy)``.

    Args:
        name: The graph's operator.
        condition: Number of arguments before ``a`` that are operands as they are.
    """

    def read(reading: Reading, call: Call) -> Value:
        if name == "Add" and call.claim is not None and is_swapped(call.claim):
            call = _swapped(call)
        lead = [reading.plain(entry) for entry in call.args[:condition]]
        a, b = (
            parameters.operand(
                reading, call, condition + i, condition + 2 + 2 * i, condition + 3 + 2 * i,
                axis=int(call.get(side, -1)),
            )
            for i, side in enumerate(("lhs_axis", "rhs_axis"))
        )  # fmt: skip
        operands = [*lead, a, b]
        folded = _folded(call, name, a, b)
        return _result(reading, call, name, NO_ATTRIBUTES, folded or operands, condition + 6)

    return read


def _swapped(call: Call) -> Call:
    """Returns a sum with its operands in the other order, in which the file has them."""
    a, b, sa, za, sb, zb, *rest = call.args
    axes = {"lhs_axis": call.get("rhs_axis", -1), "rhs_axis": call.get("lhs_axis", -1)}
    return replace(call, args=(b, a, sb, zb, sa, za, *rest), attrs={**call.attrs, **axes})


def _folded(call: Call, name: str, a: Value, b: Value) -> list[Value] | None:
    """Returns the operands of a Min or Max of several, of which this call takes in one more."""
    claim, inner = call.claim, a.producer
    if claim is None or inner is None or claim.op != name or len(claim.operands) < 3:
        return None
    if inner.op.name != name or inner.output.name != claim.name:
        return None
    return [*(v for v in inner.inputs if v is not None), b]


def concatenate(reading: Reading, call: Call) -> Value:
    """``qnn.concatenate(data, scales, zero_points, sy, zy)``, the first three tuples."""
    data, scales, zeros = (flat([entry]) for entry in call.args[:3])
    parts: list[Value] = []
    for position, (entry, scale, zero) in enumerate(zip(data, scales, zeros, strict=True)):
        single = Call(call.op, (entry, scale, zero), call.attrs, call.results, call.claim)
        parts.append(parameters.operand(reading, single, 0, 1, 2, position=position))
    attributes = AxisAttrs(int(call.attrs["axis"]) % max(parts[0].rank or 0, 1))
    return _result(reading, call, "Concat", attributes, parts, 3)


# ---- averages, softmax, norms ------------------------------------------------------------------


def average_pool(rank: int) -> Row:
    """Returns the row of ``qnn.avg_pool<rank>d``."""

    def read(reading: Reading, call: Call) -> Value:
        data = parameters.operand(reading, call, 0, 1, 2)
        data, back = channels_first(reading, data, str(call.get("layout") or ""), rank)
        attributes = PoolAttrs(
            kernel_shape=call.ints("pool_size", rank),
            strides=call.ints("strides", rank),
            dilations=call.ints("dilation", rank),
            pads=pads(call, rank),
            ceil_mode=bool(call.get("ceil_mode", False)),
            count_include_pad=bool(call.get("count_include_pad", False)),
        )
        params = parameters.result(reading, call, 3, 4)
        return laid_out(reading, call, "AveragePool", attributes, [data], params, back)

    return read


def laid_out(
    reading: Reading, call: Call, name: str, attributes: Attributes, operands: list[Value],
    params: QuantParams, back: tuple[int, ...] | None,
) -> Value:  # fmt: skip
    """Adds a node in the graph's layout and a Transpose to the host's."""
    shape = call.result.shape
    if back is None:
        return reading.node(name, attributes, operands, QuantType(params, shape), call)
    inverse = tuple(back.index(i) for i in range(len(back)))
    inner = QuantType(params, permuted_shape(shape, inverse))
    value = reading.node(name, attributes, operands, inner, call)
    return reading.node("Transpose", TransposeAttrs(back), [value], QuantType(params, shape))


def reduction(name: str, everywhere: str = "") -> Row:
    """Returns the row of ``qnn.mean`` and ``qnn.sum``; ``everywhere`` is its global pool."""

    def read(reading: Reading, call: Call) -> Value:
        data = parameters.operand(reading, call, 0, 1, 2)
        chosen, attributes = reduced(call, data, name, everywhere)
        return _result(reading, call, chosen, attributes, [data], 3)

    return read


def reduced(call: Call, data: Value, name: str, everywhere: str) -> tuple[str, Attributes]:
    """Returns operator and attributes of a reduction, or of the global pool that it is."""
    rank = data.rank or 0
    axis = call.get("axis")
    axes = range(rank) if axis is None else call.ints("axis")
    given = tuple(sorted(a % max(rank, 1) for a in axes))
    keepdims = bool(call.get("keepdims", False))
    said = bool(everywhere) and (call.claim is None or call.claim.op == everywhere)
    if said and rank > 2 and keepdims and given == tuple(range(2, rank)):
        return everywhere, NO_ATTRIBUTES
    return name, ReduceAttrs(given, keepdims)


def softmax(name: str) -> Row:
    """Returns the row of ``qnn.softmax`` and ``qnn.log_softmax``."""

    def read(reading: Reading, call: Call) -> Value:
        data = parameters.operand(reading, call, 0, 1, 2)
        rank = max(data.rank or 0, 1)
        axes = tuple(sorted(a % rank for a in call.ints("axis")))
        return _result(reading, call, name, SoftmaxAttrs(axes), [data], 3)

    return read


def norm(name: str, decode: Callable[[Call, int], Attributes]) -> Row:
    """Returns the row of ``qnn.<norm>(x, gamma, beta, sx, zx, sg, zg, sb, zb, sy, zy)``."""

    def read(reading: Reading, call: Call) -> Value:
        data = parameters.operand(reading, call, 0, 3, 4)
        gamma = parameters.operand(reading, call, 1, 5, 6)
        beta = parameters.operand(reading, call, 2, 7, 8)
        operands = [data, gamma]
        claim = call.claim
        absent = claim is not None and len(claim.operands) < 3
        zero = beta.constant is not None and not beta.constant.numpy().any()
        if not (absent and zero):
            operands.append(beta)
        attributes = decode(call, data.rank or 0)
        return _result(reading, call, name, attributes, operands, 9)

    return read


def batch_norm(reading: Reading, call: Call) -> Value:
    """``qnn.batch_norm(x, gamma, beta, mean, var, sx, zx, sy, zy)``."""
    data = parameters.operand(reading, call, 0, 5, 6)
    rest = [reading.value(entry) for entry in call.args[1:5]]
    attributes = EpsilonAttrs(float(call.attrs["epsilon"]))
    return _result(reading, call, "BatchNormalization", attributes, [data, *rest], 7)


# ---- resize ------------------------------------------------------------------------------------


def resize(rank: int) -> Row:
    """Returns the row of ``qnn.resize<rank>d`` (0: of any axes)."""

    def read(reading: Reading, call: Call) -> Value:
        data = parameters.operand(reading, call, 0, 1, 2)
        data, back = channels_first(reading, data, str(call.get("layout") or ""), rank)
        attributes = _resize_attributes(call, data, rank, back)
        params = parameters.result(reading, call, 3, 4)
        return laid_out(reading, call, "Resize", attributes, [data], params, back)

    return read


def _resize_attributes(
    call: Call, data: Value, rank: int, back: tuple[int, ...] | None
) -> ResizeAttrs:
    total = data.rank or 0
    lead = total - rank if rank else 0
    scales = tuple(float(s) for s in call.get("scales") or ())
    roi = tuple(float(r) for r in call.get("roi") or ())
    half = len(roi) // 2
    own = tuple(d if isinstance(d, int) else 0 for d in data.type.shape or ())
    sizes = (*own[:lead], *call.ints("size"))
    method = str(call.attrs["method"])
    attributes = ResizeAttrs(
        mode=_METHODS[method],
        coordinate_transformation_mode=str(call.attrs["coordinate_transformation_mode"]),
        nearest_mode=str(call.attrs["rounding_method"]),
        scales=(*(1.0,) * lead, *scales) if scales else None,
        sizes=None if scales else sizes,
        cubic_coeff_a=float(call.attrs["cubic_alpha"]),
        exclude_outside=method == "cubic" and bool(call.attrs["cubic_exclude"]),
        extrapolation_value=float(call.attrs["extrapolation_value"]),
        roi=(*(0.0,) * lead, *roi[:half], *(1.0,) * lead, *roi[half:]) if roi else (),
    )
    return _as_claimed(call, attributes, sizes, back)


def _as_claimed(
    call: Call, attributes: ResizeAttrs, sizes: tuple[int, ...], back: tuple[int, ...] | None
) -> ResizeAttrs:
    """Returns the claimed attributes where what a call does not show is all that differs."""
    given = None if call.claim is None else call.claim.attributes
    if given is not None and back is not None:
        given = restored(given, len(back))
    if not isinstance(given, ResizeAttrs):
        return attributes
    same = (given.mode, given.coordinate_transformation_mode, given.scales) == (
        attributes.mode, attributes.coordinate_transformation_mode, attributes.scales,
    )  # fmt: skip
    wanted = given.sizes or sizes
    fits = all(a == b or not b for a, b in zip(wanted, sizes, strict=True))
    return given if same and fits else attributes


# ---- the rows ----------------------------------------------------------------------------------


def _layer(call: Call, rank: int) -> Attributes:
    return NormAttrs(int(call.attrs["axis"]) % max(rank, 1), float(call.attrs["epsilon"]))


def _epsilon(call: Call, rank: int) -> Attributes:
    del rank
    return EpsilonAttrs(float(call.attrs["epsilon"]))


def _groups(call: Call, rank: int) -> Attributes:
    del rank
    return GroupNormAttrs(int(call.attrs["num_groups"]), float(call.attrs["epsilon"]))


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
    "qnn.where": binary("Where", condition=1),
    "qnn.mean": reduction("ReduceMean", "GlobalAveragePool"),
    "qnn.sum": reduction("ReduceSum"),
    "qnn.softmax": softmax("Softmax"),
    "qnn.log_softmax": softmax("LogSoftmax"),
    "qnn.layer_norm": norm("LayerNormalization", _layer),
    "qnn.rms_norm": norm("RMSNormalization", _layer),
    "qnn.instance_norm": norm("InstanceNormalization", _epsilon),
    "qnn.group_norm": norm("GroupNormalization", _groups),
    "qnn.batch_norm": batch_norm,
    "qnn.resize": resize(0),
    "qnn.dense": accumulate.dense,
    "qnn.batch_matmul": accumulate.batch_matmul,
    **{f"qnn.{row.qnn}": unary(row) for row in OPERATORS if row.qnn and row.arity == 1},
    **{f"qnn.{row.qnn}": binary(row.name) for row in OPERATORS if row.qnn and row.arity == 2},
    **{f"qnn.avg_pool{rank}d": average_pool(rank) for rank in (1, 2, 3)},
    **{f"qnn.resize{rank}d": resize(rank) for rank in (1, 2, 3)},
    **{
        f"qnn.conv{rank}d{suffix}": accumulate.convolution(rank, transpose=bool(suffix))
        for rank in (1, 2, 3)
        for suffix in ("", "_transpose")
    },
}
"""One row per operator of the dialect, by its name."""
