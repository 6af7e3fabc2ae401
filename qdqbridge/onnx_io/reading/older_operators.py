"""What ONNX has changed in its operators before opset 13, as rules that read it in newer terms.

Source: ONNX's changelog of operators (docs/Changelog.md), every entry up to opset 13 that changed
inputs, attributes or defaults; RoiAlign (16) and DFT (20), whose old form no newer opset has, too.
The graph knows one version of an operator. Codecs read every version from opset 7 on of those
that have a row; what has none, what is older, and the nodes inside the bodies of If, Loop and
Scan come here. Opset 13 is the first with quantization per axis; files are written at that or a
later one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import wraps
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray
from onnx import GraphProto, ModelProto, NodeProto, TensorProto, TypeProto, helper, numpy_helper

from qdqbridge.core.graph.constant import Constant
from qdqbridge.core.graph.dtypes import DType
from qdqbridge.core.graph.graph import Node, Value
from qdqbridge.core.graph.types import TensorType
from qdqbridge.core.rewrite import Growing, Proposal, Reject, Replace, Rule
from qdqbridge.errors import UnsupportedModelError
from qdqbridge.onnx_io.codecs.codec import schema_of
from qdqbridge.onnx_io.control_flow.subgraph_names import bodies
from qdqbridge.onnx_io.inference.shapes import TypeAndShape, infer, is_small, shape_of
from qdqbridge.onnx_io.lowering.context import (
    LoweringContext,
    Made,
    NodeMaker,
    NoNewForm,
    UnreadNode,
    file_node,
    reading_rule,
    reading_rule_of_any,
)
from qdqbridge.onnx_io.reading.constants import constant_value
from qdqbridge.onnx_io.reading.model_file import default_opset
from qdqbridge.onnx_io.reading.structure import ONNX_DOMAINS, all_nodes, describe
from qdqbridge.onnx_io.tensors import dtype_of, dtype_to_onnx, proto_from_constant

Fresh: TypeAlias = "Callable[[str], str]"
_NEW = 13
_LISTED = 8
_LATER = {"RoiAlign": 16, "DFT": 20}
"""Operators whose old meaning an opset after 13 can say first."""
_FLOATS = (DType.FLOAT32, DType.FLOAT16, DType.FLOAT64)
_LEGACY = (
    "Abs", "Ceil", "Elu", "Exp", "Floor", "HardSigmoid", "InstanceNormalization", "LeakyRelu",
    "Log", "Max", "Mean", "Min", "Neg", "Reciprocal", "Relu", "Sigmoid", "Sqrt", "Sum", "Tanh",
)  # fmt: skip
_BROADCASTING = (
    "Add", "And", "Div", "Equal", "Greater", "Less", "Mul", "Or", "Pow", "Sub", "Xor",
)  # fmt: skip


class OldNode(LoweringContext):
    """An old node, and a builder of the nodes that take its place.

    Args:
        node: The node of a file.

    Attributes:
        since: The version of its operator.
        attributes: Those that nothing has taken yet.
    """

    __slots__ = ("attributes", "since")

    def __init__(self, node: Node) -> None:
        super().__init__(node)
        proto = node.record(UnreadNode).proto
        self.made_in = max(self.made_in, _LATER.get(proto.op_type, 0))
        schema = schema_of(proto.op_type, "", self.opset)
        self.since = 0 if schema is None else int(schema.since_version)
        self.attributes = {attribute.name: attribute for attribute in proto.attribute}

    def take(self, name: str, default: Any = None) -> Any:
        """Removes an attribute and returns its value."""
        attribute = self.attributes.pop(name, None)
        if attribute is None:
            return default
        value = helper.get_attribute_value(attribute)
        return value.decode() if isinstance(value, bytes) else value

    def real(self, number: float) -> NDArray[Any]:
        """Returns a number in the element type of the first operand (float32 where unknown)."""
        return np.asarray(number, self.operand(0).type.dtype.numpy)

    def fresh(self, hint: str) -> str:
        """Returns a name that no tensor has, with a number."""
        return self.maker.fresh(f"{self.output}.{hint}", numbered=True)

    def label(self, node: NodeProto) -> None:
        """Gives the node that makes the old one's result the name of that; names are unique."""
        if node.output[0] == self.output:
            node.name = self.proto.name
            node.metadata_props.extend(self.proto.metadata_props)

    def enter_ints(self, numbers: Sequence[int]) -> Value:
        """Enters a list of int64."""
        return self.enter(np.array(numbers, np.int64), "constant")

    def end(
        self, inputs: Sequence[Value | None], op_type: str = "", *, results: int = 0,
        **attributes: Any,
    ) -> list[Value]:  # fmt: skip
        """Makes the node that gives the old one's results, with the attributes that are left.

        Args:
            inputs: Its operands.
            op_type: Its operator; the old one's by default.
            results: How many results it has; as many as the old one by default.
            **attributes: What it has besides; None leaves one out.
        """
        outputs = self.proto.output[: results or len(self.proto.output)]
        given: dict[str, Any] = {**attributes, **self.attributes}
        return self.several(op_type or self.op_type, inputs, outputs, **given)


def known_rank(value: Value) -> int:
    """Returns the rank of a tensor.

    Raises:
        NoNewForm: It is unknown.
    """
    if value.rank is None:
        raise NoNewForm(f"the rank of '{value.name}' is unknown")
    return value.rank


def _older(
    before: int, ops: str | tuple[str, ...], *operands: str
) -> Callable[[Callable[[OldNode], Made]], Rule]:
    """Makes a rule of operators as they were before a version.

    Args:
        before: That version.
        ops: The operators.
        operands: What they read; nothing where that is any number.
    """
    names = (ops,) if isinstance(ops, str) else ops

    def make(build: Callable[[OldNode], Made]) -> Rule:
        name = f"older{build.__name__}".replace("_", "-")
        pattern = (names, *operands)
        of = reading_rule(name, pattern) if operands else reading_rule_of_any(name, *names)

        @wraps(build)
        def look(context: LoweringContext) -> Made:
            old = OldNode(context.node)
            return build(old) if old.since < before else None

        return of(look)

    return make


@_older(6, _LEGACY)
def _drop_legacy_attributes(context: OldNode) -> Made:
    """``Relu(x, consumed_inputs=[0]) -> Relu(x)``: attributes that said nothing are gone."""
    for name in ("consumed_inputs", "is_test"):
        context.take(name)
    return context.end(context.operands)


@_older(7, _BROADCASTING, "a", "b")
def _broadcasting(context: OldNode) -> Made:
    """``Add(a, b, broadcast=1, axis=n) -> Add(a, Unsqueeze(b))``: b begins at ``axis`` of a."""
    context.take("consumed_inputs")
    broadcast, axis = context.take("broadcast", 0), context.take("axis")
    a, b = context.inputs(2)
    if broadcast and axis is not None:
        first, second = known_rank(a), known_rank(b)
        # Broadcasting aligned b at an axis of a; today both end together, so that b wants axes of 1
        # behind.
        behind = first - (axis + first if axis < 0 else axis) - second
        if behind > 0:
            b = context.op("Unsqueeze", [b, context.enter_ints(range(second, second + behind))])
    return context.end([a, b])


@_older(7, "Gemm", "a", "b", "c")
def _gemm(context: OldNode) -> Made:
    """``Gemm(a, b, c, broadcast=1) -> Gemm(a, b, c)``."""
    context.take("broadcast")
    return context.end(context.operands)


@_older(7, "PRelu", "x", "slope")
def _prelu(context: OldNode) -> Made:
    """``PRelu(x, slope) -> PRelu(x, Unsqueeze(slope))``: a vector belonged to the channels."""
    context.take("consumed_inputs")
    x, slope = context.inputs(2)
    behind = known_rank(x) - 2
    if known_rank(slope) == 1 and behind > 0:
        slope = context.op("Unsqueeze", [slope, context.enter_ints(range(1, behind + 1))])
    return context.end([x, slope])


@_older(11, "Clip", "x")
def _clip(context: OldNode) -> Made:
    """``Clip(x, min=a, max=b) -> Clip(x, a, b)``: bounds are operands."""
    context.take("consumed_inputs")
    bounds = [context.take(name) for name in ("min", "max")]
    names = [
        None if bound is None else context.enter(context.real(bound), "constant")
        for bound in bounds
    ]
    return context.end([context.optional(0), *names])


@_older(6, "Selu", "x")
def _selu(context: OldNode) -> Made:
    """``Selu(x) -> Selu(x)`` with the numbers that version 1 had by default."""
    context.take("consumed_inputs")
    # Version 6 has more digits.
    alpha, gamma = context.take("alpha", 1.6732), context.take("gamma", 1.0507)
    return context.end(context.operands, alpha=alpha, gamma=gamma)


@_older(6, "Cast", "x")
def _cast(context: OldNode) -> Made:
    """``Cast(x, to="FLOAT") -> Cast(x, to=1)``: types have numbers."""
    to = context.take("to")
    return context.end(context.operands, to=TensorProto.DataType.Value(str(to)))


@_older(4, "Concat")
def _concat(context: OldNode) -> Made:
    """``Concat(x, y) -> Concat(x, y, axis=1)``: there was a default."""
    return context.end(context.operands, axis=context.take("axis", 1))


@_older(12, "Dropout", "x")
def _dropout(context: OldNode) -> Made:
    """``Dropout(x) -> Identity(x)`` in inference; the mask is empty, as onnxruntime makes it."""
    if context.since < 7 and not context.take("is_test", 0):
        raise NoNewForm("it is in training mode")
    x, outputs, masks = context.operand(0), context.proto.output, list[Value]()
    if len(outputs) > 1 and outputs[1]:
        shape = context.op("Shape", [x])
        zero = np.zeros(1, np.bool_) if context.since >= 10 else context.real(0).reshape(1)
        value = numpy_helper.from_array(zero)
        masks = [context.op("ConstantOfShape", [shape], outputs[1], value=value)]
    # Ratio, seed and mode say nothing of an Identity.
    context.attributes.clear()
    return [*context.end([x], "Identity", results=1), *masks]


@_older(9, "BatchNormalization", "x", "scale", "bias", "mean", "variance")
def _batch_normalization(context: OldNode) -> Made:
    """``BatchNormalization(x, is_test=1) -> BatchNormalization(x)``: its results say so."""
    for name in ("consumed_inputs", "is_test"):
        context.take(name)
    if not context.take("spatial", 1):
        raise NoNewForm("it normalizes every position on its own (spatial=0)")
    # The further results are statistics of the batch, which only training has.
    training = sum(1 for name in context.proto.output if name) > 1
    return context.end(context.operands, results=0 if training else 1)


@_older(11, "Pad", "x")
def _pad(context: OldNode) -> Made:
    """``Pad(x, paddings=p, value=v) -> Pad(x, p, v)``."""
    pads = context.take("pads", None) or context.take("paddings", None)
    value = context.enter(context.real(context.take("value", 0.0)), "constant")
    return context.end([context.optional(0), context.enter_ints(pads or []), value])


@_older(10, "Slice", "x")
def _slice(context: OldNode) -> Made:
    """``Slice(x, starts=a, ends=b, axes=c) -> Slice(x, a, b, c)``."""
    starts, ends = context.take("starts"), context.take("ends")
    axes = context.take("axes", list(range(len(starts))))
    more = [context.enter_ints(each) for each in (starts, ends, axes)]
    return context.end([context.operand(0), *more])


@_older(13, "Split", "x", "sizes?")
def _split(context: OldNode) -> Made:
    """``Split(x, split=sizes) -> Split(x, sizes)``."""
    sizes = context.take("split")
    axis = context.take("axis", 0)
    given = context.enter_ints(sizes) if sizes else context.optional(1)
    return context.end([context.optional(0), given], axis=axis)


@_older(13, ("Squeeze", "Unsqueeze", "ReduceSum"), "x")
def _axes_to_input(context: OldNode) -> Made:
    """``Squeeze(x, axes=a) -> Squeeze(x, a)``, and so Unsqueeze and ReduceSum."""
    axes = context.take("axes")
    return context.end([context.operand(0), None if axes is None else context.enter_ints(axes)])


@_older(13, ("Softmax", "LogSoftmax", "Hardmax"), "x")
def _coerced(context: OldNode) -> Made:
    """``Softmax(x) -> Reshape(Softmax(Flatten(x)))``: over all axes from ``axis`` on together."""
    x, axis = context.operand(0), context.take("axis", 1)
    shape = x.type.shape
    # Over the last axis alone both meanings are one.
    if shape is not None and axis in (len(shape) - 1, -1):
        return context.end([x], axis=axis)
    if shape is not None and axis < 0:
        axis += len(shape)
    # Of no elements there is nothing to compute.
    if shape is not None and 0 in shape:
        return context.end([x], "Identity")
    result = context.op(context.op_type, [context.op("Flatten", [x], axis=axis)], axis=1)
    if shape is not None and sum(isinstance(extent, str) for extent in shape) < 2:
        target = context.enter_ints([-1 if isinstance(extent, str) else extent for extent in shape])
        return context.end([result, target], "Reshape")
    context.made_in = max(context.made_in, 14)  # a 0 copies no extent of the matrix
    return context.end([result, context.op("Shape", [x])], "Reshape", allowzero=1)


@_older(13, "Erf", "x")
def _erf(context: OldNode) -> Made:
    """``Erf(x) -> Cast(Erf(Cast(x)))`` of integers: ONNX's reference cuts off float64."""
    x = context.operand(0)
    if x.type.dtype in _FLOATS:
        return context.end([x])
    result = context.op("Erf", [context.op("Cast", [x], to=TensorProto.DOUBLE)])
    return context.end([result], "Cast", to=dtype_to_onnx(x.type.dtype))


@_older(10, "Upsample", "x", "scales?")
def _upsample(context: OldNode) -> Made:
    """``Upsample(x) -> Resize(x)`` by asymmetric coordinates; nearest takes the floor of them."""
    mode = context.take("mode", "nearest")
    scales = context.optional(1)
    if context.since == 1:
        height, width = context.take("height_scale"), context.take("width_scale")
        scales = context.enter(np.array([1, 1, height, width], np.float32), "constant")
    elif context.since < 9:
        scales = context.enter(np.array(context.take("scales"), np.float32), "constant")
    return _asymmetric(context, context.operand(0), scales, mode, "floor")


@_older(11, "Resize", "x", "scales")
def _resize(context: OldNode) -> Made:
    """``Resize(x) -> Resize(Resize(x))``: nearest truncates going up, and rounds up going down."""
    mode, x, scales = context.take("mode", "nearest"), context.operand(0), context.operand(1)
    if mode != "nearest":
        return _asymmetric(context, x, scales, mode, "floor")
    one = context.enter(np.ones(1, np.float32), "constant")
    # Each axis goes up or down: one of two Resizes has scale 1 along it.
    smaller = context.op("Min", [scales, one])
    down = context.op(
        "Resize", [x, None, smaller],
        mode=mode, coordinate_transformation_mode="asymmetric", nearest_mode="ceil",
    )  # fmt: skip
    return _asymmetric(context, down, context.op("Max", [scales, one]), mode, "floor")


def _asymmetric(
    context: OldNode, x: Value, scales: Value | None, mode: str, nearest: str
) -> list[Value]:
    mode = "linear" if mode in ("linear", "bilinear") else mode
    return context.end(
        [x, None, scales], "Resize",
        mode=mode, coordinate_transformation_mode="asymmetric", nearest_mode=nearest,
    )  # fmt: skip


@_older(99, "Scatter", "x", "indices", "updates")
def _scatter(context: OldNode) -> Made:
    """``Scatter(x, i, u) -> ScatterElements(x, i, u)``."""
    return context.end(context.operands, "ScatterElements")


@_older(10, "TopK", "x", "k?")
def _top_k(context: OldNode) -> Made:
    """``TopK(x, k=n) -> TopK(x, n)``."""
    if context.since == 1:
        return context.end([context.optional(0), context.enter_ints([context.take("k")])])
    return context.end(context.operands)


@_older(5, "Reshape", "x")
def _reshape(context: OldNode) -> Made:
    """``Reshape(x, shape=s) -> Reshape(x, s)``."""
    context.take("consumed_inputs")
    return context.end([context.optional(0), context.enter_ints(context.take("shape", []))])


@_older(7, ("GRU", "LSTM", "RNN"))
def _recurrent(context: OldNode) -> Made:
    """``RNN(x, output_sequence=1) -> RNN(x)``, and so GRU and LSTM; "foward" was a typo."""
    context.take("output_sequence")
    direction = context.take("direction", "forward").replace("foward", "forward")
    return context.end(context.operands, direction=direction)


@_older(2, ("GlobalLpPool", "LpPool"), "x")
def _power(context: OldNode) -> Made:
    """``LpPool(x, p=2.0) -> LpPool(x, p=2)``: a whole number."""
    power = context.take("p", 2.0)
    return context.end(context.operands, p=int(power))


@_older(16, "RoiAlign", "x", "boxes", "batches")
def _roi_align(context: OldNode) -> Made:
    """``RoiAlign(x) -> RoiAlign(x)`` without the half pixel."""
    return context.end(context.operands, coordinate_transformation_mode="output_half_pixel")


@_older(20, "DFT", "x", "length?")
def _fourier(context: OldNode) -> Made:
    """``DFT(x, axis=n) -> DFT(x, n)``."""
    axis = context.enter(np.array(context.take("axis", 1), np.int64), "constant")
    return context.end([context.optional(0), context.optional(1), axis])


@_older(9, "Scan")
def _scan(context: OldNode) -> Made:
    """``Scan(x) -> Scan(Scan(x))``: that of opset 8 works on a batch, along axis 0 of all."""
    # The first operand of opset 8 is a vector of sequence lengths, which no newer Scan has.
    if context.optional(0):
        raise NoNewForm("its sequences have lengths of their own")
    body, count = context.take("body"), context.take("num_scan_inputs")
    directions = context.take("directions")
    operands, names = list(context.operands[1:]), context.proto.input[1:]
    ranks = [_dims(value) for value in body.input]
    states = len(operands) - count
    inner_in = [context.maker.fresh(f"{name}.row", numbered=True) for name in names]
    inner_out = [context.fresh("row") for _ in body.output]
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
    return context.end(operands, body=outer, num_scan_inputs=len(operands))


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


OLDER: tuple[Rule, ...] = (
    _drop_legacy_attributes, _broadcasting, _gemm, _prelu, _clip, _selu, _cast,
    _concat, _dropout, _batch_normalization, _pad, _slice, _split,
    _axes_to_input, _coerced, _erf, _upsample, _resize, _scatter, _top_k, _reshape,
    _recurrent, _power, _roi_align, _fourier, _scan,
)  # fmt: skip
"""Every rule."""
_RULES = Growing(OLDER)


def older_form(
    proto: NodeProto, opset: int, operands: Sequence[Value | None], maker: NodeMaker, made_in: int
) -> Proposal:
    """Returns what stands for a node of an older opset, made in terms of a newer one.

    Args:
        proto: A node of ONNX's own domain.
        opset: The opset that it is written in.
        operands: What it reads.
        maker: Makes nodes.
        made_in: The opset for these, but for operators that only a later one has.
    """
    if not _RULES.looks_at(proto.op_type):
        return None
    return _RULES.proposal(file_node(proto, opset, operands, maker, made_in))


def renew_bodies(proto: NodeProto, opset: int, fresh: Fresh) -> int:
    """Brings the nodes of a node's bodies up to date, in place; returns the opset for the node.

    Raises:
        NoNewForm: Nothing newer says one of them.
    """
    new = max(opset, _NEW)
    for attribute in proto.attribute:
        for body in bodies(attribute):
            new = max(new, _renew_body(body, opset, fresh))
    return new


class _FileMaker:
    """Makes nodes of a file in place of older ones, of values of which little is known.

    Args:
        opset: The version of ONNX's own domain.
        fresh: Gives unused names of tensors.
        type_of: Gives what is known of a tensor.

    Attributes:
        made: The nodes made so far.
        newest: The opset that they need.
    """

    def __init__(self, opset: int, fresh: Fresh, type_of: Callable[[str], TypeAndShape]) -> None:
        self.file, self.opset, self._fresh, self._type_of = "", opset, fresh, type_of
        self.made: list[NodeProto] = []
        self.newest = 0

    def form_of(self, proto: NodeProto) -> tuple[list[NodeProto], int]:
        """Returns the nodes that say the same in newer terms, and the opset that has them.

        Raises:
            NoNewForm: Nothing newer says it.
        """
        self.newest = renew_bodies(proto, self.opset, self._fresh)
        self.made = []
        if proto.domain in ONNX_DOMAINS:
            operands = [self._value(name) if name else None for name in proto.input]
            found = older_form(proto, self.opset, operands, self, self.newest)
            if isinstance(found, Reject):
                raise NoNewForm(found.reason)
            if isinstance(found, Replace):
                return self.made, self.newest
        return [proto], self.newest

    def _value(self, name: str) -> Value:
        element, shape = self._type_of(name)
        return Value(TensorType(dtype_of(element or TensorProto.FLOAT, name), shape), name)

    def fresh(self, hint: str, *, numbered: bool = False) -> str:
        """Returns a name that nothing has."""
        assert numbered
        return self._fresh(hint)

    def enter(self, constant: Constant, name: str) -> Value:
        """Returns a new constant."""
        value = proto_from_constant("", constant)
        self.made.append(helper.make_node("Constant", [], [name], value=value))
        return constant_value(constant, name)

    def named(self, value: Value) -> str:
        """Returns the name of a value."""
        return value.name

    def make(self, proto: NodeProto, opset: int, variant: str) -> list[Value]:
        """Makes a node; nothing is known of its results."""
        del variant
        self.made.append(proto)
        self.newest = max(self.newest, opset)
        return [Value(TensorType(DType.FLOAT32, None), name) for name in proto.output if name]

    def known(self, value: Value) -> Constant | None:
        """Returns the data of a constant that was entered."""
        return value.constant

    def is_constant(self, value: Value) -> bool:
        """Returns whether a value was entered as a constant."""
        return value.is_constant


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

    def type_of(name: str) -> TypeAndShape:
        return types.get(name, (0, None))

    maker = _FileMaker(opset, lambda hint: unused(hint, taken), type_of)
    for node in model.graph.node:
        try:
            made, newest = maker.form_of(node)
        except NoNewForm as reason:
            refused.append(f"{describe(node)}: {reason}")
            continue
        new = max(new, newest)
        if any(name and type_of(name)[1] is None for name in node.output):
            types |= _inferred(made, newest, types, tensors)
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

    def type_of(name: str) -> TypeAndShape:
        if name in tensors:
            return tensors[name].data_type, tuple(tensors[name].dims)
        if name not in types:
            return 0, None
        return types[name].elem_type, shape_of(TypeProto(tensor_type=types[name]))

    maker = _FileMaker(opset, fresh, type_of)
    nodes: list[NodeProto] = []
    changed, new = False, 0
    for node in body.node:
        made, newest = maker.form_of(node)
        changed, new = changed or made[0] is not node, max(new, newest)
        nodes += made
    if changed:
        # Some of them are parts of the body, which is cleared before they are put in again.
        copies = [NodeProto.FromString(node.SerializeToString()) for node in nodes]
        del body.node[:]
        body.node.extend(copies)
    return new
