"""Marvell's table (``mrvl`` of its newer fork of TVM), written for FakeQuantizationToInteger.

These patterns follow that fork's description: channels-last data with OHWI kernels, ReLU as
``maximum``, other activations as a table behind a product (``reinterpret -> take``), averages
between requantizes, and Relay's own ``qnn`` tables.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tvm.relay import dataflow_pattern as dfp

from qdqbridge.tvm.relay.tables.adapter import Adapter
from qdqbridge.tvm.relay.tables.rules import attribute, row
from qdqbridge.tvm.relay.tables.vsi_npu import biased, concat_pattern, product, requantized

_ONE = {"qnn.avg_pool2d": 5, "qnn.sigmoid": 5, "qnn.tanh": 5, "qnn.requantize": 5}


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
        *((op.replace(".", "_"), _call(op, count)) for op, count in _ONE.items()),
    ]
    return [(f"mrvl.{name}", pattern) for name, pattern in named]


MRVL = Adapter(
    name="mrvl",
    variant="fq2i",
    table=_mrvl_pattern_table,
    guards={"qnn_conv2d": row("qnn.conv2d", attribute("data_layout", "NHWC", what="the layout"))},
)
