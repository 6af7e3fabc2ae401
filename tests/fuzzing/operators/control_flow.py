"""If, Loop and Scan."""

from __future__ import annotations

from typing import Any

import numpy as np
from onnx import TensorProto, helper

from tests.fuzzing.graph_grower import Draft, Grower


def _body(g: Grower, name: str, nodes: Any, inputs: Any, outputs: Any, constants: Any = ()) -> Any:
    return helper.make_graph(nodes, name, inputs, outputs, initializer=list(constants))


def branch(g: Grower) -> Draft | None:
    conditions = [v for v in g.values if v.kind == "bool" and v.first.size == 1]
    condition = (g.pick(*conditions) if conditions and g.chance(0.7)
                 else g.input_of(np.array(g.chance(0.5))))  # fmt: skip
    x = g.any(["float32", "int64", "int32"])
    kind = helper.np_dtype_to_tensor_dtype(x.first.dtype)
    bodies = []
    for name, op_type in (
        ("then", g.pick("Neg", "Abs", "Identity")),
        ("else", g.pick("Neg", "Abs")),
    ):
        result = f"{name}_{g.b.count}"
        node = helper.make_node(op_type, [x.name], [result])
        value = helper.make_tensor_value_info(result, kind, [None] * x.rank)
        bodies.append(_body(g, name, [node], [], [value]))
    attributes = {"then_branch": bodies[0], "else_branch": bodies[1]}
    return Draft("If", [condition], attributes, captured=[x])


def loop(g: Grower) -> Draft | None:
    if g.b.opset < 11:
        return None
    x = g.any(["float32", "int64"])
    kind = helper.np_dtype_to_tensor_dtype(x.first.dtype)
    n = f"{g.b.count}"
    value = helper.make_tensor_value_info
    nodes = [
        helper.make_node("Identity", [f"go{n}"], [f"on{n}"]),
        helper.make_node(g.pick("Add", "Sub", "Mul"), [f"state{n}", x.name], [f"next{n}"]),
        helper.make_node("Identity", [f"next{n}"], [f"row{n}"]),
    ]
    inputs = [value(f"i{n}", TensorProto.INT64, []), value(f"go{n}", TensorProto.BOOL, []),
              value(f"state{n}", kind, [None] * x.rank)]  # fmt: skip
    outputs = [value(f"on{n}", TensorProto.BOOL, []), value(f"next{n}", kind, [None] * x.rank),
               value(f"row{n}", kind, [None] * x.rank)]  # fmt: skip
    count = g.pick(0, 1, 3)
    trips, go = g.constant(np.array(count)), g.constant(np.array(True))
    if g.chance(0.3):
        trips = g.input_of(trips.first)
    attributes = {"body": _body(g, "body", nodes, inputs, outputs)}
    return Draft("Loop", [trips, go, x], attributes, 2 if count else 1, [x])


def scan(g: Grower) -> Draft | None:
    if g.b.opset < 9:
        return None
    x = g.any(["float32", "int32"], ranks=(1, 2, 3))
    kind, rank, n = helper.np_dtype_to_tensor_dtype(x.first.dtype), x.rank - 1, f"{g.b.count}"
    state = g.constant(g.data(x.kind, x.shape[1:]))
    value = helper.make_tensor_value_info
    nodes = [
        helper.make_node(g.pick("Add", "Mul", "Max"), [f"s{n}", f"x{n}"], [f"t{n}"]),
        helper.make_node("Neg", [f"t{n}"], [f"y{n}"]),
    ]
    inputs = [value(f"s{n}", kind, [None] * rank), value(f"x{n}", kind, [None] * rank)]
    outputs = [value(f"t{n}", kind, [None] * rank), value(f"y{n}", kind, [None] * rank)]
    attributes: dict[str, Any] = {"body": _body(g, "body", nodes, inputs, outputs),
                                  "num_scan_inputs": 1}  # fmt: skip
    if g.chance(0.3):
        attributes["scan_input_directions"] = [1]
    if g.chance(0.3):
        attributes["scan_output_directions"] = [1]
    return Draft("Scan", [state, x], attributes, 2)
