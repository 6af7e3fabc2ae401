"""``If`` whose condition is known at run time only: a function for each branch, one that chooses.

TVM's own importer takes all but the last operator of a branch out of it: both are computed then.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tvm import ir, relax, tirx

from qdqbridge.core.canonical import canonicalize
from qdqbridge.core.graph.graph import Graph, Node
from qdqbridge.onnx_io.control_flow.conditional import branch_of, branches_of
from qdqbridge.tvm.qnn.emit.dtypes import tvm_dtype
from qdqbridge.tvm.relax.emit.functions import added

EmitBranch = Callable[[Graph], ir.IRModule]
_BRANCHES = ("then_branch", "else_branch")


def conditional_module(node: Node, emit_branch: EmitBranch) -> ir.IRModule:
    """Returns a module whose ``main`` takes what an If takes, constants left out.

    Results whose extents are others in the other branch have no extents in its type.

    Args:
        node: An opaque If.
        emit_branch: Emits a branch as a module.

    Raises:
        QdqBridgeError: A branch cannot be read, or not be emitted.
    """
    condition = node.operand(0)
    if condition.constant is not None:  # the other branch need not be one of these extents
        return emit_branch(canonicalize(branch_of(node, bool(condition.constant.numpy().all()))))
    modules = [emit_branch(canonicalize(graph)) for graph in branches_of(node)]
    builder = relax.BlockBuilder()
    pairs = zip(modules, _BRANCHES, strict=True)
    branches = [added(builder, module, name) for module, name in pairs]
    parameters: Any = _branch_parameters(node)
    chosen, captured = parameters[0], parameters[1:]
    with builder.function("main", parameters):
        scalar: Any = relax.op.reshape(chosen, relax.ShapeExpr([])) if condition.rank else chosen
        then, other = (relax.Call(branch, captured) for branch in branches)
        result = builder.emit(relax.If(builder.normalize(scalar), then, other))
        builder.emit_func_output(result)
    return builder.finalize()


def _branch_parameters(node: Node) -> list[relax.Var]:
    """Returns a parameter per operand that is not constant; a branch may want more of extents."""
    extents: dict[str, tirx.Var] = {}
    found: list[relax.Var] = []
    for value in node.inputs:
        if value is None or value.constant is not None:
            continue
        shape: Any = [
            extents.setdefault(extent, tirx.Var(extent, "int64"))
            if isinstance(extent, str)
            else extent
            for extent in value.type.shape or ()
        ]
        found.append(relax.Var(value.name, relax.TensorType(shape, tvm_dtype(value.type.dtype))))
    return found
