"""A graph as a TFLite file: demands met, layout planned, tensors and operators, one flatbuffer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from qdqbridge.canonical import canonicalize
from qdqbridge.canonical.build import result
from qdqbridge.canonical.driver import run
from qdqbridge.errors import OutputExistsError, UnsupportedTargetError
from qdqbridge.graph.atomic_write import placed
from qdqbridge.graph.copying import copied
from qdqbridge.graph.edit import Editor, link
from qdqbridge.graph.graph import Graph, Node, Note, Value
from qdqbridge.ops.attributes import TransposeAttrs
from qdqbridge.ops.table import BY_NAME
from qdqbridge.qnn.layout import ConvertedGraph, apply_layout, plan
from qdqbridge.qnn.layout.permutation import channels_first, channels_last
from qdqbridge.tflite_io.writer import demands, expansion
from qdqbridge.tflite_io.writer.emission import Emission, NoCounterpart
from qdqbridge.tflite_io.writer.flatbuffer import ModelRecord
from qdqbridge.tflite_io.writer.rows import ROWS
from qdqbridge.tflite_io.writer.storage import stored_signed

RULES = (*demands.RULES, *expansion.RULES)
"""What is rewritten, in this order."""
LAYOUTS = ("model", "nhwc")
"""How images enter and leave a file: as the model has them, or channels-last."""
_IMAGE = 4


@dataclass(frozen=True, slots=True)
class TFLiteModel:
    """A graph ready to be written.

    Attributes:
        graph: The graph that the file says: the original after what TFLite demands.
        model: Its tensors and operators.
        tensors: For every value of the graph that the file holds, its tensor, and whether that is
            channels-last.
        notes: Where numbers are rounded once more than in the original, and what stays float.
    """

    graph: Graph
    model: ModelRecord
    tensors: Mapping[Value, tuple[int, bool]]
    notes: tuple[Note, ...]

    @property
    def digest(self) -> str:
        """The digest of what is written; reading the file gives it again."""
        return self.graph.digest


def write(
    graph: Graph, path: Path, *, layout: str = "model", four_bits: bool = True,
    overwrite: bool = False,
) -> TFLiteModel:  # fmt: skip
    """Writes a graph as a TFLite file; it appears complete or not at all.

    Args:
        graph: A canonical graph.
        path: The file.
        layout: ``model`` for inputs and outputs as the graph has them, ``nhwc`` for images that
            enter and leave channels-last.
        four_bits: Write weights of 4 bits so; Ethos-U wants them in 8.
        overwrite: Replace a file that is there.

    Raises:
        UnsupportedTargetError: TFLite has no counterpart of some nodes; all of them are listed.
        OutputExistsError: The file is there and ``overwrite`` is False.
        OutputFileError: The operating system refuses.
    """
    made = converted(graph, layout=layout, four_bits=four_bits)
    data = made.model.tobytes()
    if path.exists() and not overwrite:
        raise OutputExistsError(
            "the file exists", where=str(path), why="nobody asked to replace it"
        )
    with placed(path) as scratch:
        scratch.write_bytes(data)
    return made


def converted(graph: Graph, *, layout: str = "model", four_bits: bool = True) -> TFLiteModel:
    """Returns a graph as TFLite's tensors and operators.

    Raises:
        UnsupportedTargetError: TFLite has no counterpart of some nodes; all of them are listed.
    """
    if layout not in LAYOUTS:
        raise UnsupportedTargetError(
            f"there is no layout '{layout}'", why=f"the layouts are {', '.join(LAYOUTS)}"
        )
    legal = legalized(graph, layout, four_bits=four_bits)
    _name_all(legal)
    carried_ = apply_layout(legal, plan(legal, ranks=(_IMAGE,)))
    layouts = {node: last for node, (_, last) in carried_.sources.items() if last is not None}
    emission = Emission(ROWS, layouts)
    refused: dict[tuple[str, str, str], list[str]] = {}
    try:
        _interface(emission, carried_.graph)
    except NoCounterpart as refusal:
        refused["input", str(refusal), refusal.fix] = [graph.name]
    for node in carried_.graph.nodes:
        try:
            emission.node(node)
        except NoCounterpart as refusal:
            key = node.op.name, str(refusal), refusal.fix
            refused.setdefault(key, []).append(node.name)
    try:
        _results(emission, carried_.graph)
    except NoCounterpart as refusal:
        refused["output", str(refusal), refusal.fix] = [graph.name]
    _refuse(refused, graph.name)
    notes = [note for note in legal.notes if note.rule in {rule.name for rule in RULES}]
    tensors = _tensors(legal, carried_, emission)
    return TFLiteModel(legal, emission.model, tensors, (*notes, *_islands(carried_.graph)))


def legalized(graph: Graph, layout: str = "model", *, four_bits: bool = True) -> Graph:
    """Returns a graph that TFLite can say, as far as rules make it so; in canonical form."""
    legal = stored_signed(graph, four_bits=four_bits)
    if layout == "nhwc":
        legal = _images_last(legal)
    run(legal, RULES)
    legal.canonical = False
    canonicalize(legal, channels_first=True)
    run(legal, RULES)
    return canonicalize(legal, channels_first=True)


def _images_last(graph: Graph) -> Graph:
    """Returns a copy whose images enter and leave channels-last."""
    copy = copied(graph).graph
    transpose = BY_NAME["Transpose"]
    for slot, value in enumerate(copy.inputs):
        shape = value.type.shape
        if value.rank != _IMAGE or shape is None:
            continue
        outside = Value(
            value.type.with_shape(tuple(shape[a] for a in channels_last(_IMAGE))), value.name
        )
        copy.inputs[slot] = outside
        inner = Value(value.type, f"{value.name}:nchw")
        node = Node(transpose, TransposeAttrs(channels_first(_IMAGE)), [outside], [inner])
        link(node)
        for reader, index in list(value.users):
            value.users.pop((reader, index))
            reader.inputs[index] = inner
            inner.users[reader, index] = None
        copy.outputs[:] = [inner if output is value else output for output in copy.outputs]
    for slot, value in enumerate(copy.outputs):
        shape = value.type.shape
        if value.rank != _IMAGE or shape is None:
            continue
        type_ = value.type.with_shape(tuple(shape[a] for a in channels_last(_IMAGE)))
        attributes = TransposeAttrs(channels_last(_IMAGE))
        copy.outputs[slot] = result(
            transpose, attributes, [value], type_, name=copy.output_names[slot]
        )
    Editor(copy).finish()
    return copy


def _interface(emission: Emission, graph: Graph) -> None:
    """Adds the inputs first, so that they keep their names."""
    model = emission.model
    model.name = graph.name or "main"
    model.description = graph.metadata.get("description", "qdqbridge")
    for value in graph.inputs:
        model.inputs.append(emission.tensor(value))
        model.input_names.append(value.name)


def _results(emission: Emission, graph: Graph) -> None:
    """Names the results; an input, a constant or a result named twice has a tensor of its own."""
    model = emission.model
    for name, value in zip(graph.output_names, graph.outputs, strict=True):
        index = emission.tensor(value)
        if index in model.inputs or index in model.outputs or value.constant is not None:
            copy = emission.like(index, emission.type_of(index)[1], name)
            shape = emission.shape_operand(value, index)
            emission.add("RESHAPE", [index, shape], [copy], "ReshapeOptions")
            index = copy
        emission.rename(index, name)
        model.outputs.append(index)
        model.output_names.append(name)


def _refuse(refused: Mapping[tuple[str, str, str], list[str]], name: str) -> None:
    if not refused:
        return
    lines = [
        f"{op} ({len(nodes)}, '{nodes[0]}'): {reason}" for (op, reason, _), nodes in refused.items()
    ]
    fixes = dict.fromkeys(fix for _, _, fix in refused if fix)
    raise UnsupportedTargetError(
        "TFLite cannot take this graph",
        where=f"profile 'tflite'{f', {name}' if name else ''}",
        why="; ".join(lines),
        fix="; ".join(fixes) or "replace these operators, or cut the model before them",
    )


def _islands(graph: Graph) -> list[Note]:
    """Returns which nodes with quantized results compute on floats."""
    found: list[Note] = []
    for node in graph.nodes:
        quantized = any(value.quant is not None for value in node.outputs)
        if quantized and not ROWS[node.op.name].integers(node):
            reason = f"TFLite has no integer kernel for this {node.op.name}; it computes on floats"
            found.append(Note("float-island", node.name, reason))
    return found


def _name_all(graph: Graph) -> None:
    """Gives every result a name of its own; no meaning depends on it."""
    taken = {value.name for value in graph.inputs}
    for node in graph.nodes:
        for value in node.outputs:
            base, count = value.name or node.op.name.lower(), 0
            name = base if value.name else f"{base}:0"
            while name in taken:
                count += 1
                name = f"{base}:{count}"
            taken.add(name)
            value.name = name


def _tensors(
    legal: Graph, made: ConvertedGraph, emission: Emission
) -> dict[Value, tuple[int, bool]]:
    """Returns where the values of the graph are in the file, by what each node became."""
    found: dict[Value, tuple[int, bool]] = {}
    for old, new in zip(legal.inputs, made.graph.inputs, strict=True):
        found[old] = emission.tensor(new), False
    named = {value.name: value for node in legal.nodes for value in node.outputs}
    for node in made.graph.nodes:
        layout = made.sources.get(node, (node, None))[1]
        if node not in made.sources:
            continue
        for value in node.outputs:
            old = named.get(value.name)
            if old is not None and value in emission.tensors:
                found.setdefault(old, (emission.tensors[value], bool(layout and layout[1])))
    return found
