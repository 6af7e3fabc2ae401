"""Features of classical models: those that are chosen, and those above a threshold."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from qdqbridge.onnx_io.codecs.view import NoRow
from qdqbridge.tvm.qnn.emit.scope import Expr
from qdqbridge.tvm.relax.emit.compositions.site import Composition, CompositionSite


def _array_feature_extractor(site: CompositionSite) -> Sequence[Expr]:
    """Elements of the last axis; of a vector a matrix of one row, as onnxruntime has it."""
    x, indices = site.arg(0), site("reshape", site.arg(1), (-1,))
    *rows, extent = site.extents(x)
    if extent == 0:
        raise NoRow("its data has no features")
    site.scope.at_least(extent, 1)
    chosen = site("take", x, indices, axis=-1, mode="clip")  # TVM reads wherever indices say
    return [chosen if rows else site("expand_dims", chosen, 0)]


def _binarizer(site: CompositionSite) -> Sequence[Expr]:
    x = site.arg(0)
    threshold = site.onnx.float_("threshold", 0.0)
    own = site.dtype(x)
    compared = x if "float" in own else site.cast(x, "float64")
    return [site.cast(site("greater", compared, site.number(threshold, compared)), own)]


FEATURES: Mapping[str, Composition] = {
    "ArrayFeatureExtractor": _array_feature_extractor,
    "Binarizer": _binarizer,
}
"""By the operator's name in ai.onnx.ml."""
