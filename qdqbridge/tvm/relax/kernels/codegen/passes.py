"""TVM's passes for kernels: those of its pipeline that loops of vectors need.

TVM 0.27 looks in every function for what schedules leave behind - regions of blocks, thread
bindings, conditions to be hoisted, floats of 16 and 8 bits - and searches all expressions for
common ones, several times over. A kernel has none of the former, and LLVM does the latter: of 4.3 s
that the product of any number of rows with a 4-bit weight took to compile, 3 s were such passes, of
an LSTM 17 of 23 s; neither is slower without them.
"""

from __future__ import annotations

from typing import Any

import tvm
from tvm import ir, s_tir, tirx
from tvm.tirx import compilation_pipeline

KERNEL = "qdqbridge.kernel"
"""Attribute of a function that :func:`~.script.prim_func` has made."""
_NAME = "qdqbridge"


def pipeline() -> str:
    """Returns the name under which TVM finds the passes of a module with kernels.

    Functions that are no kernels go through TVM's own passes.
    """
    compilation_pipeline.register_tir_pipeline(_NAME, _pipeline)
    return _NAME


def _pipeline() -> tuple[Any, Any, Any]:
    """Returns the passes of a module, and those behind them on the host and on a device."""
    default: Any = compilation_pipeline.get_tir_pipeline("default")
    own, host, device = default

    @tvm.transform.module_pass(opt_level=0)
    def lower(module: ir.IRModule, _: tvm.transform.PassContext) -> ir.IRModule:
        kernels, others = (
            {
                variable: function
                for variable, function in module.functions.items()
                if (KERNEL in (function.attrs or {})) == wanted
            }
            for wanted in (True, False)
        )
        made: dict[Any, Any] = {}
        for functions, passes in ((kernels, _to_functions()), (others, own)):
            if functions:
                lowered = passes(ir.IRModule(functions, attrs=module.attrs))
                made.update(lowered.functions.items())
        asked_once = {v: f.with_body(_without_checks(f.body)) for v, f in made.items()}
        return ir.IRModule(asked_once, attrs=module.attrs)

    return lower, host, device


def _without_checks(stmt: Any) -> Any:
    """Returns a function's body without what it asks of its tensors and TVM's machine knows.

    The machine looks at what a model is given, and allocates all else as the types say. To ask
    again took LLVM up to half of its time. What a run decides is asked where it is used: an
    operator may compute another extent than TVM foretold.
    """
    if isinstance(stmt, tirx.SeqStmt):
        kept = [_without_checks(one) for one in stmt.seq if not _asks_what_is_known(one)]
        return tirx.SeqStmt(kept) if len(kept) > 1 else kept[0] if kept else stmt
    if isinstance(stmt, tirx.AttrStmt) and stmt.attr_key != "compute_scope":
        body = _without_checks(stmt.body)
        return tirx.AttrStmt(stmt.node, stmt.attr_key, stmt.value, body)
    return stmt


def _asks_what_is_known(stmt: Any) -> bool:
    if isinstance(stmt, tirx.IfThenElse):  # strides, where there are any
        return isinstance(stmt.then_case, tirx.AssertStmt)
    if not isinstance(stmt, tirx.AssertStmt):
        return False
    number = not isinstance(stmt.condition, tirx.EQ) or isinstance(stmt.condition.a, tirx.IntImm)
    return number or not any(".shape[" in part.value for part in stmt.message_parts)


def of_kernels(*, vectors: bool = True) -> Any:
    """Returns the passes that leave loops over flat buffers.

    Args:
        vectors: Make vectors of the loops that are marked so. Without them no memory gets elements
            that are vectors either, as it does where arrays share some.
    """
    sharing = [tirx.transform.StorageRewrite()] if vectors else []
    return tvm.transform.Sequential(
        [
            # memory of a thread is made inside the loop of threads
            s_tir.transform.PlanAndUpdateBufferAllocationLocation(),
            s_tir.transform.ConvertBlocksToOpaque(),
            s_tir.transform.LowerOpaqueBlock(),
            tirx.transform.FlattenBuffer(),
            tirx.transform.NarrowDataType(32),
            tirx.transform.VectorizeLoop(vectors),
            *sharing,
            tirx.transform.UnrollLoop(),
            # without it registers stay memory: an LSTM was 20 times slower
            tirx.transform.StmtSimplify(),
            s_tir.transform.RewriteUnsafeSelect(),
        ]
    )


def _to_functions() -> Any:
    return tvm.transform.Sequential(
        [
            of_kernels(),
            tirx.transform.VerifyMemory(),
            tirx.transform.SplitHostDevice(),
            tirx.transform.MakePackedAPI(),
        ]
    )
