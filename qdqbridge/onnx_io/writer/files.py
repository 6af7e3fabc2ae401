"""Models to disk: streamed tensor by tensor, replaced in one step, external data if large."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO

import onnx
import onnx_graphsurgeon as gs
from onnx import ModelProto, TensorProto
from onnx_graphsurgeon.logger import G_LOGGER

from qdqbridge.core.graph.atomic_write import placed_together
from qdqbridge.core.graph.constant import Constant
from qdqbridge.core.graph.dtypes import DType
from qdqbridge.core.graph.symbols import name_in_files
from qdqbridge.core.graph.types import NestedType, Shape, TensorType
from qdqbridge.errors import ModelFileError
from qdqbridge.onnx_io.inference.node_types import nested_proto
from qdqbridge.onnx_io.inference.shapes import leave_open
from qdqbridge.onnx_io.tensors import dtype_to_onnx, packed_nbytes, proto_from_constant, raw_parts
from qdqbridge.onnx_io.writer.opset import ir_version_of
from qdqbridge.onnx_io.writer.spec import GraphSpec, NodeRow

EXTERNAL_ABOVE = 1_500_000_000
"""Protobuf cannot hold 2 GiB, and some readers stop a little earlier."""

_INLINE = 1024
"""Smaller tensors stay in the model: shape inference and people want to see them."""

_ALIGNMENT = 64
# Field numbers of onnx.proto with their wire type "length-delimited".
_MODEL_GRAPH, _GRAPH_INITIALIZER, _TENSOR_RAW_DATA = (n << 3 | 2 for n in (7, 5, 9))


def write_files(
    model: ModelProto, constants: Mapping[str, Constant], path: Path, *, overwrite: bool
) -> None:
    """Writes a model and its initializers; nothing at all where something fails.

    Args:
        model: The model without initializers.
        constants: The initializers by name.
        path: The file; external data goes next to it as ``<name>.data``.
        overwrite: Replace files that are there.

    Raises:
        OutputExistsError: A file is there and must not be replaced.
        ModelFileError: The operating system refuses.
    """
    places = places_of(path, constants)
    with placed_together(places, ModelFileError, overwrite=overwrite) as scratch:
        external: dict[str, TensorProto] = {}
        for data, place in zip(scratch[:-1], places, strict=False):
            with data.open("wb") as stream:
                external = _external(constants, _write_data(stream, constants), place.name)
        with scratch[-1].open("wb") as stream:
            _write_model(stream, model, constants, external)


def places_of(path: Path, constants: Mapping[str, Constant]) -> list[Path]:
    """Returns the files that a model becomes: that of its data, where these are many; its own."""
    large = sum(map(nbytes, constants.values())) > EXTERNAL_ABOVE
    return [*([path.parent / f"{path.name}.data"] if large else []), path]


def nbytes(constant: Constant) -> int:
    """Returns the bytes that a constant takes in a file (0 for strings, which are few)."""
    return packed_nbytes(constant.dtype, constant.size)


def _write_model(
    stream: BinaryIO,
    model: ModelProto,
    constants: Mapping[str, Constant],
    external: Mapping[str, TensorProto],
) -> None:
    """Writes protobuf's wire format by hand, so that no tensor is held twice."""
    head = ModelProto()
    head.CopyFrom(model)
    head.ClearField("graph")
    stream.write(head.SerializeToString())
    graph = model.graph.SerializeToString()
    parts = [_part(name, c, external.get(name)) for name, c in constants.items()]
    size = len(graph) + sum(len(header) + rest for header, rest in parts)
    stream.write(_field(_MODEL_GRAPH, size) + graph)
    for (header, rest), constant in zip(parts, constants.values(), strict=True):
        stream.write(header)
        if rest:
            for part in raw_parts(constant):
                stream.write(part.data)


def _part(name: str, constant: Constant, external: TensorProto | None) -> tuple[bytes, int]:
    """Returns the bytes of an initializer before its data, and the length of the data."""
    if external is not None or constant.dtype is DType.STRING:
        body = (external or proto_from_constant(name, constant)).SerializeToString()
        return _field(_GRAPH_INITIALIZER, len(body)) + body, 0
    body = TensorProto(
        name=name, data_type=dtype_to_onnx(constant.dtype), dims=constant.shape
    ).SerializeToString()
    length = nbytes(constant)
    body += _field(_TENSOR_RAW_DATA, length)
    return _field(_GRAPH_INITIALIZER, len(body) + length) + body, length


def _field(tag: int, length: int) -> bytes:
    return bytes(_varint(tag)) + bytes(_varint(length))


def _varint(number: int) -> Iterator[int]:
    while number > 0x7F:
        yield number & 0x7F | 0x80
        number >>= 7
    yield number


def _is_external(constant: Constant) -> bool:
    return constant.dtype is not DType.STRING and nbytes(constant) >= _INLINE


def _write_data(stream: BinaryIO, constants: Mapping[str, Constant]) -> dict[str, int]:
    """Writes what does not lie in the model; returns where it begins, by name."""
    offsets: dict[str, int] = {}
    for name, constant in constants.items():
        if _is_external(constant):
            stream.write(bytes(-stream.tell() % _ALIGNMENT))
            offsets[name] = stream.tell()
            for part in raw_parts(constant):
                stream.write(part.data)
    return offsets


def _external(
    constants: Mapping[str, Constant], offsets: Mapping[str, int], location: str
) -> dict[str, TensorProto]:
    protos: dict[str, TensorProto] = {}
    for name, offset in offsets.items():
        constant = constants[name]
        proto = TensorProto(
            name=name, data_type=dtype_to_onnx(constant.dtype), dims=constant.shape,
            data_location=TensorProto.EXTERNAL,
        )  # fmt: skip
        entries = {"location": location, "offset": offset, "length": nbytes(constant)}
        for key, value in entries.items():
            proto.external_data.add(key=key, value=str(value))
        protos[name] = proto
    return protos


# ---- From a spec to a ModelProto: onnx-graphsurgeon holds the graph, the tensors are our own -----
# onnx-graphsurgeon 0.6 drops metadata and gets 4-bit and some 8-bit float tensors wrong, and a
# tensor that goes through it is copied three times; so it never sees one. Measured: 0.1 s for the
# export of 10,000 nodes, 0.6 s for 40,000.


_PRODUCER = "qdqbridge"


def model_without_tensors(spec: GraphSpec, name: str, metadata: Mapping[str, str]) -> ModelProto:
    """Returns the model of a spec without its initializers.

    Args:
        spec: What to write.
        name: The graph's name.
        metadata: The model's ``metadata_props``.
    """
    variables: dict[str, gs.Variable] = {}
    reserved = _names_of_files(spec)

    def variable(tensor: str) -> gs.Variable:
        if not tensor:
            return gs.Variable.empty()
        if tensor not in variables:
            variables[tensor] = _variable(tensor, spec.types.get(tensor), reserved)
        return variables[tensor]

    nodes = [_node(row, variable) for row in spec.nodes]
    graph = gs.Graph(
        nodes,
        [variable(tensor) for tensor in spec.inputs],
        [variable(tensor) for tensor in spec.outputs],
        name=name or "graph",
        producer_name=_PRODUCER,
        opset=spec.imports[""],
        import_domains=[onnx.helper.make_opsetid(d, v) for d, v in spec.imports.items()],
    )
    with G_LOGGER.suppress():  # its warnings go to stdout, where the command line has its results
        model = gs.export_onnx(graph)
    values = (*model.graph.input, *model.graph.output, *model.graph.value_info)
    _add_what_graphsurgeon_drops(values, model.graph.node, spec)
    # ONNX's inference counts windows of ceil_mode that lie in the padding alone, engines do not: it
    # would refuse a file that declares what they compute.
    if any(row.proto is not None or row.attributes.get("ceil_mode") for row in spec.nodes):
        leave_open(model)
    for key, value in metadata.items():
        model.metadata_props.add(key=key, value=value)
    with_metadata = any(row.metadata for row in spec.nodes)
    model.ir_version = ir_version_of(spec.imports, with_metadata=with_metadata)
    return model


def _names_of_files(spec: GraphSpec) -> set[str]:
    """Returns the names of a spec's extents that files gave and that look like computed ones."""
    dims = {dim for type_ in spec.types.values() for dim in type_.shape or ()}
    return {str(name_in_files(dim)) for dim in dims if isinstance(dim, str) and dim[:1] == "\\"}


def _variable(name: str, type_: TensorType | None, reserved: Collection[str]) -> gs.Variable:
    if type_ is None:
        return gs.Variable(name)
    return gs.Variable(
        name, dtype=dtype_to_onnx(type_.dtype), shape=_onnx_shape(type_.shape, reserved)
    )


def _onnx_shape(shape: Shape, reserved: Collection[str]) -> Any:
    """Returns a shape in ONNX's terms: two extents that may differ do not get one name."""
    if shape is None:
        return None
    return [None if dim in reserved else name_in_files(dim) for dim in shape]


def _node(row: NodeRow, variable: Callable[[str], gs.Tensor]) -> gs.Node:
    node = gs.Node(
        row.op_type,
        row.name,
        dict(row.attributes),
        [variable(tensor) for tensor in row.inputs],
        [variable(tensor) for tensor in row.outputs],
    )
    if row.domain:
        node.domain = row.domain
    return node


def _add_what_graphsurgeon_drops(
    values: Iterable[onnx.ValueInfoProto], nodes: Iterable[onnx.NodeProto], spec: GraphSpec
) -> None:
    for value in values:
        type_ = spec.types.get(value.name)
        if isinstance(type_, NestedType):
            value.type.CopyFrom(nested_proto(type_))
    for proto, row in zip(nodes, spec.nodes, strict=True):
        if row.proto is not None:
            proto.CopyFrom(row.proto)
            proto.name = row.name
        for key, value in row.metadata:
            proto.metadata_props.add(key=key, value=value)
