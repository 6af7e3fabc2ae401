"""Random nodes of the operators that are composed on TVM, against onnxruntime.

``python -m tests.tvm.relax.random_compositions [COUNT [SEED]]``: so many nodes, a few dozen per
model,
with operands that only the run knows. Prints what differs, and how many nodes there were of which
operator.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

import numpy as np
from onnx import TensorProto, helper

import qdqbridge as qb
from tests.onnx_models import Array, Builder, canonical

OPSET = 21
PER_MODEL = 24


@dataclass(frozen=True)
class Case:
    """One node: operands (None is left out), attributes, element types of the results."""

    op_type: str
    operands: Sequence[Array | None]
    attributes: dict[str, Any]
    results: tuple[int, ...] = (TensorProto.FLOAT,)

    def __str__(self) -> str:
        shapes = [None if a is None else f"{a.dtype}{list(a.shape)}" for a in self.operands]
        return f"{self.op_type}{self.attributes} of {shapes}"


def _shape(rng: Random, low: int = 1, high: int = 4, most: int = 5) -> tuple[int, ...]:
    return tuple(rng.randint(1, most) for _ in range(rng.randint(low, high)))


def _real(rng: Random, shape: Sequence[int]) -> Array:
    return np.random.default_rng(rng.randrange(1 << 30)).normal(size=shape).astype(np.float32) * 2


def _whole(rng: Random, shape: Sequence[int], dtype: str = "int32", most: int = 9) -> Array:
    drawn = np.random.default_rng(rng.randrange(1 << 30)).integers(-most, most + 1, shape)
    return (abs(drawn) if dtype.startswith("u") else drawn).astype(dtype)


def _axis(rng: Random, rank: int) -> int:
    return rng.randrange(-rank, rank)


_REDUCTIONS = (
    "ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin", "ReduceProd", "ReduceL1", "ReduceL2",
    "ReduceSumSquare", "ReduceLogSum", "ReduceLogSumExp",
)  # fmt: skip


def _reduction(rng: Random) -> Case:
    op_type, shape = rng.choice(_REDUCTIONS), _shape(rng)
    axes = rng.sample(range(len(shape)), rng.randint(0, len(shape)))
    signed = [axis - rng.choice((0, len(shape))) for axis in axes]
    integer = rng.random() < 0.3 and op_type in ("ReduceSum", "ReduceMax", "ReduceMin")
    x = _whole(rng, shape) if integer else _real(rng, shape)
    x = np.abs(x) + np.float32(0.1) if op_type == "ReduceLogSum" else x
    attributes = {"keepdims": rng.randint(0, 1)}
    if axes and rng.random() < 0.5:
        attributes["noop_with_empty_axes"] = 1
    kind = TensorProto.INT32 if integer else TensorProto.FLOAT
    return Case(op_type, [x, np.array(signed, np.int64)], attributes, (kind,))


def _norm(rng: Random) -> Case:
    shape = _shape(rng)
    x = _real(rng, shape)
    if rng.random() < 0.3:
        x[..., 0] = 0
    return Case("LpNormalization", [x], {"axis": _axis(rng, len(shape)), "p": rng.randint(1, 2)})


def _running(rng: Random) -> Case:
    shape, integer = _shape(rng), rng.random() < 0.3
    x = _whole(rng, shape) if integer else _real(rng, shape)
    attributes = {"exclusive": rng.randint(0, 1), "reverse": rng.randint(0, 1)}
    kind = TensorProto.INT32 if integer else TensorProto.FLOAT
    axis = np.array(_axis(rng, len(shape)), np.int64)
    return Case("CumSum", [x, axis], attributes, (kind,))


def _top(rng: Random) -> Case:
    shape = _shape(rng)
    axis = _axis(rng, len(shape))
    dtype = rng.choice(("int32", "int64"))
    x = _whole(rng, shape, dtype) if rng.random() < 0.4 else _real(rng, shape)
    k = np.array([rng.randint(1, shape[axis])], np.int64)
    kind = helper.np_dtype_to_tensor_dtype(x.dtype)
    attributes = {"axis": axis, "largest": rng.randint(0, 1), "sorted": 1}
    return Case("TopK", [x, k], attributes, (kind, TensorProto.INT64))


def _one_hot(rng: Random) -> Case:
    shape, depth = _shape(rng, most=4), rng.randint(2, 5)
    indices = np.random.default_rng(rng.randrange(1 << 30)).integers(-depth, depth, shape)
    values = _real(rng, (2,))
    axis = rng.randrange(-len(shape) - 1, len(shape) + 1)
    return Case("OneHot", [indices, np.array(depth, np.int64), values], {"axis": axis})


def _pad(rng: Random) -> Case:
    shape = tuple(e + 2 for e in _shape(rng, 1, 3, 3))
    mode = rng.choice(("constant", "constant", "edge", "reflect", "wrap"))
    some = rng.random() < 0.5
    axes = rng.sample(range(len(shape)), rng.randint(1, len(shape))) if some else range(len(shape))
    low = -1 if mode in ("constant", "edge") else 0
    pads = [rng.randint(low, 2) for _ in range(2 * len(axes))]
    filled = mode == "constant" and rng.random() < 0.7
    value = np.array(rng.random(), np.float32) if filled else None
    listed = np.array(list(axes), np.int64) if some else None
    return Case("Pad", [_real(rng, shape), np.array(pads, np.int64), value, listed], {"mode": mode})


def _split(rng: Random) -> Case:
    shape = tuple(e + 1 for e in _shape(rng))
    axis = _axis(rng, len(shape))
    first = rng.randint(0, shape[axis])
    sizes = np.array([first, shape[axis] - first], np.int64)
    return Case("Split", [_real(rng, shape), sizes], {"axis": axis}, (TensorProto.FLOAT,) * 2)


def _filled(rng: Random) -> Case:
    value = helper.make_tensor("value", TensorProto.INT64, [1], [rng.randint(-5, 5)])
    shape = np.array(_shape(rng), np.int64)
    return Case("ConstantOfShape", [shape], {"value": value}, (TensorProto.INT64,))


def _affine_grid(rng: Random) -> Case:
    axes = rng.randint(2, 3)
    size = (rng.randint(1, 3), 2, *(rng.randint(1, 6) for _ in range(axes)))
    matrices = _real(rng, (size[0], axes, axes + 1))
    attributes = {"align_corners": rng.randint(0, 1)}
    return Case("AffineGrid", [matrices, np.array(size, np.int64)], attributes)


def _suppression(rng: Random) -> Case:
    images, classes, count = rng.randint(1, 2), rng.randint(1, 3), rng.randint(1, 20)
    boxes = np.round(_real(rng, (images, count, 4))) / 2  # so that some are as far apart as others
    scores = np.round(_real(rng, (images, classes, count)))
    most = np.array(rng.choice((0, 2, 30)), np.int64)
    overlap, score = (np.array([rng.choice((0, 0.25, 0.5))], np.float32) for _ in range(2))
    given = [most, rng.choice((None, overlap)), rng.choice((None, score))]
    attributes = {"center_point_box": rng.randint(0, 1)}
    return Case("NonMaxSuppression", [boxes, scores, *given], attributes, (TensorProto.INT64,))


def _fourier(rng: Random) -> Case:
    inverse, onesided = rng.randint(0, 1), rng.randint(0, 1)
    complex_ = bool(inverse and onesided) or (not onesided and rng.random() < 0.5)
    shape = (*_shape(rng, 2, 3), 1 + complex_)
    attributes = {"inverse": inverse, "onesided": onesided}
    return Case("DFT", [_real(rng, shape)], attributes)


def _eye(rng: Random) -> Case:
    x = _whole(rng, (rng.randint(1, 5), rng.randint(1, 5)))
    attributes = {"k": rng.randint(-3, 3), "dtype": int(TensorProto.FLOAT)}
    return Case("EyeLike", [x], attributes)


def _infinite(rng: Random) -> Case:
    x = np.array([1, np.inf, -np.inf, np.nan, -3, 0], np.float32)
    attributes = {"detect_negative": rng.randint(0, 1), "detect_positive": rng.randint(0, 1)}
    return Case("IsInf", [x], attributes, (TensorProto.BOOL,))


def _shift(rng: Random) -> Case:
    dtype, shape = rng.choice(("uint8", "uint32", "uint64")), _shape(rng)
    x = _whole(rng, shape, dtype, 200)
    count = _whole(rng, shape[-1:], dtype, 7)
    kind = helper.np_dtype_to_tensor_dtype(x.dtype)
    return Case("BitShift", [x, count], {"direction": rng.choice(("LEFT", "RIGHT"))}, (kind,))


def _resize(rng: Random) -> Case:
    mode = rng.choice(("nearest", "linear", "cubic"))
    rank = 4 if mode == "cubic" else rng.randint(3, 4)
    x = _real(rng, tuple(rng.randint(2, 6) for _ in range(rank)))
    resized = range(2, rank)
    kind = rng.choice(("half_pixel", "asymmetric", "align_corners", "pytorch_half_pixel"))
    attributes: dict[str, Any] = {"mode": mode, "coordinate_transformation_mode": kind}
    if mode == "nearest":
        # Halves fall on one side or the other by the last bit of a quotient.
        attributes["nearest_mode"] = rng.choice(("floor", "round_prefer_floor"))
        attributes["coordinate_transformation_mode"] = "asymmetric"
    if mode == "cubic":
        attributes["exclude_outside"] = rng.randint(0, 1)
    if mode != "nearest" and rng.random() < 0.3 and rank == 4:
        attributes |= {"antialias": 1, "coordinate_transformation_mode": "half_pixel"}
        attributes.pop("exclude_outside", None)
    if rng.random() < 0.5:
        factors = [rng.choice((0.5, 1.0, 2.0)) if axis in resized else 1.0 for axis in range(rank)]
        return Case("Resize", [x, None, np.array(factors, np.float32)], attributes)
    sizes = [x.shape[axis] * rng.choice((1, 2)) if axis in resized else x.shape[axis]
             for axis in range(rank)]  # fmt: skip
    return Case("Resize", [x, None, None, np.array(sizes, np.int64)], attributes)


def _layer_norm(rng: Random) -> Case:
    shape = _shape(rng, 2, 4)
    axis = _axis(rng, len(shape))
    scale = _real(rng, shape[axis:])
    return Case("LayerNormalization", [_real(rng, shape), scale], {"axis": axis},
                (TensorProto.FLOAT,) * 3)  # fmt: skip


def _loss(rng: Random) -> Case:
    batch, classes = rng.randint(1, 4), rng.randint(2, 5)
    rest = _shape(rng, 0, 2, 3) if rng.random() < 0.5 else ()
    target = np.random.default_rng(rng.randrange(1 << 30)).integers(0, classes, (batch, *rest))
    weight = np.abs(_real(rng, (classes,))) + np.float32(0.1) if rng.random() < 0.5 else None
    reduction = rng.choice(("none", "sum", "mean"))
    scores = _real(rng, (batch, classes, *rest))
    op_type = rng.choice(("SoftmaxCrossEntropyLoss", "NegativeLogLikelihoodLoss"))
    return Case(op_type, [scores, target, weight], {"reduction": reduction})


def _regions(rng: Random) -> Case:
    """Regions inside, across and beyond the border, of less than a pixel, and turned around."""
    count, height, width = rng.randint(1, 5), rng.randint(1, 9), rng.randint(1, 9)
    x = _real(rng, (rng.randint(1, 3), rng.randint(1, 3), height, width))
    rois = np.abs(_real(rng, (count, 4))) * np.float32(4) - np.float32(2)
    if rng.random() < 0.7:
        rois = np.concatenate([rois[:, :2], rois[:, :2] + np.abs(rois[:, 2:])], axis=1)
    batch = np.abs(_whole(rng, (count,), "int64")) % x.shape[0]
    attributes = {
        "mode": rng.choice(("avg", "max")),
        "coordinate_transformation_mode": rng.choice(("half_pixel", "output_half_pixel")),
        "output_height": rng.randint(1, 3),
        "output_width": rng.randint(1, 3),
        "sampling_ratio": rng.randint(0, 3),
        "spatial_scale": rng.choice((0.25, 0.7, 1.0, 1.5)),
    }
    return Case("RoiAlign", [x, rois, batch], attributes)


def _dynamic(rng: Random) -> Case:
    x = _real(rng, _shape(rng)) * np.float32(rng.choice((0, 1e-42, 0.1, 1, 1e30)))
    x = np.abs(x) * np.float32(rng.choice((-1, 1))) if rng.random() < 0.5 else x
    results = (TensorProto.UINT8, TensorProto.FLOAT, TensorProto.UINT8)
    return Case("DynamicQuantizeLinear", [x], {}, results)


def _folded(rng: Random) -> Case:
    """Windows of an image of two axes, onto which they are added."""
    image, block = ([rng.randint(low, low + 3) for _ in range(2)] for low in (4, 1))
    strides, dilations = ([rng.randint(1, 2) for _ in range(2)] for _ in range(2))
    pads = [rng.randint(0, 2) for _ in range(4)]
    ends = [n + pads[i] + pads[2 + i] for i, n in enumerate(image)]
    block = [min(k, (e - 1) // d + 1) for k, d, e in zip(block, dilations, ends, strict=True)]
    counts = [
        (e - (k - 1) * d - 1) // s + 1
        for e, k, d, s in zip(ends, block, dilations, strides, strict=True)
    ]
    shape = (rng.randint(1, 2), rng.randint(1, 3) * block[0] * block[1], counts[0] * counts[1])
    attributes = {"strides": strides, "dilations": dilations, "pads": pads}
    return Case("Col2Im", [_real(rng, shape), np.array(image), np.array(block)], attributes)


MAKERS: tuple[Callable[[Random], Case], ...] = (
    _reduction, _reduction, _reduction, _norm, _running, _top, _one_hot, _pad, _split, _filled,
    _affine_grid, _suppression, _fourier, _eye, _infinite, _shift, _resize, _resize, _layer_norm,
    _loss, _regions, _regions, _dynamic, _folded,
)  # fmt: skip


def cases(count: int, seed: int = 0) -> list[Case]:
    """Returns random nodes."""
    rng = Random(seed)
    return [rng.choice(MAKERS)(rng) for _ in range(count)]


def differing(chosen: Sequence[Case]) -> list[str]:
    """Compiles nodes as one model; returns what differs from onnxruntime, in words."""
    b = Builder(opset=OPSET)
    feeds: dict[str, Array] = {}
    names: dict[str, Case] = {}
    for case in chosen:
        operands: list[str] = []
        for array in case.operands:
            if array is None:
                operands.append("")
                continue
            kind = helper.np_dtype_to_tensor_dtype(array.dtype)
            operands.append(b.input(b.name("in"), array.shape, kind))
            feeds[operands[-1]] = array
        first = b.op(case.op_type, *operands, outputs=len(case.results), **case.attributes)
        for index, kind in enumerate(case.results):
            name = f"{first}:{index}" if index else first
            b.output(name, None, kind)
            names[name] = case
    graph = canonical(b.model())
    found, wanted = qb.compile(graph, threads=1).run(feeds), qb.evaluate(graph, feeds)
    return [
        f"{case}: {found[name].ravel()[:6]} instead of {wanted[name].ravel()[:6]}"
        for name, case in names.items()
        if not _agree(found[name], wanted[name])
    ]


def _agree(found: Array, wanted: Array) -> bool:
    if found.dtype != wanted.dtype or found.shape != wanted.shape:
        return False
    if wanted.dtype.kind != "f":
        return np.array_equal(found, wanted)
    # Float bodies: functions and sums of TVM's own, a chain of them behind one another.
    return np.allclose(found, wanted, rtol=2e-5, atol=2e-5, equal_nan=True)


def main() -> None:
    """Runs the command line."""
    count, seed = (int(text) for text in [*sys.argv[1:3], *("240", "0")[len(sys.argv[1:3]) :]])
    drawn, bad = cases(count, seed), 0
    for start in range(0, len(drawn), PER_MODEL):
        for line in differing(drawn[start : start + PER_MODEL]):
            bad += 1
            print(line, flush=True)
    print(f"{bad} results differ of {count} nodes", dict(Counter(case.op_type for case in drawn)))


if __name__ == "__main__":
    main()
