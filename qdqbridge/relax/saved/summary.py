"""What the file of a Relax module says about itself."""

from __future__ import annotations

from collections import Counter
from typing import Any

import tvm
from tvm import ir, relax

from qdqbridge.graph.header import Header
from qdqbridge.relax.read.module_errors import ReaderPlace, explained_errors


@explained_errors(ReaderPlace("the module"))
def summary(module: ir.IRModule, file: str) -> Header:
    """Returns the number of calls by operator of a module.

    Args:
        module: The module.
        file: The name of its file.
    """
    names: Counter[str] = Counter()

    def visit(expr: Any) -> None:
        if isinstance(expr, ir.Call) and isinstance(expr.op, ir.Op):
            names[str(expr.op.name).removeprefix("relax.")] += 1

    for function in module.functions.values():
        if isinstance(function, relax.Function):
            relax.analysis.post_order_visit(function.body, visit)
    return Header(file, None, {"relax": tvm.__version__}, "", dict(names.most_common()))
