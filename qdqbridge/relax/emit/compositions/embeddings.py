"""EmbedLayerNormalization of com.microsoft: what stands before the layers of a BERT."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from qdqbridge.qnn.emit.scope import Expr
from qdqbridge.relax.emit.compositions.site import Composition, CompositionSite

_IDS, _SEGMENTS, _WORDS, _POSITIONS, _KINDS, _GAMMA, _BETA, _MASK, _PLACES = range(9)


def _embedded(site: CompositionSite) -> Sequence[Expr]:
    """The norm of the sum of the rows of words, places and segments; how many ones a mask has.

    Source: onnxruntime docs/ContribOperators.md, embed_layer_norm.cc.
    """

    def rows(table: int, ids: Expr) -> Expr:
        return site("take", site.arg(table), site.cast(ids, "int64"), axis=0)

    ids = site.arg(_IDS)
    batch, length = site.extents(ids)
    places = _shaped(site, site.arg(_PLACES), ids) if site.has(_PLACES) else site.counted(length)
    total = site("add", rows(_WORDS, ids), rows(_POSITIONS, places))
    if site.has(_SEGMENTS):
        total = site("add", total, rows(_KINDS, _shaped(site, site.arg(_SEGMENTS), ids)))
    centred = site("subtract", total, site("mean", total, axis=-1, keepdims=True))
    variance = site("mean", site("multiply", centred, centred), axis=-1, keepdims=True)
    epsilon = site.number(site.onnx.float_("epsilon", 1e-12), total)
    normal = site("divide", centred, site("sqrt", site("add", variance, epsilon)))
    scaled = site("add", site("multiply", normal, site.arg(_GAMMA)), site.arg(_BETA))
    counted = site("zeros", (batch,), "int32")
    if site.has(_MASK):
        mask = site.arg(_MASK)
        ones = site.cast(site("equal", mask, site.number(1, mask)), "int32")
        counted = site("sum", ones, axis=1)
    return [scaled, counted, total][: len(site.node.outputs)]


def _shaped(site: CompositionSite, ids: Expr, like: Expr) -> Expr:
    """Returns ids in the extents of others, which they have to have; one row may be for all."""
    rows, length = site.extents(ids)
    batch, wanted = site.extents(like)
    site.scope.need_same(length, wanted)
    if rows != 1:
        site.scope.need_same(rows, batch)
    return site("reshape", ids, (1 if rows == 1 else batch, wanted))


EMBEDDINGS: Mapping[str, Composition] = {"EmbedLayerNormalization": _embedded}
"""By the operator's name in the domain com.microsoft."""
