"""TreeEnsemble: all examples walk down all trees at once, a level per step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from qdqbridge.onnx_io.codecs.view import NodeView, NoRow
from qdqbridge.tvm.qnn.emit.emitter import Expr
from qdqbridge.tvm.relax.emit.compositions.context import Composition, CompositionContext

Array = NDArray[Any]
_AVERAGE, _SUM = 0, 1
_AGGREGATIONS = ("sum", "sum", "min", "max")
"""What makes one number of a target's leaves; an average is of all trees."""
_COMPARISONS = ("less_equal", "less", "greater_equal", "greater", "equal")
_OTHER, _MEMBER = 5, 6
_DEEPEST = 64
"""Levels that are written out."""


@dataclass(frozen=True, slots=True)
class _Trees:
    """Nodes and leaves in one list, the leaves behind the nodes.

    Attributes:
        below: Where a node leads to, whose test fails or holds; leaves lead to themselves.
        feature: Which number of an example is tested; 0 at leaves.
        mode: How it is.
        split: With what, or NaN.
        members: Of each node a set, padded by NaN.
        missing: Of each node whether its test holds of NaN.
        roots: Where the trees begin.
        depth: Levels to the deepest leaf.
        inner: How many nodes there are.
    """

    below: tuple[Array, Array]
    feature: Array
    mode: Array
    split: Array
    members: Array
    missing: Array
    roots: Array
    depth: int
    inner: int

    @staticmethod
    def of(onnx: NodeView) -> _Trees:
        """Returns the trees of a node's attributes.

        Raises:
            NoRow: They lead out of their lists, in circles, or too deep.
        """
        mode, split = (onnx.tensor(f"nodes_{name}") for name in ("modes", "splits"))
        weights = onnx.tensor("leaf_weights")
        if mode is None or split is None or weights is None:
            raise NoRow("its nodes or leaves are missing")
        inner, count = len(mode), len(mode) + len(weights)
        ends = np.arange(inner, count)
        below = tuple(
            np.concatenate([
                np.array(onnx.ints(f"nodes_{side}nodeids", ()), np.int64)
                + inner * np.array(onnx.ints(f"nodes_{side}leafs", ()), np.int64), ends
            ])
            for side in ("false", "true")
        )  # fmt: skip
        feature = np.array(onnx.ints("nodes_featureids", ()), np.int64)
        missing = onnx.ints("nodes_missing_value_tracks_true", None) or (0,) * inner
        roots = np.array(onnx.ints("tree_roots", ()), np.int64)
        if any(len(each) != count for each in below) or {len(feature), len(missing)} != {inner}:
            raise NoRow("its lists differ in length")
        if any(((each < 0) | (each >= count)).any() for each in (*below, roots)):
            raise NoRow("it leads to nodes that are none")
        rest = len(weights)
        padded = [np.pad(each, (0, rest)) for each in (feature, mode, split, np.array(missing))]
        members = np.pad(_sets(onnx, mode, split.dtype), ((0, rest), (0, 0)))
        return _Trees((below[0], below[1]), padded[0], padded[1], padded[2], members, padded[3],
                      roots, _depth(below, roots, inner), inner)  # fmt: skip


def _sets(onnx: NodeView, mode: Array, dtype: Any) -> Array:
    """Returns for each node the members that it tests for, listed one after another up to NaN."""
    listed = onnx.tensor("membership_values")
    listed = np.zeros(0, dtype) if listed is None else listed
    parts = np.split(listed, np.flatnonzero(np.isnan(listed)) + 1)[:-1]
    owners = np.flatnonzero(mode == _MEMBER)
    if len(parts) != len(owners):
        raise NoRow(f"{len(owners)} nodes test for members, of {len(parts)} sets")
    found = np.full((len(mode), max([1, *map(len, parts)])), np.nan, dtype)
    for owner, part in zip(owners, parts, strict=True):
        found[owner, : len(part)] = part
    return found


def _depth(below: Sequence[Array], roots: Array, inner: int) -> int:
    """Returns after how many steps every walk is at a leaf."""
    at, depth = np.unique(roots), 0
    while (at < inner).any():
        at = np.unique(np.concatenate([each[at] for each in below]))
        depth += 1
        if depth > _DEEPEST:
            raise NoRow(f"its trees have more than {_DEEPEST} levels")
    return depth


def _tree_ensemble(context: CompositionContext) -> Sequence[Expr]:
    """The leaves that an example ends at, of each target together.

    A target without a leaf is 0, as in onnxruntime. Source: ONNX ai.onnx.ml TreeEnsemble-5.
    """
    if context.onnx.int_("post_transform", 0):
        # 1 is a softmax in ONNX's text and a logistic function in onnxruntime 1.32.
        raise NoRow("onnxruntime numbers what comes behind the sums otherwise than ONNX does")
    trees, x = _Trees.of(context.onnx), context.arg(0)
    count, features = context.extents(x)
    if not isinstance(features, int) or trees.feature.max() >= features:
        raise NoRow(f"it tests number {trees.feature.max()} of {features}")
    at = context("broadcast_to", context.number(trees.roots, "int64"), (count, len(trees.roots)))
    for _ in range(trees.depth):
        at = _descended(context, trees, x, at)
    return [_aggregated(context, context("subtract", at, context.number(trees.inner, "int64")), x)]


def _descended(context: CompositionContext, trees: _Trees, x: Expr, at: Expr) -> Expr:
    """Returns where each walk is one level further down."""

    def of(table: Array, dtype: str) -> Expr:
        return context("take", context.number(table, dtype), at, axis=0, mode="clip")

    tested = context("gather_elements", x, of(trees.feature, "int64"), 1)
    split, modes = (
        of(trees.split, context.dtype(x)),
        sorted(set(trees.mode[: trees.inner].tolist())),
    )
    holds = None
    for mode in modes:
        if mode == _MEMBER:
            sets, one = of(trees.members, context.dtype(x)), context("expand_dims", tested, 2)
            found = context("max", context.cast(context("equal", sets, one), "int8"), 2)
            own = context("greater", found, context.number(0, "int8"))
        elif mode == _OTHER:  # a NaN is another number, of which TVM's own operator says no
            own = context("logical_not", context("equal", tested, split))
        else:
            own = context(_COMPARISONS[mode], tested, split)
        chosen = context("equal", of(trees.mode, "int64"), context.number(mode, "int64"))
        holds = own if holds is None else context("where", chosen, own, holds)
    assert holds is not None
    if trees.missing.any():
        missing = context("logical_and", of(trees.missing, "bool"), context("isnan", tested))
        holds = context("logical_or", holds, missing)
    return context("where", holds, of(trees.below[1], "int64"), of(trees.below[0], "int64"))


def _aggregated(context: CompositionContext, leaf: Expr, x: Expr) -> Expr:
    """Returns for each target what its leaves come to."""
    targets, how = context.onnx.int_("n_targets", 1), context.onnx.int_("aggregate_function", _SUM)
    owner = np.array(context.onnx.ints("leaf_targetids", ()), np.int64)
    weight = context.onnx.tensor("leaf_weights")
    assert weight is not None
    if len(owner) != len(weight) or not 0 <= how < len(_AGGREGATIONS):
        raise NoRow(f"it has {len(owner)} targets for {len(weight)} leaves, aggregated by {how}")
    name = _AGGREGATIONS[how]
    outside = context.number({"min": np.inf, "max": -np.inf}.get(name, 0), x)
    own, number = (
        context(
            "expand_dims",
            context("take", context.number(table, kind), leaf, axis=0, mode="clip"),
            2,
        )
        for table, kind in ((owner, "int64"), (weight, context.dtype(x)))
    )
    mine = context("equal", own, context.number(np.arange(targets), "int64"))
    result = context(name, context("where", mine, number, outside), 1)
    if how == _AVERAGE:
        result = context("divide", result, context.number(context.extents(leaf)[1], x))
    some = context("max", context.cast(mine, "int8"), 1)
    return context("where", context.cast(some, "bool"), result, context.number(0, x))


TREES: Mapping[str, Composition] = {"TreeEnsemble": _tree_ensemble}
"""By the operator's name in ai.onnx.ml."""
