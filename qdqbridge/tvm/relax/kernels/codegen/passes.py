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
        return ir.IRModule(made, attrs=module.attrs)

    return lower, host, device


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
