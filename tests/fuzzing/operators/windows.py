"""Windows over images: convolutions, pools; and what makes images larger."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tests.fuzzing.graph_grower import Draft, Grower, Grown


def _windows(g: Grower, image: Sequence[int]) -> dict[str, Any]:
    rank = len(image)
    kernel = [g.rng.randint(1, max(1, min(3, e))) for e in image]
    attributes: dict[str, Any] = {"kernel_shape": kernel}
    if g.chance(0.5):
        attributes["strides"] = [g.pick(1, 2, 3) for _ in range(rank)]
    if g.chance(0.3):
        attributes["auto_pad"] = g.pick("SAME_UPPER", "SAME_LOWER", "VALID", "NOTSET")
    elif g.chance(0.6):
        attributes["pads"] = [g.rng.randint(0, max(0, k - 1)) for k in (*kernel, *kernel)]
    if g.chance(0.25):
        attributes["dilations"] = [g.pick(1, 2) for _ in range(rank)]
    return attributes


def _image(g: Grower, kinds: Sequence[str] = ("float32",)) -> Grown:
    ranks = (3, 4, 4, 5)
    fits = [v for v in g.values if v.kind in kinds and v.rank in ranks]
    if fits and g.chance(0.7):
        return g.rng.choice(fits)
    shape = (
        g.pick(1, 2),
        g.pick(1, 2, 3, 4),
        *(g.rng.randint(1, 5) for _ in range(g.pick(1, 2, 2, 3))),
    )
    return g.input(g.pick("float32", "float32", *kinds), shape)


def conv(g: Grower) -> Draft | None:
    x = _image(g, ("float32", "float32", "float16", "float64"))
    channels, image = x.shape[1], x.shape[2:]
    attributes = _windows(g, image)
    groups = [n for n in (1, 1, 2, 3, channels) if n and channels % n == 0] or [1]
    group, each = g.pick(*groups), g.pick(1, 2, 3)
    if group > 1:
        attributes["group"] = group
    kernel = attributes["kernel_shape"]
    if g.chance(0.3):
        attributes.pop("kernel_shape")
    weight = g.like_constant(x.kind, (group * each, channels // group, *kernel))
    bias = [g.like_constant(x.kind, (group * each,))] if g.chance(0.6) else []
    return Draft("Conv", [x, weight, *bias], attributes)


def conv_transpose(g: Grower) -> Draft | None:
    x = _image(g)
    channels = x.shape[1]
    attributes = _windows(g, [3] * (x.rank - 2))
    group = g.pick(*[n for n in (1, 1, 2, channels) if n and channels % n == 0] or [1])
    each = g.pick(1, 2, 3)
    if group > 1:
        attributes["group"] = group
    strides = attributes.get("strides", [1] * (x.rank - 2))
    if g.chance(0.3):
        attributes["output_padding"] = [g.rng.randint(0, s - 1) for s in strides]
    elif g.chance(0.2):
        attributes["output_shape"] = [
            e * s + g.pick(0, 0, 1) for e, s in zip(x.shape[2:], strides, strict=True)
        ]
        attributes.pop("pads", None)
    weight = g.like_constant(x.kind, (channels, each, *attributes["kernel_shape"]))
    bias = [g.like_constant(x.kind, (group * each,))] if g.chance(0.6) else []
    return Draft("ConvTranspose", [x, weight, *bias], attributes)


def pool(g: Grower) -> Draft | None:
    op_type = g.pick("MaxPool", "MaxPool", "AveragePool", "AveragePool", "LpPool",
                     "GlobalAveragePool", "GlobalMaxPool", "GlobalLpPool")  # fmt: skip
    x = _image(g, g.kinds_of(op_type))
    if op_type.startswith("Global"):
        if x.kind == "float64":  # ONNX's reference adds an axis
            return None
        return Draft(op_type, [x], {"p": g.pick(1, 2, 3)} if op_type == "GlobalLpPool" else {})
    attributes = _windows(g, x.shape[2:])
    known = g.schema(op_type).attributes
    if "ceil_mode" in known and g.chance(0.4):
        attributes["ceil_mode"] = 1
    if "count_include_pad" in known and g.chance(0.5):
        attributes["count_include_pad"] = 1
    if "p" in known and g.chance(0.5):
        attributes["p"] = g.pick(1, 2, 3)
    results = 1
    if op_type == "MaxPool" and g.b.opset >= 8 and g.chance(0.3):
        results = 2
        if g.chance(0.4):
            attributes["storage_order"] = g.pick(0, 1)
    attributes = {k: v for k, v in attributes.items() if k in known}
    return Draft(op_type, [x], attributes, results)


def resize(g: Grower) -> Draft | None:
    x = g.any(["float32", "float32", "uint8", "int8", "int32"], ranks=(1, 2, 3, 4))
    mode = g.pick("nearest", "nearest", "linear", "cubic" if g.b.opset >= 11 else "linear")
    factors = [g.pick(1.0, 1.0, 2.0, 0.5, 1.5, 3.0, 0.6) for _ in x.shape]
    if mode != "nearest" and x.rank > 2:
        factors[:-2] = [1.0] * (x.rank - 2)
    scales = np.array(factors, np.float32)
    if g.b.opset < 9:
        return Draft("Upsample", [x], {"mode": mode, "scales": [max(f, 1.0) for f in factors]})
    if g.b.opset < 11:
        op_type = "Upsample" if g.b.opset == 9 else "Resize"
        return Draft(op_type, [x, g.constant(np.maximum(scales, 1))], {"mode": mode})
    kinds = ["half_pixel", "asymmetric", "align_corners", "pytorch_half_pixel"]
    if g.b.opset >= 19:
        kinds.append("half_pixel_symmetric")
    attributes: dict[str, Any] = {"mode": mode, "coordinate_transformation_mode": g.pick(*kinds)}
    if mode == "nearest":
        attributes["nearest_mode"] = g.pick(
            "round_prefer_floor", "round_prefer_ceil", "floor", "ceil"
        )
    if mode == "cubic":
        attributes |= {"exclude_outside": g.pick(0, 1), "cubic_coeff_a": g.pick(-0.75, -0.5)}
    if g.b.opset >= 18 and g.chance(0.2):
        attributes["antialias"] = 1
    empty = g.constant(np.zeros(0, np.float32)) if g.b.opset < 13 else None
    if g.chance(0.5):
        return Draft("Resize", [x, empty, g.constant(scales)], attributes)
    sizes = [max(1, round(e * f)) for e, f in zip(x.shape, factors, strict=True)]
    if g.b.opset >= 18 and g.chance(0.3):
        axes = g.rng.sample(range(x.rank), g.rng.randint(1, x.rank))
        sizes = [sizes[a] for a in axes]
        attributes |= {"axes": axes, "keep_aspect_ratio_policy":
                       g.pick("stretch", "not_larger", "not_smaller")}  # fmt: skip
    scales = empty if g.b.opset < 13 else None
    return Draft("Resize", [x, empty, scales, g.ints(*sizes)], attributes)
