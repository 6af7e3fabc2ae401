"""The smallest part of a graph that still does what the whole one did."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

from tests.fuzzing.operator_stages import Case, Outcome, outcomes
from tests.onnx_models import Array

_ROUNDS = 3


def shrunk(case: Case, stage: str, outcome: Outcome) -> Case:
    """Returns a case with fewer nodes, inputs and outputs whose stage has the same outcome."""
    best, stages = case, [*dict.fromkeys(("load", stage))]

    def same(other: Case) -> bool:
        try:
            found = outcomes(other, stages).get(stage)
        except Exception:  # no smaller case, whatever is wrong with it
            return False
        return found is not None and _kind(found) == _kind(outcome)

    for index in range(len(case.sets)):  # one set of inputs
        fewer = Case(best.model, [case.sets[index]], [case.values[index]])
        if same(fewer):
            best = fewer
            break
    for _ in range(_ROUNDS):
        before = len(best.model.graph.node)
        best = _fewer_outputs(best, same)
        best = _cut(best, same)
        if len(best.model.graph.node) == before:
            break
    return best


def _kind(outcome: Outcome) -> tuple[str, str]:
    reason = outcome.reason
    if outcome.outcome == "wrong":
        kinds = ("shape", "digest", "differ", "instead")
        return outcome.outcome, next((kind for kind in kinds if kind in reason), "")
    if outcome.outcome == "error":
        return outcome.outcome, reason.split(":")[0] + reason.split(">")[-1]
    return outcome.outcome, reason.split("'")[0][:30] + reason.split(": ", 1)[-1].split("'")[0][:40]


def _pruned(model: onnx.ModelProto) -> onnx.ModelProto:
    needed = {value.name for value in model.graph.output}
    nodes = []
    for node in reversed(model.graph.node):
        if needed & set(node.output):
            nodes.append(node)
            needed |= set(node.input)
            for attribute in node.attribute:
                for inner in attribute.g.node:
                    needed |= set(inner.input)
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    del copy.graph.node[:], copy.graph.initializer[:], copy.graph.input[:]
    copy.graph.node.extend(reversed(nodes))
    copy.graph.initializer.extend(p for p in model.graph.initializer if p.name in needed)
    copy.graph.input.extend(v for v in model.graph.input if v.name in needed)
    return copy


def _fed(case: Case, model: onnx.ModelProto) -> Case:
    def named(
        values: Mapping[str, Array], shown: Iterable[onnx.ValueInfoProto]
    ) -> dict[str, Array]:
        return {value.name: values[value.name] for value in shown}

    graph = model.graph
    sets = [(named(values, graph.input), named(values, graph.output)) for values in case.values]
    return Case(model, sets, case.values)


def _fewer_outputs(case: Case, same: Callable[[Case], bool]) -> Case:
    """Tries every node's result as the only output, the first nodes first."""
    results = [name for node in case.model.graph.node for name in node.output if name]
    for name in results:
        model = onnx.ModelProto()
        model.CopyFrom(case.model)
        kind = helper.np_dtype_to_tensor_dtype(case.values[0][name].dtype)
        del model.graph.output[:]
        model.graph.output.append(helper.make_tensor_value_info(name, kind, None))
        fewer = _fed(case, _pruned(model))
        if same(fewer):
            return fewer
    return case


def _cut(case: Case, same: Callable[[Case], bool]) -> Case:
    """Tries to feed what nodes give, the first nodes first, as an input or as a constant."""
    best = case
    for node in list(case.model.graph.node):
        if node.op_type in ("Constant", "ConstantOfShape"):
            continue
        for constant in (False, True):
            model = onnx.ModelProto()
            model.CopyFrom(best.model)
            kept = [n for n in model.graph.node if n.output[0] != node.output[0]]
            if len(kept) == len(model.graph.node):
                break
            del model.graph.node[:]
            model.graph.node.extend(kept)
            read = {n for each in kept for n in each.input}
            for name in node.output:
                if name in read:
                    array = case.values[0][name]
                    if constant:
                        model.graph.initializer.append(numpy_helper.from_array(array, name))
                    else:
                        kind = helper.np_dtype_to_tensor_dtype(array.dtype)
                        open_ = len(best.sets) > 1
                        shape = [f"{name}_{i}" if open_ else e for i, e in enumerate(array.shape)]
                        model.graph.input.append(helper.make_tensor_value_info(name, kind, shape))
            if any(value.name in node.output for value in model.graph.output):
                break
            fewer = _fed(best, _pruned(model))
            if same(fewer):
                best = fewer
                break
    return best


def words(case: Case) -> str:
    """Returns a case in words: inputs, nodes and small constants."""
    graph, lines = case.model.graph, [f"    opset {case.model.opset_import[0].version}"]
    feeds = case.sets[0][0]
    for value in graph.input:
        dims = [d.dim_param or d.dim_value for d in value.type.tensor_type.shape.dim]
        array = feeds[value.name]
        lines.append(f"    input {value.name}: {array.dtype}{dims} = {_short(array)}")
    for proto in graph.initializer:
        array = numpy_helper.to_array(proto)
        lines.append(f"    const {proto.name}: {array.dtype}{list(array.shape)} = {_short(array)}")
    for node in graph.node:
        attributes = {
            a.name: "graph" if a.type == onnx.AttributeProto.GRAPH
            else _short(numpy_helper.to_array(a.t)) if a.type == onnx.AttributeProto.TENSOR
            else helper.get_attribute_value(a)
            for a in node.attribute
        }  # fmt: skip
        lines.append(
            f"    {', '.join(node.output)} = {node.op_type}({', '.join(node.input)}) {attributes}"
        )
    outputs = [value.name for value in graph.output]
    lines.append(f"    outputs {outputs}")
    return "\n".join(lines)


def _short(array: Any) -> str:
    text = np.array2string(np.asarray(array), separator=",", threshold=24, edgeitems=6)
    text = " ".join(text.split())
    return text if len(text) < 200 else text[:200] + "…"
