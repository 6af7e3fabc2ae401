"""Types of the results of operators that only onnxruntime knows: its contrib operators.

The onnx package has no schema of them. onnxruntime infers the types of a model of one node while it
opens it, so what has no kernel there, and every domain that it does not know, stays untyped.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import onnx
from numpy.typing import NDArray
from onnx import NodeProto, TypeProto, helper, numpy_helper

from qdqbridge.control_characters import visible
from qdqbridge.core.graph.dtypes import DType
from qdqbridge.core.graph.symbols import product, quotient, total
from qdqbridge.core.graph.types import Dim
from qdqbridge.onnx_io.tensors import dtype_to_onnx, onnx_name

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


__all__ = ["DOMAINS", "attention_extents", "kept_extents", "runtime_types"]


# ---- Extents of what attentions give, where ONNX and onnxruntime do not tell them, or wrongly
#
# ONNX's inference (1.23) takes an open count of keys, or of what is kept of earlier ones, for 0:
# its last result had no elements, or as many as there are new keys. onnxruntime (1.32) tells of
# the keys and values that its own attentions keep only where both counts are numbers, and nothing
# of what an Attention without a bias gives.

_Extents: TypeAlias = "tuple[Dim | None, ...]"
_Q, _K, _V, _PAST = 0, 1, 2, 4
_RANK = 3
_KEPT = {"MultiHeadAttention": 6, "Attention": _PAST}
"""Where the attentions of com.microsoft have what is kept of earlier keys."""


def attention_extents(
    node: NodeProto, operands: Sequence[TypeProto | None]
) -> list[_Extents | None]:
    """Returns the extents of the four results: y, the present keys and values, the products.

    Args:
        node: The Attention.
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
    result: _Extents = (batch, heads, length, value[3])
    if len(_operand_dims(operands, _Q) or ()) == len(query) - 1:
        result = (batch, length, product([heads, value[3]]))
    return [
        result,
        (batch, key[1], count, key[3]),
        (batch, value[1], count, value[3]),
        (batch, heads, length, count),
    ]


def kept_extents(node: NodeProto, operands: Sequence[TypeProto | None]) -> list[_Extents | None]:
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


def _merged(node: NodeProto, operands: Sequence[TypeProto | None]) -> _Extents | None:
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


def _kept(node: NodeProto, operands: Sequence[TypeProto | None]) -> list[_Extents | None]:
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
    new: _Extents | None, operands: Sequence[TypeProto | None], place: int
) -> _Extents | None:
    """Returns the extents of new rows behind those of an operand, if there is one."""
    if new is None or place >= len(operands) or operands[place] is None:
        return new
    past = _operand_dims(operands, place)
    same = past is not None and len(past) == len(new)
    return *new[:-2], total([past[-2], new[-2]]) if past and same else None, new[-1]


def _operand_dims(operands: Sequence[TypeProto | None], place: int) -> _Extents | None:
    type_ = operands[place] if place < len(operands) else None
    if type_ is None or not type_.tensor_type.HasField("shape"):
        return None
    return tuple(
        dim.dim_value if dim.HasField("dim_value") else dim.dim_param or None
        for dim in type_.tensor_type.shape.dim
    )


def _with_heads(extents: _Extents | None, heads: int) -> _Extents | None:
    """Returns batch, heads, length and size, also of heads that lie side by side."""
    if extents is None or len(extents) not in (3, 4):
        return None
    if len(extents) == len(("batch", "heads", "length", "size")):
        return extents
    batch, length, width = extents
    return batch, heads or None, length, quotient(width, heads)
