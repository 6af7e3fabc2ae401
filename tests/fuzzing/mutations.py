"""Damage to models: bytes, fields, attributes, shapes, structure; each case from one seed."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

import numpy as np
import onnx
from google.protobuf.message import DecodeError
from onnx import TensorProto, helper, numpy_helper

NUMBERS = (-(2**63), -(2**31), -9, -2, -1, 0, 1, 2, 3, 4, 7, 16, 100, 2**15, 2**31, 2**40, 2**62)
FLOATS = (float("nan"), float("inf"), -float("inf"), 0.0, -0.0, 1e-42, 3e38, -1.0, 0.5, 1.0, 1e9)
TEXTS = ("", "x", "axis", "Conv", "QuantizeLinear", "Reshape", "\0", "é", "../x", "SAME_UPPER",
         "cubic", "linear", "not_larger", "reflect", "wrap", "com.microsoft")  # fmt: skip
OPERATORS = (
    "Add", "Mul", "Div", "Conv", "ConvTranspose", "Gemm", "MatMul", "Relu", "Clip", "Softmax",
    "Reshape", "Transpose", "Tile", "Pad", "Expand", "Resize", "Range", "ConstantOfShape", "Slice",
    "Gather", "Split", "Concat", "ReduceMean", "AveragePool", "MaxPool", "LayerNormalization",
    "BatchNormalization", "InstanceNormalization", "QuantizeLinear", "DequantizeLinear", "Cast",
    "Shape", "Squeeze", "Unsqueeze", "Flatten", "Identity", "If", "Loop", "Where", "DepthToSpace",
    "OneHot", "EyeLike", "Upsample", "Constant", "Size", "NonZero", "TopK", "Einsum", "Dropout",
)  # fmt: skip


def mutated(valid: bytes, rng: Random) -> bytes:
    """Returns a damaged copy of a serialized model: one in ten its bytes, else its fields."""
    return damaged(valid, rng) if rng.random() < 0.1 else restructured(valid, rng)


def restructured(valid: bytes, rng: Random) -> bytes:
    """Returns a copy of a serialized model that is one still, of other fields."""
    model = onnx.ModelProto()
    try:
        model.ParseFromString(valid)
    except DecodeError:
        return damaged(valid, rng)
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        mutation = rng.choice(MUTATIONS)
        try:
            mutation(model, rng)
        except (ValueError, TypeError, IndexError, OverflowError, KeyError):
            continue  # protobuf does not hold it, or there is nothing to change
    return model.SerializeToString()


def damaged(valid: bytes, rng: Random) -> bytes:
    """Returns a copy of a file with other bytes."""
    data = bytearray(valid)
    for _ in range(rng.choice((1, 1, 2, 4, 24))):
        if not data:
            break
        at = rng.randrange(len(data))
        match rng.randrange(6):
            case 0:
                del data[at : at + rng.choice((1, 4, 100))]
            case 1:
                data[at:at] = rng.randbytes(rng.choice((1, 4, 16)))
            case 2:
                del data[at:]
            case 3:
                other = rng.randrange(len(data))
                data[at:at] = data[other : other + rng.choice((2, 20, 200))]
            case _:
                data[at] ^= 1 << rng.randrange(8)
    return bytes(data)


def _field(model: onnx.ModelProto, rng: Random) -> None:
    """Walks into a random submessage and changes one of its fields."""
    message: Any = model
    while fields := message.ListFields():
        descriptor, value = rng.choice(fields)
        repeated = hasattr(value, "append") or hasattr(value, "add")
        if descriptor.message_type is None:
            new = _scalar(descriptor, rng)
            if repeated:
                value[rng.randrange(len(value))] = new
            else:
                setattr(message, descriptor.name, new)
            return
        children = list(value) if repeated else [value]
        if repeated and rng.random() < 0.1:
            del value[rng.randrange(len(children))]
            return
        message = rng.choice(children)


def _scalar(descriptor: Any, rng: Random) -> Any:
    if descriptor.cpp_type == descriptor.CPPTYPE_STRING:
        binary = descriptor.type == descriptor.TYPE_BYTES
        return rng.randbytes(rng.randrange(40)) if binary else rng.choice(TEXTS)
    if descriptor.cpp_type in (descriptor.CPPTYPE_FLOAT, descriptor.CPPTYPE_DOUBLE):
        return rng.choice(FLOATS)
    if descriptor.cpp_type == descriptor.CPPTYPE_ENUM:
        return rng.randrange(12)
    return rng.choice(NUMBERS)


def _node(model: onnx.ModelProto, rng: Random) -> onnx.NodeProto:
    return rng.choice(list(model.graph.node))


def _attribute(model: onnx.ModelProto, rng: Random) -> None:
    """Changes, adds, removes or doubles an attribute."""
    node = _node(model, rng)
    schema = onnx.defs.get_schema(node.op_type) if onnx.defs.has(node.op_type) else None
    names = [*(a.name for a in node.attribute), *(schema.attributes if schema else ())]
    if not names:
        return
    name = rng.choice(names)
    kept = [a for a in node.attribute if a.name != name]
    old = [a for a in node.attribute if a.name == name]
    del node.attribute[:]
    node.attribute.extend(kept)
    if rng.random() < 0.1:
        return
    count = len(old[0].ints) if old and old[0].ints else rng.randrange(5)
    values = (
        rng.choice(NUMBERS), [rng.choice(NUMBERS) for _ in range(count)], rng.choice(FLOATS),
        rng.choice(TEXTS), [rng.choice(FLOATS) for _ in range(rng.randint(1, 4))],
    )  # fmt: skip
    node.attribute.append(helper.make_attribute(name, rng.choice((values[0], values[1], *values))))


def _initializer(model: onnx.ModelProto, rng: Random) -> None:
    """Changes the extents, the element type or the numbers of an initializer."""
    tensor = rng.choice(list(model.graph.initializer))
    match rng.randrange(4):
        case 0 if tensor.dims:
            tensor.dims[rng.randrange(len(tensor.dims))] = rng.choice(NUMBERS)
        case 1:
            tensor.data_type = rng.randrange(28)
        case _:
            _numbers(tensor, rng)


def _numbers(tensor: TensorProto, rng: Random) -> None:
    array = numpy_helper.to_array(tensor).copy()
    choice = FLOATS if array.dtype.kind == "f" else NUMBERS
    if rng.random() < 0.3:
        extents = rng.choice(((), (0,), (1,), (3,), (2, 3), (1, 1), (array.size,), (2, 2, 2)))
        array = np.resize(array, extents)
    with np.errstate(all="ignore"):
        for _ in range(rng.randint(1, 3)):
            if array.size:
                new = np.array(rng.choice(choice)).astype(array.dtype)
                array.reshape(-1)[rng.randrange(array.size)] = new
    tensor.CopyFrom(numpy_helper.from_array(array, tensor.name))


def _shape(model: onnx.ModelProto, rng: Random) -> None:
    """Changes an extent, the rank or the element type of a declared value."""
    graph = model.graph
    info = rng.choice([*graph.input, *graph.output, *graph.value_info])
    type_ = info.type.tensor_type
    match rng.randrange(6):
        case 0:
            type_.elem_type = rng.randrange(28)
        case 1:
            type_.ClearField("shape")
        case 2:
            type_.shape.dim.add().dim_value = rng.choice(NUMBERS)
        case _:
            extent = rng.choice(list(type_.shape.dim))
            if rng.random() < 0.3:
                extent.dim_param = rng.choice(TEXTS)
            else:
                extent.dim_value = rng.choice(NUMBERS)


def _surgery(model: onnx.ModelProto, rng: Random) -> None:
    """Moves nodes into branches, loops and functions, and to other domains and opsets."""
    graph, node = model.graph, _node(model, rng)
    match rng.randrange(7):
        case 0:
            node.domain = rng.choice(
                ("", "ai.onnx", "com.microsoft", "qonnx.custom_op.general", "x")
            )
        case 1:
            model.opset_import.append(
                helper.make_opsetid(
                    rng.choice(("", "ai.onnx", "com.microsoft", "x")), rng.randrange(30)
                )
            )
        case 2:
            _into_branch(model, node, rng)
        case 3:
            _into_function(model, node)
        case 4:  # an operand too few
            del node.input[rng.randrange(len(node.input))]
        case 5:
            node.output.append(rng.choice([*node.output, "more", ""]))
        case _:
            swapped, other = list(graph.node), rng.randrange(len(graph.node))
            swapped[0], swapped[other] = swapped[other], swapped[0]
            copies = [onnx.NodeProto.FromString(n.SerializeToString()) for n in swapped]
            del graph.node[:]
            graph.node.extend(copies)


def _into_branch(model: onnx.ModelProto, node: onnx.NodeProto, rng: Random) -> None:
    """Puts an If, a Loop or a Scan around a node."""
    body = onnx.GraphProto(name="body")
    body.node.add().CopyFrom(node)
    body.output.extend(onnx.ValueInfoProto(name=name) for name in node.output)
    outputs = list(node.output)
    condition = numpy_helper.from_array(np.array(True), f"true_{rng.randrange(10**9)}")
    kind = rng.choice(("If", "If", "Loop", "Scan"))
    inputs = [condition.name] if rng.random() < 0.5 else [rng.choice(model.graph.input).name]
    model.graph.initializer.append(condition)
    names = ("then_branch", "else_branch") if kind == "If" else ("body",)
    operands = ["", *inputs] if kind == "Loop" else inputs
    node.CopyFrom(helper.make_node(kind, operands, outputs))
    node.attribute.extend(helper.make_attribute(name, body) for name in names)


def _into_function(model: onnx.ModelProto, node: onnx.NodeProto) -> None:
    """Makes a function of a node, and calls it."""
    name = f"F{len(model.functions)}"
    inputs = list(dict.fromkeys(n for n in node.input if n))
    copy = onnx.NodeProto.FromString(node.SerializeToString())
    imports = list(model.opset_import)
    model.functions.append(
        helper.make_function("f", name, inputs, list(node.output), [copy], imports)
    )
    if all(entry.domain != "f" for entry in model.opset_import):
        model.opset_import.append(helper.make_opsetid("f", 1))
    node.CopyFrom(helper.make_node(name, inputs, list(copy.output), domain="f"))


def _structure(model: onnx.ModelProto, rng: Random) -> None:
    """Rewires, renames, drops, doubles or replaces nodes; changes opsets."""
    graph, node = model.graph, _node(model, rng)
    names = [t.name for t in graph.initializer] + [o for n in graph.node for o in n.output]
    match rng.randrange(8):
        case 0 | 1 if node.input:
            node.input[rng.randrange(len(node.input))] = rng.choice([*names, ""])
        case 2:
            node.op_type = rng.choice(OPERATORS)
        case 3:
            graph.node.remove(node)
        case 4:
            twin = graph.node.add()
            twin.CopyFrom(node)
            for i, name in enumerate(twin.output):
                twin.output[i] = name + "_twin"
        case 5:
            model.opset_import[0].version = rng.choice((7, 10, 11, 13, 17, 18, 21, 23, 25))
        case 6:
            node.input.append(rng.choice(names))
        case _:
            _insert(model, rng, names)


def _insert(model: onnx.ModelProto, rng: Random, names: list[str]) -> None:
    """Puts a new operator of constants or values before an operand of a node."""
    node, name = _node(model, rng), f"inserted_{rng.randrange(10**9)}"
    place = rng.randrange(len(node.input))
    operands = [node.input[place]]
    for i in range(rng.randrange(4)):
        array = np.array([rng.choice(NUMBERS) for _ in range(rng.randint(1, 4))], np.int64)
        tensor = numpy_helper.from_array(array, f"{name}_{i}")
        model.graph.initializer.append(tensor)
        operands.append(rng.choice([tensor.name, tensor.name, *names[:1]]))
    if rng.random() < 0.4:
        operands = operands[1:]
    new = helper.make_node(rng.choice(OPERATORS), operands, [name], name)
    model.graph.node.insert(0, new)
    node.input[place] = name


MUTATIONS: tuple[Callable[[onnx.ModelProto, Random], None], ...] = (
    _field, _field, _attribute, _attribute, _initializer, _initializer, _shape, _structure,
    _structure, _surgery,
)  # fmt: skip
