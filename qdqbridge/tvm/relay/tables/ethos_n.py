"""Arm's Ethos-N: its patterns; the checks that its driver stack makes are only known in part.

Patterns are TVM's own. What TVM asks the driver for is answered with yes; the guards hold what is
known to be refused: other layouts than NHWC and other batches than 1.
"""

from __future__ import annotations

import types as builtin_types
from collections.abc import Generator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

from qdqbridge.tvm.relay.tables.adapter import Adapter, attribute, batch, row, types, weights

_CODES = types("int8", "uint8")
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
def _shim() -> Generator[None, None, None]:
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


_PRODUCT = (_CODES, weights("int8", "uint8"), batch)
_LAYOUT = attribute("data_layout", "NHWC", what="the layout")
_TABLE = (_CODES, batch)

ETHOS_N = Adapter(
    name="ethos-n",
    variant="tflite",
    table=_ethos_n_pattern_table,
    shim=_shim,
    guards={
        "qnn_conv2d": row("qnn.conv2d", *_PRODUCT, _LAYOUT),
        "qnn_conv2d_transpose": row("qnn.conv2d_transpose", *_PRODUCT, _LAYOUT),
        "qnn_fc": row("qnn.dense", *_PRODUCT),
        "qnn_avg_pool2d": row(
            "nn.avg_pool2d", _CODES, batch, attribute("layout", "NHWC", what="the layout")
        ),
        "qnn_mean": row("mean", *_TABLE),
        "qnn_sigmoid": row("sigmoid", *_TABLE),
        "qnn_tanh": row("tanh", *_TABLE),
        "qnn_leaky_relu": row("nn.leaky_relu", *_TABLE),
        "qnn_requantize": row("qnn.requantize", *_TABLE),
        "qnn_resize": row(
            "image.resize2d", _CODES, batch, attribute("layout", "NHWC", what="the layout")
        ),
        "qnn_add": row("qnn.add", *_TABLE),
        "qnn_add_to_depthwise": row("qnn.add", *_TABLE),
        "qnn_add_to_reinterpret_quantize": row("qnn.add", *_TABLE),
        "qnn_mul_to_depthwise": row("qnn.mul", *_TABLE),
        "qnn_mul_to_reinterpret_quantize": row("qnn.mul", *_TABLE),
    },
)
