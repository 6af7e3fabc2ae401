"""Operators that work element by element, with at most a few coefficients."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from qdqbridge.graph.dtypes import DType
from qdqbridge.graph.operator import NO_ATTRIBUTES, Attributes
from qdqbridge.onnx_io.codecs.codec import (
    OLDEST,
    Codec,
    Decoded,
    Encoded,
    Operands,
    decoded,
    encoded,
    plain,
    real_dtype,
)
from qdqbridge.onnx_io.codecs.view import NodeView, NoRow
from qdqbridge.ops.attributes import (
    AlphaAttrs,
    ClipAttrs,
    GeluAttrs,
    HardSigmoidAttrs,
    SeluAttrs,
)

_PLAIN = (
    "Add Sub Mul Div Min Max Pow PRelu Where Sigmoid Tanh Exp Log Sqrt Reciprocal Erf Abs Neg "
    "Floor Ceil Round Sin Cos Softplus Softsign Relu Sign"
)


def _alpha(
    name: str, default: float, introduced: int = OLDEST, *, domain: str = "", row: str = ""
) -> Codec:
    def read(node: NodeView) -> Decoded:
        return decoded(row or name, AlphaAttrs(node.float_("alpha", default)), node.operands)

    def write(attributes: AlphaAttrs, operands: Operands, opset: int) -> Encoded:
        del opset
        return encoded(name, operands, alpha=attributes.alpha)

    return Codec(
        onnx_name=name,
        domain=domain,
        row=row or name,
        read=read,
        introduced=introduced,
        write=None if domain else write,
        known=("alpha",) if domain else (),
    )


def _two(
    name: str,
    record: Callable[[float, float], Attributes],
    first: tuple[str, float],
    second: tuple[str, float],
) -> Codec:
    def read(node: NodeView) -> Decoded:
        return decoded(name, record(node.float_(*first), node.float_(*second)), node.operands)

    def write(attributes: Attributes, operands: Operands, opset: int) -> Encoded:
        del opset
        pairs = {key: getattr(attributes, key) for key in (first[0], second[0])}
        return encoded(name, operands, **pairs)

    return Codec(onnx_name=name, row=name, read=read, write=write)


def _read_gelu(node: NodeView) -> Decoded:
    approximate = node.string("approximate", "none") if node.domain == "" else "none"
    if approximate not in ("none", "tanh"):
        raise NoRow(f"approximate is '{approximate}'")
    return decoded("Gelu", GeluAttrs(approximate), node.operands)


def _write_gelu(attributes: GeluAttrs, operands: Operands, opset: int) -> Encoded:
    del opset
    return encoded("Gelu", operands, approximate=attributes.approximate)


def _read_clip(node: NodeView) -> Decoded:
    if node.opset < 11:
        low = node.float_("min", -np.inf) if node.has("min") else None
        high = node.float_("max", np.inf) if node.has("max") else None
        if np.isnan([low or 0.0, high or 0.0]).any():
            raise node.fault(
                "a bound of Clip is NaN", why=f"min is {low}, max is {high}; no runtime takes them"
            )
    else:
        low, high = node.constant_number(1), node.constant_number(2)
    least, most = _range(node.operand(0))
    low = None if low is None or low <= least else low
    high = None if high is None or high >= most else high
    return decoded("Clip", ClipAttrs(low, high), node.operands[:1])


def _range(value: object) -> tuple[float, float]:
    """Returns the bounds that ONNX stands in for a Clip's left-out ones."""
    dtype = real_dtype(value)  # type: ignore[arg-type]
    if dtype.is_integer:
        return float(dtype.qmin), float(dtype.qmax)
    if dtype.bits not in (32, 64):
        return -np.inf, np.inf
    limits = np.finfo(dtype.numpy)
    return float(limits.min), float(limits.max)


def _bound(bound: float, dtype: DType) -> float:
    """Returns a bound that an integer type can hold and that means the same."""
    if not dtype.is_integer or dtype.qmin < bound < dtype.qmax:
        return bound
    return dtype.qmax if bound >= dtype.qmax else dtype.qmin


def _write_clip(attributes: ClipAttrs, operands: Operands, opset: int) -> Encoded:
    del opset
    dtype = real_dtype(operands[0])
    bounds = [
        None if bound is None else np.array(_bound(bound, dtype), dtype.numpy)
        for bound in (attributes.low, attributes.high)
    ]
    return encoded("Clip", [operands[0], *bounds])


def _read_dropout(node: NodeView) -> Decoded:
    training = node.constant(2) if node.opset >= 12 else None
    if training is not None and training.any():
        raise NoRow("it is in training mode")
    if node.results() > 1:
        raise NoRow("its mask is a result")
    return decoded("Identity", NO_ATTRIBUTES, node.operands[:1])


CODECS = (
    *(plain(name) for name in _PLAIN.split()),
    plain("HardSwish", 14),
    plain("Mish", 18),
    plain("Identity"),
    _alpha("LeakyRelu", 0.01),
    _alpha("Elu", 1.0),
    _alpha("Celu", 1.0),
    _alpha("ThresholdedRelu", 1.0),
    _alpha("Swish", 1.0, 24),
    _alpha("QuickGelu", 1.702, domain="com.microsoft", row="Swish"),
    _two("Selu", SeluAttrs, ("alpha", 1.67326319217681884765625), ("gamma", 1.05070102214813232)),
    _two("HardSigmoid", HardSigmoidAttrs, ("alpha", 0.2), ("beta", 0.5)),
    Codec(onnx_name="Gelu", row="Gelu", read=_read_gelu, write=_write_gelu, introduced=20),
    Codec(onnx_name="Gelu", domain="com.microsoft", row="Gelu", read=_read_gelu),
    Codec(onnx_name="Clip", row="Clip", read=_read_clip, write=_write_clip),
    Codec(onnx_name="Dropout", row="Identity", read=_read_dropout),
)
