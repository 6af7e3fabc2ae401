"""From a match to the record of what it computes."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from qdqbridge.byoc.match import Match
from qdqbridge.byoc.records import (
    BatchMatmul,
    Binary,
    BlockedDequantize,
    Clamp,
    Concatenation,
    Conversion,
    Convolution,
    DataMovement,
    Dense,
    DynamicDense,
    Normalization,
    Other,
    Pool,
    Reduction,
    Resize,
    Softmax,
    Unary,
)
from qdqbridge.byoc.tensor import Tensor
from qdqbridge.byoc.terms import Applied, FixedTerm, Group, Term

_LAYOUTS = {1: ("NCW", "OIW", "IOW"), 2: ("NCHW", "OIHW", "IOHW"), 3: ("NCDHW", "OIDHW", "IODHW")}
_COMMON = frozenset(("out_dtype", "axis", "rounding"))


# ---- parts ---------------------------------------------------------------------------------


def plain(term: Term) -> Tensor:
    """Returns a value whose parameters nothing states."""
    return Tensor(term.shape, term.dtype, term)


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


def extents(call: Applied, name: str, count: int, default: int = 0) -> tuple[int, ...]:
    """Returns an attribute of one number, or one per axis, as ``count`` numbers."""
    value = attr(call, name, default)
    values = [value] if isinstance(value, int) else list(value)
    return tuple(int(v) for v in (values * count if len(values) == 1 else values))


def clamp_of(match: Match) -> Clamp | None:
    """Returns the bounds of a captured ``clip``."""
    clip = match.call("clip")
    return None if clip is None else (int(clip.attrs["a_min"]), int(clip.attrs["a_max"]))


def result(match: Match, computing: Applied, scale: int = -2, axis: int | None = None) -> Tensor:
    """Returns the result of a match; its parameters are the arguments from ``scale`` on."""
    args = computing.args
    value = typed(computing, args[scale], args[scale + 1], axis)
    root = match.root
    return Tensor(root.shape, root.dtype, root, value.scale, value.zero_point, value.axis)


def _root(match: Match) -> Applied:
    found = match.captures.get("op")
    return found if isinstance(found, Applied) else match.calls[-1]


# ---- accumulations -------------------------------------------------------------------------


def accumulation(match: Match, weight_axis: int | None) -> dict[str, Any]:
    """Returns the fields that all accumulating operators have."""
    acc = _root(match)
    x, w, zx, zw, sx, sw = acc.args
    requantize, dequantize = match.call("requantize"), match.call("dequantize")
    fields: dict[str, Any] = {
        "op": acc.op,
        "input": typed(x, sx, zx),
        "weight": typed(w, sw, zw, weight_axis),
        "bias": _bias(match, "bias"),
        "float_bias": _bias(match, "float_bias"),
        "accumulator_dtype": acc.dtype,
        "clamp": clamp_of(match),
    }
    if requantize is not None:
        rounding = {"rounding": attr(requantize, "rounding", "UPWARD")}
        rounding["compute_dtype"] = attr(requantize, "compute_dtype", "None")
        fields |= {"accumulator_scale": _scale(requantize), **rounding}
        return {**fields, "output": result(match, requantize)}
    assert dequantize is not None
    quantize = match.call("quantize")
    fields["accumulator_scale"] = _scale(dequantize)
    if quantize is None:
        return {**fields, "output": plain(match.root)}
    fields["rounding"] = attr(quantize, "rounding", "TONEAREST")
    return {**fields, "output": result(match, quantize)}


def _scale(call: Applied) -> NDArray[np.float32]:
    scale = np.asarray(array(call.args[1]), np.float32)
    return scale.reshape(()) if scale.size == 1 else scale


def _bias(match: Match, name: str) -> NDArray[Any] | None:
    found = match.captures.get(name)
    return None if found is None else array(found).reshape(-1)


def convolution(match: Match) -> Convolution:
    """Describes conv1d to conv3d and the transposed ones."""
    call = _root(match)
    transposed = call.op.endswith("_transpose")
    rank = int(call.op.removesuffix("_transpose")[-2])
    data, straight, permuted = _LAYOUTS[rank]
    layout = str(attr(call, "kernel_layout", permuted if transposed else straight))
    shape = call.args[1].shape or ()
    kernel = tuple(int(shape[i]) for i, axis in enumerate(layout) if axis in "DHW")
    groups = int(attr(call, "groups", 1))
    produced = int(shape[layout.index("O")])
    if transposed:
        produced *= groups
    elif layout.endswith("OI"):  # depthwise: every input channel, times a multiplier
        produced *= int(shape[layout.index("I")])
    return Convolution(
        **accumulation(match, layout.index("O")),
        strides=extents(call, "strides", rank, 1),
        padding=extents(call, "padding", 2 * rank),
        dilation=extents(call, "dilation", rank, 1),
        kernel_size=kernel,
        groups=groups,
        channels=produced,
        transposed=transposed,
        output_padding=extents(call, "output_padding", rank) if transposed else (),
        data_layout=str(attr(call, "data_layout", data)),
        kernel_layout=layout,
    )


def dense(match: Match) -> Dense:
    """Describes qnn.dense."""
    shape = _root(match).args[1].shape or (0,)
    return Dense(**accumulation(match, 0), units=int(shape[0]))


def dynamic_dense(match: Match) -> DynamicDense:
    """Describes qnn.dynamic_dense."""
    call = _root(match)
    x, w, zero_point, scale = call.args
    return DynamicDense(
        op=call.op,
        input=plain(x),
        weight=typed(w, scale, zero_point, 0),
        float_bias=_bias(match, "float_bias"),
        output=plain(match.root),
        units=int((w.shape or (0,))[0]),
        rows=bool(attr(call, "rows", False)),
    )


def batch_matmul(match: Match) -> BatchMatmul:
    """Describes qnn.batch_matmul."""
    call = _root(match)
    return BatchMatmul(
        **accumulation(match, None),
        transpose_a=bool(attr(call, "transpose_a", False)),
        transpose_b=bool(attr(call, "transpose_b", True)),
    )


# ---- elementwise and rows ------------------------------------------------------------------


def binary(match: Match) -> Binary:
    """Describes the operators of two operands, and where."""
    call = _root(match)
    condition = plain(call.args[0]) if call.op == "qnn.where" else None
    a, b, sa, za, sb, zb = call.args[-8:-2]
    return Binary(
        op=call.op,
        output=result(match, call),
        clamp=clamp_of(match),
        lhs=typed(a, sa, za, attr(call, "lhs_axis", -1)),
        rhs=typed(b, sb, zb, attr(call, "rhs_axis", -1)),
        condition=condition,
    )


def _one_input(match: Match, params: int = 1) -> tuple[Applied, dict[str, Any]]:
    call = _root(match)
    fields = {
        "op": call.op,
        "input": typed(call.args[0], call.args[params], call.args[params + 1]),
        "output": result(match, call),
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
    return Softmax(**fields, axes=_axes(call, len(call.shape or ())))


def _axes(call: Applied, rank: int) -> tuple[int, ...]:
    value = attr(call, "axis", ())
    values = [value] if isinstance(value, int) else list(value)
    return tuple(int(v) % max(rank, 1) for v in values)


def normalization(match: Match) -> Normalization:
    """Describes the norms."""
    single = len(_root(match).args) == 9
    call, fields = _one_input(match, 5 if single else 3)
    args, rank = call.args, len(call.shape or ())
    gamma, beta = args[1:3]
    axis = attr(call, "axis")
    return Normalization(
        **fields,
        gamma=plain(gamma) if single else typed(gamma, args[5], args[6]),
        beta=plain(beta) if single else typed(beta, args[7], args[8]),
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
    return Pool(**fields, maximum=False, **_window(call))


def max_pool(match: Match) -> Pool:
    """Describes nn.max_pool1d to 3d on stored integers."""
    call = _root(match)
    return Pool(
        op=call.op, input=plain(call.args[0]), output=plain(match.root), clamp=clamp_of(match),
        maximum=True, **_window(call),
    )  # fmt: skip


def _window(call: Applied) -> dict[str, Any]:
    rank = int(call.op[-2])
    return {
        "pool_size": extents(call, "pool_size", rank, 1),
        "strides": extents(call, "strides", rank, 1),
        "padding": extents(call, "padding", 2 * rank),
        "dilation": extents(call, "dilation", rank, 1),
        "ceil_mode": bool(attr(call, "ceil_mode", False)),
        "count_include_pad": bool(attr(call, "count_include_pad", False)),
        "data_layout": str(attr(call, "layout", _LAYOUTS[rank][0])),
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
    rank = len(call.args[0].shape or ())
    axes = _axes(call, rank) if attr(call, "axis") is not None else tuple(range(rank))
    return {"axes": axes, "keepdims": bool(attr(call, "keepdims", False))}


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


# ---- joins, movers, conversions --------------------------------------------------------------


def _fields(term: Term) -> tuple[Term, ...]:
    return term.fields if isinstance(term, Group) else ()


def concatenation(match: Match) -> Concatenation:
    """Describes qnn.concatenate, and concatenate on stored integers."""
    call = _root(match)
    data, axis = _fields(call.args[0]), _axes(call, len(call.shape or ()))[0]
    if call.op == "concatenate":
        operands, output = tuple(plain(term) for term in data), plain(match.root)
    else:
        params = (_fields(call.args[1]), _fields(call.args[2]))
        zipped = zip(data, *params, strict=True)
        operands = tuple(typed(x, scale, zero) for x, scale, zero in zipped)
        output = result(match, call)
    return Concatenation(
        op=call.op, output=output, clamp=clamp_of(match), operands=operands, axis=axis
    )


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
    if call.op in ("qnn.dequantize", "qnn.requantize"):
        source = typed(call.args[0], call.args[1], call.args[2], axis)
    if call.op in ("qnn.quantize", "qnn.requantize"):
        output = result(match, call, axis=axis)
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
