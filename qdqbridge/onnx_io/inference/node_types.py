"""Element types and shapes of one node's results, by ONNX's own inference for its operator.

Nothing that a file declares about results is looked at: a node is typed by what it reads. Nodes
without bodies are inferred alone, from types whose extents are never negative, so that nothing in
a file can make ONNX's inference abort, nor take memory (see
:mod:`~qdqbridge.onnx_io.inference.shapes`).
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias, cast

import onnx
from numpy.typing import NDArray
from onnx import NodeProto, TensorProto, TypeProto, helper, numpy_helper

from qdqbridge.control_characters import visible
from qdqbridge.core.graph.dtypes import DType
from qdqbridge.core.graph.symbols import product, quotient, total
from qdqbridge.core.graph.types import Dim, NestedType
from qdqbridge.core.ops.shapes import einsum_shape
from qdqbridge.onnx_io.codecs.codec import schema_of
from qdqbridge.onnx_io.control_flow.subgraph_names import forget_shape
from qdqbridge.onnx_io.inference.shapes import (
    guarded_inference,
    is_small,
    loop_results,
    with_known_bodies,
    without_dropped_windows,
)
from qdqbridge.onnx_io.reading.structure import (
    ONNX_DOMAINS,
    all_nodes,
    captured_names,
    plain_domain,
    subgraphs,
    whole_results,
)
from qdqbridge.onnx_io.tensors import dtype_of, dtype_to_onnx, onnx_name

# ---- Types of the results of operators that only onnxruntime knows: its contrib operators --------
# The onnx package has no schema of them. onnxruntime infers the types of a model of one node while
# it opens it, so what has no kernel there, and every domain that it does not know, stays untyped.


log = logging.getLogger(__name__)

DOMAINS = frozenset(("com.microsoft", "com.microsoft.nchwc", "com.ms.internal.nhwc"))
"""The domains whose operators are onnxruntime's own."""
_ELEMENTS = {f"tensor({onnx_name(dtype)})": dtype_to_onnx(dtype) for dtype in DType}
_BODY_OPSET, _IR_VERSION = 17, 10


def runtime_types(
    proto: NodeProto,
    version: int,
    operands: Sequence[TypeProto | None],
    data: Mapping[int, NDArray[Any]],
) -> list[TypeProto]:
    """Returns the types of a node's results as onnxruntime infers them; empty ones where it fails.

    Args:
        proto: The node; of no other names than ``in_0`` …, ``out_0`` ….
        version: The opset version of its domain.
        operands: The types of its operands, None where one is left out.
        data: Operands that are known to be small constants, by index.
    """
    unknown = [TypeProto() for _ in proto.output]
    if proto.domain not in DOMAINS:
        return unknown
    try:
        found = {each.name: each for each in _opened(proto, version, operands, data).get_outputs()}
    except Exception as error:  # onnxruntime has a dozen classes, none documented
        log.debug("%s: onnxruntime infers nothing: %s", *map(visible, (proto.op_type, str(error))))
        return unknown
    return [_type(found[name]) if name in found else TypeProto() for name in proto.output]


def _opened(
    proto: NodeProto,
    version: int,
    operands: Sequence[TypeProto | None],
    data: Mapping[int, NDArray[Any]],
) -> Any:
    import onnxruntime as ort

    graph = onnx.GraphProto(name="node", node=[proto])
    for index, (name, type_) in enumerate(zip(proto.input, operands, strict=True)):
        if name and index in data:
            graph.initializer.append(numpy_helper.from_array(data[index], name))
        elif name and type_ is not None:
            graph.input.append(onnx.ValueInfoProto(name=name, type=type_))
    graph.output.extend(onnx.ValueInfoProto(name=name) for name in proto.output if name)
    imports = [helper.make_opsetid("", _BODY_OPSET), helper.make_opsetid(proto.domain, version)]
    model = helper.make_model(graph, opset_imports=imports, ir_version=_IR_VERSION)
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    return ort.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )


def _type(found: Any) -> TypeProto:
    """Returns a result's type; a shape of no extents is one that onnxruntime does not know."""
    type_ = TypeProto()
    if found.type not in _ELEMENTS:
        return type_
    type_.tensor_type.elem_type = _ELEMENTS[found.type]
    for extent in found.shape:
        dim = type_.tensor_type.shape.dim.add()
        if isinstance(extent, int):
            dim.dim_value = extent
        elif extent:
            dim.dim_param = extent
    return type_


# ---- Extents of what attentions give, where ONNX and onnxruntime do not tell them, or wrongly
#
# ONNX's inference (1.23) takes an open count of keys, or of what is kept of earlier ones, for 0:
# its last result had no elements, or as many as there are new keys. onnxruntime (1.32) tells of
# the keys and values that its own attentions keep only where both counts are numbers, and nothing
# of what an Attention without a bias gives.

Extents: TypeAlias = "tuple[Dim | None, ...]"
"""The shape of a result, None for each extent that does not follow."""
_Q, _K, _V, _PAST = 0, 1, 2, 4
_RANK = 3
_KEPT = {"MultiHeadAttention": 6, "Attention": _PAST}
"""Where the attentions of com.microsoft have what is kept of earlier keys."""


def attention_extents(
    node: NodeProto, operands: Sequence[TypeProto | None]
) -> list[Extents | None]:
    """Returns the extents of the four results: y, the present keys and values, the products.

    Args:
        operands: The types of its operands, None where one is left out.

    Returns:
        An entry for every result that ONNX knows; None where the rank of an operand is unknown.
    """
    given = {attribute.name: attribute.i for attribute in node.attribute}
    query, key, value = (
        _with_heads(_operand_dims(operands, place), given.get(name, 0))
        for place, name in ((_Q, "q_num_heads"), (_K, "kv_num_heads"), (_V, "kv_num_heads"))
    )
    if query is None or key is None or value is None:
        return [None] * 4
    batch, heads, length, _ = query
    count = key[2]
    if len(operands) > _PAST and operands[_PAST] is not None:
        past = _operand_dims(operands, _PAST)
        count = None if past is None or len(past) != len(key) else total([past[2], count])
    result: Extents = (batch, heads, length, value[3])
    if len(_operand_dims(operands, _Q) or ()) == len(query) - 1:
        result = (batch, length, product([heads, value[3]]))
    return [
        result,
        (batch, key[1], count, key[3]),
        (batch, value[1], count, value[3]),
        (batch, heads, length, count),
    ]


def kept_extents(node: NodeProto, operands: Sequence[TypeProto | None]) -> list[Extents | None]:
    """Returns the extents of the results of an attention of com.microsoft, as far as they follow.

    Args:
        node: The node, of any operator.
        operands: The types of its operands, None where one is left out.

    Returns:
        An entry per result; None where nothing follows.
    """
    made = _kept(node, operands) if node.op_type in _KEPT else ()
    first = _merged(node, operands) if node.op_type == "Attention" else None
    return [first, *made, None, None, None][: len(node.output)]


def _merged(node: NodeProto, operands: Sequence[TypeProto | None]) -> Extents | None:
    """Returns the extents of the first result of com.microsoft's Attention."""
    x, width = _operand_dims(operands, _Q), _width(node, operands, _V)
    return None if x is None or len(x) != _RANK else (*x[:-1], width)


def _width(node: NodeProto, operands: Sequence[TypeProto | None], part: int) -> Dim | None:
    """Returns how wide the queries, keys or values of com.microsoft's Attention are together."""
    for attribute in node.attribute:
        if attribute.name == "qkv_hidden_sizes":
            return next(iter(attribute.ints[part:]), None)
    weights = _operand_dims(operands, _K)
    return quotient(weights[-1], 3) if weights else None


def _kept(node: NodeProto, operands: Sequence[TypeProto | None]) -> list[Extents | None]:
    """Returns the extents of keys and of values, or of both in one."""
    given = {attribute.name: attribute for attribute in node.attribute}
    heads, past = given["num_heads"].i if "num_heads" in given else 0, _KEPT[node.op_type]
    if node.op_type == "MultiHeadAttention":
        new = [_with_heads(_operand_dims(operands, index), heads) for index in (_K, _V)]
        return [_behind(x, operands, past + index) for index, x in enumerate(new)]
    x = _operand_dims(operands, _Q)
    if x is None or len(x) != _RANK or "past_present_share_buffer" in given:
        return []
    batch, length, _ = x
    size = quotient(_width(node, operands, _K), heads)
    return [_behind((2, batch, heads, length, size), operands, past)]


def _behind(
    new: Extents | None, operands: Sequence[TypeProto | None], place: int
) -> Extents | None:
    """Returns the extents of new rows behind those of an operand, if there is one."""
    if new is None or place >= len(operands) or operands[place] is None:
        return new
    past = _operand_dims(operands, place)
    same = past is not None and len(past) == len(new)
    return *new[:-2], total([past[-2], new[-2]]) if past and same else None, new[-1]


def _operand_dims(operands: Sequence[TypeProto | None], place: int) -> Extents | None:
    type_ = operands[place] if place < len(operands) else None
    if type_ is None or not type_.tensor_type.HasField("shape"):
        return None
    return tuple(
        dim.dim_value if dim.HasField("dim_value") else dim.dim_param or None
        for dim in type_.tensor_type.shape.dim
    )


def _with_heads(extents: Extents | None, heads: int) -> Extents | None:
    """Returns batch, heads, length and size, also of heads that lie side by side."""
    if extents is None or len(extents) not in (3, 4):
        return None
    if len(extents) == len(("batch", "heads", "length", "size")):
        return extents
    batch, length, width = extents
    return batch, heads or None, length, quotient(width, heads)


# ---- Element types and shapes of one node's results, by ONNX's own inference for its operator ----


_CONVERSIONS = ("QuantizeLinear", "DequantizeLinear")
_SHAPED_AS_INPUT = ("Gelu", "QuickGelu", "RotaryEmbedding", "MoE", "QMoE")
_NORMS = ("LayerNormalization", "SimplifiedLayerNormalization")
"""Those of onnxruntime, which it has at every opset."""
_NO_EXTENT = 1 << 63
"""The first number that no file can say of a shape."""
_FAILURES = (onnx.shape_inference.InferenceError, RuntimeError, ValueError, MemoryError)
"""What onnx raises of a node whose results it cannot tell; they stay unknown."""


@dataclass(frozen=True, slots=True)
class Inferred:
    """What is known about a result.

    Attributes:
        proto: ONNX's type, empty where nothing is known.
        shape: Its extents; None where even the rank is unknown, or the result is not a tensor.
    """

    proto: TypeProto
    shape: Extents | None

    @property
    def element(self) -> int:
        """ONNX's number of the element type, 0 where that is unknown or there is no tensor."""
        return self.proto.tensor_type.elem_type


UNKNOWN = Inferred(TypeProto(), None)


@dataclass(frozen=True, slots=True)
class _Outside:
    """What bodies read from outside: types by name, and numbers where these are known and few."""

    types: Mapping[str, TypeProto]
    numbers: Mapping[str, NDArray[Any]] = field(default_factory=dict[str, NDArray[Any]])

    def with_types(self, more: Sequence[onnx.ValueInfoProto]) -> _Outside:
        return replace(self, types={**self.types, **{value.name: value.type for value in more}})


_NOTHING = _Outside({})
_Key: TypeAlias = "tuple[Any, ...]"


class NodeTypes:
    """Infers the types of results, node by node.

    Args:
        opsets: The versions of the model's domains.
        opset: That of ONNX's own domain.
        ir_version: The model's.
    """

    def __init__(self, opsets: Mapping[str, int], opset: int, ir_version: int) -> None:
        self.opset, self.ir_version = opset, ir_version
        self.imports = [helper.make_opsetid(domain, opsets[domain]) for domain in opsets]
        self.imports = [
            e for e in self.imports if e.domain not in ONNX_DOMAINS and abs(e.version) < 1 << 31
        ]  # the inference of a node takes no larger ones
        self.imports.append(helper.make_opsetid("", opset))
        self._known: dict[_Key, list[Inferred]] = {}

    def results(
        self,
        proto: NodeProto,
        operands: Sequence[TypeProto | None],
        data: Mapping[int, NDArray[Any]],
        captured: Mapping[str, TypeProto],
        numbers: Mapping[str, NDArray[Any]] | None = None,
    ) -> list[Inferred]:
        """Returns what is known about the results of a node, one entry per output.

        Args:
            proto: The node.
            operands: The types of its operands, None where one is left out.
            data: Operands that are known to be small constants, by index.
            captured: The types of what its bodies read from outside.
            numbers: What of it is known to be small constants.
        """
        contrib = proto.domain not in ONNX_DOMAINS
        if proto.op_type in _CONVERSIONS or (contrib and proto.op_type in _SHAPED_AS_INPUT):
            return [_shaped_as_input(proto, operands)]
        if any(True for _ in subgraphs(proto)):
            whole, outside = _without_declared(proto), _Outside(captured, numbers or {})
            found = self._alone(whole, operands, data, outside)
            if proto.op_type in ("If", "Loop") and not contrib:
                known = (
                    self._branched(whole, outside)
                    if proto.op_type == "If"
                    else [*map(_inferred_of, self._looped(whole, operands, data, outside))]
                )
                known += found[len(known) :]
                found = [a if b.shape is None else b for a, b in zip(found, known, strict=False)]
            return found[: len(proto.output)]
        key = _key(proto, operands, data)
        if key not in self._known:
            self._known[key] = self._inferred(proto, operands, data)
        return self._known[key]

    def _inferred(
        self,
        proto: NodeProto,
        operands: Sequence[TypeProto | None],
        data: Mapping[int, NDArray[Any]],
    ) -> list[Inferred]:
        domain = plain_domain(proto.domain)
        versions = {entry.domain: entry.version for entry in self.imports}
        schema = schema_of(proto.op_type, domain, versions.get(domain, 1))
        if schema is None and not domain and proto.op_type in _NORMS and len(proto.output) == 1:
            return [_shaped_as_input(proto, operands)]
        if schema is None:
            version = versions.get(domain, 1)
            found = map(_inferred_of, runtime_types(_renamed(proto), version, operands, data))
            known = kept_extents(proto, operands)
            pairs = zip(found, known, strict=True)
            return [replace(r, shape=e) if r.shape is None else r for r, e in pairs]
        if not schema.has_type_and_shape_inference_function:  # then its body is looked at
            return self._alone(proto, operands, data)
        node = without_dropped_windows(_renamed(proto), _sizes(operands))
        types = {f"in_{i}": type_ for i, type_ in enumerate(operands) if type_ is not None}
        tensors = {f"in_{i}": numpy_helper.from_array(array) for i, array in data.items()}
        try:
            found = onnx.shape_inference.infer_node_outputs(
                schema, node, types, tensors, opset_imports=self.imports
            )
        except onnx.checker.ValidationError:  # element types that this version does not take yet
            return self._alone(proto, operands, data)
        except _FAILURES as error:
            log.debug("%s: inference stopped: %s", *map(visible, (proto.op_type, str(error))))
            return _only_types(schema, len(proto.output))
        results = [_inferred_of(found.get(f"out_{i}")) for i in range(len(proto.output))]
        if proto.op_type == "Attention" and not domain:
            known = attention_extents(proto, operands)
            results = [replace(r, shape=e or r.shape) for r, e in zip(results, known, strict=False)]
        met = _of_einsum(proto, operands) if proto.op_type == "Einsum" and not domain else None
        if met is not None:
            results = [replace(r, shape=met) for r in results]
        return results

    def _alone(
        self,
        proto: NodeProto,
        operands: Sequence[TypeProto | None],
        data: Mapping[int, NDArray[Any]],
        outside: _Outside = _NOTHING,
    ) -> list[Inferred]:
        """Infers a node as a model of its own, under the guards for whole models."""
        known_to_onnx, more = with_known_bodies(proto)
        graph = onnx.GraphProto(name="node", node=[known_to_onnx], input=more)
        graph.output.extend(onnx.ValueInfoProto(name=name) for name in proto.output if name)
        given = zip(proto.input, operands, strict=True)
        types = {name: type_ for name, type_ in given if type_ is not None} | dict(outside.types)
        constants = {proto.input[index]: array for index, array in data.items()}
        _declare(graph, _Outside(types, constants | dict(outside.numbers)))
        known = {value.name: value.type for value in self._inferred_graph(graph).output}
        return [_inferred_of(known.get(name)) for name in proto.output]

    def _inferred_graph(self, graph: onnx.GraphProto) -> onnx.GraphProto:
        """Returns a graph with what can be inferred of its own; with nothing where that fails."""
        model = onnx.ModelProto(ir_version=self.ir_version, graph=graph, opset_import=self.imports)
        try:
            return guarded_inference(model).graph
        except _FAILURES as error:
            log.debug("%s: inference stopped: %s", *map(visible, (graph.name, str(error))))
            return onnx.GraphProto()

    def _looped(
        self,
        proto: NodeProto,
        operands: Sequence[TypeProto | None],
        data: Mapping[int, NDArray[Any]],
        outside: _Outside,
    ) -> list[TypeProto]:
        """Infers what a Loop's body makes, as a model of its own."""
        known_to_onnx, more = with_known_bodies(proto)
        body, outside = next(subgraphs(known_to_onnx)), outside.with_types(more)
        given, made = len(body.input), len(body.output)
        if not 2 <= given == len(operands) <= made + 1:
            return []  # a damaged file; whoever needs the body says so
        return loop_results(body, operands, data, lambda types: self._body(body, types, outside))

    def _branched(self, proto: NodeProto, outside: _Outside) -> list[Inferred]:
        """Infers what the branches of an If have in common, where Loops are in them."""
        known_to_onnx, more = with_known_bodies(proto)
        branches, outside = list(subgraphs(known_to_onnx)), outside.with_types(more)
        if not _has_loop(known_to_onnx):
            return []
        made = [map(_inferred_of, self._body(body, (), outside)) for body in branches]
        return [
            replace(each[0], shape=_common([one.shape for one in each]))
            for each in zip(*made, strict=False)
        ]

    def _body(
        self, body: onnx.GraphProto, inputs: Sequence[TypeProto], outside: _Outside
    ) -> list[TypeProto]:
        """Returns the types of what a body gives; its own control flow is inferred before it."""
        graph = onnx.GraphProto()
        graph.CopyFrom(body)
        for value, type_ in zip(graph.input, inputs, strict=True):
            value.type.CopyFrom(type_)
        _declare(graph, outside)
        numbers = {t.name: numpy_helper.to_array(t) for t in graph.initializer if is_small(t)}
        later = [node for node in graph.node if _has_loop(node)]
        for node in later:
            before = onnx.GraphProto()
            before.CopyFrom(graph)
            place = list(before.node).index(node)
            del before.node[place:], before.output[:]
            names = captured_names(node)
            known = {t.name: tensor_type(t.data_type, t.dims) for t in before.initializer}
            known |= {value.name: value.type for value in before.input}
            read = {*node.input, *names} - known.keys() - {""}
            before.output.extend(onnx.ValueInfoProto(name=name) for name in sorted(read))
            known |= {value.name: value.type for value in self._inferred_graph(before).output}
            found = self.results(
                node,
                [known.get(name, TypeProto()) if name else None for name in node.input],
                {i: numbers[name] for i, name in enumerate(node.input) if name in numbers},
                {name: known.get(name, TypeProto()) for name in names},
                {name: numbers[name] for name in names if name in numbers},
            )
            if all(each.element for each in found):
                types = [tensor_type(each.element, each.shape) for each in found]
                made = dict(zip(node.output, types, strict=True))
                graph.node.remove(node)
                _declare(graph, _Outside({name: made[name] for name in made if name}))
        found = {value.name: value.type for value in self._inferred_graph(graph).output}
        return [found.get(value.name, TypeProto()) for value in body.output]


def _has_loop(node: NodeProto) -> bool:
    return any(inner.op_type == "Loop" for inner in all_nodes([node]))


def _common(shapes: Sequence[Extents | None]) -> Extents | None:
    """Returns what is known of a value that has one of these shapes."""
    if None in shapes or len({len(shape or ()) for shape in shapes}) > 1:
        return None
    columns = zip(*(shape or () for shape in shapes), strict=True)
    return tuple(column[0] if len({*column}) == 1 else None for column in columns)


def _declare(graph: onnx.GraphProto, outside: _Outside) -> None:
    """Enters what a graph reads from outside: as an input, or an initializer where it is known."""
    for name, type_ in outside.types.items():
        if name in outside.numbers:
            graph.initializer.append(numpy_helper.from_array(outside.numbers[name], name))
        elif name:
            graph.input.append(onnx.ValueInfoProto(name=name, type=type_))


def tensor_type(element: int, shape: Sequence[Dim | None] | None) -> TypeProto:
    """Returns the type of a tensor; what is no extent (below 0, beyond int64) is left open."""
    proto = TypeProto()
    proto.tensor_type.elem_type = element
    if shape is not None:
        proto.tensor_type.shape.SetInParent()
        for dim in shape:
            extent = proto.tensor_type.shape.dim.add()
            if isinstance(dim, int) and 0 <= dim < _NO_EXTENT:
                extent.dim_value = dim
            elif isinstance(dim, str):
                extent.dim_param = dim
    return proto


def nested_type(proto: TypeProto, where: str) -> NestedType | None:
    """Returns the type of a sequence or an optional of tensors; None for any other."""
    layers: list[str] = []
    while (kind := proto.WhichOneof("value")) in ("sequence_type", "optional_type"):
        layers.append(kind.removesuffix("_type"))
        proto = getattr(proto, kind).elem_type
    if not layers or kind != "tensor_type" or not proto.tensor_type.elem_type:
        return None
    return NestedType(dtype_of(proto.tensor_type.elem_type, where), None, tuple(layers))


def nested_proto(type_: NestedType) -> TypeProto:
    """Returns ONNX's type of a sequence or an optional."""
    proto = tensor_type(dtype_to_onnx(type_.dtype), None)
    for layer in reversed(type_.layers):
        outer = TypeProto()
        getattr(outer, f"{layer}_type").elem_type.CopyFrom(proto)
        proto = outer
    return proto


def _inferred_of(proto: TypeProto | None) -> Inferred:
    if proto is None:
        return UNKNOWN
    tensor = proto.tensor_type
    if proto.WhichOneof("value") != "tensor_type" or not tensor.HasField("shape"):
        return Inferred(proto, None)
    extents = tuple(
        int(dim.dim_value) if dim.HasField("dim_value") and dim.dim_value >= 0
        else dim.dim_param or None
        for dim in tensor.shape.dim
    )  # fmt: skip
    return Inferred(proto, extents)


def _shaped_as_input(proto: NodeProto, operands: Sequence[TypeProto | None]) -> Inferred:
    """Returns the type of what never changes a shape, in any domain and opset."""
    first = operands[0]
    if first is None:
        return UNKNOWN
    given = {a.name: a.i for a in proto.attribute}
    element = first.tensor_type.elem_type
    if proto.op_type == "QuantizeLinear":
        zero_point = operands[2] if len(operands) > 2 else None
        element = TensorProto.UINT8 if zero_point is None else zero_point.tensor_type.elem_type
    elif proto.op_type == "DequantizeLinear" and operands[1] is not None:
        element = operands[1].tensor_type.elem_type
    element = given.get("output_dtype", 0) or element
    known = TypeProto()
    known.CopyFrom(first)
    known.tensor_type.elem_type = element
    return _inferred_of(known)


def _only_types(schema: Any, count: int) -> list[Inferred]:
    """Returns what an operator says of its results whatever it reads: one element type, or none."""
    found = [UNKNOWN] * count
    for index, formal in enumerate(schema.outputs[:count]):
        if len(formal.types) == 1:
            (text,) = formal.types
            found[index] = Inferred(_type_of(text), None)
    return found


def _type_of(text: str) -> TypeProto:
    """Returns a type of tensors that a schema names (``tensor(int64)``), empty for others."""
    name = text.removeprefix("tensor(").removesuffix(")").upper()
    known = name in TensorProto.DataType.keys()  # noqa: SIM118
    return tensor_type(TensorProto.DataType.Value(name), None) if known else TypeProto()


def _renamed(proto: NodeProto) -> NodeProto:
    node = NodeProto(op_type=proto.op_type, domain=proto.domain, attribute=proto.attribute)
    for attribute in node.attribute:
        if (node.op_type, attribute.name) == ("Squeeze", "axes"):
            attribute.ints.sort()  # the inference of opset 1 takes them to be in order
    node.input.extend(f"in_{i}" if name else "" for i, name in enumerate(proto.input))
    node.output.extend(f"out_{i}" if name else "" for i, name in enumerate(proto.output))
    return node


def _of_einsum(proto: NodeProto, operands: Sequence[TypeProto | None]) -> Extents | None:
    """Returns the extents of an Einsum; ONNX's inference (1.23) takes the first that has a name."""
    shapes = [each and each.tensor_type.HasField("shape") and _inferred_of(each).shape
              for each in operands]  # fmt: skip
    known = [shape for shape in shapes if isinstance(shape, tuple) and None not in shape]
    equation = next((a.s.decode() for a in proto.attribute if a.name == "equation"), "")
    return einsum_shape(equation, cast("Any", known)) if len(known) == len(shapes) else None


def _sizes(operands: Sequence[TypeProto | None]) -> list[int]:
    first = operands[0] if operands else None
    return [] if first is None else [dim.dim_value for dim in first.tensor_type.shape.dim[2:]]


def _key(
    proto: NodeProto, operands: Sequence[TypeProto | None], data: Mapping[int, NDArray[Any]]
) -> _Key:
    return (
        proto.op_type,
        proto.domain,
        tuple(bool(name) for name in proto.output),
        tuple(attribute.SerializeToString() for attribute in proto.attribute),
        tuple(None if type_ is None else type_.SerializeToString() for type_ in operands),
        tuple((i, a.dtype.str, a.shape, a.tobytes()) for i, a in data.items()),
    )


def _without_declared(proto: NodeProto) -> NodeProto:
    """Returns a copy of a node that leaves out no result, and whose bodies declare no shapes."""
    copy = NodeProto()
    copy.CopyFrom(proto)
    copy.output[:] = whole_results(proto)
    for graph in _bodies(copy):
        del graph.value_info[:]
        for value in (*graph.input, *graph.output):
            forget_shape(value)
    return copy


def _bodies(proto: NodeProto) -> Iterator[onnx.GraphProto]:
    for graph in subgraphs(proto):
        yield graph
        for node in graph.node:
            yield from _bodies(node)
