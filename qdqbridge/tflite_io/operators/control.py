"""What calls other subgraphs or keeps state: branches, composites, variables."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from qdqbridge.onnx_io.assembly import Assembly
from qdqbridge.tflite_io.conversion import Resource, Row, SubgraphConversion, UnknownForm
from qdqbridge.tflite_io.schema import Op, TFLiteTensor

_SCALAR = np.zeros(0, np.int64)


def composite(c: SubgraphConversion, op: Op) -> None:
    """STABLEHLO_COMPOSITE: what it is composed of."""
    operands = [c.stored(i) for i in op.inputs]
    results = c.called(int(op.option("DecompositionSubgraphIndex")), operands)
    for place, result in enumerate(results[: len(op.outputs)]):
        c.put_stored(op, result, place)


def call(c: SubgraphConversion, op: Op) -> None:
    """CALL: another subgraph in place."""
    results = c.called(int(op.option("Subgraph")), [c.stored(i) for i in op.inputs])
    for place, result in enumerate(results[: len(op.outputs)]):
        c.put_stored(op, result, place)


def branch(c: SubgraphConversion, op: Op) -> None:
    """IF: ONNX's If of the two subgraphs."""
    condition = c.to.node("Reshape", [c.stored(op.inputs[0]), c.to.constant(_SCALAR)])
    operands = [c.stored(i) for i in op.inputs[1:]]

    def body(index: int) -> Callable[[Assembly], Sequence[str]]:
        return lambda inner: c.called(index, operands, inner)[: len(op.outputs)]

    bodies = [body(int(op.option(f"{kind}SubgraphIndex"))) for kind in ("Then", "Else")]
    results = c.to.branch(condition, bodies, len(op.outputs), label=c.label(op))
    for place, result in enumerate(results):
        c.put_stored(op, result, place)


def call_once(c: SubgraphConversion, op: Op) -> None:
    """CALL_ONCE: what variables hold before the first run."""
    index = int(op.option("InitSubgraphIndex"))
    if not 0 < index < len(c.state.model.subgraphs):
        raise UnknownForm(f"subgraph {index} does not exist")
    inner = SubgraphConversion(c.state, c.state.model.subgraphs[index], c.to)
    for each in inner.subgraph.ops:
        if each.name == "VAR_HANDLE":
            handle(inner, each)
        elif each.name == "ASSIGN_VARIABLE":
            name = inner.resources.get(each.inputs[0])
            if name is not None:
                c.state.initial[name] = (inner, each.inputs[1])
        else:
            raise UnknownForm(f"variables begin with what {each.name} computes")


def handle(c: SubgraphConversion, op: Op) -> None:
    """VAR_HANDLE: a variable by name."""
    if op.options is None:
        raise UnknownForm("its variable has no name")
    parts = [
        bytes(part or b"").decode("utf-8", "replace")
        for part in (op.option("Container"), op.option("SharedName"))
    ]
    c.resources[op.outputs[0]] = "/".join(part for part in parts if part)


def read_variable(c: SubgraphConversion, op: Op) -> None:
    """READ_VARIABLE: what it holds now; before anything is written, an input of the graph."""
    c.put_stored(op, _resource(c, op, c.tensor(op.outputs[0])).stored)


def assign_variable(c: SubgraphConversion, op: Op) -> None:
    """ASSIGN_VARIABLE: what it holds from here on; at the end, an output of the graph."""
    resource = _resource(c, op, c.at(op, 1))
    resource.stored = c.stored(op.inputs[1])


def _beginning(c: SubgraphConversion, name: str) -> str:
    """Returns what a variable holds before the first run, in words."""
    if name not in c.state.initial:
        return ""
    inner, index = c.state.initial[name]
    array = inner.array(index)
    if array is not None and array.size and (array == array.flat[0]).all():
        return f"; it begins with {array.flat[0]} everywhere"
    return f"; it begins with the file's tensor '{inner.tensor(index).label}'"


def _resource(c: SubgraphConversion, op: Op, tensor: TFLiteTensor) -> Resource:
    name = c.resources.get(op.inputs[0])
    if name is None:
        raise UnknownForm("its variable is not known")
    return c.kept(op, name, tensor, _beginning(c, name))


ROWS: Mapping[str, Row] = {
    "ASSIGN_VARIABLE": assign_variable,
    "CALL": call,
    "CALL_ONCE": call_once,
    "IF": branch,
    "READ_VARIABLE": read_variable,
    "STABLEHLO_COMPOSITE": composite,
    "VAR_HANDLE": handle,
}
