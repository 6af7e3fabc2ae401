"""From a TE function to a call of a PrimFunc whose inner loop LLVM can vectorize."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tvm import relax, s_tir, te
from tvm.relax.utils import gen_call_tir_inputs

BLOCK = "accumulate"
"""Name of the stage that :func:`emit_reduction` takes for the reduction by default."""

DATA_PARALLEL = 0
"""``IterVar.kDataPar`` of TVM."""


def stage(shape: Any, element: Callable[..., Any], name: str) -> te.Tensor:
    """Returns the TE tensor of ``shape`` whose element at ``i…`` is ``element(*i)``."""
    tensor: Any = te.compute(shape, element, name=name)
    return tensor


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
    blocks: Sequence[str] = (BLOCK,),
) -> Any:
    """As :func:`emit`, with the initialization of reductions taken out of their loops.

    Args:
        builder: The builder of the module.
        name: Hint for the name of the PrimFunc.
        function: Makes a TE tensor.
        args: Relax expressions.
        inner: How many of the last data loops are fused and run inside the reduction loops; with
            0 the reduction is innermost.
        blocks: Names of the stages that reduce.
    """
    func, call_args, type_ = gen_call_tir_inputs(function, *args)
    schedule = s_tir.Schedule(func)
    for block in blocks:
        _reorder(schedule, block, inner)
    result = schedule.mod["main"].without_attr("global_symbol")
    return relax.call_tir(builder.add_func(result, name), call_args, type_)


def _reorder(schedule: Any, name: str, inner: int) -> None:
    block = schedule.get_sblock(name)
    loops = list(schedule.get_loops(block))
    axes = schedule.get(block).iter_vars
    data = sum(int(axis.iter_type) == DATA_PARALLEL for axis in axes)
    outer, reduction = loops[:data], loops[data:]
    if inner:
        fused = schedule.fuse(*outer[-inner:]) if inner > 1 else outer[-1]
        schedule.reorder(*outer[:-inner], *reduction, fused)
    schedule.decompose_reduction(block, reduction[0])
