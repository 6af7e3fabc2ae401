"""qnn.sigmoid and every other operator of one operand: a table over its codes.

The functions are those of the operator table (``qdqbridge.ops.unary``), so that a table here and
the interpreter's cannot differ.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from tvm import te

from qdqbridge.graph.operator import NO_ATTRIBUTES, Array, Attributes, Operator
from qdqbridge.ops.attributes import (
    AlphaAttrs,
    ClipAttrs,
    GeluAttrs,
    HardSigmoidAttrs,
    SeluAttrs,
)
from qdqbridge.ops.unary import OPERATORS
from qdqbridge.qnn.dialect.kernel import stage
from qdqbridge.qnn.dialect.op import REQUIRED, Attribute, QnnOp
from qdqbridge.qnn.dialect.site import Site, TensorType
from qdqbridge.qnn.dialect.tables import index_of, quantize_table, real_codes
from qdqbridge.qnn.ranges import is_code

FIVE = ("data", "input_scale", "input_zero_point", "output_scale", "output_zero_point")
OUT_DTYPE = Attribute("out_dtype", "", "type of the result; empty takes the data's")
_ROWS: dict[str, Operator] = {operator.name: operator for operator in OPERATORS}


def infer_codes(site: Site) -> TensorType:
    """Returns the type of an operator that keeps the shape of its quantized data."""
    shape, dtype = site.tensor(0)
    out = site.attr("out_dtype") or dtype
    for name, value in (("data", dtype), ("out_dtype", out)):
        if not is_code(value):
            site.fail(f"{name} has dtype {value}", "give an 8- or 16-bit integer")
    site.expect_params(1, 2)
    site.expect_params(3, 4)
    return TensorType.of(shape, out)


@dataclass(frozen=True, slots=True)
class _Function:
    """A function of real values: the row of the operator table and its attributes."""

    name: str
    compute: Callable[[Site, Array], Array]
    attributes: tuple[Attribute, ...] = ()


def _row(
    name: str, row: str, decode: Callable[[Site], Attributes], *attributes: Attribute
) -> _Function:
    def compute(site: Site, x: Array) -> Array:
        (result,) = _ROWS[row].compute(decode(site), (x,))
        return result

    return _Function(name, compute, attributes)


def _plain(name: str, row: str = "") -> _Function:
    return _row(name, row or name.capitalize(), lambda _: NO_ATTRIBUTES)


def _alpha(name: str, row: str, default: Any) -> _Function:
    return _row(
        name, row, lambda site: AlphaAttrs(site.attr("alpha")),
        Attribute("alpha", default, "ONNX's alpha"),
    )


def _rsqrt(site: Site, x: Array) -> Array:
    del site
    with np.errstate(all="ignore"):
        return np.float32(1) / np.sqrt(x)


def _clip(site: Site) -> ClipAttrs:
    return ClipAttrs(site.attr("a_min"), site.attr("a_max"))


_HUGE = float(np.finfo(np.float32).max)
FUNCTIONS = (
    *(
        _plain(name)
        for name in (
            "sigmoid", "tanh", "exp", "log", "sin", "cos", "erf", "softplus", "mish", "sqrt",
            "reciprocal", "abs", "floor", "ceil", "round", "sign", "relu", "softsign",
        )
    ),
    _plain("negative", "Neg"),
    _plain("hardswish", "HardSwish"),
    _Function("rsqrt", _rsqrt),
    _row(
        "gelu", "Gelu", lambda site: GeluAttrs(site.attr("approximate")),
        Attribute("approximate", "none", "none (erf) or tanh"),
    ),
    _alpha("silu", "Swish", 1.0),
    _alpha("elu", "Elu", 1.0),
    _alpha("celu", "Celu", 1.0),
    _alpha("leaky_relu", "LeakyRelu", REQUIRED),
    _alpha("thresholded_relu", "ThresholdedRelu", 1.0),
    _row(
        "selu", "Selu", lambda site: SeluAttrs(site.attr("alpha"), site.attr("gamma")),
        Attribute("alpha", 1.67326319217681884765625, "ONNX's alpha"),
        Attribute("gamma", 1.05070102214813232421875, "ONNX's gamma"),
    ),
    _row(
        "hardsigmoid", "HardSigmoid",
        lambda site: HardSigmoidAttrs(site.attr("alpha"), site.attr("beta")),
        Attribute("alpha", 0.2, "slope"), Attribute("beta", 0.5, "value at 0"),
    ),
    _row(
        "clip", "Clip", _clip, Attribute("a_min", -_HUGE, "lower bound, a real number"),
        Attribute("a_max", _HUGE, "upper bound, a real number"),
    ),
)


def _lower(function: _Function) -> Any:
    def lower(site: Site) -> Any:
        dtype = site.dtype(0)
        out = site.attr("out_dtype") or dtype
        values = function.compute(site, real_codes(dtype, site.constant(1), site.constant(2)))
        table = quantize_table(values, site.constant(3), site.constant(4), out)

        def look_up(x: te.Tensor, entries: te.Tensor) -> te.Tensor:
            return stage(x.shape, lambda *i: entries[index_of(x(*i))], name="look_up")

        return site.call_te("qnn_lookup", look_up, [site.args[0], site.const(table, out)])

    return lower


def _infer_lookup(site: Site) -> TensorType:
    shape, dtype = site.tensor(0)
    entries, out = site.tensor(1)
    if not is_code(dtype):
        site.fail(f"data has dtype {dtype}", "give an 8- or 16-bit integer")
    if list(entries) != [1 << (8 if dtype in ("int8", "uint8") else 16)]:
        site.fail(f"the table has shape {entries}", "give one entry per code, by bit pattern")
    return TensorType.of(shape, out)


def _lower_lookup(site: Site) -> Any:
    def look_up(x: te.Tensor, entries: te.Tensor) -> te.Tensor:
        return stage(x.shape, lambda *i: entries[index_of(x(*i))], name="look_up")

    return site.call_te("qnn_lookup", look_up, [site.args[0], site.args[1]])


LOOKUP = QnnOp(
    "qnn.lookup", ("data", "table"),
    (Attribute("function", "", "what the table was made of, as qdqbridge.qnn.origin writes it"),),
    _infer_lookup, _lower_lookup, "table[bit pattern of data]",
)  # fmt: skip
OPS = (
    LOOKUP,
    *(
        QnnOp(
            f"qnn.{function.name}", FIVE, (*function.attributes, OUT_DTYPE), infer_codes,
            _lower(function), f"quantize({function.name}(dequantize(x))), a table over the codes",
        )
        for function in FUNCTIONS
    ),
)
