"""Products on hosts whose operators take matrices, or stacks of them, only."""

from __future__ import annotations

import math
from typing import Any

from qdqbridge.core.ops.attributes import GemmAttrs
from qdqbridge.tvm.qnn.emit.emitter import Expr, FunctionEmitter


def batches(
    emitter: FunctionEmitter, x: Expr, w: Expr, gemm: GemmAttrs
) -> tuple[Expr, Expr, list[Any]]:
    """Returns operands (B, M, K) and (B, N, K), and the leading extents that B stands for."""
    lead = _broadcast_extents(emitter.extents(x)[:-2], emitter.extents(w)[:-2])
    if gemm.trans_a:
        x = _swapped(emitter, x)
    if not gemm.trans_b:
        w = _swapped(emitter, w)
    return _stacked(emitter, x, lead), _stacked(emitter, w, lead), lead


def _broadcast_extents(a: list[Any], b: list[Any]) -> list[Any]:
    rank = max(len(a), len(b))
    left, right = [1] * (rank - len(a)) + a, [1] * (rank - len(b)) + b
    return [y if x == 1 else x for x, y in zip(left, right, strict=True)]


def _swapped(emitter: FunctionEmitter, x: Expr) -> Expr:
    rank = emitter.rank(x)
    return emitter.emit(emitter.op.permute_dims(x, [*range(rank - 2), rank - 1, rank - 2]))


def _stacked(emitter: FunctionEmitter, x: Expr, lead: list[Any]) -> Expr:
    extents = emitter.extents(x)
    if extents[:-2] != lead:
        x = emitter.emit(emitter.op.broadcast_to(x, [*lead, *extents[-2:]]))
    if len(lead) != 1:
        x = emitter.emit(emitter.op.reshape(x, [math.prod(lead), *extents[-2:]]))
    return x
