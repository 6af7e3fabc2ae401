"""Random pools and transposed convolutions: odd windows, pads, dilations, ceil_mode, all opsets."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx

from tests.onnx_models import Array, Builder

_OPSETS = (7, 8, 10, 11, 12, 13, 17, 19, 21, 22, 23)


@dataclass(frozen=True, slots=True)
class Case:
    """One operator with a window.

    Attributes:
        model: The operator on ``x``, between Q and DQ or float.
        data: What to feed.
        scale: The scale of a quantized result, None where it is float.
        like_ort: False where onnxruntime (1.32) computes something else than ONNX says: it leaves
            dilations out of SAME's padding, crops there, and below opset 19 divides by elements
            beyond the padding.
    """

    model: onnx.ModelProto
    data: dict[str, Array]
    scale: float | None
    like_ort: bool


def case(seed: int) -> Case:
    """Returns a random case; equal for equal seeds."""
    r = np.random.default_rng(seed)
    op = str(r.choice(["MaxPool", "AveragePool", "ConvTranspose"]))
    opset, rank = int(r.choice(_OPSETS)), int(r.integers(1, 4))
    kernel, strides = _numbers(r, rank, 1, 5), _numbers(r, rank, 1, 5)
    dilated = op == "ConvTranspose" or opset >= (10 if op == "MaxPool" else 19)
    dilations = _numbers(r, rank, 1, 4) if dilated and r.integers(2) else [1] * rank
    sizes = _numbers(r, rank, 1, 10)
    attributes: dict[str, Any] = {"kernel_shape": kernel, "strides": strides}
    attributes |= {"dilations": dilations} if dilations != [1] * rank else {}
    pads = [int(r.integers(0, min(size, 4))) for size in kernel * 2]
    auto = str(r.choice(["NOTSET", "NOTSET", "NOTSET", "SAME_UPPER", "SAME_LOWER", "VALID"]))
    attributes |= {"pads": pads} if auto == "NOTSET" else {"auto_pad": auto}
    pool, average = op != "ConvTranspose", op == "AveragePool"
    if pool and opset >= 10:
        attributes["ceil_mode"] = int(r.integers(2))
    inside = bool(r.integers(2))
    if average and inside:
        attributes["count_include_pad"] = 1
    odd = dilations != [1] * rank or any(s > k for s, k in zip(strides, kernel, strict=True))
    same = pool and auto.startswith("SAME") and odd
    wide = average and inside and opset < 19
    quantized = bool(r.integers(2)) and opset >= 10
    b = Builder(opset)
    scale = np.float32(0.043)
    x = b.input("x", [1, 2, *sizes])
    x = b.qdq(x, scale, 17) if quantized else x
    w = [] if pool else [b.init(r.integers(-3, 4, [2, 2, *kernel]).astype(np.float32))]
    y = b.op(op, x, *w, **attributes)
    b.output(b.qdq(y, scale, 17) if quantized else y)
    numbers = (r.integers(-17, 200, [1, 2, *sizes]) * scale).astype(np.float32)
    return Case(b.model(), {"x": numbers}, float(scale) if quantized else None, not (same or wide))


def _numbers(r: np.random.Generator, count: int, low: int, high: int) -> list[int]:
    return [int(n) for n in r.integers(low, high, count)]
