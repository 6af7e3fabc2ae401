"""Arm Compute Library, for Cortex-A: 8 bits, one scale for a tensor, channels-last."""

from __future__ import annotations

import types as builtin_types
from collections.abc import Generator, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from importlib.util import find_spec
from math import prod
from typing import Any
from unittest.mock import patch

from tvm.relay.op.contrib import arm_compute_lib, cmsisnn

from qdqbridge.errors import UnsupportedTargetError
from qdqbridge.tvm.relay.tables.adapter import (
    Adapter,
    MatchedExpression,
    Rule,
    RuleRow,
    attribute,
    batch,
    dtype,
    extents,
    not_depthwise,
    number,
    one_multiplier,
    operands,
    output,
    per_tensor,
    rank,
    row,
    shape,
    symmetric_weight,
    types,
    ungrouped,
    weights,
)

_CODES = types("int8", "uint8")
_LAYOUT = attribute("layout", "NHWC", what="the layout")
_UNDILATED = attribute("dilation", (1, 1))


def _acl_pattern_table() -> Sequence[Any]:
    return arm_compute_lib.arm_compute_lib_pattern_table()


def _depthwise(found: MatchedExpression) -> Iterator[str]:
    """The table looks at the first two axes of the kernel, whatever they are."""
    kernel = shape(found.call.args[1])[:2]
    if int(found.call.attrs.groups) == 1 or kernel in ((3, 3), (5, 5)):
        return
    yield f"a depthwise window is {kernel[0]}x{kernel[1]}, 3x3 or 5x5 is taken"


def _depthwise_strides(found: MatchedExpression) -> Iterator[str]:
    strides = tuple(int(step) for step in found.call.attrs.strides)
    if int(found.call.attrs.groups) > 1 and strides not in ((1, 1), (2, 2)):
        yield f"a depthwise stride is {strides[0]}x{strides[1]}, 1x1 or 2x2 is taken"


def _disabled(found: MatchedExpression) -> Iterator[str]:
    del found
    yield "the table leaves concatenations out unless it is told otherwise"


def _scalars(found: MatchedExpression) -> Iterator[str]:
    constants = [number(arg) for arg in found.call.args[2:8]]
    if any(value is not None and value.size > 1 for value in constants):
        yield "an operand has a scale for each channel"


ARM_COMPUTE_LIB = Adapter(
    name="arm_compute_lib",
    variant="tflite",
    table=_acl_pattern_table,
    rewrites=("per-tensor",),
    reasons={
        "qnn_conv2d": row(
            "qnn.conv2d", _CODES, weights("int8", "uint8"), per_tensor,
            attribute("data_layout", "NHWC", what="the layout"), batch, ungrouped, _depthwise,
            _depthwise_strides, attribute("out_dtype", "int32", "", what="the accumulator"),
        ),
        "qnn_dense": row(
            "qnn.dense", _CODES, weights("int8", "uint8"), per_tensor,
            attribute("out_dtype", "int32", what="the accumulator"),
        ),
        "avg_pool2d": row(
            ("nn.avg_pool2d", "nn.global_avg_pool2d"), _CODES, _LAYOUT, _UNDILATED
        ),
        "concatenate": row("concatenate", _disabled),
        "nn.max_pool2d": row(
            "nn.max_pool2d", types("int8", "uint8", "float32"), _LAYOUT, _UNDILATED
        ),
        "qnn.add": row("qnn.add", _CODES, _scalars),
    },
)  # fmt: skip


# ---- Arm's CMSIS-NN, for Cortex-M: int8 or int16, channels-last ----------------------------------


_CMSIS_CODES = types("int8", "int16")
_EFFECTIVE_PADDING = "GetEffectiveConv2DPadding"


def _padding(conv2d: Any, pad: Any) -> list[int]:
    """Returns top, left, bottom, right of a convolution and the pad before it.

    TVM computes it in C++, in builds that have CMSIS-NN.
    """
    layout, own = str(conv2d.attrs.data_layout), [int(p) for p in conv2d.attrs.padding]
    sides = [pad.attrs.pad_width[layout.index(axis)] for axis in "HW"]
    ends = [int(side[end]) for end in (0, 1) for side in sides]
    return [a + b for a, b in zip(own, ends, strict=True)]


@contextmanager
def _shim() -> Generator[None, None, None]:
    present = hasattr(cmsisnn, _EFFECTIVE_PADDING)
    if not present:
        setattr(cmsisnn, _EFFECTIVE_PADDING, _padding)
    try:
        yield
    finally:
        if not present:
            delattr(cmsisnn, _EFFECTIVE_PADDING)


def _cmsis_nn_pattern_table() -> Sequence[Any]:
    return cmsisnn.pattern_table()


def _zero_at_16_bits(arguments: tuple[int, ...]) -> Rule:
    def rule(found: MatchedExpression) -> Iterator[str]:
        zeros = [number(found.call.args[i]) for i in arguments]
        if dtype(found.data) == "int16" and any(z is None or z.any() for z in zeros):
            yield "a zero point of int16 values is not 0"

    return rule


def _biased(found: MatchedExpression) -> Iterator[str]:
    if int(found.call.attrs.groups) > 1 and found.inside("nn.bias_add") is None:
        yield "a depthwise convolution without a bias"


def _accumulator(found: MatchedExpression) -> Iterator[str]:
    wanted = {"int8": "int32", "int16": "int64"}.get(dtype(found.data))
    actual = str(found.call.attrs.out_dtype)
    if wanted is not None and actual != wanted:
        yield f"the accumulator is {actual}, {wanted} is taken"


_PRODUCT = (_CMSIS_CODES, weights("int8"), symmetric_weight, _zero_at_16_bits((2,)), _accumulator)
_POOL = (_CMSIS_CODES, _LAYOUT, batch)
_BINARY = (operands("int8", "int16"), _zero_at_16_bits((3, 5, 7)))

CMSIS_NN = Adapter(
    name="cmsis-nn",
    variant="tflite",
    table=_cmsis_nn_pattern_table,
    rewrites=("int8", "softmax-1/256"),
    shim=_shim,
    guards={
        # The table reads axis 3 as channels and does not ask whether it is.
        "qnn_conv2d": row(
            "qnn.conv2d",
            attribute("data_layout", "NHWC", what="the layout"),
            attribute("kernel_layout", "HWIO", "HWOI", what="the kernel layout"),
        ),
    },
    reasons={
        "qnn_conv2d": row("qnn.conv2d", *_PRODUCT, _biased),
        "qnn_fully_connected": row("qnn.dense", *_PRODUCT),
        "qnn_avg_pool2d": row("nn.avg_pool2d", *_POOL),
        "qnn_max_pool2d": row("nn.max_pool2d", *_POOL),
        "qnn_add": row("qnn.add", *_BINARY),
        "qnn_mul": row("qnn.mul", *_BINARY),
        "qnn_softmax": row(
            "nn.softmax", _CMSIS_CODES, output(("int8", 1 / 256, -128), ("int16", 1 / 32768, 0))
        ),
    },
)


# ---- ethos n -------------------------------------------------------------------------------------
# Arm's Ethos-N: its patterns; the checks that its driver stack makes are only known in part.
#
# Patterns are TVM's own. What TVM asks the driver for is answered with yes; the guards hold what is
# known to be refused: other layouts than NHWC and other batches than 1.


_QUESTIONS = (
    "conv2d", "fc", "avg_pool2d", "mean", "conv2d_transpose", "sigmoid", "tanh", "leaky_relu",
    "reinterpret_quantize", "requantize", "resize", "addition", "max_pool2d", "reshape",
    "concatenate", "split", "depth_to_space", "relu", "ConvertQnnMultiplyToReinterpretQuantize",
    "ConvertQnnMultiplyToDepthwise", "ConvertQnnAddToReinterpretQuantize",
    "ConvertQnnAddToDepthwise",
)  # fmt: skip


def _module() -> Any:
    from tvm.relay.op.contrib import ethosn

    return ethosn


def _yes(*args: Any) -> bool:
    del args
    return True


def _version(*args: Any) -> str:
    del args
    return "3.2.0"


@contextmanager
def _ethos_n_shim() -> Generator[None, None, None]:
    ethosn = _module()
    driver: builtin_types.ModuleType = ethosn._ethosn
    with ExitStack() as stack:
        stack.enter_context(patch.object(ethosn, "ethosn_available", _yes))
        stack.enter_context(patch.object(ethosn, "ethosn_api_version", _version))
        for name in _QUESTIONS:
            stack.enter_context(patch.object(driver, name, _yes, create=True))
        yield


def _ethos_n_pattern_table() -> Sequence[Any]:
    return _module().pattern_table()


_ETHOS_N_PRODUCT = (_CODES, weights("int8", "uint8"), batch)
_ETHOS_N_LAYOUT = attribute("data_layout", "NHWC", what="the layout")
_TABLE = (_CODES, batch)

ETHOS_N = Adapter(
    name="ethos-n",
    variant="tflite",
    table=_ethos_n_pattern_table,
    shim=_ethos_n_shim,
    guards={
        "qnn_conv2d": row("qnn.conv2d", *_ETHOS_N_PRODUCT, _ETHOS_N_LAYOUT),
        "qnn_conv2d_transpose": row("qnn.conv2d_transpose", *_ETHOS_N_PRODUCT, _ETHOS_N_LAYOUT),
        "qnn_fc": row("qnn.dense", *_ETHOS_N_PRODUCT),
        "qnn_avg_pool2d": row("nn.avg_pool2d", _CODES, batch, _LAYOUT),
        "qnn_mean": row("mean", *_TABLE),
        "qnn_sigmoid": row("sigmoid", *_TABLE),
        "qnn_tanh": row("tanh", *_TABLE),
        "qnn_leaky_relu": row("nn.leaky_relu", *_TABLE),
        "qnn_requantize": row("qnn.requantize", *_TABLE),
        "qnn_resize": row("image.resize2d", _CODES, batch, _LAYOUT),
        "qnn_add": row("qnn.add", *_TABLE),
        "qnn_add_to_depthwise": row("qnn.add", *_TABLE),
        "qnn_add_to_reinterpret_quantize": row("qnn.add", *_TABLE),
        "qnn_mul_to_depthwise": row("qnn.mul", *_TABLE),
        "qnn_mul_to_reinterpret_quantize": row("qnn.mul", *_TABLE),
    },
)


# ---- Arm's Ethos-U: int8, channels-last, one example at a time -----------------------------------


_INT8 = types("int8")
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


def _ethos_u_padding(*most: int) -> Rule:
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
    _CODES, weights("int8", "uint8"), batch, _STRIDES, _DILATION, _ethos_u_padding(31, 31, 32, 32),
    _refuse_large_kernel, ungrouped,
)  # fmt: skip
_ETHOS_U_POOL = (_CODES, _one_type, batch, _pool_strides, _pool_window, _LAYOUT)
_ETHOS_U_BINARY = (operands("int8", "uint8", "int32"), _refuse_ethosu_broadcast)
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
        "maxpool2d": row("nn.max_pool2d", *_ETHOS_U_POOL, _ethos_u_padding(127, 127, 128, 128)),
        "avgpool2d": row(
            "nn.avg_pool2d", *_ETHOS_U_POOL, _ethos_u_padding(3, 3, 4, 4),
            attribute("count_include_pad", False, 0),
        ),
        "add": row("qnn.add", *_ETHOS_U_BINARY),
        "sub": row("qnn.subtract", *_ETHOS_U_BINARY),
        "mul": row("qnn.mul", *_ETHOS_U_BINARY),
        "min": row("minimum", operands("int8", "uint8"), _refuse_ethosu_broadcast),
        "max": row("maximum", operands("int8", "uint8"), _refuse_ethosu_broadcast),
        "reshape": row("reshape", *_DATA_MOVEMENT),
        "strided_slice": row("strided_slice", *_DATA_MOVEMENT, extents("strides", 1, 1)),
        "expand_dims": row("expand_dims", *_DATA_MOVEMENT),
        "squeeze": row("squeeze", _INT8, rank(0, 4)),
        "split": row("split", _INT8),
        "concat": row(("concatenate", "qnn.concatenate"), _INT8, rank(1, 4), batch),
        "abs": row("abs", _CODES, rank(1, 4), batch),
        "tanh": _lookup("tanh"),
        "sigmoid": _lookup("sigmoid"),
        "leaky_relu": _lookup("nn.leaky_relu"),
        "hard_swish": _lookup("qnn.quantize"),
        "softmax": row("nn.softmax", _INT8, rank(1, 4)),
        "mean": row("mean", _CODES, rank(2, 4), _check_reduction_axes(*_SPATIAL), _mean_size),
        "sum": row("sum", types("int8", "uint8", "int16", "int32", result=("int8",)),
                   rank(1, 4), _check_reduction_axes((3,))),
        "requantize": row("qnn.requantize", *_DATA_MOVEMENT),
        "resize2d": row("image.resize2d", _INT8, rank(4, 4), _twice),
        "pad2d": row("nn.pad", _CODES, rank(4, 4), batch),
        "channel-pad": row("nn.pad", _CODES, rank(4, 4), batch),
    },
)  # fmt: skip
