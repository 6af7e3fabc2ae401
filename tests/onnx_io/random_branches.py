"""Random models of one If, Loop or Scan whose bodies capture what the graph outside has.

The outer graph writes few tensors in many ways: as initializers of equal elements, Constants,
Identities, dequantized codes, and the same operator of one input twice.
"""

from __future__ import annotations

import random

import numpy as np
from onnx import GraphProto, ModelProto, NodeProto, TensorProto, ValueInfoProto, helper
from onnx.numpy_helper import from_array

_CONSTANTS = (
    np.array([1, 2], np.float32),
    np.array([0.5, -1], np.float32),
    np.array(3, np.float32),
    np.arange(40, dtype=np.float32).reshape(20, 2),
)
_OPERATORS = ("Add", "Mul", "Sub", "Max")


def random_branches(seed: int) -> ModelProto:
    """Returns the model of a seed, with inputs ``x`` (float, [20, 2]) and ``b`` (a condition)."""
    return _Model(random.Random(seed)).model()


def _floats(name: str, shape: list[int | str] | None = None) -> ValueInfoProto:
    return helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)


def _scalar(name: str, element: int) -> ValueInfoProto:
    return helper.make_tensor_value_info(name, element, [])


class _Model:
    def __init__(self, choose: random.Random) -> None:
        self.choose = choose
        self.constants: list[TensorProto] = []
        self.nodes: list[NodeProto] = []
        self.names: list[str] = []

    def model(self) -> ModelProto:
        for number in range(self.choose.randint(2, 5)):
            self._constant(f"c{number}")
        for name in self.choose.choice([(), ("r",), ("r", "s")]):
            self.nodes.append(helper.make_node("Relu", ["x"], [name]))
            self.names.append(name)
        self.names.append("x")
        made = self.choose.choice([self._if, self._nested, self._loop, self._scan])("body", "made")
        self.nodes += [made, helper.make_node("Neg", ["made"], ["y"])]
        inputs = [_floats("x", [20, 2]), _scalar("b", TensorProto.BOOL)]
        graph = helper.make_graph(self.nodes, "g", inputs, [_floats("y")], self.constants)
        opset = helper.make_opsetid("", self.choose.choice([13, 17, 21]))
        return helper.make_model(graph, opset_imports=[opset], ir_version=9)

    def _constant(self, name: str) -> None:
        data, kind = self.choose.choice(_CONSTANTS), self.choose.randrange(5)
        if kind == 0 and self.names:
            again = self.choose.choice(self.names)
            self.nodes.append(helper.make_node("Identity", [again], [name]))
        elif kind == 1:
            self.nodes.append(helper.make_node("Constant", [], [name], value=from_array(data)))
        elif kind == 2 and data.ndim:
            codes, scale = f"{name}.q", f"{name}.s"
            self.constants.append(from_array(np.round(data * 2).astype(np.int8), codes))
            self.constants.append(from_array(np.array(0.5, np.float32), scale))
            self.nodes.append(helper.make_node("DequantizeLinear", [codes, scale], [name]))
        else:
            self.constants.append(from_array(data, name))
        self.names.append(name)

    def _chain(
        self, stem: str, start: str, result: str
    ) -> tuple[list[NodeProto], list[TensorProto]]:
        """Returns nodes from ``start`` to ``result`` and the constants that the body itself has."""
        nodes: list[NodeProto] = []
        own: list[TensorProto] = []
        last = start
        for number in range(self.choose.randint(1, 4)):
            other = self.choose.choice(self.names)
            if self.choose.random() < 0.15:
                other = f"{stem}.{number}.own"
                own.append(from_array(self.choose.choice(_CONSTANTS[:3]), other))
            pair = [last, other] if self.choose.random() < 0.7 else [other, last]
            last = f"{stem}.{number}"
            nodes.append(helper.make_node(self.choose.choice(_OPERATORS), pair, [last]))
        return [*nodes, helper.make_node("Identity", [last], [result])], own

    def _branch(self, stem: str) -> GraphProto:
        result = f"{stem}.result"
        nodes, own = self._chain(stem, self.choose.choice(self.names), result)
        return helper.make_graph(nodes, stem, [], [_floats(result)], own)

    def _if(self, stem: str, result: str) -> NodeProto:
        then, other = (self._branch(f"{stem}.{name}") for name in ("then", "else"))
        return helper.make_node("If", ["b"], [result], then_branch=then, else_branch=other)

    def _nested(self, stem: str, result: str) -> NodeProto:
        outer = self._if(stem, result)
        then = outer.attribute[0].g
        then.node.insert(0, self._if(f"{stem}.inner", f"{stem}.inner.result"))
        then.node[-1].CopyFrom(
            helper.make_node(
                "Add", [then.node[-1].input[0], f"{stem}.inner.result"], then.node[-1].output
            )
        )
        return outer

    def _loop(self, stem: str, result: str) -> NodeProto:
        nodes, own = self._chain(stem, "state", "next")
        nodes.append(helper.make_node("Identity", ["go"], ["goes"]))
        inputs = [_scalar("turn", TensorProto.INT64), _scalar("go", TensorProto.BOOL)]
        outputs = [_scalar("goes", TensorProto.BOOL), _floats("next")]
        body = helper.make_graph(nodes, stem, [*inputs, _floats("state")], outputs, own)
        self.constants.append(from_array(np.array(2), "turns"))
        return helper.make_node("Loop", ["turns", "", "x"], [result], body=body)

    def _scan(self, stem: str, result: str) -> NodeProto:
        self.names = [name for name in self.names if name not in ("x", "r", "s")]
        nodes, own = self._chain(stem, "row", "of_row")
        nodes.append(helper.make_node("Identity", ["state"], ["next"]))
        inputs, outputs = [_floats("state"), _floats("row")], [_floats("next"), _floats("of_row")]
        body = helper.make_graph(nodes, stem, inputs, outputs, own)
        return helper.make_node(
            "Scan", ["x", "x"], [f"{stem}.state", result], body=body, num_scan_inputs=1
        )
