"""Shapes and element types of every tensor of a file, by ONNX's own inference on a light copy.

The copy leaves out the bytes of large initializers, and what the file declares about results: that
may be stale, and operators know better. It stands a Cast for every QuantizeLinear and
DequantizeLinear of any domain or opset, because those never change a shape.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import GraphProto, NodeProto, TensorProto, TypeProto, ValueInfoProto, helper, numpy_helper

from qdqbridge.control_characters import visible
from qdqbridge.core.graph.symbols import dim_name
from qdqbridge.core.graph.types import Shape
from qdqbridge.core.ops.shapes import covered, extents, span, window_count
from qdqbridge.errors import InvalidModelError
from qdqbridge.onnx_io.control_flow.subgraph_names import bodies, nodes_inside
from qdqbridge.onnx_io.reading.structure import ONNX_DOMAINS, describe

# ---- guarded -------------------------------------------------------------------------------------
# ONNX's shape inference where a file cannot make it take the machine, or the process, with it.
#
# Three things in a file can (onnx 1.23): a Slice of an axis of negative extent aborts the process,
# propagating the data of a vector makes a symbol for each of its elements, 40 bytes each, and
# EyeLike and RegexFullMatch of a value whose type nobody knows end it. The first two are looked for
# first, in passes that cannot meet them; a Cast, which has their types and shapes, stands for the
# third.


_LONG, _LARGE = 1 << 20, 1 << 30
_COPIES = 1 << 12
"""Times the 256 elements of an initializer; the Concats of real shapes make a few dozen."""
_INTEGERS = (TensorProto.INT64, TensorProto.INT32)
_MAKERS = ("ConstantOfShape", "Range", "Expand", "Tile", "Pad", "Resize", "Reshape", "OneHot")
"""Operators whose result is as large as their operands' data say."""
_OPAQUE = "qdqbridge.opaque"
_TYPED: Mapping[str, Callable[[onnx.NodeProto], int]] = {
    "EyeLike": lambda node: next((a.i for a in node.attribute if a.name == "dtype"), 0),
    "RegexFullMatch": lambda node: TensorProto.BOOL,
}
"""Operators that read the type of their operand unasked, and the type of their result."""


def guarded_inference(model: onnx.ModelProto) -> onnx.ModelProto:
    """Returns a model with the types and shapes that ONNX can infer.

    Args:
        model: A model without the bytes of large tensors; declared extents below 0 are removed.

    Raises:
        onnx.shape_inference.InferenceError: Declared and inferred shapes disagree.
        RuntimeError: Inference fails otherwise.
    """
    for value in _declared(model.graph):
        _forget_negative(value)
    _cast_typed(model.graph)
    if _has_long_vector(model):
        return _without_slices(model) or _inferred(model, data=False)
    safe = _without_slices(model)
    if safe is not None:
        return safe
    makes = any(node.op_type in _MAKERS for node in model.graph.node)
    if makes or _copies(model.graph, {}) > _COPIES:
        plain = _inferred(model, data=False)  # sees what one maker makes of another's result
        if _has_long_vector(plain):
            return plain
        if makes and _has_long_vector(_inferred(_with_loose_makers(model), data=True)):
            return plain
    return _inferred(model, data=True)


def _inferred(model: onnx.ModelProto, *, data: bool) -> onnx.ModelProto:
    return onnx.shape_inference.infer_shapes(model, data_prop=data)


def _declared(graph: onnx.GraphProto) -> Iterator[onnx.ValueInfoProto]:
    yield from (*graph.input, *graph.output, *graph.value_info)
    for node in graph.node:
        for attribute in node.attribute:
            for body in (attribute.g, *attribute.graphs):
                yield from _declared(body)


def _cast_typed(graph: onnx.GraphProto) -> None:
    for node in graph.node:
        to = _TYPED[node.op_type](node) if node.op_type in _TYPED else 0
        if to:
            cast = helper.make_node("Cast", node.input[:1], node.output[:1], node.name, to=to)
            node.CopyFrom(cast)
        for attribute in node.attribute:
            for body in (attribute.g, *attribute.graphs):
                _cast_typed(body)


def _forget_negative(value: onnx.ValueInfoProto) -> None:
    if value.type.WhichOneof("value") == "tensor_type":
        for extent in value.type.tensor_type.shape.dim:
            if extent.dim_value < 0:
                extent.Clear()


def _copies(graph: onnx.GraphProto, known: dict[str, int]) -> int:
    """Returns how often Concats put one element side by side, at most.

    Forty Concats of a vector with itself, one after the other, make 2**40 copies of it.

    Args:
        graph: A graph, or the body of a node.
        known: The copies in each value that is known already; grows.
    """
    most = 1
    for node in graph.node:
        counts = [known.get(name, 1) for name in node.input]
        count = sum(counts) if node.op_type == "Concat" else max(counts, default=1)
        for attribute in node.attribute:
            for body in (attribute.g, *attribute.graphs):
                if body.node:
                    count = max(count, _copies(body, known))
        known.update(dict.fromkeys(node.output, count))
        most = max(most, count)
    return most


def _has_long_vector(model: onnx.ModelProto) -> bool:
    """True where a value is a long vector, or may be made one by a Reshape."""
    for value in (*model.graph.input, *model.graph.value_info, *model.graph.output):
        type_ = value.type.tensor_type
        size = math.prod(extent.dim_value or 1 for extent in type_.shape.dim)
        flat = len(type_.shape.dim) == 1 or type_.elem_type in _INTEGERS
        if size > (_LONG if flat else _LARGE):
            return True
    return False


def _without_slices(model: onnx.ModelProto) -> onnx.ModelProto | None:
    """Returns what can be inferred without looking at any Slice, where only that is safe."""
    if not _has_slice(model.graph):
        return None
    copy = _copy(model)
    copy.opset_import.append(helper.make_opsetid(_OPAQUE, 1))
    _hide_slices(copy.graph)
    copy = _inferred(copy, data=False)
    extents = (
        extent.dim_value
        for value in _declared(copy.graph)
        if value.type.WhichOneof("value") == "tensor_type"
        for extent in value.type.tensor_type.shape.dim
    )
    if all(extent >= 0 for extent in extents):
        return None
    for value in _declared(copy.graph):
        _forget_negative(value)
    return copy


def _has_slice(graph: onnx.GraphProto) -> bool:
    return any(
        node.op_type == "Slice"
        or any(_has_slice(body) for a in node.attribute for body in (a.g, *a.graphs))
        for node in graph.node
    )


def _hide_slices(graph: onnx.GraphProto) -> None:
    for node in graph.node:
        if node.op_type == "Slice":
            node.op_type, node.domain = "Opaque", _OPAQUE
        for attribute in node.attribute:
            for body in (attribute.g, *attribute.graphs):
                _hide_slices(body)


def _with_loose_makers(model: onnx.ModelProto) -> onnx.ModelProto:
    """Returns a copy in which nobody reads what operators make whose size their data say."""
    copy = _copy(model)
    for index, node in enumerate(copy.graph.node):
        if node.op_type in _MAKERS:
            for place, name in enumerate(node.output):
                node.output[place] = f"{name}.loose.{index}"
    return copy


def _copy(model: onnx.ModelProto) -> onnx.ModelProto:
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    return copy


# ---- Bodies in which ONNX's shape inference knows every node that quantization brings
#
# ONNX's own inference goes through the bodies of If, Loop and Scan, and ends at operators of
# onnxruntime's domain: QuantizeLinear and DequantizeLinear of 16 bits, products with packed
# weights. Operators of ONNX's own that have the same shapes stand for them.

_CONTRIB = "com.microsoft"
_FLOATS = (TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.BFLOAT16)


def with_known_bodies(node: NodeProto) -> tuple[NodeProto, list[ValueInfoProto]]:
    """Returns a node of the same shapes, and what its bodies capture beside what they did.

    Args:
        node: Any node; it is not changed, and is what is returned where everything is known.
    """
    if all(inner.domain in ONNX_DOMAINS for inner in nodes_inside(node)):
        return node, []
    copy = NodeProto()
    copy.CopyFrom(node)
    matrices: dict[str, ValueInfoProto] = {}
    _make_known(copy, {}, matrices)
    return copy, list(matrices.values())


def _make_known(
    node: NodeProto, types: Mapping[str, int], matrices: dict[str, ValueInfoProto]
) -> None:
    for attribute in node.attribute:
        for body in bodies(attribute):
            own = {**types, **{t.name: t.data_type for t in body.initializer}}
            for inner in body.node:
                known = _inferable_node(inner, own, matrices)
                if known is None:
                    _make_known(inner, own, matrices)
                else:
                    inner.CopyFrom(known)


def _inferable_node(
    node: NodeProto, types: Mapping[str, int], matrices: dict[str, ValueInfoProto]
) -> NodeProto | None:
    """Returns a node that inference knows; None where it knows the node itself, or nothing does."""
    if node.domain != _CONTRIB:
        return None
    match node.op_type:
        case "DequantizeLinear":
            to = types.get(node.input[1], TensorProto.FLOAT)
            to = to if to in _FLOATS else TensorProto.FLOAT
        case "QuantizeLinear":
            zero_point = node.input[2] if len(node.input) > 2 else ""
            to = types.get(zero_point, TensorProto.UINT8)
        case "MatMulNBits":
            extents = {attribute.name: attribute.i for attribute in node.attribute}
            shape = [extents["K"], extents["N"]]
            name = f"a matrix of {shape[0]} and {shape[1]}"
            matrices[name] = helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)
            return helper.make_node("MatMul", [node.input[0], name], node.output[:1])
        case _:
            return None
    return helper.make_node("Cast", node.input[:1], node.output[:1], to=to)


# ---- Nodes that end the process in ONNX's shape inference (1.23), refused by name before it runs
#
# Found by running the inference of every operator on random operands and attributes; what else
# ends it lacks an operand that the operator's schema requires.

_MOST_AXES = 64
"""More axes than any tensor has."""


def check_inferable(node: onnx.NodeProto, file: str) -> None:
    """Checks what inference takes for granted: it counts axes and results by attributes.

    Raises:
        InvalidModelError: An attribute contradicts the node, or names an axis that no tensor has.
    """
    given = {a.name: a.i for a in node.attribute if a.type == onnx.AttributeProto.INT}
    problem = ""
    if node.op_type == "Split" and given.get("num_outputs", len(node.output)) != len(node.output):
        problem = f"num_outputs is {given['num_outputs']}, and it has {len(node.output)} results"
    elif node.op_type == "GatherND" and not 0 <= given.get("batch_dims", 0) <= _MOST_AXES:
        problem = f"batch_dims is {given['batch_dims']}"
    elif node.op_type == "LayerNormalization" and abs(given.get("axis", -1)) > _MOST_AXES:
        problem = f"axis is {given['axis']}"
    if problem:
        raise InvalidModelError(
            f"an attribute of {node.op_type} does not fit it",
            where=f"{file}, {describe(node)}",
            why=problem,
            fix="export the model again",
        )


# ---- Pools of ceil_mode as ONNX computes them, for an inference that counts a window too many ----
# A window that would start in the padding behind the data is dropped (ONNX's text for MaxPool and
# AveragePool, and onnxruntime, LpPool's too), and SAME has its own number of windows, whatever
# ceil_mode says. ONNX's shape inference (1.23) counts one more.


_POOLS = ("MaxPool", "AveragePool", "LpPool")


def without_dropped(model: onnx.ModelProto) -> onnx.ModelProto | None:
    """Returns a copy whose pools state their windows without ceil_mode, None where none drops any.

    What the file declares behind such a pool is left out: it may come from the same inference.

    Args:
        model: A model after inference. Only axes of known extents are looked at.
    """
    graph = model.graph
    ends = _ends(graph.node, (*graph.input, *graph.value_info, *graph.output))
    if not ends:
        return None
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    for index, pads in ends.items():
        _restate(copy.graph.node[index], pads)
    _forget(copy.graph, _behind(copy.graph, ends))
    return copy


def without_dropped_windows(node: onnx.NodeProto, sizes: list[int]) -> onnx.NodeProto:
    """Returns a node that states its windows without ceil_mode, where it is a pool that drops any.

    Args:
        node: Any node; it is changed where it is such a pool.
        sizes: The spatial extents of its operand, 0 for unknown ones.
    """
    pads = _pads(node, sizes)
    if pads is not None:
        _restate(node, pads)
    return node


def leave_open(model: onnx.ModelProto) -> None:
    """Takes extents out of a model that ONNX's inference would contradict: it refuses such files.

    Args:
        model: A model to be written; what it declares behind pools that drop a window is changed.
    """
    graph = model.graph
    ends = _ends(graph.node, (*graph.input, *graph.value_info, *graph.output))
    if ends:
        _forget(graph, _behind(graph, ends))


def _ends(
    protos: Iterable[onnx.NodeProto], values: Iterable[onnx.ValueInfoProto]
) -> dict[int, list[int]]:
    """Returns the pads that stand for the ceil_mode of pools that drop a window, by index."""
    nodes = [(i, node) for i, node in enumerate(protos) if node.op_type in _POOLS and node.input]
    if not nodes:
        return {}
    known = {
        value.name: [extent.dim_value for extent in value.type.tensor_type.shape.dim]
        for value in values
    }
    found = ((index, _pads(node, known.get(node.input[0], [])[2:])) for index, node in nodes)
    return {index: pads for index, pads in found if pads is not None}


def _behind(graph: onnx.GraphProto, pools: Mapping[int, object]) -> set[str]:
    """Returns the tensors whose extents follow from pools, through ONNX's own operators."""
    behind: set[str] = set()
    for index, node in enumerate(graph.node):
        if index in pools or (node.domain in ONNX_DOMAINS and behind & set(node.input)):
            behind.update(node.output)
    return behind


def _pads(node: onnx.NodeProto, sizes: list[int]) -> list[int] | None:
    """Returns pads that make a pool's windows without ceil_mode; None where none is dropped.

    None of them where ``auto_pad`` says them.
    """
    if node.op_type not in _POOLS or node.domain not in ONNX_DOMAINS:
        return None
    given = {a.name: helper.get_attribute_value(a) for a in node.attribute}
    kernel = list(given.get("kernel_shape", ()))
    rank = len(kernel)
    padding = given.get("auto_pad", b"NOTSET")
    if padding == b"VALID" or not given.get("ceil_mode"):
        return None
    strides, dilations = (list(given.get(n, [1] * rank)) for n in ("strides", "dilations"))
    if padding != b"NOTSET":
        return [] if any(s > k for s, k in zip(strides, kernel, strict=False)) else None
    pads = list(given.get("pads", [0] * (2 * rank)))
    fits = len(sizes) == len(strides) == len(dilations) == rank and len(pads) == 2 * rank
    if not fits or min([*strides, *dilations, *kernel], default=0) <= 0:
        return None
    counts = extents(sizes, kernel, strides, dilations, pads, ceil_mode=True)
    dropped = False
    for i, count in enumerate(counts):
        if sizes[i] <= 0:  # unknown, and so is its number of windows
            continue
        data, wide = sizes[i] + pads[i], span(kernel[i], dilations[i])
        whole = window_count(data + pads[rank + i] - wide + strides[i] - 1, strides[i])
        dropped |= whole > count
        pads[rank + i] = max(0, covered(count, strides[i], kernel[i], dilations[i]) - data)
    return pads if dropped else None


def _restate(node: onnx.NodeProto, pads: list[int]) -> None:
    kept = [a for a in node.attribute if a.name not in ("pads", "ceil_mode")]
    del node.attribute[:]
    node.attribute.extend([*kept, *([helper.make_attribute("pads", pads)] if pads else [])])


def _forget(graph: onnx.GraphProto, names: set[str]) -> None:
    """Removes the declared extents of tensors; outputs keep their rank and first extent."""
    kept = [value for value in graph.value_info if value.name not in names]
    del graph.value_info[:]
    graph.value_info.extend(kept)
    for value in graph.output:
        if value.name in names:
            for extent in value.type.tensor_type.shape.dim[1:]:
                extent.Clear()


# ---- Shapes of what a Loop makes, which ONNX's own inference leaves open
#
# A state that its body gives back in the shape it came in has that shape however often the body
# runs.

_GIVEN = 2
"""Operands in front of the states: how often, and whether at all. A body gets as many."""
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
        met = [_common_shape(*pair) for pair in zip(states, made, strict=False)]
        if met == states:
            break
        states = met
    times = _times(body, operands, data)
    kept = [state if _is_ranked(state) else TypeProto() for state in states]
    return kept + [_gathered(each, times) for each in made[len(states) :]]


def _common_shape(state: TypeProto, next_: TypeProto) -> TypeProto:
    """Returns the type of a state with what a step leaves of its shape."""
    if state.WhichOneof("value") != "tensor_type":
        return state
    common = TypeProto()
    common.tensor_type.elem_type = state.tensor_type.elem_type
    shapes = [each.tensor_type.shape.dim for each in (state, next_) if _is_ranked(each)]
    if len(shapes) == 2 and len(shapes[0]) == len(shapes[1]):
        common.tensor_type.shape.SetInParent()
        for own, other in zip(*shapes, strict=True):
            dim = common.tensor_type.shape.dim.add()
            if own == other:
                dim.CopyFrom(own)
    return common


def _is_ranked(type_: TypeProto) -> bool:
    return type_.tensor_type.HasField("shape")


def _gathered(each: TypeProto, times: int | None) -> TypeProto:
    """Returns the type of what all runs of a body give, behind each other.

    Where there may be no run only its rank is known: onnxruntime has 0 for every extent that the
    body does not declare.
    """
    if not _is_ranked(each):
        return TypeProto()
    gathered = TypeProto()
    gathered.tensor_type.elem_type = each.tensor_type.elem_type
    dims = gathered.tensor_type.shape.dim
    first = dims.add()
    if times:
        first.dim_value = times
    for extent in each.tensor_type.shape.dim:
        dims.add().CopyFrom(extent if times else first)
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
