"""Products on hosts whose operators take matrices, or stacks of them, only."""

from __future__ import annotations

import math
from typing import Any

from qdqbridge.core.ops.attributes import GemmAttrs
from qdqbridge.tvm.qnn.emit.scope import EmissionScope, Expr


def batches(
    scope: EmissionScope, x: Expr, w: Expr, gemm: GemmAttrs
) -> tuple[Expr, Expr, list[Any]]:
    """Returns operands (B, M, K) and (B, N, K), and the leading extents that B stands for."""
    lead = _broadcast(scope.extents(x)[:-2], scope.extents(w)[:-2])
    if gemm.trans_a:
        x = _swapped(scope, x)
    if not gemm.trans_b:
        w = _swapped(scope, w)
    return _stacked(scope, x, lead), _stacked(scope, w, lead), lead


def _broadcast(a: list[Any], b: list[Any]) -> list[Any]:
    rank = max(len(a), len(b))
    left, right = [1] * (rank - len(a)) + a, [1] * (rank - len(b)) + b
    return [y if x == 1 else x for x, y in zip(left, right, strict=True)]


def _swapped(scope: EmissionScope, x: Expr) -> Expr:
    rank = scope.rank(x)
    return scope.emit(scope.op.permute_dims(x, [*range(rank - 2), rank - 1, rank - 2]))


def _stacked(scope: EmissionScope, x: Expr, lead: list[Any]) -> Expr:
    extents = scope.extents(x)
    if extents[:-2] != lead:
        x = scope.emit(scope.op.broadcast_to(x, [*lead, *extents[-2:]]))
    if len(lead) != 1:
        x = scope.emit(scope.op.reshape(x, [math.prod(lead), *extents[-2:]]))
    return x
