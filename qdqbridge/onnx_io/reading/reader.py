"""ONNX file -> raw :class:`Graph`, from top to bottom.

The file is checked, and what has a plainer form takes it: functions, old opsets, branches that are
known, other encodings of quantization. Then its tensors and nodes are read in their order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Set
from itertools import count
from pathlib import Path

import onnx

from qdqbridge.core.graph.constant import Constant
from qdqbridge.core.graph.edit import Editor
from qdqbridge.core.graph.graph import Graph, Note, Value
from qdqbridge.core.graph.types import Dim, Shape, TensorType
from qdqbridge.core.ops.folding import Budget
from qdqbridge.errors import InvalidModelError, UnsupportedModelError
from qdqbridge.onnx_io.codecs import OLDEST_READ
from qdqbridge.onnx_io.control_flow.branches import take_branches
from qdqbridge.onnx_io.external_data import adapt, read_adapter, read_unchanged
from qdqbridge.onnx_io.file_nodes import KeptFile, kept_file
from qdqbridge.onnx_io.inference.node_types import nested_type
from qdqbridge.onnx_io.inference.shapes import declared_types, shape_of
from qdqbridge.onnx_io.lowering.context import MICROSOFT
from qdqbridge.onnx_io.reading.constants import (
    Folding,
    constant_of_node,
    constant_value,
    densify,
    is_constant,
)
from qdqbridge.onnx_io.reading.functions import inline_functions
from qdqbridge.onnx_io.reading.model_file import default_opset, read_model_apart
from qdqbridge.onnx_io.reading.node_reader import NodeReader
from qdqbridge.onnx_io.reading.older_operators import renewed
from qdqbridge.onnx_io.reading.operators_known import check_known
from qdqbridge.onnx_io.reading.results import Results
from qdqbridge.onnx_io.reading.structure import check_names, check_text, describe, sort_nodes
from qdqbridge.onnx_io.tensors import constant_from_proto, dtype_of


def read(
    path: Path,
    normal: Callable[[Graph], Graph] = lambda graph: graph,
    adapter: Path | None = None,
    *,
    optional_inputs: bool = False,
) -> Graph:
    """Reads an ONNX file.

    Args:
        path: The ``.onnx`` file; external data must lie in its folder.
        normal: Returns the form in which the two branches of an If are compared.
        adapter: A file whose arrays are constants in the place of inputs.
        optional_inputs: Inputs that have initializers stay inputs, and are constants otherwise.

    Returns:
        The raw graph: one node per ONNX node that computes something.

    Raises:
        ModelFileError: The file or its external data cannot be read.
        InvalidModelError: The model breaks ONNX's rules.
        UnsupportedModelError: An operator or encoding has no counterpart here; all are listed.
        InputDataError: The adapter is another model's.
    """

    def graph() -> Graph:
        model, apart = read_model_apart(path)
        if optional_inputs:
            _forget_defaults(model.graph)
        if adapter is not None:
            adapt(model, read_adapter(adapter), str(adapter))
        found = read_proto(model, path, normal)
        del apart  # the graph holds of it what it needs
        return found

    return read_unchanged(graph, path)


def _forget_defaults(graph: onnx.GraphProto) -> None:
    """Takes the initializers of inputs out of a graph, so that they are nothing but inputs."""
    inputs = {value.name for value in graph.input}
    for i in reversed(range(len(graph.initializer))):
        if graph.initializer[i].name in inputs:
            del graph.initializer[i]
    for i in reversed(range(len(graph.sparse_initializer))):
        if graph.sparse_initializer[i].values.name in inputs:
            del graph.sparse_initializer[i]


_BRANCHES = 1 << 11
"""Branches of Ifs that are read to be compared: a few milliseconds each."""


def read_proto(model: onnx.ModelProto, path: Path, normal: Callable[[Graph], Graph]) -> Graph:
    """Reads a model in memory, which may refer to external data; it is changed.

    Args:
        path: The file that it stands for; external data must lie in its folder.
        normal: As for :func:`read`, which says what is returned and raised too.
    """
    check_text(model, str(path))
    if not default_opset(model):  # none of its nodes is ONNX's, but what they become is
        model.opset_import.add(domain="", version=OLDEST_READ)
    model = inline_functions(model, str(path))
    check_names(model.graph, str(path))
    densify(model.graph, path.parent, str(path))
    check_known(model, str(path))
    if 0 < default_opset(model) < OLDEST_READ:
        sort_nodes(model.graph, str(path))
        model = renewed(model, str(path))
    branches = count()

    def text_of(body: onnx.ModelProto, constants: Mapping[str, Constant]) -> str:
        if next(branches) >= _BRANCHES:
            raise UnsupportedModelError("the branches of so many Ifs are not compared")
        body = take_branches(body, path.parent, text_of)
        sort_nodes(body.graph, str(path))
        return normal(graph_of(body, path, constants)).text()

    model = take_branches(model, path.parent, text_of)
    sort_nodes(model.graph, str(path))
    return graph_of(model, path, kept=kept_file(model, path))


def graph_of(
    model: onnx.ModelProto,
    path: Path,
    outer: Mapping[str, Constant] | None = None,
    kept: KeptFile | None = None,
) -> Graph:
    """Reads the tensors and nodes of a model: one node per ONNX node that computes something.

    Args:
        model: A checked model whose nodes are in order.
        path: Its file; external data lies in its folder.
        outer: The data of inputs that are constants.
        kept: What is kept of the file.
    """
    constants = dict(outer or {})
    for tensor in model.graph.initializer:
        where = f"{path}, initializer '{tensor.name}'"
        constants[tensor.name] = constant_from_proto(tensor, path.parent, where)
    for node in filter(is_constant, model.graph.node):
        where = f"{path}, {describe(node)}"
        constants[node.output[0]] = constant_of_node(node, path.parent, where)
    unread, known = set[str](), dict(constants)
    graph, more = _graph_without(model, path, known, unread)
    while more:
        unread |= more.keys()
        known |= {name: constant for name, constant in more.items() if constant is not None}
        less, more = _graph_without(model, path, known, unread)
        if not _is_whole(less):
            break
        graph = less
    if kept is not None:
        graph.as_read = kept.as_read(graph, _values(constants))
    return graph


def _graph_without(
    model: onnx.ModelProto,
    path: Path,
    constants: Mapping[str, Constant],
    unread: Set[str],
) -> tuple[Graph, dict[str, Constant | None]]:
    """Reads a model as if nothing read some tensors.

    Returns:
        The graph, and what may be left out too, with its numbers where these are known: it was read
        by what nothing needs. Without it, an operator may have a row (MaxPool without indices).
    """
    proto, file, values = model.graph, str(path), _values(constants)
    held = sum(value.constant.size for value in values.values() if value.constant)
    inputs, notes = _inputs(proto.input, values, file)
    opset = default_opset(model)
    results = Results(
        proto.node,
        declared_types((*proto.value_info, *proto.output)),
        [value.name for value in proto.output],
        file,
        opset=opset,
        versions={MICROSOFT: 1} | {entry.domain: entry.version for entry in model.opset_import},
        ir_version=model.ir_version,
        folding=Folding(Budget(held, len(proto.node))),
    )
    names = [value.name for value in proto.output]
    reader = NodeReader(path, proto.node, names, values, results, unread)
    for node in proto.node:
        reader.read(node)
    outputs = [_output(name, values, file) for name in names]
    graph = Graph(
        inputs,
        outputs,
        names,
        reader.nodes,
        name=proto.name,
        metadata={p.key: p.value for p in model.metadata_props},
        opset=opset,
        notes=[
            *reader.kept,
            *notes,
            *reader.notes,
            *results.contradictions(values),
            *reader.unknown_operators(),
        ],
    )
    Editor(graph).finish()
    made = (value for node in graph.nodes for value in node.outputs if not value.users)
    unneeded = {value.name for value in made if value not in outputs}
    return graph, {name: values[name].constant for name in unneeded & reader.optional}


def _is_whole(graph: Graph) -> bool:
    """Returns whether something defines all that is read: numbers may have been needed after all.

    What a node without a result gives was known before from its constants.
    """
    read = {value for node in graph.nodes for value in node.inputs if value is not None}
    defined = {*graph.inputs, *(value for node in graph.nodes for value in node.outputs)}
    return all(v in defined or v.constant is not None for v in {*read, *graph.outputs})


def _values(constants: Mapping[str, Constant]) -> dict[str, Value]:
    return {name: constant_value(data, name) for name, data in constants.items()}


def _inputs(
    infos: Iterable[onnx.ValueInfoProto], values: dict[str, Value], file: str
) -> tuple[list[Value], list[Note]]:
    """Enters the graph's inputs among the values; those with initializers are constants."""
    inputs: list[Value] = []
    constants: list[str] = []
    taken: set[Dim] = set()
    for info in infos:
        if info.name in values:
            constants.append(info.name)
            continue
        where = f"{file}, graph input '{info.name}'"
        type_ = nested_type(info.type, where)
        if type_ is None:
            dtype = dtype_of(info.type.tensor_type.elem_type, where)
            type_ = TensorType(dtype, _independent(shape_of(info.type), taken))
        values[info.name] = Value(type_, info.name)
        inputs.append(values[info.name])
    if not constants:
        return inputs, []
    reason = f"{len(constants)} graph inputs have initializers and are read as constants"
    return inputs, [Note("input-with-initializer", constants[0], reason, tuple(constants))]


def _output(name: str, values: Mapping[str, Value], file: str) -> Value:
    if name not in values:
        raise InvalidModelError(
            f"graph output '{name}' is not produced by any node",
            where=file,
            why="it is neither a graph input nor an initializer",
            fix="export the model again; a node was lost",
        )
    return values[name]


def _independent(shape: Shape, taken: set[Dim]) -> Shape:
    """Returns the shape of a graph input whose unnamed extents no other input has.

    A file that names no extent says nothing of it; what the nodes need to be equal is checked where
    they need it.
    """
    unnamed = {dim for dim in shape or () if isinstance(dim, str) and dim.startswith("?")}
    number, renamed = 1, {dim: dim for dim in unnamed}
    while taken & set(renamed.values()):
        number += 1
        renamed = {dim: f"{dim}.{number}" for dim in unnamed}
    taken.update(renamed.values())
    return None if shape is None else tuple(renamed.get(str(dim), dim) for dim in shape)
