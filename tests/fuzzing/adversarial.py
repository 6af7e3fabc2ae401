"""Files that a stranger sends: broken in one place each, cut off, or asking for what nobody has.

Beside the broken models of ``tests/onnx_io/bad_models.py`` and ``bad_parameters.py``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from tests.onnx_io import bad_models, bad_parameters
from tests.onnx_io.bad_parts import CASES, Breaker, initializer, node, put, set_attribute, weight
from tests.onnx_models import conv_model

Model = onnx.ModelProto
PARTS = 16
LARGEST = (1 << 63) - 1
SOURCES = (bad_models, bad_parameters)  # importing them fills CASES
CONTROL = ("\x1b[31mred", "a\x00b", "a\nb\r", "\u202egpj", "\x9b2J", "{x}%s[bold]", "../../etc", "")


def _renamed(model: Model, name: str) -> None:
    """Gives everything that has a name one that begins so."""
    for tensor in model.graph.initializer:
        tensor.name = name + tensor.name
    for value in (*model.graph.input, *model.graph.output):
        value.name = name + value.name
    for each in model.graph.node:
        each.name = name + each.name
        each.input[:] = [name + given for given in each.input]
        each.output[:] = [name + made for made in each.output]
    model.graph.name = model.producer_name = model.doc_string = name


def _sparse(*indices: int, dims: tuple[int, ...] = (4,)) -> Breaker:
    def broken(model: Model) -> None:
        values = numpy_helper.from_array(np.ones(len(indices), np.float32), "sparse")
        places = numpy_helper.from_array(np.array(indices, np.int64), "places")
        model.graph.sparse_initializer.append(helper.make_sparse_tensor(values, places, dims))
        model.graph.node.append(helper.make_node("Identity", ["sparse"], ["of_sparse"]))

    return broken


def _attribute(name: str, value: Any) -> Breaker:
    return lambda model: set_attribute(node(model, "Conv"), name, value)


def _scales(value: float) -> Breaker:
    def broken(model: Model) -> None:
        for index in range(4):
            tensor = initializer(model, "DequantizeLinear", 1, index)
            put(tensor, np.full_like(numpy_helper.to_array(tensor), value))

    return broken


def _extents(*dims: int | str, results: bool = False) -> Breaker:
    def broken(model: Model) -> None:
        value = (model.graph.output if results else model.graph.input)[0]
        value.CopyFrom(helper.make_tensor_value_info(value.name, TensorProto.FLOAT, dims))

    return broken


def _function(domain: str, name: str, called: str, count: int) -> Breaker:
    """A function that calls one, itself perhaps, so often; the graph calls it in its end."""

    def broken(model: Model) -> None:
        nodes = [helper.make_node(called, ["a" if i == 0 else f"a{i}"], [f"a{i + 1}"],
                                  domain=domain) for i in range(count)]  # fmt: skip
        own = [helper.make_opsetid("", 17), helper.make_opsetid("f", 1)]
        model.functions.append(helper.make_function(domain, name, ["a"], [f"a{count}"], nodes, own))
        made = model.graph.node[-1].output[0]
        model.graph.node[-1].output[0] = "before"
        model.graph.node.append(helper.make_node(name, ["before"], [made], domain=domain))
        model.opset_import.append(helper.make_opsetid("f", 1))

    return broken


def _chain(model: Model, op_type: str, count: int, **attributes: Any) -> None:
    """Puts nodes of one type behind the graph, one behind the other."""
    last = model.graph.output[0].name
    model.graph.node[-1].output[0] = "chain_0"
    names = [*(f"chain_{i}" for i in range(count)), last]
    for given, made in pairwise(names):
        model.graph.node.append(helper.make_node(op_type, [given], [made], **attributes))


def _nested(depth: int) -> Breaker:
    def broken(model: Model) -> None:
        value = helper.make_tensor_value_info("inner", TensorProto.FLOAT, None)
        leaf = helper.make_graph([helper.make_node("Neg", ["x"], ["inner"])], "b", [], [value])
        body, node_ = leaf, leaf.node[0]
        for _ in range(depth):
            node_ = helper.make_node("If", ["c"], ["inner"], then_branch=body, else_branch=leaf)
            body = helper.make_graph([node_], "b", [], [value])
        model.graph.node.append(node_)
        model.graph.initializer.append(numpy_helper.from_array(np.array(True), "c"))

    return broken


def _put_tensor(**fields: Any) -> Breaker:
    """Changes fields of the weight's tensor."""

    def broken(model: Model) -> None:
        for name, value in fields.items():
            if name == "dims":
                weight(model).dims[:] = value
            else:
                setattr(weight(model), name, value)

    return broken


def _imports(*imports: tuple[str, int]) -> Breaker:
    def broken(model: Model) -> None:
        model.opset_import.extend(helper.make_opsetid(*each) for each in imports)

    return broken


BREAKERS: dict[str, Callable[[Model], Any]] = {
    **{f"names {i}": lambda m, name=name: _renamed(m, name) for i, name in enumerate(CONTROL)},
    **{f"sparse {i}": _sparse(*i) for i in ((4,), (-1,), (0, 0), (2, 1), (LARGEST,), ())},
    "sparse huge": _sparse(0, dims=(1 << 40,)),
    "sparse negative": _sparse(0, dims=(-4,)),
    **{
        f"{name} {value}": _attribute(name, value)
        for name in ("pads", "strides", "dilations", "kernel_shape")
        for value in ([LARGEST] * 4, [-LARGEST - 1, 1], [1 << 31] * 2)
    },
    "group": _attribute("group", LARGEST),
    "auto_pad": _attribute("auto_pad", "\x1b[2JSAME"),
    "group of text": _attribute("group", "one"),
    **{f"scale {v}": _scales(v) for v in (np.nan, -0.1, 0.0, -0.0, np.inf, 1e-45, 3e38)},
    **{f"extents {i}": _extents(*i) for i in ((0, 3, 6, 6), (1, 3, 0, 6), (), (-1, 3, 6, 6))},
    "extents named": _extents("a b\n[", 3, "6", "*"),
    "extents of output": _extents(1 << 62, 1 << 62, results=True),
    "calls itself": _function("f", "F", "F", 1),
    "calls itself often": _function("f", "F", "F", 30),
    "calls none": _function("f", "F", "G", 3),
    "empty function": _function("f", "F", "F", 0),
    "takes Relu's place": _function("", "Relu", "Relu", 2),
    "a long chain": lambda m: _chain(m, "Relu", 600),
    "a chain of transposes": lambda m: _chain(m, "Transpose", 200, perm=[0, 1, 3, 2]),
    "nested branches": _nested(25),
    "imports of nobody": _imports(("nobody", 1 << 40)),
    "imports twice": _imports(("", 11), ("", 17)),
    "imports below": _imports(("ai.onnx.ml", -3)),
    "no element type": lambda m: m.graph.input[0].type.tensor_type.ClearField("elem_type"),
    "output without type": lambda m: m.graph.output[0].ClearField("type"),
    "a map as input": lambda m: m.graph.input[0].type.map_type.SetInParent(),
    "segments": lambda m: weight(m).segment.SetInParent(),
    "both kinds of data": lambda m: weight(m).int32_data.extend([1, 2]),
    "extents of weight": _put_tensor(dims=[LARGEST, LARGEST]),
    "extents of weight below": _put_tensor(dims=[-4, 3, 3, 3]),
    "no weight": _put_tensor(raw_data=b""),
    "text in weight": _put_tensor(data_type=TensorProto.STRING),
    "an operator of no type": lambda m: m.graph.node[0].ClearField("op_type"),
    "metadata": lambda m: m.metadata_props.add(key="\x1b]0;title\x07", value="v" * 100_000),
}  # fmt: skip


def adversarial() -> Iterator[tuple[str, bytes]]:
    """Yields each file: what is wrong with it, and what it holds."""
    breakers = {name: breaker for name, (breaker, _) in CASES.items()} | BREAKERS
    for name, breaker in breakers.items():
        model = conv_model()
        breaker(model)
        data = model.SerializeToString()
        yield name, data.replace(b"NOT-TEXT", b"\xff\xfeT-TEXT")
    whole = conv_model().SerializeToString()
    for part in range(PARTS):
        yield f"{part} of {PARTS} parts", whole[: len(whole) * part // PARTS]
