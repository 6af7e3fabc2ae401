"""Shapes and element types of every tensor of a file, by ONNX's own inference on a light copy.

The copy leaves out the bytes of large initializers, and what the file declares about results: that
may be stale, and operators know better. It stands a Cast for every QuantizeLinear and
DequantizeLinear of any domain or opset, because those never change a shape.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import GraphProto, NodeProto, TensorProto, TypeProto, helper, numpy_helper

from qdqbridge.control_characters import visible
from qdqbridge.core.graph.symbols import dim_name
from qdqbridge.core.graph.types import Shape
from qdqbridge.onnx_io.domains import ONNX_DOMAINS
from qdqbridge.onnx_io.inference.guarded import guarded_inference, without_dropped

# ---- Shapes of what a Loop makes, which ONNX's own inference leaves open
#
# A state that its body gives back in the shape it came in has that shape however often the body
# runs.

_GIVEN = 2
"""Operands in front of the states: how often, and whether at all. A body gets as many."""
_Shape: TypeAlias = "tuple[int | str, ...]"
Infer: TypeAlias = Callable[[Sequence[TypeProto]], Sequence[TypeProto]]


def loop_results(
    body: GraphProto,
    operands: Sequence[TypeProto | None],
    data: Mapping[int, NDArray[Any]],
    infer: Infer,
) -> list[TypeProto]:
    """Returns the types of a Loop's results, each empty where its shape does not follow.

    Args:
        body: What is run.
        operands: The types of the Loop's operands.
        data: Operands that are known to be small constants, by index.
        infer: Gives the types of the body's results from those of its inputs.
    """
    states = [type_ or TypeProto() for type_ in operands[_GIVEN:]]
    counter, going = TypeProto(), TypeProto()
    counter.tensor_type.elem_type, going.tensor_type.elem_type = TensorProto.INT64, TensorProto.BOOL
    for scalar in (counter, going):
        scalar.tensor_type.shape.SetInParent()
    while True:
        made = infer([counter, going, *states])[1:]
        moved = [
            index
            for index, state in enumerate(states)
            if _shape(state) is not None and _shape(made[index]) != _shape(state)
        ]
        if not moved:
            break
        for index in moved:
            open_ = TypeProto()
            open_.tensor_type.elem_type = states[index].tensor_type.elem_type
            states[index] = open_
    kept = [TypeProto() if _shape(state) is None else state for state in states]
    return kept + [_gathered(each, _times(body, operands, data)) for each in made[len(states) :]]


def _shape(type_: TypeProto) -> _Shape | None:
    """Returns extents that are all known or named; None for others."""
    if not type_.tensor_type.HasField("shape"):
        return None
    dims = type_.tensor_type.shape.dim
    shape = tuple(d.dim_value if d.HasField("dim_value") else d.dim_param for d in dims)
    return None if "" in shape else shape


def _gathered(each: TypeProto, times: int | None) -> TypeProto:
    """Returns the type of what all runs of a body give, behind each other.

    Of no run onnxruntime gives one axis, whatever the rank of the others.
    """
    if _shape(each) is None or not times:
        return TypeProto()
    gathered = TypeProto()
    gathered.tensor_type.elem_type = each.tensor_type.elem_type
    gathered.tensor_type.shape.dim.add().dim_value = times
    gathered.tensor_type.shape.dim.extend(each.tensor_type.shape.dim)
    return gathered


def _times(
    body: GraphProto, operands: Sequence[TypeProto | None], data: Mapping[int, NDArray[Any]]
) -> int | None:
    """Returns how often a body is run, where no condition ends it."""
    asked = operands[1] is not None
    if 0 not in data or (asked and (1 not in data or not data[1].all())):
        return None
    return max(int(data[0].reshape(-1)[0]), 0) if _goes_on(body) else None


def _goes_on(body: GraphProto) -> bool:
    """True where a body hands on the condition it is given, or a constant that is true."""
    makers: dict[str, NodeProto] = {name: node for node in body.node for name in node.output}
    name = body.output[0].name
    while name in makers and makers[name].op_type == "Identity":
        name = makers[name].input[0]
    if name == body.input[1].name:
        return True
    held = [tensor for tensor in body.initializer if tensor.name == name]
    if name in makers and makers[name].op_type == "Constant":
        held = [each.t for each in makers[name].attribute if each.name == "value"]
    return any(bool(numpy_helper.to_array(tensor).all()) for tensor in held)


# ----

log = logging.getLogger(__name__)

_SMALL = 256
_OLDER, _SAME = 13, 17
"""From 13 to 17 operators only grew, and 17 propagates the data of shapes through more of them."""
_KEEPS_TYPE = ("Identity", "Reshape", "Squeeze", "Unsqueeze", "Expand")
_QUANTIZE = ("QuantizeLinear", "DequantizeLinear")
_SHAPED_AS_INPUT = ("Gelu", "QuickGelu")
_DOMAINS = (*ONNX_DOMAINS, "com.microsoft")
TypeAndShape = tuple[int, Shape]


def infer(model: onnx.ModelProto) -> dict[str, TypeAndShape]:
    """Returns ``name -> (ONNX element type, shape)`` for what inference can tell.

    Of what it cannot tell, the element type and the rank are those that the file declares.
    """
    light = _light_copy(model)
    try:
        light = guarded_inference(light)
        while (exact := without_dropped(light)) is not None:
            light = guarded_inference(exact)
    except (onnx.shape_inference.InferenceError, RuntimeError, ValueError, MemoryError) as error:
        # What onnx raises of a model that it cannot infer; what is known by then is not needed.
        log.info("shape inference stopped: %s", visible(str(error)))
    known = declared_types((*model.graph.value_info, *model.graph.output))
    for name, (element, shape) in known.items():
        known[name] = element, None if shape is None else tuple(f"?{i}" for i in range(len(shape)))
    for value in (*light.graph.input, *light.graph.value_info, *light.graph.output):
        tensor = value.type.tensor_type
        if tensor.elem_type:
            shape = shape_of(value.type)
            _, rank_only = known.get(value.name, (0, None))
            known[value.name] = tensor.elem_type, rank_only if shape is None else shape
    return known


def declared_types(declared: Iterable[onnx.ValueInfoProto]) -> dict[str, TypeAndShape]:
    """Returns ``name -> (ONNX element type, shape)`` for the tensors that a graph declares."""
    return {
        value.name: (value.type.tensor_type.elem_type, shape_of(value.type))
        for value in declared
        if value.type.WhichOneof("value") == "tensor_type"
    }


def shape_of(type_: onnx.TypeProto) -> Shape:
    """Returns the shape that a TypeProto declares."""
    tensor = type_.tensor_type
    if not tensor.HasField("shape"):
        return None
    dims: list[int | str] = []
    for index, dim in enumerate(tensor.shape.dim):
        if dim.HasField("dim_value") and dim.dim_value >= 0:
            dims.append(dim.dim_value)
        else:
            # Some files write ? for every extent that they do not know: no name that says equal.
            dims.append(dim_name(dim.dim_param) if dim.dim_param.strip("?") else f"?{index}")
    return tuple(dims)


def _light_copy(model: onnx.ModelProto) -> onnx.ModelProto:
    light = onnx.ModelProto(ir_version=model.ir_version, opset_import=model.opset_import)
    for entry in light.opset_import:
        if entry.domain in ONNX_DOMAINS and _OLDER <= entry.version < _SAME:
            entry.version = _SAME
    graph, source = light.graph, model.graph
    graph.name = source.name or "graph"
    listed = {value.name for value in source.input}
    graph.input.extend(source.input)
    graph.output.extend(onnx.ValueInfoProto(name=value.name) for value in source.output)
    types = {value.name: value.type.tensor_type.elem_type for value in source.input}
    types |= {t.name: t.data_type for t in source.initializer}
    types |= {
        node.output[0]: attribute.t.data_type
        for node in source.node
        if node.op_type == "Constant" and node.output
        for attribute in node.attribute
        if attribute.name == "value"
    }
    for tensor in source.initializer:
        if is_small(tensor):
            graph.initializer.append(tensor)
        elif tensor.name not in listed:
            graph.input.append(
                helper.make_tensor_value_info(tensor.name, tensor.data_type, list(tensor.dims))
            )
    for node in source.node:
        if node.op_type in _QUANTIZE and node.domain in _DOMAINS and len(node.input) >= 2:
            graph.node.append(_cast_for(node, types))
        elif node.op_type in _SHAPED_AS_INPUT and node.domain == "com.microsoft":
            graph.node.append(helper.make_node("Identity", node.input[:1], node.output[:1]))
        else:
            graph.node.append(node)
            _note_type(node, types)
    return light


def _note_type(node: onnx.NodeProto, types: dict[str, int]) -> None:
    """Notes the element types of what zero points are made with (idioms A4 to A8)."""
    attributes = {attribute.name: attribute for attribute in node.attribute}
    if node.op_type in ("Constant", "ConstantOfShape") and "value" in attributes:
        types[node.output[0]] = attributes["value"].t.data_type
    elif node.op_type == "Cast" and "to" in attributes:
        types[node.output[0]] = attributes["to"].i
    elif node.op_type == "CastLike" and node.input[1] in types:
        types[node.output[0]] = types[node.input[1]]
    elif node.op_type in _KEEPS_TYPE and node.input[0] in types:
        types[node.output[0]] = types[node.input[0]]


def is_small(tensor: TensorProto) -> bool:
    """True where a tensor's data may matter to shapes and is cheap to copy."""
    return (
        tensor.data_location != TensorProto.EXTERNAL
        and int(np.prod(tensor.dims, dtype=np.float64)) <= _SMALL
    )


def _cast_for(node: onnx.NodeProto, types: dict[str, int]) -> onnx.NodeProto:
    declared = next((a.i for a in node.attribute if a.name == "output_dtype" and a.i), 0)
    if node.op_type == "DequantizeLinear":
        to = declared or types.get(node.input[1], TensorProto.FLOAT)
        if to not in (TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.BFLOAT16):
            to = TensorProto.FLOAT
    else:
        zero_point = node.input[2] if len(node.input) > 2 else ""
        to = declared or types.get(zero_point, TensorProto.UINT8)
        types[node.output[0]] = to
    return helper.make_node("Cast", [node.input[0]], list(node.output[:1]), node.name, to=to)
