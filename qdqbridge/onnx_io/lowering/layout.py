"""Channels-last nodes, as channels-first ones between transpositions that cancel.

onnxruntime's NHWC transformer gives QLinearConv, QLinearAveragePool, QLinearGlobalAveragePool and
MaxPool the layout (N, spatial…, C), and leaves elementwise operators between them as they are.
"""

from __future__ import annotations

from collections.abc import Sequence

from qdqbridge.onnx_io.lowering.context import LoweringContext

_USUAL_RANK = 4
Perm = tuple[int, ...]


def to_first(rank: int) -> Perm:
    """Returns the permutation (N, spatial…, C) -> (N, C, spatial…)."""
    return (0, rank - 1, *range(1, rank - 1))


def to_last(rank: int) -> Perm:
    """Returns the permutation (N, C, spatial…) -> (N, spatial…, C)."""
    return (0, *range(2, rank), 1)


def transposed(context: LoweringContext, name: str, perm: Perm, result: str = "") -> str:
    """Returns ``Transpose(name)``, or its source where the two cancel and no name is asked for."""
    layouts = context.known.layouts
    source, inner = layouts.get(name, ("", ()))
    order = [*range(len(inner))]  # the file's perm may be no permutation
    if source and not result and sorted(perm) == order and [inner[i] for i in perm] == order:
        return source
    made = context.op("Transpose", [name], result, perm=list(perm))
    layouts[made] = (name, perm)
    return made


def usual_rank(context: LoweringContext, name: str) -> int:
    """Returns the rank of a tensor, 4 where nothing tells it."""
    return context.known.rank(name) or _USUAL_RANK


def common_source(context: LoweringContext, names: Sequence[str]) -> tuple[list[str], Perm | None]:
    """Returns what ``names`` are transpositions of, where all are the same one."""
    layouts = context.known.layouts
    perms = {layouts[name][1] if name in layouts else None for name in names}
    perm = next(iter(perms))
    if len(perms) != 1 or perm is None:
        return list(names), None
    return [layouts[name][0] for name in names], perm
