"""What the file of a Relax module says about itself."""

from __future__ import annotations

from collections import Counter

import tvm
from tvm import ir

from qdqbridge.core.graph.header import Header
from qdqbridge.tvm.relax.read.module_errors import ReaderPlace, explained_errors
from qdqbridge.tvm.relax.read.visiting import calls_of


@explained_errors(ReaderPlace("the module"))
def summary(module: ir.IRModule, file: str) -> Header:
    """Returns the number of calls by operator of a module.

    Args:
        module: The module.
        file: The name of its file.
    """
    names = Counter(
        str(call.op.name).removeprefix("relax.")
        for call in calls_of(module)
        if isinstance(call.op, ir.Op)
    )
    return Header(file, None, {"relax": tvm.__version__}, "", dict(names.most_common()))
