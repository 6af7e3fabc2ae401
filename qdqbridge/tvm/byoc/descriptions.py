"""From a match to the record of what it computes.

What stands where in a call is what the reader of graphs knows as well: the operands and parameters
of its signature (:mod:`qdqbridge.tvm.qnn.ranges`), attributes by the codecs of the row's
record.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from qdqbridge.core.graph.attribute_codecs import read_attributes
from qdqbridge.core.graph.operator import AnyAttributes
from qdqbridge.core.ops.attributes import (
    AxisAttrs,
    ConvAttrs,
    ConvTransposeAttrs,
    GemmAttrs,
    PoolAttrs,
    ReduceAttrs,
    SoftmaxAttrs,
)
from qdqbridge.core.ops.normalization import BATCH_NORMALIZATION
from qdqbridge.errors import QdqBridgeError
from qdqbridge.tvm.byoc.pattern import Applied, FixedTerm, Group, Match, Tensor, Term
from qdqbridge.tvm.byoc.records import (
    BatchMatmul,
    Binary,
    BlockedDequantize,
    Clamp,
    Concatenation,
    Conversion,
    Convolution,
    DataMovement,
    Dense,
    DynamicConvolution,
    DynamicDense,
    Normalization,
    Other,
    Pool,
    Reduction,
    Resize,
    Softmax,
    Unary,
)
from qdqbridge.tvm.qnn.ranges import (
    BATCH_NORM,
    CHOICE,
    DYNAMIC_PRODUCT,
    NORM,
    ONE,
    PRODUCT,
    QUANTIZE,
    REQUANTIZE,
    SIGNATURES,
    TWO,
    QuantizedArgument,
    Signature,
    data_letters,
    kernel_letters,
)

_COMMON = frozenset(("out_dtype", "axis", "rounding"))
_ABSENT: Mapping[str, Any] = {
    "strides": 1, "padding": 0, "dilation": 1, "output_padding": 0, "groups": 1, "pool_size": 1,
    "ceil_mode": False, "count_include_pad": False, "axis": None, "keepdims": False,
    "transpose_a": False, "transpose_b": True,
}  # fmt: skip
"""What a call means that has no such attribute."""


# ---- parts ---------------------------------------------------------------------------------


def plain(term: Term) -> Tensor:
    """Returns a value whose parameters nothing states."""
    return Tensor(term.shape, term.dtype, term)


def operand(call: Applied, argument: QuantizedArgument, axis: int | None = None) -> Tensor:
    """Returns an operand of a call with its parameters.

    Args:
        call: The call.
        argument: Where its data and parameters stand.
        axis: The axis of several scales where no attribute of the call names it.
    """
    if argument.axis:
        axis = attr(call, argument.axis, -1)
    args = call.args
    return typed(args[argument.data], args[argument.scale], args[argument.zero_point], axis)


def operands(call: Applied, signature: Signature) -> list[Tensor]:
    """Returns the operands of a call that have parameters."""
    return [operand(call, argument) for argument in signature.operands]


def typed(term: Term, scale: Term, zero_point: Term, axis: int | None = None) -> Tensor:
    """Returns a value with its parameters; float values keep none."""
    if term.dtype.startswith(("float", "bfloat")):
        return plain(term)
    s, z = np.asarray(array(scale), np.float32), np.asarray(array(zero_point), np.int32)
    if not (s.size and z.size):  # not constants: nothing is stated
        return plain(term)
    vector = s.size > 1 or z.size > 1
    if not vector:
        s, z = s.reshape(()), z.reshape(())
    rank = 0 if term.shape is None else len(term.shape)
    place = axis % rank if vector and axis is not None and rank else None
    return Tensor(term.shape, term.dtype, term, s, z, place)


def array(term: Term) -> NDArray[Any]:
    """Returns a constant's elements; an empty array where it is none."""
    return term.numpy() if isinstance(term, FixedTerm) else np.empty(0, np.float32)


def attr(call: Applied, name: str, default: Any = None) -> Any:
    """Returns an attribute, or its default where the host does not have it."""
    value = call.attrs.get(name)
    return default if value is None else value


def record_of(call: Applied, record: type[AnyAttributes], spatial: int = 0) -> AnyAttributes:
    """Returns the attributes of a call as the record of the operator's row.

    Args:
        call: The call.
        record: The type of the record.
        spatial: How many of its axes are spatial.
    """
    given = {name: value for name, value in call.attrs.items() if value is not None}
    rank = len(call.args[0].shape or call.shape or ())
    return record(**read_attributes(record, {**_ABSENT, **given}, rank, spatial))


def clamp_of(match: Match) -> Clamp | None:
    """Returns the bounds of a captured ``clip``."""
    clip = match.call("clip")
    return None if clip is None else (int(clip.attrs["a_min"]), int(clip.attrs["a_max"]))


def result(
    match: Match, computing: Applied, signature: Signature, axis: int | None = None
) -> Tensor:
    """Returns the result of a match, with the parameters that a call gives it."""
    assert signature.result is not None
    scale, zero_point = computing.args[signature.result : signature.result + 2]
    value = typed(computing, scale, zero_point, axis)
    root = match.root
    return Tensor(root.shape, root.dtype, root, value.scale, value.zero_point, value.axis)


def _root(match: Match) -> Applied:
    found = match.captures.get("op")
    # The deepest call: patterns are written from the result backwards, and what computes is their
    # end.
    return found if isinstance(found, Applied) else match.calls[-1]


def accumulation(match: Match, weight_axis: int | None) -> dict[str, Any]:
    """Returns the fields that all accumulating operators have."""
    acc = _root(match)
    _check_names(match)
    x, w = PRODUCT.operands
    requantize, dequantize = match.call("requantize"), match.call("dequantize")
    fields: dict[str, Any] = {
        "op": acc.op,
        "input": operand(acc, x),
        "weight": operand(acc, w, weight_axis),
        "bias": _captured_bias(match, "bias"),
        "float_bias": _captured_bias(match, "float_bias"),
        "accumulator_dtype": acc.dtype,
        "clamp": clamp_of(match),
    }
    if requantize is not None:
        rounding = {"rounding": attr(requantize, "rounding", "UPWARD")}
        rounding["compute_dtype"] = attr(requantize, "compute_dtype", "None")
        fields |= {"accumulator_scale": _scale_of_call(requantize), **rounding}
        return {**fields, "output": result(match, requantize, REQUANTIZE)}
    assert dequantize is not None
    quantize = match.call("quantize")
    fields["accumulator_scale"] = _scale_of_call(dequantize)
    if quantize is None:
        return {**fields, "output": plain(match.root)}
    fields["rounding"] = attr(quantize, "rounding", "TONEAREST")
    return {**fields, "output": result(match, quantize, QUANTIZE)}


def _check_names(match: Match) -> None:
    """Refuses a pattern of a vendor's that takes a clip or a bias and does not name it."""
    inside = {call.op for call in match.calls}
    unread = {"clip"} & inside - match.captures.keys()
    if not {"bias", "float_bias"} & match.captures.keys():
        unread |= {"add", "nn.bias_add"} & inside
    if not {"requantize", "dequantize"} & match.captures.keys():
        unread |= {"qnn.requantize", "qnn.dequantize"} & inside
    if unread:
        raise QdqBridgeError(
            f"the record would not have the {' and the '.join(sorted(unread))} of the pattern",
            why="descriptions read what the pattern names",
            fix="name calls .named('requantize') and .named('clip'), the bias's constant "
            ".named('bias')",
        )


def _scale_of_call(call: Applied) -> NDArray[np.float32]:
    scale = np.asarray(array(call.args[1]), np.float32)
    return scale.reshape(()) if scale.size == 1 else scale


def _captured_bias(match: Match, name: str) -> NDArray[Any] | None:
    found = match.captures.get(name)
    return None if found is None else array(found).reshape(-1)


def convolution(match: Match) -> Convolution:
    """Describes conv1d to conv3d and the transposed ones."""
    fields = _taps(_root(match))
    axis = fields["kernel_layout"].index("O")
    return Convolution(**accumulation(match, axis), **fields)


def _taps(call: Applied) -> dict[str, Any]:
    """Returns what a convolution's call says of its window and layouts."""
    transposed = call.op.endswith("_transpose")
    rank = int(call.op.removesuffix("_transpose")[-2])
    layout = str(attr(call, "kernel_layout", kernel_letters(rank, transposed=transposed)))
    shown = record_of(call, ConvTransposeAttrs if transposed else ConvAttrs, rank)
    shape = call.args[1].shape or ()
    kernel = tuple(int(shape[i]) for i, axis in enumerate(layout) if axis in "DHW")
    produced = int(shape[layout.index("O")])
    if transposed:
        produced *= shown.group
    elif layout.endswith("OI"):  # depthwise: every input channel, times a multiplier
        produced *= int(shape[layout.index("I")])
    fields: dict[str, Any] = {
        "strides": shown.strides,
        "padding": shown.pads,
        "dilation": shown.dilations,
        "kernel_size": kernel,
        "groups": shown.group,
        "channels": produced,
        "data_layout": str(attr(call, "data_layout", data_letters(rank))),
        "kernel_layout": layout,
    }
    if isinstance(shown, ConvTransposeAttrs):
        fields |= {"transposed": True, "output_padding": shown.output_padding}
    return fields


def dynamic_convolution(match: Match) -> DynamicConvolution:
    """Describes qnn.dynamic_conv1d to 3d."""
    call = _root(match)
    fields = _taps(call)
    axis = fields["kernel_layout"].index("O")
    return DynamicConvolution(
        op=call.op,
        input=plain(call.args[0]),
        weight=operand(call, DYNAMIC_PRODUCT.operands[0], axis),
        float_bias=_captured_bias(match, "float_bias"),
        output=plain(match.root),
        **fields,
    )


def dense(match: Match) -> Dense:
    """Describes qnn.dense."""
    shape = _root(match).args[1].shape or (0,)
    return Dense(**accumulation(match, 0), units=int(shape[0]))


def dynamic_dense(match: Match) -> DynamicDense:
    """Describes qnn.dynamic_dense."""
    call = _root(match)
    weight = operand(call, DYNAMIC_PRODUCT.operands[0], 0)
    return DynamicDense(
        op=call.op,
        input=plain(call.args[0]),
        weight=weight,
        float_bias=_captured_bias(match, "float_bias"),
        output=plain(match.root),
        units=int((weight.shape or (0,))[0]),
        rows=bool(attr(call, "rows", False)),
    )


def batch_matmul(match: Match) -> BatchMatmul:
    """Describes qnn.batch_matmul."""
    shown = record_of(_root(match), GemmAttrs)
    fields = accumulation(match, -2 if shown.trans_b else -1)
    return BatchMatmul(**fields, transpose_a=shown.trans_a, transpose_b=shown.trans_b)


# ---- elementwise and rows ------------------------------------------------------------------


def binary(match: Match) -> Binary:
    """Describes the operators of two operands, and where."""
    call = _root(match)
    chosen = call.op == "qnn.where"
    signature = CHOICE if chosen else TWO
    lhs, rhs = operands(call, signature)
    return Binary(
        op=call.op,
        output=result(match, call, signature),
        clamp=clamp_of(match),
        lhs=lhs,
        rhs=rhs,
        condition=plain(call.args[0]) if chosen else None,
    )


def _one_input(match: Match, signature: Signature = ONE) -> tuple[Applied, dict[str, Any]]:
    call = _root(match)
    fields = {
        "op": call.op,
        "input": operand(call, signature.operands[0]),
        "output": result(match, call, signature),
        "clamp": clamp_of(match),
    }
    return call, fields


def unary(match: Match) -> Unary:
    """Describes functions of each element, as tables are built from."""
    call, fields = _one_input(match)
    own = {k: v for k, v in call.attrs.items() if k not in _COMMON}
    return Unary(**fields, attributes=own)


def lookup(match: Match) -> Unary:
    """Describes qnn.lookup, a table of the module's own."""
    call = _root(match)
    return Unary(
        op=call.op, input=plain(call.args[0]), output=plain(match.root), clamp=clamp_of(match),
        attributes={}, entries=array(call.args[1]),
    )  # fmt: skip


def softmax(match: Match) -> Softmax:
    """Describes qnn.softmax and qnn.log_softmax."""
    call, fields = _one_input(match)
    return Softmax(**fields, axes=record_of(call, SoftmaxAttrs).axes)


def normalization(match: Match) -> Normalization:
    """Describes the norms."""
    single = _root(match).op == f"qnn.{BATCH_NORMALIZATION.qnn}"
    call, fields = _one_input(match, BATCH_NORM if single else NORM)
    # A batch norm has its statistics as constants, and scales of its data only.
    args, rank = call.args, len(call.shape or ())
    gamma, beta = map(plain, args[1:3]) if single else operands(call, NORM)[1:]
    axis = attr(call, "axis")
    return Normalization(
        **fields,
        gamma=gamma,
        beta=beta,
        mean=array(args[3]) if single else None,
        variance=array(args[4]) if single else None,
        epsilon=float(attr(call, "epsilon", 0.0)),
        axis=None if axis is None else int(axis) % max(rank, 1),
        groups=int(attr(call, "num_groups", 1)),
    )


# ---- windows -------------------------------------------------------------------------------


def average_pool(match: Match) -> Pool:
    """Describes qnn.avg_pool1d to 3d."""
    call, fields = _one_input(match)
    return Pool(**fields, maximum=False, **_relay_pool_attrs(call))


def max_pool(match: Match) -> Pool:
    """Describes nn.max_pool1d to 3d on stored integers."""
    call = _root(match)
    return Pool(
        op=call.op, input=plain(call.args[0]), output=plain(match.root), clamp=clamp_of(match),
        maximum=True, **_relay_pool_attrs(call),
    )  # fmt: skip


def _relay_pool_attrs(call: Applied) -> dict[str, Any]:
    rank = int(call.op[-2])
    shown = record_of(call, PoolAttrs, rank)
    return {
        "pool_size": shown.kernel_shape,
        "strides": shown.strides,
        "padding": shown.pads,
        "dilation": shown.dilations,
        "ceil_mode": shown.ceil_mode,
        "count_include_pad": shown.count_include_pad,
        "data_layout": str(attr(call, "layout", data_letters(rank))),
    }


def reduction(match: Match) -> Reduction:
    """Describes qnn.mean and qnn.sum."""
    call, fields = _one_input(match)
    return Reduction(**fields, **_reduced(call))


def extremum(match: Match) -> Reduction:
    """Describes max and min over axes of stored integers."""
    call = _root(match)
    return Reduction(
        op=call.op, input=plain(call.args[0]), output=plain(match.root), clamp=clamp_of(match),
        **_reduced(call),
    )  # fmt: skip


def _reduced(call: Applied) -> dict[str, Any]:
    shown = record_of(call, ReduceAttrs)
    return {"axes": shown.axes, "keepdims": shown.keepdims}


def resize(match: Match) -> Resize:
    """Describes qnn.resize, and qnn.resize1d to 3d."""
    call, fields = _one_input(match)
    return Resize(
        **fields,
        size=tuple(int(v) for v in attr(call, "size", ())),
        scales=tuple(float(v) for v in attr(call, "scales", ())),
        method=str(attr(call, "method", "")),
        coordinate_transformation_mode=str(attr(call, "coordinate_transformation_mode", "")),
        rounding_method=str(attr(call, "rounding_method", "")),
        data_layout=str(attr(call, "layout", "")),
        attributes=dict(call.attrs),
    )


# ---- concatenation, data movement, conversions -----------------------------------------------


def _fields(term: Term) -> tuple[Term, ...]:
    return term.fields if isinstance(term, Group) else ()


def concatenation(match: Match) -> Concatenation:
    """Describes qnn.concatenate, and concatenate on stored integers."""
    call = _root(match)
    if call.op == "concatenate":
        parts, output = [plain(term) for term in _fields(call.args[0])], plain(match.root)
    else:
        (where,) = ONE.operands
        columns = (_fields(call.args[i]) for i in (where.data, where.scale, where.zero_point))
        parts = [typed(x, scale, zero) for x, scale, zero in zip(*columns, strict=True)]
        output = result(match, call, ONE)
    return Concatenation(
        op=call.op, output=output, clamp=clamp_of(match), operands=tuple(parts),
        axis=record_of(call, AxisAttrs).axis,
    )  # fmt: skip


def data_movement(match: Match) -> DataMovement:
    """Describes what moves stored integers."""
    call = _root(match)
    return DataMovement(
        op=call.op,
        input=plain(call.args[0]),
        output=plain(match.root),
        attributes=dict(call.attrs),
        operands=tuple(plain(term) for term in call.args[1:]),
    )


def conversion(match: Match) -> Conversion:
    """Describes qnn.quantize, qnn.dequantize, qnn.requantize, and a clip of codes."""
    call = _root(match)
    axis = attr(call, "axis", -1)
    source, output = plain(call.args[0]), plain(match.root)
    signature = SIGNATURES.get(call.op)
    if signature is not None and signature.operands:
        (source,) = operands(call, signature)
    if signature is not None and signature.result is not None:
        output = result(match, call, signature, axis)
    clamp = clamp_of(match)
    if call.op == "clip":
        clamp = int(call.attrs["a_min"]), int(call.attrs["a_max"])
    rounding, compute = attr(call, "rounding"), attr(call, "compute_dtype")
    return Conversion(
        op=call.op, input=source, output=output, clamp=clamp, rounding=rounding,
        compute_dtype=compute,
    )  # fmt: skip


def blocked(match: Match) -> BlockedDequantize:
    """Describes weights whose scales are repeated along blocks."""
    repeat = match.call("repeat")
    assert repeat is not None
    return BlockedDequantize(
        op="qnn.dequantize", input=plain(match["data"]), output=plain(match.root),
        scale=array(match["scale"]), zero_point=array(match["zero_point"]),
        axis=int(repeat.attrs["axis"]), block_size=int(repeat.attrs["repeats"]),
    )  # fmt: skip


def other(match: Match) -> Other:
    """Describes a pattern that nothing is known about."""
    inside = set(match.calls)
    args = [a for call in match.calls for a in call.args if a not in inside]
    operands = [a for a in args if not isinstance(a, FixedTerm) and a.shape is not None]
    return Other(
        op=match.calls[-1].op, output=plain(match.root), clamp=clamp_of(match),
        operands=tuple(plain(term) for term in operands),
    )  # fmt: skip
