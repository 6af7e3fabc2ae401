"""Tables of vendors' forks of TVM: VeriSilicon's NPU (``vsi_npu``), and Marvell's (``mrvl``)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tvm.relay import dataflow_pattern as dfp

from qdqbridge.tvm.relay.tables.adapter import Adapter, attribute, row

# ---- VeriSilicon's NPU (``vsi_npu`` of NXP's fork of TVM), whose table is not part of TVM --------
# These patterns follow that fork's description: products with a bias of either form, tables between
# dequantize and quantize, sums on casts, and single operators; it checks nothing but shapes of
# operators. What the fork takes without a composite is an entry of one operator here.


_VSI_OPERANDS = {
    "qnn.add": 8, "qnn.subtract": 8, "qnn.mul": 8, "qnn.quantize": 3,
    "qnn.dequantize": 3, "qnn.requantize": 5, "image.resize2d": 1, "nn.max_pool2d": 1,
    "reshape": 1, "squeeze": 1, "transpose": 1, "strided_slice": 1, "nn.pad": 2,
    "nn.depth_to_space": 1,
}  # fmt: skip
"""Single operators, and how many operands they have."""


def product(op: str) -> Any:
    """Returns ``op`` of a constant weight with constant parameters."""
    constants = [dfp.is_constant() for _ in range(5)]
    return dfp.is_op(op)(dfp.wildcard(), *constants)


def biased(total: Any) -> Any:
    """Returns a sum with a bias of either form, or without."""
    bias = dfp.is_op("nn.bias_add")(total, dfp.is_constant())
    return bias | dfp.is_op("add")(total, dfp.is_constant()) | total


def requantized(total: Any) -> Any:
    """Returns ``qnn.requantize`` of a value."""
    return dfp.is_op("qnn.requantize")(total, *(dfp.is_constant() for _ in range(4)))


def concat_pattern() -> Any:
    """Returns a concatenation of either form."""
    parts = [dfp.is_tuple(None) for _ in range(4)]
    constants = [dfp.is_constant(), dfp.is_constant()]
    return dfp.is_op("qnn.concatenate")(*parts[:3], *constants) | dfp.is_op("concatenate")(parts[3])


def _float(op: str) -> Any:
    real = dfp.is_op("qnn.dequantize")(dfp.wildcard(), dfp.is_constant(), dfp.is_constant())
    return dfp.is_op("qnn.quantize")(dfp.is_op(op)(real), dfp.is_constant(), dfp.is_constant())


def _cast_pattern(value: Any) -> Any:
    return dfp.is_op("cast")(value)


def _vsi_npu_pattern_table() -> Sequence[Any]:
    wide = _cast_pattern(dfp.wildcard())
    clip = dfp.is_op("clip")(dfp.wildcard())
    named = [
        ("qnn_conv2d", requantized(biased(product("qnn.conv2d")))),
        ("qnn_dense", requantized(biased(product("qnn.dense")))),
        ("qnn_conv2d_transpose", requantized(product("qnn.conv2d_transpose"))),
        ("qnn_avg_pool2d", _cast_pattern(dfp.is_op("nn.avg_pool2d")(wide))),
        ("qnn_adaptive_avg_pool2d", _cast_pattern(dfp.is_op("nn.adaptive_avg_pool2d")(wide))),
        ("qnn_mean", requantized(dfp.is_op("mean")(wide))),
        *((f"qnn_{op.removeprefix('nn.')}", _float(op))
          for op in ("nn.softmax", "sigmoid", "nn.leaky_relu", "tanh")),
        ("qnn_clip", requantized(clip) | clip),
        ("concatenate", concat_pattern()),
        *((op, dfp.is_op(op)(*(dfp.wildcard() for _ in range(count))))
          for op, count in _VSI_OPERANDS.items()),
    ]  # fmt: skip
    return [(f"vsi_npu.{name}", pattern) for name, pattern in named]


_LAYOUT = attribute("data_layout", "NHWC", what="the layout")

VSI_NPU = Adapter(
    name="vsi_npu",
    variant="tflite",
    table=_vsi_npu_pattern_table,
    guards={
        "qnn_conv2d": row("qnn.conv2d", _LAYOUT),
        "qnn_conv2d_transpose": row("qnn.conv2d_transpose", _LAYOUT),
    },
)


# ---- mrvl ----------------------------------------------------------------------------------------
# Marvell's table (``mrvl`` of its newer fork of TVM), written for FakeQuantizationToInteger.
#
# These patterns follow that fork's description: channels-last data with OHWI kernels, ReLU as
# ``maximum``, other activations as a table behind a product (``reinterpret -> take``), averages
# between requantizes, and Relay's own ``qnn`` tables.


_MRVL_OPERANDS = {"qnn.avg_pool2d": 5, "qnn.sigmoid": 5, "qnn.tanh": 5, "qnn.requantize": 5}


def _activated(value: Any) -> Any:
    table = dfp.is_op("take")(dfp.is_constant(), dfp.is_op("reinterpret")(value))
    return table | dfp.is_op("maximum")(value, dfp.is_constant()) | value


def _call(op: str, count: int) -> Any:
    return dfp.is_op(op)(*(dfp.wildcard() for _ in range(count)))


def _either_requantized(value: Any) -> Any:
    return requantized(value) | value


def _mrvl_pattern_table() -> Sequence[Any]:
    permuted = dfp.is_op("layout_transform")(dfp.wildcard())
    image = permuted | dfp.wildcard()
    quantize = dfp.is_op("qnn.quantize")(image, dfp.wildcard(), dfp.wildcard())
    dequantize = _call("qnn.dequantize", 3)
    mean = dfp.is_op("nn.global_avg_pool2d")(requantized(dfp.wildcard()))
    named = [
        ("qnn_conv2d", _activated(requantized(biased(product("qnn.conv2d"))))),
        ("qnn_dense", _activated(requantized(biased(product("qnn.dense"))))),
        ("qnn_add", _activated(_either_requantized(_call("qnn.add", 8)))),
        ("qnn_mul", _activated(_either_requantized(_call("qnn.mul", 8)))),
        ("qnn_global_avg_pool2d", requantized(mean)),
        ("concatenate", _either_requantized(concat_pattern())),
        ("qnn_quantize", dfp.is_op("layout_transform")(quantize) | quantize),
        ("qnn_dequantize", dfp.is_op("layout_transform")(dequantize) | dequantize),
        ("max_pool2d", _call("nn.max_pool2d", 1)),
        ("reshape", _call("reshape", 1)),
        *((op.replace(".", "_"), _call(op, count)) for op, count in _MRVL_OPERANDS.items()),
    ]
    return [(f"mrvl.{name}", pattern) for name, pattern in named]


MRVL = Adapter(
    name="mrvl",
    variant="fq2i",
    table=_mrvl_pattern_table,
    guards={"qnn_conv2d": row("qnn.conv2d", attribute("data_layout", "NHWC", what="the layout"))},
)
