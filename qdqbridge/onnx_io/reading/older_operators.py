"""What ONNX has changed in its operators before opset 13, each in the terms of a newer one.

Source: ONNX's changelog of operators (docs/Changelog.md), every entry up to opset 13 that changed
inputs, attributes or defaults; RoiAlign (16) and DFT (20), whose old form no newer opset has, too.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import GraphProto, ModelProto, NodeProto, TensorProto, helper, numpy_helper

from qdqbridge.core.graph.types import Shape
from qdqbridge.errors import UnsupportedModelError
from qdqbridge.onnx_io.codecs.schema import schema_of
from qdqbridge.onnx_io.control_flow.subgraph_names import bodies
from qdqbridge.onnx_io.domains import ONNX_DOMAINS
from qdqbridge.onnx_io.inference.shapes import TypeAndShape, infer, is_small, shape_of
from qdqbridge.onnx_io.reading.model_file import default_opset
from qdqbridge.onnx_io.reading.structure import all_nodes, describe

Fresh: TypeAlias = "Callable[[str], str]"
ShapeOf: TypeAlias = "Callable[[str], Shape]"
ElementType: TypeAlias = "Callable[[str], int]"


_FLOATS = (TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.DOUBLE)


class NoNewForm(Exception):
    """A node means something that opset 13 cannot say, or not without the rank of an operand."""


class OldNode:
    """An old node, and the nodes that take its place.

    Args:
        node: The node.
        since: The version of its operator.
        fresh: Gives unused names of tensors.
        shape: Gives the shape of a tensor, None where it is unknown.
        element_type: Gives ONNX's number of a tensor's element type, 0 where it is unknown.

    Attributes:
        opset: The first that has the new nodes.
    """

    def __init__(
        self, node: NodeProto, since: int, fresh: Fresh, shape: ShapeOf, element_type: ElementType
    ) -> None:
        self.node, self.since, self.fresh = node, since, fresh
        self.shape, self.element_type = shape, element_type
        self.opset = 13
        self.made: list[NodeProto] = []
        self.attributes = {attribute.name: attribute for attribute in node.attribute}

    def input(self, index: int) -> str:
        """Returns the name of an operand, empty where it is left out."""
        return self.node.input[index] if index < len(self.node.input) else ""

    def take(self, name: str, default: Any = None) -> Any:
        """Removes an attribute and returns its value."""
        attribute = self.attributes.pop(name, None)
        if attribute is None:
            return default
        value = helper.get_attribute_value(attribute)
        return value.decode() if isinstance(value, bytes) else value

    def rank(self, name: str) -> int:
        """Returns the rank of a tensor.

        Raises:
            NoNewForm: It is unknown.
        """
        shape = self.shape(name)
        if shape is None:
            raise NoNewForm(f"the rank of '{name}' is unknown")
        return len(shape)

    def real(self, number: float) -> NDArray[Any]:
        """Returns a number in the element type of the first operand (float32 where unknown)."""
        kind = self.element_type(self.input(0)) or TensorProto.FLOAT
        return np.asarray(number, helper.tensor_dtype_to_np_dtype(kind))

    def constant(self, array: NDArray[Any]) -> str:
        """Adds a constant; returns its name."""
        name = self.fresh(f"{self.node.output[0]}.constant")
        value = numpy_helper.from_array(np.asarray(array))
        self.made.append(helper.make_node("Constant", [], [name], value=value))
        return name

    def ints(self, numbers: Sequence[int]) -> str:
        """Adds a list of int64 as a constant; returns its name."""
        return self.constant(np.array(numbers, np.int64))

    def add(self, op_type: str, inputs: Sequence[str], **attributes: Any) -> str:
        """Adds a node of one result on the way; returns the name of the result."""
        name = self.fresh(f"{self.node.output[0]}.{op_type}")
        self.made.append(helper.make_node(op_type, list(inputs), [name], **attributes))
        return name

    def end(
        self, inputs: Sequence[str], op_type: str = "", *, results: int = 0, **attributes: Any
    ) -> None:
        """Adds the node that gives the old one's results, with the attributes that are left.

        Args:
            inputs: Its operands; empty ones at the end are dropped.
            op_type: Its operator; the old one's by default.
            results: How many results it has; as many as the old one by default.
            **attributes: What it has besides; None leaves one out.
        """
        kept = list(inputs)
        while kept and not kept[-1]:
            kept.pop()
        old = self.node
        outputs = old.output[: results or len(old.output)]
        given = {key: value for key, value in attributes.items() if value is not None}
        node = helper.make_node(op_type or old.op_type, kept, list(outputs), old.name, **given)
        node.attribute.extend(self.attributes.values())
        node.metadata_props.extend(old.metadata_props)
        self.made.append(node)


def _drop_legacy_attributes(context: OldNode) -> None:
    """Attributes that said nothing are gone (``consumed_inputs``, ``is_test``)."""
    for name in ("consumed_inputs", "is_test"):
        context.take(name)
    context.end(context.node.input)


def _broadcasting(context: OldNode) -> None:
    """Before opset 7 broadcasting was an attribute: b's axes begin at ``axis`` of a."""
    context.take("consumed_inputs")
    broadcast, axis = context.take("broadcast", 0), context.take("axis")
    a, b = context.node.input
    if broadcast and axis is not None:
        first, second = context.rank(a), context.rank(b)
        behind = first - (axis + first if axis < 0 else axis) - second
        if behind > 0:
            b = context.add("Unsqueeze", [b, context.ints(range(second, second + behind))])
    context.end([a, b])


def _gemm(context: OldNode) -> None:
    context.take("broadcast")
    context.end(context.node.input)


def _prelu(context: OldNode) -> None:
    """Before opset 7 a vector of slopes belonged to the channels."""
    context.take("consumed_inputs")
    x, slope = context.node.input
    behind = context.rank(x) - 2
    if context.rank(slope) == 1 and behind > 0:
        slope = context.add("Unsqueeze", [slope, context.ints(range(1, behind + 1))])
    context.end([x, slope])


def _upgrade_clip(context: OldNode) -> None:
    context.take("consumed_inputs")
    bounds = [context.take(name) for name in ("min", "max")]
    names = ["" if bound is None else context.constant(context.real(bound)) for bound in bounds]
    context.end([context.input(0), *names])


def _selu(context: OldNode) -> None:
    context.take("consumed_inputs")
    alpha, gamma = context.take("alpha", 1.6732), context.take("gamma", 1.0507)
    context.end(context.node.input, alpha=alpha, gamma=gamma)


def _upgrade_cast(context: OldNode) -> None:
    to = context.take("to")
    context.end(context.node.input, to=TensorProto.DataType.Value(str(to)))


def _upgrade_concat(context: OldNode) -> None:
    context.end(context.node.input, axis=context.take("axis", 1))


def _dropout(context: OldNode) -> None:
    """Before opset 12 in inference: the identity; the mask is empty, as onnxruntime makes it."""
    if context.since < 7 and not context.take("is_test", 0):
        raise NoNewForm("it is in training mode")
    x, outputs = context.input(0), context.node.output
    if len(outputs) > 1 and outputs[1]:
        shape = context.add("Shape", [x])
        zero = np.zeros(1, np.bool_) if context.since >= 10 else context.real(0).reshape(1)
        value = helper.make_attribute("value", numpy_helper.from_array(zero))
        node = helper.make_node("ConstantOfShape", [shape], outputs[1:2])
        node.attribute.append(value)
        context.made.append(node)
    context.attributes.clear()
    context.end([x], "Identity", results=1)


def _batch_normalization(context: OldNode) -> None:
    for name in ("consumed_inputs", "is_test"):
        context.take(name)
    if not context.take("spatial", 1):
        raise NoNewForm("it normalizes every position on its own (spatial=0)")
    training = sum(1 for name in context.node.output if name) > 1
    context.end(context.node.input, results=0 if training else 1)


def _upgrade_pad(context: OldNode) -> None:
    pads = context.take("pads", None) or context.take("paddings", None)
    value = context.constant(context.real(context.take("value", 0.0)))
    context.end([context.input(0), context.ints(pads or []), value])


def _slice(context: OldNode) -> None:
    starts, ends = context.take("starts"), context.take("ends")
    axes = context.take("axes", list(range(len(starts))))
    context.end([context.input(0), *(context.ints(each) for each in (starts, ends, axes))])


def _upgrade_split(context: OldNode) -> None:
    sizes = context.take("split")
    axis = context.take("axis", 0)
    given = context.ints(sizes) if sizes else context.input(1)
    context.end([context.input(0), given], axis=axis)


def _upgrade_axes_to_input(context: OldNode) -> None:
    """Axes are an operand (Squeeze, Unsqueeze, ReduceSum)."""
    axes = context.take("axes")
    context.end([context.input(0), "" if axes is None else context.ints(axes)])


def _coerced(context: OldNode) -> None:
    """Softmax and its like before opset 13: over all axes from ``axis`` on together."""
    x, axis = context.input(0), context.take("axis", 1)
    shape = context.shape(x)
    if shape is not None and axis in (len(shape) - 1, -1):
        context.end([x], axis=axis)
        return
    if shape is not None and axis < 0:
        axis += len(shape)
    if shape is not None and 0 in shape:
        context.end([x], "Identity")
        return
    result = context.add(context.node.op_type, [context.add("Flatten", [x], axis=axis)], axis=1)
    if shape is not None and sum(isinstance(extent, str) for extent in shape) < 2:
        target = context.ints([-1 if isinstance(extent, str) else extent for extent in shape])
        context.end([result, target], "Reshape")
        return
    context.opset = 14  # a 0 copies no extent of the matrix
    context.end([result, context.add("Shape", [x])], "Reshape", allowzero=1)


def _erf(context: OldNode) -> None:
    """Erf of integers, which ONNX's reference computes in float64 and cuts off."""
    x = context.input(0)
    kind = context.element_type(x)
    if kind in (TensorProto.UNDEFINED, *_FLOATS):
        context.end([x])
        return
    result = context.add("Erf", [context.add("Cast", [x], to=TensorProto.DOUBLE)])
    context.end([result], "Cast", to=kind)


def _upsample(context: OldNode) -> None:
    """Resize by asymmetric coordinates; nearest takes the floor of them."""
    mode = context.take("mode", "nearest")
    scales = context.input(1)
    if context.since == 1:
        height, width = context.take("height_scale"), context.take("width_scale")
        scales = context.constant(np.array([1, 1, height, width], np.float32))
    elif context.since < 9:
        scales = context.constant(np.array(context.take("scales"), np.float32))
    _asymmetric(context, context.input(0), scales, mode, "floor")


def _resize(context: OldNode) -> None:
    """Resize of opset 10; nearest truncates going up and rounds up going down, axis by axis."""
    mode, x, scales = context.take("mode", "nearest"), context.input(0), context.input(1)
    if mode != "nearest":
        _asymmetric(context, x, scales, mode, "floor")
        return
    one = context.constant(np.ones(1, np.float32))
    smaller = context.add("Min", [scales, one])
    down = context.add(
        "Resize", [x, "", smaller],
        mode=mode, coordinate_transformation_mode="asymmetric", nearest_mode="ceil",
    )  # fmt: skip
    _asymmetric(context, down, context.add("Max", [scales, one]), mode, "floor")


def _asymmetric(context: OldNode, x: str, scales: str, mode: str, nearest: str) -> None:
    mode = "linear" if mode in ("linear", "bilinear") else mode
    context.end(
        [x, "", scales], "Resize",
        mode=mode, coordinate_transformation_mode="asymmetric", nearest_mode=nearest,
    )  # fmt: skip


def _scatter(context: OldNode) -> None:
    context.end(context.node.input, "ScatterElements")


def _top_k(context: OldNode) -> None:
    if context.since == 1:
        context.end([context.input(0), context.ints([context.take("k")])])
        return
    context.end(context.node.input)


def _reshape(context: OldNode) -> None:
    context.take("consumed_inputs")
    context.end([context.input(0), context.ints(context.take("shape", []))])


def _recurrent(context: OldNode) -> None:
    context.take("output_sequence")
    direction = context.take("direction", "forward")
    context.end(context.node.input, direction="forward" if direction == "foward" else direction)


def _power(context: OldNode) -> None:
    power = context.take("p", 2.0)
    context.end(context.node.input, p=int(power))


def _roi_align(context: OldNode) -> None:
    """Before opset 16 without the half pixel."""
    context.end(context.node.input, coordinate_transformation_mode="output_half_pixel")


def _fourier(context: OldNode) -> None:
    """Before opset 20 the axis was an attribute."""
    axis = context.constant(np.array(context.take("axis", 1), np.int64))
    context.end([context.input(0), context.input(1), axis])


def _scan(context: OldNode) -> None:
    """Scan of opset 8 works on a batch: a Scan over axis 0 of Scans over what is axis 1 in all."""
    if context.input(0):
        raise NoNewForm("its sequences have lengths of their own")
    body, count = context.take("body"), context.take("num_scan_inputs")
    directions = context.take("directions")
    fresh, operands = context.fresh, list(context.node.input[1:])
    ranks = [_dims(value) for value in body.input]
    states = len(operands) - count
    inner_in = [fresh(f"{name}.row") for name in operands]
    results = len(body.output)
    inner_out = [fresh(f"{context.node.output[0]}.row") for _ in range(results)]
    inner = helper.make_node(
        "Scan", inner_in, inner_out, body=body, num_scan_inputs=count,
        **({"scan_input_directions": directions} if directions else {}),
    )  # fmt: skip
    inputs = [
        _typed(name, value, rank, more=index >= states)
        for index, (name, value, rank) in enumerate(zip(inner_in, body.input, ranks, strict=True))
    ]
    outputs = [
        _typed(name, value, _dims(value), more=index >= states)
        for index, (name, value) in enumerate(zip(inner_out, body.output, strict=True))
    ]
    outer = helper.make_graph([inner], "batch", inputs, outputs)
    context.end(operands, body=outer, num_scan_inputs=len(operands))


def _dims(value: Any) -> list[Any] | None:
    type_ = value.type.tensor_type
    if not type_.HasField("shape"):
        return None
    return [d.dim_value if d.HasField("dim_value") else None for d in type_.shape.dim]


def _typed(name: str, value: Any, dims: list[Any] | None, *, more: bool) -> Any:
    """Returns a value like another one, with the axis that a scan goes along in front."""
    shape = dims if dims is None or not more else [None, *dims]
    element = value.type.tensor_type.elem_type or TensorProto.FLOAT
    return helper.make_tensor_value_info(name, element, shape)


Form: TypeAlias = "Callable[[OldNode], None]"

FORMS: Mapping[str, tuple[int, Form]] = {
    **dict.fromkeys(
        ("Abs", "Ceil", "Elu", "Exp", "Floor", "HardSigmoid", "InstanceNormalization",
         "LeakyRelu", "Log", "Max", "Mean", "Min", "Neg", "Reciprocal", "Relu", "Sigmoid", "Sqrt",
         "Sum", "Tanh"), (6, _drop_legacy_attributes)
    ),
    **dict.fromkeys(
        ("Add", "And", "Div", "Equal", "Greater", "Less", "Mul", "Or", "Pow", "Sub", "Xor"),
        (7, _broadcasting),
    ),
    **dict.fromkeys(("GRU", "LSTM", "RNN"), (7, _recurrent)),
    **dict.fromkeys(("GlobalLpPool", "LpPool"), (2, _power)),
    **dict.fromkeys(("Softmax", "LogSoftmax", "Hardmax"), (13, _coerced)),
    **dict.fromkeys(("Squeeze", "Unsqueeze", "ReduceSum"), (13, _upgrade_axes_to_input)),
    "BatchNormalization": (9, _batch_normalization),
    "Cast": (6, _upgrade_cast),
    "Clip": (11, _upgrade_clip),
    "Concat": (4, _upgrade_concat),
    "DFT": (20, _fourier),
    "Dropout": (12, _dropout),
    "Erf": (13, _erf),
    "Gemm": (7, _gemm),
    "Pad": (11, _upgrade_pad),
    "PRelu": (7, _prelu),
    "Reshape": (5, _reshape),
    "Resize": (11, _resize),
    "RoiAlign": (16, _roi_align),
    "Scan": (9, _scan),
    "Scatter": (99, _scatter),
    "Selu": (6, _selu),
    "Slice": (10, _slice),
    "Split": (13, _upgrade_split),
    "TopK": (10, _top_k),
    "Upsample": (10, _upsample),
}  # fmt: skip
"""By operator: the first version that is as in opset 13, and what brings older ones there."""


# ---- Nodes of opsets before 13 in the terms of opset 13, where ONNX has changed an operator
#
# The graph knows one version of an operator. Codecs read every version from opset 7 on of those
# that have a row; what has none, what is older, and the nodes inside the bodies of If, Loop and
# Scan come here. Opset 13 is the first with quantization per axis; files are written at that or a
# later one. What changed stands in :mod:`qdqbridge.onnx_io.reading.older_operators`.

_NEW = 13
_LISTED = 8
_LATER = {"RoiAlign": 16, "DFT": 20}
"""Operators whose old meaning an opset after 13 can say first."""


@dataclass(frozen=True, slots=True)
class NewForm:
    """What an old node is in the terms of a newer opset.

    Attributes:
        nodes: The nodes, in order; None where the node itself is right.
        opset: The opset that it is to be read in.
    """

    nodes: list[NodeProto] | None
    opset: int


def in_new_form(
    node: NodeProto, opset: int, fresh: Fresh, shape: ShapeOf, element_type: ElementType
) -> NewForm:
    """Returns what a node says in the terms of opset 13, or of the first that can say it.

    Args:
        node: A node; the nodes in its bodies are brought up to date in place.
        opset: ONNX's opset that it is written in.
        fresh: Gives unused names of tensors.
        shape: Gives the shape of a tensor, None where it is unknown.
        element_type: Gives ONNX's number of a tensor's element type, 0 where it is unknown.

    Raises:
        NoNewForm: Nothing newer says it.
    """
    new = max(opset, _NEW)
    for attribute in node.attribute:
        for body in bodies(attribute):
            new = max(new, _renew_body(body, opset, fresh))
    schema = schema_of(node.op_type, "", opset) if node.domain in ONNX_DOMAINS else None
    found = None if schema is None else FORMS.get(node.op_type)
    if schema is None or found is None or schema.since_version >= found[0]:
        return NewForm(None, new)
    context = OldNode(node, int(schema.since_version), fresh, shape, element_type)
    found[1](context)
    return NewForm(context.made, max(new, context.opset, _LATER.get(node.op_type, 0)))


def renewed(model: ModelProto, file: str) -> ModelProto:
    """Returns a model of an opset that no codec reads in the terms of opset 13.

    Args:
        model: A checked model with sorted nodes; it is changed.
        file: File name, for messages.

    Raises:
        UnsupportedModelError: Nothing newer says what some nodes say; all are listed.
    """
    opset, types = default_opset(model), infer(model)
    types |= {t.name: (t.data_type, tuple(t.dims)) for t in model.graph.initializer}
    taken = {name for node in all_nodes(model.graph.node) for name in node.output}
    taken |= {value.name for value in model.graph.input}
    tensors = {t.name: t for t in model.graph.initializer if is_small(t)}
    nodes: list[NodeProto] = []
    refused: list[str] = []
    new = _NEW

    def fresh(hint: str) -> str:
        return unused(hint, taken)

    def shape(name: str) -> Shape:
        return types.get(name, (0, None))[1]

    def element_type(name: str) -> int:
        return types.get(name, (0, None))[0]

    for node in model.graph.node:
        try:
            form = in_new_form(node, opset, fresh, shape, element_type)
        except NoNewForm as reason:
            refused.append(f"{describe(node)}: {reason}")
            continue
        new = max(new, form.opset)
        made = [node] if form.nodes is None else form.nodes
        if any(name and shape(name) is None for name in node.output):
            types |= _inferred(made, form.opset, types, tensors)
        nodes += made
    if refused:
        raise UnsupportedModelError(
            f"operators of opset {opset} have no newer form",
            where=file,
            why="; ".join(refused[:_LISTED]),
            fix="export the model with opset 7 or newer",
        )
    copies = [NodeProto.FromString(node.SerializeToString()) for node in nodes]
    del model.graph.node[:]
    model.graph.node.extend(copies)
    for entry in model.opset_import:
        if entry.domain in ONNX_DOMAINS:
            entry.version = new
    return model


def _inferred(
    nodes: Sequence[NodeProto],
    opset: int,
    types: Mapping[str, TypeAndShape],
    tensors: Mapping[str, TensorProto],
) -> dict[str, TypeAndShape]:
    """Returns what the results of new nodes are: of old ones, ONNX infers few.

    Args:
        nodes: The nodes that take the place of an old one.
        opset: The opset that they are in.
        types: What is known of their operands.
        tensors: Small initializers of the graph, by name.
    """
    read = {name for node in nodes for name in node.input if name in types}
    operands = [
        helper.make_tensor_value_info(
            name, element, None if shape is None else [_extent_or_none(extent) for extent in shape]
        )
        for name, (element, shape) in types.items()
        if name in read
    ]
    constants = [tensor for name, tensor in tensors.items() if name in read]
    graph = helper.make_graph(nodes, "part", operands, [], constants)
    found = infer(helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)]))
    made = {name for node in nodes for name in node.output}
    return {name: type_ for name, type_ in found.items() if name in made and type_[1] is not None}


def _extent_or_none(extent: int | str) -> int | str | None:
    """Returns an extent; None where all that is known is that there is one."""
    return None if isinstance(extent, str) and extent.startswith("?") else extent


def unused(hint: str, taken: set[str]) -> str:
    """Returns a name that begins like ``hint`` and is not taken, and takes it."""
    number = 1
    while (name := f"{hint}.{number}") in taken:
        number += 1
    taken.add(name)
    return name


def _renew_body(body: GraphProto, opset: int, fresh: Fresh) -> int:
    """Brings the nodes of a body up to date; returns the opset that they are in then."""
    types = {v.name: v.type.tensor_type for v in (*body.input, *body.value_info, *body.output)}
    tensors = {tensor.name: tensor for tensor in body.initializer}

    def shape(name: str) -> Shape:
        if name in tensors:
            return tuple(tensors[name].dims)
        type_ = types.get(name)
        return None if type_ is None else shape_of(onnx.TypeProto(tensor_type=type_))

    def element_type(name: str) -> int:
        if name in tensors:
            return tensors[name].data_type
        return types[name].elem_type if name in types else 0

    nodes: list[NodeProto] = []
    changed, new = False, 0
    for node in body.node:
        form = in_new_form(node, opset, fresh, shape, element_type)
        changed, new = changed or form.nodes is not None, max(new, form.opset)
        nodes += [node] if form.nodes is None else form.nodes
    if changed:
        copies = [NodeProto.FromString(node.SerializeToString()) for node in nodes]
        del body.node[:]
        body.node.extend(copies)
    return new
