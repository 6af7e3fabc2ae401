"""ONNX's structural rules: names defined once, defined before use, no cycles."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import onnx

from qdqbridge.errors import InvalidModelError, ModelFileError, UnsupportedModelError

# ---- The domain of ONNX's own operators, which has two names -------------------------------------


ONNX_DOMAINS = ("", "ai.onnx")


def plain_domain(domain: str) -> str:
    """Returns the one name that the bridge uses: empty for ONNX's own domain."""
    return "" if domain in ONNX_DOMAINS else domain


# ---- ONNX's structural rules: names defined once, defined before use, no cycles ------------------


_GRAPHS = (onnx.AttributeProto.GRAPH, onnx.AttributeProto.GRAPHS)


def check_text(model: onnx.ModelProto, file: str) -> None:
    """Checks that every name is text; protobuf hands out bytes where it is not UTF-8.

    Raises:
        ModelFileError: A name is not UTF-8.
    """
    graphs = [model.graph]
    header = [
        model.producer_name,
        model.producer_version,
        model.domain,
        *_texts(model.metadata_props),
    ]
    header += [entry.domain for entry in model.opset_import]
    for function in model.functions:
        header += [function.name, function.domain, *function.input, *function.output]
        header += [*function.attribute, *(entry.domain for entry in function.opset_import)]
        _check_nodes_text(function.node, graphs, file)
    # Protobuf gives bytes in place of a string that is not UTF-8.
    if any(isinstance(text, bytes) for text in header):
        raise _not_text(file)
    while graphs:
        graph = graphs.pop()
        _check_nodes_text(graph.node, graphs, file)
        named = (*graph.input, *graph.output, *graph.value_info, *graph.initializer)
        texts = [graph.name, *(item.name for item in named)]
        texts += [
            dim.dim_param
            for value in (*graph.input, *graph.output, *graph.value_info)
            for dim in value.type.tensor_type.shape.dim
        ]
        if any(isinstance(text, bytes) for text in texts):
            raise _not_text(file)


def _check_nodes_text(
    nodes: Iterable[onnx.NodeProto], graphs: list[onnx.GraphProto], file: str
) -> None:
    for node in nodes:
        strings = (node.op_type, node.domain, node.name, *node.input, *node.output)
        strings += (*(attribute.name for attribute in node.attribute), *_texts(node.metadata_props))
        if any(isinstance(text, bytes) for text in strings):
            raise _not_text(file)
        graphs.extend(subgraphs(node))


def _texts(metadata: Iterable[onnx.StringStringEntryProto]) -> tuple[str, ...]:
    return tuple(text for entry in metadata for text in (entry.key, entry.value))


def _not_text(file: str) -> ModelFileError:
    return ModelFileError(
        "a name in the model is not text",
        where=file,
        why="ONNX requires UTF-8, so the file is damaged",
        fix="export or download it again",
    )


def check_names(graph: onnx.GraphProto, file: str) -> None:
    """Checks single static assignment, inputs with types, outputs that exist, and all as tensors.

    Raises:
        InvalidModelError: A name is defined twice, an input has no type, or there is no output.
        UnsupportedModelError: An input or output is a map.
    """
    defined: dict[str, str] = {}
    initializers = [t.name for t in graph.initializer] + [
        t.values.name for t in graph.sparse_initializer
    ]
    _define(defined, (i.name for i in graph.input), "a graph input", file)
    # An initializer may have the name of an input, whose default it is; only among themselves they
    # are unique.
    twice: dict[str, str] = {}
    _define(twice, initializers, "an initializer", file)
    defined.update(twice)
    for node in graph.node:
        _define(defined, (o for o in node.output if o), f"a result of {describe(node)}", file)
    for value in graph.input:
        if value.name not in twice and not value.type.WhichOneof("value"):
            raise InvalidModelError(
                f"graph input '{value.name}' has no type",
                where=file,
                why="ONNX requires a type for every graph input",
                fix="add the element type and shape to the graph input",
            )
    if not graph.output:
        raise InvalidModelError(
            "the graph has no outputs",
            where=file,
            why="nothing that it computes would leave it",
            fix="mark at least one tensor as graph output",
        )
    inputs = [value for value in graph.input if value.name not in twice]
    _check_tensors("input", inputs, file)
    _check_tensors("output", graph.output, file)


def _check_tensors(what: str, values: Iterable[onnx.ValueInfoProto], file: str) -> None:
    for value in values:
        kind = value.type.WhichOneof("value")
        if kind not in (None, "tensor_type") and not holds_tensors(value.type):
            raise UnsupportedModelError(
                f"graph {what} '{value.name}' is not a tensor",
                where=file,
                why=f"its type is {kind}",
                fix="only tensors, sequences and optionals of them cross the boundary of a graph",
            )


def holds_tensors(type_: onnx.TypeProto) -> bool:
    """Returns whether a type is that of a tensor, or of sequences and optionals of some."""
    kind = type_.WhichOneof("value")
    if kind in ("sequence_type", "optional_type"):
        return holds_tensors(getattr(type_, kind).elem_type)
    return kind == "tensor_type" and bool(type_.tensor_type.elem_type)


def _define(defined: dict[str, str], names: Iterable[str], what: str, file: str) -> None:
    for name in names:
        if name in defined:
            raise InvalidModelError(
                f"the tensor name '{name}' is defined twice",
                where=file,
                why=f"it is {defined[name]} and again {what}",
                fix="every tensor needs a name of its own (single static assignment)",
            )
        defined[name] = what


def describe(node: onnx.NodeProto) -> str:
    """Returns ``Conv 'conv1'`` for messages."""
    name = node.name or (node.output[0] if node.output else "")
    return f"{node.op_type} '{name}'"


def captured_names(node: onnx.NodeProto) -> list[str]:
    """Returns the outer-scope tensors that the subgraphs of ``node`` read, in order of use."""
    found: dict[str, None] = {}
    for body in subgraphs(node):
        # A body sees the names around it, but its own come first.
        inner = {v.name for v in body.input} | {t.name for t in body.initializer}
        inner |= {o for n in body.node for o in n.output}
        for child in body.node:
            for name in (*child.input, *captured_names(child)):
                if name and name not in inner:
                    found[name] = None
        for output in body.output:
            if output.name not in inner:
                found[output.name] = None
    return list(found)


def whole_results(node: onnx.NodeProto) -> list[str]:
    """Returns names for all results of an If, Loop or Scan, those too that it leaves out.

    ONNX's inference knows no result of a Loop that leaves some out at the end, and onnxruntime 1.32
    ends the process where it leaves some out before others.
    """
    if node.domain not in ONNX_DOMAINS or node.op_type not in ("If", "Loop", "Scan"):
        return list(node.output)
    conditions = int(node.op_type == "Loop")
    count = max((len(body.output) - conditions for body in subgraphs(node)), default=0)
    names = [*node.output, *[""] * (count - len(node.output))]
    return [name or f"unread_{index}" for index, name in enumerate(names)]


def subgraphs(node: onnx.NodeProto) -> Iterator[onnx.GraphProto]:
    """Yields the graphs among the attributes of ``node``, whose order in the file means nothing."""
    # By name: the operands that bodies capture are numbered in this order, and a digest depends on
    # it.
    found = [a for a in node.attribute if a.type in _GRAPHS]
    for attribute in sorted(found, key=lambda a: a.name):
        if attribute.type == onnx.AttributeProto.GRAPH:
            yield attribute.g
        else:
            yield from attribute.graphs


def all_nodes(nodes: Iterable[onnx.NodeProto]) -> Iterator[onnx.NodeProto]:
    """Yields nodes and those inside their subgraphs."""
    # A stack of iterators: bodies may be nested more deeply than Python's calls.
    pending = [iter(nodes)]
    while pending:
        node = next(pending[-1], None)
        if node is None:
            pending.pop()
            continue
        yield node
        pending.extend(iter(body.node) for body in subgraphs(node))


def sort_nodes(graph: onnx.GraphProto, file: str) -> None:
    """Puts the nodes into a topological order where the file's order is none.

    Raises:
        InvalidModelError: A tensor is read that nothing defines, or there is a cycle.
    """
    nodes = list(graph.node)
    maker = {name: i for i, node in enumerate(nodes) for name in node.output if name}
    known = {v.name for v in graph.input} | {t.name for t in graph.initializer}
    known |= {t.values.name for t in graph.sparse_initializer}
    waiting: list[int] = []
    readers: dict[int, list[int]] = {}
    is_sorted = True
    for index, node in enumerate(nodes):
        needs: set[int] = set()
        for name in (*node.input, *captured_names(node)):
            if name and name not in known:
                if name not in maker:
                    raise _undefined(name, node, file)
                needs.add(maker[name])
        is_sorted = is_sorted and all(need < index for need in needs)
        waiting.append(len(needs))
        for need in needs:
            readers.setdefault(need, []).append(index)
    # A file in order keeps it: nodes are moved only where they have to be.
    if not is_sorted:
        order = [
            # Copies: clearing the list below would empty the nodes that belong to it.
            onnx.NodeProto.FromString(n.SerializeToString())
            for n in _kahn(nodes, waiting, readers, file)
        ]
        del graph.node[:]
        graph.node.extend(order)


def _kahn(
    nodes: Sequence[onnx.NodeProto],
    waiting: list[int],
    readers: dict[int, list[int]],
    file: str,
) -> list[onnx.NodeProto]:
    # The list grows while it is walked.
    ready = [i for i, count in enumerate(waiting) if count == 0]
    for index in ready:
        for reader in readers.get(index, ()):
            waiting[reader] -= 1
            if waiting[reader] == 0:
                ready.append(reader)
    if len(ready) < len(nodes):
        stuck = next(i for i, count in enumerate(waiting) if count)
        raise InvalidModelError(
            "the graph has a cycle",
            where=f"{file}, {describe(nodes[stuck])}",
            why=f"{len(nodes) - len(ready)} nodes wait for their own results",
            fix="ONNX graphs must be acyclic; export the model again",
        )
    return [nodes[index] for index in ready]


def _undefined(name: str, node: onnx.NodeProto, file: str) -> InvalidModelError:
    return InvalidModelError(
        f"the tensor '{name}' is read but nothing defines it",
        where=f"{file}, {describe(node)}",
        why="it is neither a graph input, an initializer nor a node's result",
        fix="export the model again; an initializer or a node was lost",
    )


def tensor_names(graph: onnx.GraphProto) -> set[str]:
    """Returns the names of all tensors of a file, inside subgraphs too, read or not."""
    nodes = list(all_nodes(graph.node))
    graphs = [graph, *(inner for node in nodes for inner in subgraphs(node))]
    ends = {t.name for each in graphs for t in (*each.input, *each.initializer)}
    return ends.union(*(node.output for node in nodes))
