"""Names inside the subgraphs of a node: numbered when it is read, made unique when written."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from onnx import AttributeProto, GraphProto, NodeProto, ValueInfoProto

from qdqbridge.onnx_io.reading.structure import ONNX_DOMAINS

CONTROL = ("If", "Loop", "Scan")
"""ONNX's operators with bodies."""
_RANKED, _STACKING = "Scan", "Loop"
"""onnxruntime needs the ranks of what the first one's body gives, and extents of what the second
one's stacks: of no steps that is empty, and has the shape that is declared."""


@dataclass(frozen=True, slots=True)
class FileNames:
    """What a file calls the things inside the subgraphs of a node; no meaning depends on it.

    Attributes:
        tensors: By the numbers that they get.
        nodes: In the order of :func:`nodes_inside`.
    """

    tensors: tuple[str, ...] = ()
    nodes: tuple[str, ...] = ()


class Counter:
    """Numbers for the tensors inside the subgraphs of one node, and who got them."""

    def __init__(self) -> None:
        self.tensors: list[str] = []

    def __call__(self, name: str) -> str:
        """Returns the next number, for the tensor of a name."""
        self.tensors.append(name)
        return f"t_{len(self.tensors) - 1}"


def nodes_inside(node: NodeProto) -> Iterator[NodeProto]:
    """Yields the nodes inside the subgraphs of a node, each before those inside itself."""
    for attribute in sorted(node.attribute, key=lambda a: a.name):
        for body in bodies(attribute):
            for inner in body.node:
                yield inner
                yield from nodes_inside(inner)


def bodies(attribute: AttributeProto) -> Sequence[GraphProto]:
    """Returns the graphs that an attribute holds."""
    if attribute.type == AttributeProto.GRAPH:
        return [attribute.g]
    return attribute.graphs if attribute.type == AttributeProto.GRAPHS else []


def renamed_attribute(
    op_type: str, attribute: AttributeProto, names: Mapping[str, str], counter: Counter
) -> AttributeProto:
    """Returns an attribute without annotations, the tensors of its graphs numbered.

    Args:
        op_type: The operator that has it.
        names: New names of the outer-scope tensors that its graphs read.
        counter: Where the numbers come from, one for a whole node.
    """
    copy = AttributeProto()
    copy.CopyFrom(attribute)
    copy.ClearField("doc_string")
    if copy.type == AttributeProto.TENSOR:
        copy.t.ClearField("name")
        copy.t.ClearField("doc_string")
    for index, body in enumerate(bodies(copy)):
        _normalize(body, names, counter, f"body_{index}", op_type)
    return copy


def _normalize(
    body: GraphProto, outer: Mapping[str, str], counter: Counter, name: str, op_type: str
) -> None:
    """Numbers every tensor that ``body`` defines and drops what computes nothing."""
    names = dict(outer)
    for defined in _defined(body):
        names[defined] = counter(defined)
    rename_inside(body, names, deeper=False)
    body.name = name
    for field in ("doc_string", "value_info", "metadata_props", "quantization_annotation"):
        body.ClearField(field)
    forget = forget_extents if op_type == _RANKED else forget_shape
    for value in (*body.input, *body.output):
        value.ClearField("doc_string")
    for value in (*body.input, *not_stacked(op_type, body)):
        forget(value)
    for node in body.node:
        for field in ("name", "doc_string", "metadata_props"):
            node.ClearField(field)
        # an empty field may be there or not, and ONNX's domain has two names
        if node.domain in ONNX_DOMAINS:
            node.ClearField("domain")
        if not node.overload:
            node.ClearField("overload")
        ordered = sorted(node.attribute, key=lambda a: a.name)
        renamed = [renamed_attribute(node.op_type, a, names, counter) for a in ordered]
        del node.attribute[:]
        node.attribute.extend(renamed)


def not_stacked(op_type: str, body: GraphProto) -> list[ValueInfoProto]:
    """Returns the results of a body but those of known extents that a Loop stacks.

    They stand behind its condition and what is carried.
    """
    first = len(body.input) - 1 if op_type == _STACKING else len(body.output)
    return [
        value
        for index, value in enumerate(body.output)
        if index < first
        or not value.type.tensor_type.HasField("shape")
        or any(dim.dim_value <= 0 for dim in value.type.tensor_type.shape.dim)
    ]


def rank_stacked(node: NodeProto, ranks: Sequence[int | None]) -> None:
    """Says how many axes the rows have that a Loop stacks, where its body does not.

    Where no step is made, onnxruntime gives one axis without it.

    Args:
        node: Any node; a Loop's body is changed.
        ranks: Those of its results but the left-out ones, None of an unknown one.
    """
    if (node.op_type, node.domain) != (_STACKING, ""):
        return
    body, known = next(a.g for a in node.attribute if a.type == AttributeProto.GRAPH), iter(ranks)
    for index, (name, value) in enumerate(zip(node.output, body.output[1:], strict=False)):
        rank = next(known, None) if name else None
        if rank and index >= len(body.input) - 2 and not value.type.tensor_type.HasField("shape"):
            for _ in range(rank - 1):
                value.type.tensor_type.shape.dim.add()


def forget_extents(value: ValueInfoProto) -> None:
    """Removes the extents that a body declares, and keeps their number."""
    if value.type.WhichOneof("value") == "tensor_type":
        for dim in value.type.tensor_type.shape.dim:
            dim.Clear()


def forget_shape(value: ValueInfoProto) -> None:
    """Removes the shape that a body declares for what it takes or gives: it may be stale.

    A single number keeps it: onnxruntime makes a Loop's counter and condition of that shape.
    """
    if value.type.WhichOneof("value") == "tensor_type":
        extents = [dim.dim_value for dim in value.type.tensor_type.shape.dim]
        if extents not in ([], [1]):
            value.type.tensor_type.ClearField("shape")


def _defined(body: GraphProto) -> list[str]:
    """Returns the names that a graph gives to tensors, in order, without its subgraphs'."""
    found = [v.name for v in body.input] + [t.name for t in body.initializer]
    found += [t.values.name for t in body.sparse_initializer]
    found += [name for node in body.node for name in node.output if name]
    return list(dict.fromkeys(found))


def all_defined(body: GraphProto) -> list[str]:
    """Returns the names that a graph and its subgraphs give to tensors."""
    found = _defined(body)
    for node in body.node:
        for attribute in node.attribute:
            for inner in bodies(attribute):
                found += all_defined(inner)
    return found


def rename_inside(body: GraphProto, names: Mapping[str, str], *, deeper: bool = True) -> None:
    """Applies ``names`` to every use and definition in ``body``, and below it if ``deeper``."""
    for named in (*body.input, *body.output, *body.initializer, *body.value_info):
        named.name = names.get(named.name, named.name)
    for sparse in body.sparse_initializer:
        sparse.values.name = names.get(sparse.values.name, sparse.values.name)
    for node in body.node:
        node.input[:] = [names.get(name, name) for name in node.input]
        node.output[:] = [names.get(name, name) for name in node.output]
        if deeper:
            for attribute in node.attribute:
                for inner in bodies(attribute):
                    rename_inside(inner, names)
