"""Arm's Ethos-U: int8, channels-last, one example at a time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from math import prod
from typing import Any

from qdqbridge.errors import UnsupportedTargetError
from qdqbridge.tvm.relay.tables.adapter import (
    Adapter,
    MatchedExpression,
    Rule,
    RuleRow,
    attribute,
    batch,
    extents,
    not_depthwise,
    one_multiplier,
    operands,
    rank,
    row,
    shape,
    types,
    ungrouped,
    weights,
)

_INT8 = types("int8")
_NARROW = types("int8", "uint8")
_LAYOUT = attribute("layout", "NHWC", what="the layout")
_MAX_WINDOW = 4096
_TWICE = 2


def _ethos_u_pattern_table() -> Sequence[Any]:
    if find_spec("ethosu") is None:  # its checks import it, and fail without words
        raise UnsupportedTargetError(
            "the table 'ethos-u' needs the package ethos-u-vela",
            fix="pip install ethos-u-vela",
        )
    from tvm.relay.op.contrib import ethosu as table

    return table.pattern_table()


def _padding(*most: int) -> Rule:
    def rule(found: MatchedExpression) -> Iterator[str]:
        sides = [int(side) for side in found.call.attrs.padding]
        if any(side > bound for side, bound in zip(sides, most, strict=True)):
            yield f"the padding is {sides}, at most {list(most)} is taken"

    return rule


def _refuse_large_kernel(found: MatchedExpression) -> Iterator[str]:
    layout, kernel = str(found.call.attrs.kernel_layout), shape(found.call.args[1])
    steps = [int(step) for step in found.call.attrs.dilation]
    axes = zip("HW", steps, strict=True)
    size = [(kernel[layout.index(axis)] - 1) * step + 1 for axis, step in axes]
    if size[0] > 64 or size[0] * size[1] > _MAX_WINDOW:
        yield f"the window spans {size[0]}x{size[1]}, 64 rows and {_MAX_WINDOW} elements are taken"


def _pool_strides(found: MatchedExpression) -> Iterator[str]:
    attrs, data = found.call.attrs, shape(found.data)
    steps, window = [int(s) for s in attrs.strides], [int(p) for p in attrs.pool_size]
    whole = list(data[1:3]) == window and not any(int(p) for p in attrs.padding)
    if max(steps) > 3 and not whole:
        yield f"strides are {steps[0]}x{steps[1]}, 1 to 3 is taken unless the window is everything"


def _pool_window(found: MatchedExpression) -> Iterator[str]:
    window = [int(p) for p in found.call.attrs.pool_size]
    if window[1] > 256 or window[0] * window[1] > 256 * 256:
        yield f"the window is {window[0]}x{window[1]}, at most 256 columns and 65536 are taken"
    if any(int(p) for p in found.call.attrs.padding) and max(window) > 8:
        yield f"the padded window is {window[0]}x{window[1]}, at most 8x8 is taken"


def _check_reduction_axes(*allowed: tuple[int, ...]) -> Rule:
    def rule(found: MatchedExpression) -> Iterator[str]:
        axes = tuple(sorted(int(axis) % len(shape(found.data)) for axis in found.call.attrs.axis))
        spatial = tuple(axis + 4 - len(shape(found.data)) for axis in axes)
        if spatial not in allowed:
            yield f"the axes are {list(axes)} of {len(shape(found.data))}, the table has others"

    return rule


def _mean_size(found: MatchedExpression) -> Iterator[str]:
    data = shape(found.data)
    image = data[1:3] if len(data) > 3 else data[:2]
    if prod(image) > _MAX_WINDOW:
        yield f"{prod(image)} values are averaged, at most {_MAX_WINDOW} are taken"


def _refuse_ethosu_broadcast(found: MatchedExpression) -> Iterator[str]:
    a, b = (shape(arg) for arg in found.call.args[:2])
    wide, narrow = (a, b) if len(a) >= len(b) else (b, a)
    straight = all(m == n or m != 1 for m, n in zip(wide[::-1], narrow[::-1], strict=False))
    permuted = len(a) == len(b) and all(n == m or n != 1 for m, n in zip(a, b, strict=True))
    if not straight and not permuted:
        yield f"shapes {list(a)} and {list(b)} broadcast each other"
    for extents_ in (a, b):
        if len(extents_) > 4 or (len(extents_) == 4 and extents_[0] != 1):
            yield f"an operand has shape {list(extents_)}, four axes and a batch of 1 are taken"


def _twice(found: MatchedExpression) -> Iterator[str]:
    before, after = shape(found.data)[1:3], shape(found.root)[1:3]
    linear = str(found.call.attrs.method) == "linear"
    aligned = str(found.call.attrs.coordinate_transformation_mode) == "align_corners"
    delta = 1 if linear and aligned else 0
    if any(new != old * _TWICE - delta for old, new in zip(before, after, strict=True)):
        yield f"{before[0]}x{before[1]} becomes {after[0]}x{after[1]}, twice the extents is taken"


def _one_type(found: MatchedExpression) -> Iterator[str]:
    if found.root.checked_type.dtype != found.data.checked_type.dtype:
        yield "data and result have different types"


_STRIDES, _DILATION = extents("strides", 1, 3), extents("dilation", 1, 2)
_CONVOLUTION = (
    _NARROW, weights("int8", "uint8"), batch, _STRIDES, _DILATION, _padding(31, 31, 32, 32),
    _refuse_large_kernel, ungrouped,
)  # fmt: skip
_POOL = (_NARROW, _one_type, batch, _pool_strides, _pool_window, _LAYOUT)
_BINARY = (operands("int8", "uint8", "int32"), _refuse_ethosu_broadcast)
_DATA_MOVEMENT = (_INT8, rank(1, 4))
_SPATIAL = ((1,), (2,), (1, 2))


def _lookup(operator: str) -> RuleRow:
    return row(operator, _INT8)


ETHOS_U = Adapter(
    name="ethos-u",
    variant="tflite",
    table=_ethos_u_pattern_table,
    rewrites=("int8",),
    reasons={
        "qnn_conv2d": row("qnn.conv2d", *_CONVOLUTION, not_depthwise),
        "depthwise_conv2d": row("qnn.conv2d", *_CONVOLUTION, one_multiplier),
        "qnn_conv2d_transpose": row(
            "qnn.conv2d_transpose", _INT8, weights("int8"), batch, extents("strides", 2, 2),
            extents("dilation", 1, 1), attribute("groups", 1),
            attribute("output_padding", (0, 0)),
        ),
        "fully_connected": row("qnn.dense", _INT8, rank(2, 2), batch),
        "matmul": row("qnn.dense", _INT8, rank(2, 2)),
        "maxpool2d": row("nn.max_pool2d", *_POOL, _padding(127, 127, 128, 128)),
        "avgpool2d": row(
            "nn.avg_pool2d", *_POOL, _padding(3, 3, 4, 4),
            attribute("count_include_pad", False, 0),
        ),
        "add": row("qnn.add", *_BINARY),
        "sub": row("qnn.subtract", *_BINARY),
        "mul": row("qnn.mul", *_BINARY),
        "min": row("minimum", operands("int8", "uint8"), _refuse_ethosu_broadcast),
        "max": row("maximum", operands("int8", "uint8"), _refuse_ethosu_broadcast),
        "reshape": row("reshape", *_DATA_MOVEMENT),
        "strided_slice": row("strided_slice", *_DATA_MOVEMENT, extents("strides", 1, 1)),
        "expand_dims": row("expand_dims", *_DATA_MOVEMENT),
        "squeeze": row("squeeze", _INT8, rank(0, 4)),
        "split": row("split", _INT8),
        "concat": row(("concatenate", "qnn.concatenate"), _INT8, rank(1, 4), batch),
        "abs": row("abs", _NARROW, rank(1, 4), batch),
        "tanh": _lookup("tanh"),
        "sigmoid": _lookup("sigmoid"),
        "leaky_relu": _lookup("nn.leaky_relu"),
        "hard_swish": _lookup("qnn.quantize"),
        "softmax": row("nn.softmax", _INT8, rank(1, 4)),
        "mean": row("mean", _NARROW, rank(2, 4), _check_reduction_axes(*_SPATIAL), _mean_size),
        "sum": row("sum", types("int8", "uint8", "int16", "int32", result=("int8",)),
                   rank(1, 4), _check_reduction_axes((3,))),
        "requantize": row("qnn.requantize", *_DATA_MOVEMENT),
        "resize2d": row("image.resize2d", _INT8, rank(4, 4), _twice),
        "pad2d": row("nn.pad", _NARROW, rank(4, 4), batch),
        "channel-pad": row("nn.pad", _NARROW, rank(4, 4), batch),
    },
)  # fmt: skip
