"""From a TE function to a call of a PrimFunc whose inner loop LLVM can vectorize."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tvm import relax, s_tir
from tvm.relax.utils import gen_call_tir_inputs

BLOCK = "accumulate"
"""Name of the reduction that :func:`emit_reduction` reorders."""


def emit(
    builder: relax.BlockBuilder, name: str, function: Callable[..., Any], args: Sequence[Any]
) -> Any:
    """Returns a call of the PrimFunc that TE makes of ``function``; loops stay as TE has them."""
    return builder.call_te(function, *args, primfunc_name_hint=name)


def emit_reduction(
    builder: relax.BlockBuilder,
    name: str,
    function: Callable[..., Any],
    args: Sequence[Any],
    *,
    inner: int = 0,
) -> Any:
    """As :func:`emit`, with the initialization of a reduction taken out of its loop.

    Args:
        builder: The builder of the module.
        name: Hint for the name of the PrimFunc.
        function: Makes a TE tensor; its reduction is the stage named ``BLOCK``.
        args: Relax expressions.
        inner: How many of the last data loops are fused and run inside the reduction loops; with
            0 the reduction is innermost.
    """
    func, call_args, type_ = gen_call_tir_inputs(function, *args)
    schedule = s_tir.Schedule(func)
    block = schedule.get_sblock(BLOCK)
    loops = list(schedule.get_loops(block))
    kinds = [str(var.iter_type) for var in schedule.get(block).iter_vars]
    data = len([kind for kind in kinds if kind == "0"])
    outer, reduction = loops[:data], loops[data:]
    if inner:
        fused = schedule.fuse(*outer[-inner:]) if inner > 1 else outer[-1]
        schedule.reorder(*outer[:-inner], *reduction, fused)
    schedule.decompose_reduction(block, reduction[0])
    result = schedule.mod["main"].without_attr("global_symbol")
    return relax.call_tir(builder.add_func(result, name), call_args, type_)
