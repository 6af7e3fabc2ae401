"""Operators of one operand, on each host: every code, against the operator table."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from qdqbridge.core.graph.numerics import codes, dequantize, quantize
from qdqbridge.core.graph.operator import NO_ATTRIBUTES
from qdqbridge.core.ops.attributes import (
    AlphaAttrs,
    ClipAttrs,
    GeluAttrs,
    HardSigmoidAttrs,
    SeluAttrs,
)
from tests.tvm.dialect.contract import Host, contract, params

PLAIN = {
    "sigmoid": "Sigmoid",
    "tanh": "Tanh",
    "exp": "Exp",
    "log": "Log",
    "sin": "Sin",
    "cos": "Cos",
    "erf": "Erf",
    "softplus": "Softplus",
    "mish": "Mish",
    "sqrt": "Sqrt",
    "reciprocal": "Reciprocal",
    "abs": "Abs",
    "floor": "Floor",
    "ceil": "Ceil",
    "round": "Round",
    "sign": "Sign",
    "relu": "Relu",
    "softsign": "Softsign",
    "negative": "Neg",
    "hardswish": "HardSwish",
}
WITH: list[tuple[str, str, dict[str, Any], Any]] = [
    ("gelu", "Gelu", {}, GeluAttrs("none")),
    ("gelu", "Gelu", {"approximate": "tanh"}, GeluAttrs("tanh")),
    ("silu", "Swish", {"alpha": 1.702}, AlphaAttrs(1.702)),
    ("elu", "Elu", {"alpha": 0.7}, AlphaAttrs(0.7)),
    ("celu", "Celu", {"alpha": 2.0}, AlphaAttrs(2.0)),
    ("leaky_relu", "LeakyRelu", {"alpha": 0.1}, AlphaAttrs(0.1)),
    ("thresholded_relu", "ThresholdedRelu", {"alpha": 0.5}, AlphaAttrs(0.5)),
    ("selu", "Selu", {}, SeluAttrs(1.67326319217681884765625, 1.05070102214813232421875)),
    ("hardsigmoid", "HardSigmoid", {"alpha": 0.3, "beta": 0.4}, HardSigmoidAttrs(0.3, 0.4)),
    ("clip", "Clip", {"a_min": -0.5, "a_max": 1.5}, ClipAttrs(-0.5, 1.5)),
    ("clip", "Clip", {"a_max": 1.5}, ClipAttrs(None, 1.5)),
]


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16", "uint16"])
def test_every_function_on_every_code(host: Host, dtype: str) -> None:
    small = dtype.endswith("8")
    source = params(dtype, 0.0371 if small else 0.00021, 7 if dtype[0] == "i" else 121)
    target = params(dtype, 0.0173 if small else 0.00013, 3)
    x = codes(source).reshape(4, -1)
    cases = host.cases()
    rows = [(name, row, {}, NO_ATTRIBUTES) for name, row in PLAIN.items()] + WITH
    for name, row, attrs, record in rows:
        args = [x, *host.all_args(source, target)]
        expected = contract(row, record, (x,), (source,), target)
        cases.add(f"qnn.{name}", args, attrs, expected)
    cases.check()


def test_rsqrt_and_another_result_type(host: Host) -> None:
    source, target = params("uint8", 0.05, 3), params("int8", 0.02, -5)
    x = codes(source).reshape(2, -1)
    with np.errstate(all="ignore"):
        real = np.float32(1) / np.sqrt(dequantize(x, source))
    cases = host.cases()
    args = [x, *host.all_args(source, target)]
    cases.add("qnn.rsqrt", args, {"out_dtype": "int8"}, quantize(real, target))
    cases.check()
