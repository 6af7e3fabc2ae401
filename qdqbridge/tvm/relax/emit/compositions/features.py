"""Features of classical models: those that are chosen, and those above a threshold."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from qdqbridge.onnx_io.codecs.view import NoRow
from qdqbridge.tvm.qnn.emit.emitter import Expr
from qdqbridge.tvm.relax.emit.compositions.context import Composition, CompositionContext


def _array_feature_extractor(context: CompositionContext) -> Sequence[Expr]:
    """Elements of the last axis; of a vector a matrix of one row, as onnxruntime has it."""
    x, indices = context.arg(0), context("reshape", context.arg(1), (-1,))
    *rows, extent = context.extents(x)
    if extent == 0:
        raise NoRow("its data has no features")
    context.emitter.at_least(extent, 1)
    chosen = context("take", x, indices, axis=-1, mode="clip")  # TVM reads wherever indices say
    return [chosen if rows else context("expand_dims", chosen, 0)]


def _binarizer(context: CompositionContext) -> Sequence[Expr]:
    x = context.arg(0)
    threshold = context.onnx.float_("threshold", 0.0)
    own = context.dtype(x)
    compared = x if "float" in own else context.cast(x, "float64")
    return [context.cast(context("greater", compared, context.number(threshold, compared)), own)]


FEATURES: Mapping[str, Composition] = {
    "ArrayFeatureExtractor": _array_feature_extractor,
    "Binarizer": _binarizer,
}
"""By the operator's name in ai.onnx.ml."""
