"""EmbedLayerNormalization of com.microsoft: what stands before the layers of a BERT."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from qdqbridge.tvm.qnn.emit.scope import Expr
from qdqbridge.tvm.relax.emit.compositions.site import Composition, CompositionSite

_IDS, _SEGMENTS, _WORDS, _POSITIONS, _KINDS, _GAMMA, _BETA, _MASK, _PLACES = range(9)
_SCALES, _ZERO_POINTS = 6, 11
"""How far behind a table, or a parameter of the norm, its own are."""


def _embedded(site: CompositionSite) -> Sequence[Expr]:
    """The norm of the sum of the rows of words, places and segments; how many ones a mask has.

    Source: onnxruntime docs/ContribOperators.md, embed_layer_norm.cc.
    """

    def rows(table: int, ids: Expr) -> Expr:
        return site("take", site.arg(table), ids, axis=0, mode="clip")

    total = _sum_of_rows(site, rows, _PLACES)
    results = _normed(site, total, site.arg(_GAMMA), site.arg(_BETA))
    return [*results, total][: len(site.node.outputs)]


def _stored(site: CompositionSite) -> Sequence[Expr]:
    """The same of tables and parameters of 8 bits, each with a scale and a zero point of its own.

    Source: onnxruntime docs/ContribOperators.md, qembed_layer_norm.cc.
    """

    def real(operand: int, stored: Expr) -> Expr:
        scale, zero = (
            site("reshape", site.cast(site.arg(operand + more), "float32"), ())
            for more in (_SCALES, _ZERO_POINTS)
        )
        return site("multiply", site("subtract", site.cast(stored, "float32"), zero), scale)

    def rows(table: int, ids: Expr) -> Expr:
        return real(table, site("take", site.arg(table), ids, axis=0, mode="clip"))

    norm = [real(operand, site.arg(operand)) for operand in (_GAMMA, _BETA)]
    results = _normed(site, _sum_of_rows(site, rows), norm[0], norm[1])
    return results[: len(site.node.outputs)]


def _sum_of_rows(
    site: CompositionSite, rows: Callable[[int, Expr], Expr], places_at: int | None = None
) -> Expr:
    """Returns the sum of the rows of words, places and segments.

    Args:
        site: The node.
        rows: Returns the rows of a table, by its operand and ids.
        places_at: The operand that has the places; None: they are counted.
    """
    ids = site.arg(_IDS)
    length = site.extents(ids)[1]
    places = site.counted(length)
    if places_at is not None and site.has(places_at):
        places = _shaped(site, site.arg(places_at), ids)
    total = site(
        "add", rows(_WORDS, site.cast(ids, "int64")), rows(_POSITIONS, site.cast(places, "int64"))
    )
    if site.has(_SEGMENTS):
        segments = _shaped(site, site.arg(_SEGMENTS), ids)
        total = site("add", total, rows(_KINDS, site.cast(segments, "int64")))
    return total


def _normed(site: CompositionSite, total: Expr, gamma: Expr, beta: Expr) -> list[Expr]:
    """Returns the norm of the sums, and how many ones the mask of each sequence has."""
    centred = site("subtract", total, site("mean", total, axis=-1, keepdims=True))
    variance = site("mean", site("multiply", centred, centred), axis=-1, keepdims=True)
    epsilon = site.number(site.onnx.float_("epsilon", 1e-12), total)
    normal = site("divide", centred, site("sqrt", site("add", variance, epsilon)))
    scaled = site("add", site("multiply", normal, gamma), beta)
    counted = site("zeros", (site.extents(site.arg(_IDS))[0],), "int32")
    if site.has(_MASK):
        mask = site.arg(_MASK)
        ones = site.cast(site("equal", mask, site.number(1, mask)), "int32")
        counted = site("sum", ones, axis=1)
    return [scaled, counted]


def _shaped(site: CompositionSite, ids: Expr, like: Expr) -> Expr:
    """Returns ids in the extents of others, which they have to have; one row may be for all."""
    rows, length = site.extents(ids)
    batch, wanted = site.extents(like)
    site.scope.need_same(length, wanted)
    if rows != 1:
        site.scope.need_same(rows, batch)
    return site("reshape", ids, (1 if rows == 1 else batch, wanted))


EMBEDDINGS: Mapping[str, Composition] = {
    "EmbedLayerNormalization": _embedded,
    "QEmbedLayerNormalization": _stored,
}
"""By the operator's name in the domain com.microsoft."""
