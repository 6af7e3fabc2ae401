"""Heads of detectors: boxes decoded and thinned out by non-maximum suppression."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from qdqbridge.core.graph.dtypes import DType
from qdqbridge.tflite_io.conversion import Row, SubgraphConversion, UnknownForm
from qdqbridge.tflite_io.schema import Op

# ---- Options of custom operators: a flat map in FlexBuffers' encoding ----------------------------


_MOST_OPTIONS = 1000


def root_map(data: bytes) -> dict[str, Any]:
    """Returns the numbers of a map; whatever else it holds is left out.

    Raises:
        UnknownForm: The data are no such map.
    """
    from flatbuffers import flexbuffers

    try:
        root = flexbuffers.GetRoot(bytearray(data))
        if not root.IsMap or len(root.AsMap) > _MOST_OPTIONS:
            raise UnknownForm("its options are no map, or a long one")
        found = root.AsMap
        keys, values = found.Keys, found.Values
        return {
            keys[i].AsKey: values[i].Value
            for i in range(len(found))
            if values[i].IsNumeric or values[i].IsBool
        }
    except (ValueError, IndexError, TypeError, OverflowError, UnicodeDecodeError) as error:
        # flatbuffers reads wherever the bytes point, without a check of its own
        raise UnknownForm("its options cannot be read") from error


# ---- Heads of detectors: boxes decoded and thinned out by non-maximum suppression ----------------


def detection_post_process(c: SubgraphConversion, op: Op) -> None:
    """TFLite_Detection_PostProcess (box encodings, class scores, anchors), one image at a time.

    Boxes are centre and size relative to anchors; the first class is the background. Fast
    suppression looks at each anchor's best class only; the regular one goes class by class.
    Results are boxes (top, left, bottom, right), classes, scores and their number, filled with
    zeros. Source: TFLite's ``detection_postprocess.cc``.
    """
    options = root_map(op.custom)
    most = int(options.get("max_detections", 0))
    classes = int(options.get("num_classes", 0))
    best = int(options.get("max_classes_per_detection", 1))
    regular = bool(options.get("use_regular_nms", False))
    if most < 1 or classes < 1 or (best != 1 and not regular):
        raise UnknownForm("its options make no sense, or it reports several classes per anchor")
    boxes = _decoded(c, op, options)
    scores = c.real(op.inputs[1])  # (1, anchors, classes with background)
    label = c.shape(op.inputs[1])[-1] - classes
    if label not in (0, 1):
        raise ValueError(f"{classes} classes have {classes + label} scores")
    bounds = [c.longs([n]) for n in (label, label + classes, 2)]
    scores = c.to.node("Slice", [scores, *bounds])
    classed = c.to.node("Transpose", [scores], perm=[0, 2, 1])
    if not regular:
        classed = c.to.node("ReduceMax", [classed, c.longs([1])], keepdims=1)
    limits = [c.to.constant(np.asarray([most], np.int64))] + [
        c.to.constant(np.asarray([float(options.get(name, 0.0))], np.float32))
        for name in ("nms_iou_threshold", "nms_score_threshold")
    ]
    if regular:
        limits[0] = c.longs([int(options.get("detections_per_class", 100))])
    kept = c.to.node("NonMaxSuppression", [boxes, classed, *limits], label=c.label(op))
    of_class = c.to.node("Gather", [kept, c.to.constant(np.int64(1))], axis=1)
    anchors = c.to.node("Gather", [kept, c.to.constant(np.int64(2))], axis=1)
    places = c.to.node("Slice", [kept, c.longs([1]), c.longs([3]), c.longs([1])])
    flat = c.to.node("Squeeze", [classed, c.longs([0])])
    found = c.to.node("GatherND", [flat, places])
    count = c.to.node("Min", [c.to.node("Shape", [found]), c.longs([most])])
    top, order = c.to.nodes("TopK", [found, count], 2)
    anchors = c.to.node("Gather", [anchors, order])
    if regular:
        names = c.to.node("Gather", [of_class, order])
    else:
        best_class = c.to.node("ArgMax", [scores], axis=2, keepdims=0)
        best_class = c.to.node("Squeeze", [best_class, c.longs([0])])
        names = c.to.node("Gather", [best_class, anchors])
    chosen = c.to.node("Gather", [c.to.node("Squeeze", [boxes, c.longs([0])]), anchors])
    missing = c.to.node("Sub", [c.longs([most]), count])
    _filled(c, op, 0, chosen, missing, 2)
    _filled(c, op, 1, c.cast(names, DType.FLOAT32), missing, 1)
    _filled(c, op, 2, top, missing, 1)
    c.put(op, c.cast(count, DType.FLOAT32), 3)


def _filled(c: SubgraphConversion, op: Op, place: int, found: str, missing: str, rank: int) -> None:
    """Puts a result: zeros behind what was found, and an axis for the one image."""
    none = c.longs([0] * rank)
    behind = c.to.node("Concat", [missing, c.longs([0] * (rank - 1))], axis=0)
    amounts = c.to.node("Concat", [none, behind], axis=0)
    whole = c.to.node("Pad", [found, amounts])
    c.put(op, c.to.node("Unsqueeze", [whole, c.longs([0])], label=c.label(op)), place)


def _decoded(c: SubgraphConversion, op: Op, options: Mapping[str, Any]) -> str:
    """Returns corners (top, left, bottom, right) of boxes, (1, anchors, 4)."""
    scale = np.asarray([float(options.get(f"{k}_scale", 1.0)) for k in "yxhw"], np.float32)
    encoded = c.to.node("Div", [c.real(op.inputs[0]), c.to.constant(scale)])
    anchors = c.real(op.inputs[2])
    at, size = _halves(c, encoded, 2)
    centre, extent = _halves(c, anchors, 1)
    middle = c.to.node("Add", [c.to.node("Mul", [at, extent]), centre])
    half = c.to.node("Mul", [c.to.constant(np.float32(0.5)), c.to.node("Exp", [size])])
    half = c.to.node("Mul", [half, extent])
    corners = [c.to.node(kind, [middle, half]) for kind in ("Sub", "Add")]
    return c.to.node("Concat", corners, label=c.label(op), axis=-1)


def _halves(c: SubgraphConversion, x: str, axis: int) -> list[str]:
    return c.to.nodes("Split", [x, c.longs([2, 2])], 2, axis=axis)


def suppression(c: SubgraphConversion, op: Op) -> None:
    """NON_MAX_SUPPRESSION_V4: indices, filled with zeros, and how many count."""
    lead = c.longs([0])
    boxes = c.to.node("Unsqueeze", [c.real(op.inputs[0]), lead])
    scores = c.to.node("Unsqueeze", [c.real(op.inputs[1]), c.longs([0, 1])])
    most = c.numbers(op, 2)[0]
    limits = [c.to.node("Reshape", [c.real(op.inputs[i]), c.longs([1])]) for i in (3, 4)]
    kept = c.to.node("NonMaxSuppression", [boxes, scores, c.longs([most]), *limits])
    index = c.to.node("Gather", [kept, c.to.constant(np.int64(2))], axis=1)
    count = c.to.node("Shape", [index])
    missing = c.to.node("Concat", [lead, c.to.node("Sub", [c.longs([most]), count])], axis=0)
    padded = c.to.node("Pad", [index, missing], label=c.label(op))
    c.put_stored(op, c.cast(padded, DType.INT32), 0)
    number = c.to.node("Squeeze", [count, lead])
    c.put_stored(op, c.cast(number, DType.INT32), 1)


ROWS: Mapping[str, Row] = {
    "CUSTOM TFLite_Detection_PostProcess": detection_post_process,
    "NON_MAX_SUPPRESSION_V4": suppression,
}
