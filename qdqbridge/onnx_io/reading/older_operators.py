"""What ONNX has changed in its operators before opset 13, each in the terms of a newer one.

Source: ONNX's changelog of operators (docs/Changelog.md), every entry up to opset 13 that changed
inputs, attributes or defaults; RoiAlign (16) and DFT (20), whose old form no newer opset has, too.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray
from onnx import NodeProto, TensorProto, helper, numpy_helper

from qdqbridge.core.graph.types import Shape

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


def _same(site: OldNode) -> None:
    """Attributes that said nothing are gone (``consumed_inputs``, ``is_test``)."""
    for name in ("consumed_inputs", "is_test"):
        site.take(name)
    site.end(site.node.input)


def _broadcasting(site: OldNode) -> None:
    """Before opset 7 broadcasting was an attribute: b's axes begin at ``axis`` of a."""
    site.take("consumed_inputs")
    broadcast, axis = site.take("broadcast", 0), site.take("axis")
    a, b = site.node.input
    if broadcast and axis is not None:
        first, second = site.rank(a), site.rank(b)
        behind = first - (axis + first if axis < 0 else axis) - second
        if behind > 0:
            b = site.add("Unsqueeze", [b, site.ints(range(second, second + behind))])
    site.end([a, b])


def _gemm(site: OldNode) -> None:
    site.take("broadcast")
    site.end(site.node.input)


def _prelu(site: OldNode) -> None:
    """Before opset 7 a vector of slopes belonged to the channels."""
    site.take("consumed_inputs")
    x, slope = site.node.input
    behind = site.rank(x) - 2
    if site.rank(slope) == 1 and behind > 0:
        slope = site.add("Unsqueeze", [slope, site.ints(range(1, behind + 1))])
    site.end([x, slope])


def _clip(site: OldNode) -> None:
    site.take("consumed_inputs")
    bounds = [site.take(name) for name in ("min", "max")]
    names = ["" if bound is None else site.constant(site.real(bound)) for bound in bounds]
    site.end([site.input(0), *names])


def _selu(site: OldNode) -> None:
    site.take("consumed_inputs")
    alpha, gamma = site.take("alpha", 1.6732), site.take("gamma", 1.0507)
    site.end(site.node.input, alpha=alpha, gamma=gamma)


def _cast(site: OldNode) -> None:
    to = site.take("to")
    site.end(site.node.input, to=TensorProto.DataType.Value(str(to)))


def _concat(site: OldNode) -> None:
    site.end(site.node.input, axis=site.take("axis", 1))


def _dropout(site: OldNode) -> None:
    """Before opset 12 in inference: the identity; the mask is empty, as onnxruntime makes it."""
    if site.since < 7 and not site.take("is_test", 0):
        raise NoNewForm("it is in training mode")
    x, outputs = site.input(0), site.node.output
    if len(outputs) > 1 and outputs[1]:
        shape = site.add("Shape", [x])
        zero = np.zeros(1, np.bool_) if site.since >= 10 else site.real(0).reshape(1)
        value = helper.make_attribute("value", numpy_helper.from_array(zero))
        node = helper.make_node("ConstantOfShape", [shape], outputs[1:2])
        node.attribute.append(value)
        site.made.append(node)
    site.attributes.clear()
    site.end([x], "Identity", results=1)


def _batch_normalization(site: OldNode) -> None:
    for name in ("consumed_inputs", "is_test"):
        site.take(name)
    if not site.take("spatial", 1):
        raise NoNewForm("it normalizes every position on its own (spatial=0)")
    training = sum(1 for name in site.node.output if name) > 1
    site.end(site.node.input, results=0 if training else 1)


def _pad(site: OldNode) -> None:
    pads = site.take("pads", None) or site.take("paddings", None)
    value = site.constant(site.real(site.take("value", 0.0)))
    site.end([site.input(0), site.ints(pads or []), value])


def _slice(site: OldNode) -> None:
    starts, ends = site.take("starts"), site.take("ends")
    axes = site.take("axes", list(range(len(starts))))
    site.end([site.input(0), *(site.ints(each) for each in (starts, ends, axes))])


def _split(site: OldNode) -> None:
    sizes = site.take("split")
    axis = site.take("axis", 0)
    given = site.ints(sizes) if sizes else site.input(1)
    site.end([site.input(0), given], axis=axis)


def _axes(site: OldNode) -> None:
    """Axes are an operand (Squeeze, Unsqueeze, ReduceSum)."""
    axes = site.take("axes")
    site.end([site.input(0), "" if axes is None else site.ints(axes)])


def _coerced(site: OldNode) -> None:
    """Softmax and its like before opset 13: over all axes from ``axis`` on together."""
    x, axis = site.input(0), site.take("axis", 1)
    shape = site.shape(x)
    if shape is not None and axis in (len(shape) - 1, -1):
        site.end([x], axis=-1)
        return
    if shape is not None and axis < 0:
        axis += len(shape)
    if shape is not None and 0 in shape:
        site.end([x], "Identity")
        return
    result = site.add(site.node.op_type, [site.add("Flatten", [x], axis=axis)], axis=1)
    if shape is not None and sum(isinstance(extent, str) for extent in shape) < 2:
        target = site.ints([-1 if isinstance(extent, str) else extent for extent in shape])
        site.end([result, target], "Reshape")
        return
    site.opset = 14  # a 0 copies no extent of the matrix
    site.end([result, site.add("Shape", [x])], "Reshape", allowzero=1)


def _erf(site: OldNode) -> None:
    """Erf of integers, which ONNX's reference computes in float64 and cuts off."""
    x = site.input(0)
    kind = site.element_type(x)
    if kind in (TensorProto.UNDEFINED, *_FLOATS):
        site.end([x])
        return
    result = site.add("Erf", [site.add("Cast", [x], to=TensorProto.DOUBLE)])
    site.end([result], "Cast", to=kind)


def _upsample(site: OldNode) -> None:
    """Resize by asymmetric coordinates; nearest takes the floor of them."""
    mode = site.take("mode", "nearest")
    scales = site.input(1)
    if site.since == 1:
        height, width = site.take("height_scale"), site.take("width_scale")
        scales = site.constant(np.array([1, 1, height, width], np.float32))
    elif site.since < 9:
        scales = site.constant(np.array(site.take("scales"), np.float32))
    _asymmetric(site, site.input(0), scales, mode, "floor")


def _resize(site: OldNode) -> None:
    """Resize of opset 10; nearest truncates going up and rounds up going down, axis by axis."""
    mode, x, scales = site.take("mode", "nearest"), site.input(0), site.input(1)
    if mode != "nearest":
        _asymmetric(site, x, scales, mode, "floor")
        return
    one = site.constant(np.ones(1, np.float32))
    smaller = site.add("Min", [scales, one])
    down = site.add(
        "Resize", [x, "", smaller],
        mode=mode, coordinate_transformation_mode="asymmetric", nearest_mode="ceil",
    )  # fmt: skip
    _asymmetric(site, down, site.add("Max", [scales, one]), mode, "floor")


def _asymmetric(site: OldNode, x: str, scales: str, mode: str, nearest: str) -> None:
    mode = "linear" if mode in ("linear", "bilinear") else mode
    site.end(
        [x, "", scales], "Resize",
        mode=mode, coordinate_transformation_mode="asymmetric", nearest_mode=nearest,
    )  # fmt: skip


def _scatter(site: OldNode) -> None:
    site.end(site.node.input, "ScatterElements")


def _top_k(site: OldNode) -> None:
    if site.since == 1:
        site.end([site.input(0), site.ints([site.take("k")])])
        return
    site.end(site.node.input)


def _reshape(site: OldNode) -> None:
    site.take("consumed_inputs")
    site.end([site.input(0), site.ints(site.take("shape", []))])


def _recurrent(site: OldNode) -> None:
    site.take("output_sequence")
    direction = site.take("direction", "forward")
    site.end(site.node.input, direction="forward" if direction == "foward" else direction)


def _power(site: OldNode) -> None:
    power = site.take("p", 2.0)
    site.end(site.node.input, p=int(power))


def _roi_align(site: OldNode) -> None:
    """Before opset 16 without the half pixel."""
    site.end(site.node.input, coordinate_transformation_mode="output_half_pixel")


def _fourier(site: OldNode) -> None:
    """Before opset 20 the axis was an attribute."""
    axis = site.constant(np.array(site.take("axis", 1), np.int64))
    site.end([site.input(0), site.input(1), axis])


def _scan(site: OldNode) -> None:
    """Scan of opset 8 works on a batch: a Scan over axis 0 of Scans over what is axis 1 in all."""
    if site.input(0):
        raise NoNewForm("its sequences have lengths of their own")
    body, count = site.take("body"), site.take("num_scan_inputs")
    directions = site.take("directions")
    fresh, operands = site.fresh, list(site.node.input[1:])
    ranks = [_dims(value) for value in body.input]
    states = len(operands) - count
    inner_in = [fresh(f"{name}.row") for name in operands]
    results = len(body.output)
    inner_out = [fresh(f"{site.node.output[0]}.row") for _ in range(results)]
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
    site.end(operands, body=outer, num_scan_inputs=len(operands))


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
         "Sum", "Tanh"), (6, _same)
    ),
    **dict.fromkeys(
        ("Add", "And", "Div", "Equal", "Greater", "Less", "Mul", "Or", "Pow", "Sub", "Xor"),
        (7, _broadcasting),
    ),
    **dict.fromkeys(("GRU", "LSTM", "RNN"), (7, _recurrent)),
    **dict.fromkeys(("GlobalLpPool", "LpPool"), (2, _power)),
    **dict.fromkeys(("Softmax", "LogSoftmax", "Hardmax"), (13, _coerced)),
    **dict.fromkeys(("Squeeze", "Unsqueeze", "ReduceSum"), (13, _axes)),
    "BatchNormalization": (9, _batch_normalization),
    "Cast": (6, _cast),
    "Clip": (11, _clip),
    "Concat": (4, _concat),
    "DFT": (20, _fourier),
    "Dropout": (12, _dropout),
    "Erf": (13, _erf),
    "Gemm": (7, _gemm),
    "Pad": (11, _pad),
    "PRelu": (7, _prelu),
    "Reshape": (5, _reshape),
    "Resize": (11, _resize),
    "RoiAlign": (16, _roi_align),
    "Scan": (9, _scan),
    "Scatter": (99, _scatter),
    "Selu": (6, _selu),
    "Slice": (10, _slice),
    "Split": (13, _split),
    "TopK": (10, _top_k),
    "Upsample": (10, _upsample),
}  # fmt: skip
"""By operator: the first version that is as in opset 13, and what brings older ones there."""
