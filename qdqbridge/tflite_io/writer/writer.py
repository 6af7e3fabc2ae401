"""A graph as a TFLite file: rules, layout, tensors and operators, one flatbuffer."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from qdqbridge.core.canonical import canonicalize
from qdqbridge.core.graph.atomic_write import placed
from qdqbridge.core.graph.constant import Constant
from qdqbridge.core.graph.copying import copied
from qdqbridge.core.graph.dtypes import DType
from qdqbridge.core.graph.edit import Editor, link, rewire
from qdqbridge.core.graph.graph import Graph, Node, Note, Value
from qdqbridge.core.graph.types import QuantParams
from qdqbridge.core.layout import (
    WINDOWS,
    ConvertedGraph,
    apply_layout,
    channels_first,
    channels_last,
    plan,
)
from qdqbridge.core.ops.attributes import TransposeAttrs
from qdqbridge.core.ops.build import result
from qdqbridge.core.ops.table import BY_NAME, OPERATORS
from qdqbridge.core.rewrite import Rule, run
from qdqbridge.errors import UnsupportedModelError, UnsupportedTargetError
from qdqbridge.tflite_io.arithmetic import tabulated_reach
from qdqbridge.tflite_io.conversion import METADATA_NAME, encoded
from qdqbridge.tflite_io.reader import read
from qdqbridge.tflite_io.writer import expansion, rules
from qdqbridge.tflite_io.writer.emission import Emission
from qdqbridge.tflite_io.writer.flatbuffer import ModelRecord
from qdqbridge.tflite_io.writer.rows import ROWS
from qdqbridge.tflite_io.writer.rules import ethos
from qdqbridge.tflite_io.writer.rules.scales import INTEGERS_ONLY, too_coarse
from qdqbridge.tflite_io.writer.tensors import AROUND_ZERO, NoCounterpart, refuse, stored_signed
from qdqbridge.tflite_io.writer.tosa import rewritten_for_tosa

RULES = (*rules.RULES, *expansion.RULES)
"""What is rewritten, in this order."""
LAYOUTS = ("model", "nhwc")
"""How images enter and leave a file: as the model has them, or channels-last."""
_IMAGE = 4
_STAGES = 3
"""How many products behind one another come to compute on integers for Ethos-U."""
_OTHERS = tuple(row for row in OPERATORS if row not in WINDOWS)
_ROUNDS = 3
"""How often a graph may come back otherwise. Where images turn into rows beside transposes, the
plan of layouts and the canonical form find another order of them; what is read is then written."""


@dataclass(frozen=True, slots=True)
class TFLiteModel:
    """A graph ready to be written.

    Attributes:
        graph: The graph that the file says: the original after what TFLite requires.
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
    graph: Graph, path: Path, *, layout: str = "model", npu: bool = False, tosa: bool = False,
    overwrite: bool = False,
) -> TFLiteModel:  # fmt: skip
    """Writes a graph as a TFLite file; it appears complete or not at all.

    Args:
        graph: A canonical graph.
        path: The file.
        layout: ``model`` for inputs and outputs as the graph has them, ``nhwc`` for images that
            enter and leave channels-last.
        npu: Write it for Ethos-U: weights in 8 bits, and float results of products in 16.
        tosa: Write it for Arm's converter to TOSA.
        overwrite: Replace a file that is there.

    Raises:
        UnsupportedTargetError: TFLite has no counterpart of some nodes; all of them are listed.
        OutputExistsError: The file is there and ``overwrite`` is False.
        OutputFileError: The operating system refuses.
    """
    made = converted(graph, layout=layout, npu=npu, tosa=tosa)
    data = made.model.tobytes()
    with placed(path, overwrite=overwrite) as scratch:
        scratch.write_bytes(data)
    return made


def converted(
    graph: Graph, *, layout: str = "model", npu: bool = False, tosa: bool = False
) -> TFLiteModel:
    """Returns a graph as TFLite's tensors and operators; arguments as for :func:`write`.

    Raises:
        UnsupportedTargetError: TFLite has no counterpart of some nodes; all of them are listed.
    """
    if layout not in LAYOUTS:
        raise UnsupportedTargetError(
            f"there is no layout '{layout}'", why=f"the layouts are {', '.join(LAYOUTS)}"
        )
    legal = legalized(graph, layout, npu=npu)
    made = (
        # Where the plan of layouts goes round in circles, window operators alone are laid out;
        # where that does too, the file is right and only its digest another one.
        _settled(_emitted(legal), npu=npu)
        or _settled(_emitted(legal, alone=True), npu=npu, alone=True)
        or _emitted(legal)
    )
    return replace(made, model=rewritten_for_tosa(made.model)) if tosa else made


def _settled(made: TFLiteModel, *, npu: bool, alone: bool = False) -> TFLiteModel | None:
    """Returns what says the graph that reading it gives; None where that goes round in circles."""
    for _ in range(_ROUNDS):
        try:
            again = _read_back(made.model)
        except UnsupportedModelError as error:  # its own name is that of a scratch file
            raise UnsupportedTargetError(
                "TFLite cannot take this graph",
                where=f"profile 'tflite'{f', {made.graph.name}' if made.graph.name else ''}",
                why=error.why,
                fix="replace these operators, or cut the model before them",
            ) from error
        if again.digest == made.digest:
            return made
        made = replace(_emitted(_legal(again, npu=npu), alone=alone), notes=made.notes)
    return None


def _read_back(model: ModelRecord) -> Graph:
    """Returns the graph that a file says; its constants are in memory."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.tflite"
        path.write_bytes(model.tobytes())
        graph = canonicalize(read(path, canonicalize), channels_first=True)
        for value in graph.values():
            if value.constant is not None:
                value.constant = _in_memory(value.constant)
        return graph


def _in_memory(constant: Constant) -> Constant:
    # A copy: the scratch file is gone when somebody looks at it.
    array = np.array(constant.numpy())
    return Constant(constant.dtype, constant.shape, lambda: array)


def _emitted(legal: Graph, *, alone: bool = False) -> TFLiteModel:
    """Returns a graph that TFLite can say, laid out and written down.

    Args:
        legal: The graph.
        alone: Lay out window operators by themselves, between transposes, and nothing else.

    Raises:
        UnsupportedTargetError: TFLite has no counterpart of some nodes; all of them are listed.
    """
    _name_all(legal)
    converted = apply_layout(legal, plan(legal, ranks=(_IMAGE,), fixed=_OTHERS if alone else ()))
    layouts = {node: last for node, (_, last) in converted.sources.items() if last is not None}
    emission = Emission(ROWS, layouts)
    refused: dict[tuple[str, str, str], list[str]] = {}
    try:
        _interface(emission, converted.graph)
    except NoCounterpart as refusal:
        refused["input", str(refusal), refusal.fix] = [legal.name]
    for node in converted.graph.nodes:
        try:
            emission.node(node)
        except NoCounterpart as refusal:
            key = node.op.name, str(refusal), refusal.fix
            refused.setdefault(key, []).append(node.name)
    try:
        _write_graph_outputs(emission, converted.graph)
    except NoCounterpart as refusal:
        refused["output", str(refusal), refusal.fix] = [legal.name]
    refuse("TFLite", refused, f"profile 'tflite'{f', {legal.name}' if legal.name else ''}")
    reported = {AROUND_ZERO, *ethos.NOTES, *(rule.name for rule in RULES)}
    notes = [note for note in legal.notes if note.rule in reported]
    notes += [*_float_regions(converted.graph), *_tables(converted.graph)]
    tensors = _tensors(legal, converted, emission)
    return TFLiteModel(legal, emission.model, tensors, tuple(notes))


def legalized(graph: Graph, layout: str = "model", *, npu: bool = False) -> Graph:
    """Returns a graph that TFLite can say, as far as rules make it so; in canonical form."""
    legal = stored_signed(graph, four_bits=not npu)
    if layout == "nhwc":
        legal = _images_last(legal)
    for _ in range(_STAGES if npu else 0):  # a result of 16 bits may be another product's image
        run(legal, ethos.WEIGHTS)
        legal.canonical = False
        run(canonicalize(legal, channels_first=True), ethos.RULES)
    run(legal, _rules(npu=npu))
    return _legal(legal, npu=npu)


def _rules(*, npu: bool) -> tuple[Rule, ...]:
    return (*ethos.RULES, INTEGERS_ONLY, *RULES) if npu else RULES


def _legal(graph: Graph, *, npu: bool) -> Graph:
    """Brings a graph to the canonical form that TFLite can say."""
    graph.canonical = False
    canonicalize(graph, channels_first=True)
    run(graph, _rules(npu=npu))
    return canonicalize(graph, channels_first=True)


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
            rewire(reader, index, inner)
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
    # Results are renamed at the end: nothing else may have taken their names by then.
    emission.reserve({*graph.output_names} - {value.name for value in graph.inputs})
    model.description = graph.metadata.get("description", "qdqbridge")
    for value in graph.inputs:
        if value.quant is not None and not _gives(value.quant.params):
            raise NoCounterpart(
                f"'{value.name}' is {value.type.dtype.label} with zero points, which nothing reads",
                "quantize it in the model",
            )
        model.inputs.append(emission.tensor(value))
        model.input_names.append(value.name)
    extents = encoded(value.type.shape for value in graph.inputs)
    if extents is not None:
        model.metadata[METADATA_NAME] = extents


def _write_graph_outputs(emission: Emission, graph: Graph) -> None:
    """Names the results; an input, a constant or a result named twice has a tensor of its own."""
    model = emission.model
    for name, value in zip(graph.output_names, graph.outputs, strict=True):
        if value.quant is not None and not _gives(value.quant.params):
            raise NoCounterpart(
                f"'{name}' is {value.type.dtype.label} with zero points, which nothing makes",
                "dequantize it before it leaves the model",
            )
        index = emission.tensor(value)
        if index in model.inputs or index in model.outputs or value.constant is not None:
            # TFLite has no Identity, and its kernels of RESHAPE copy.
            copy = emission.like(index, emission.type_of(index)[1], name)
            shape = emission.shape_operand(value, index)
            emission.add("RESHAPE", [index, shape], [copy], "ReshapeOptions")
            index = copy
        emission.rename(index, name)
        model.outputs.append(index)
        model.output_names.append(name)


def _gives(params: QuantParams) -> bool:
    """True where a QUANTIZE of LiteRT gives and takes such integers."""
    if params.storage_dtype is DType.INT16:
        return params.symmetric
    return params.storage_dtype is not DType.UINT16


def _float_regions(graph: Graph) -> list[Note]:
    """Returns which nodes with quantized results compute on floats."""
    found: list[Note] = []
    for node in graph.nodes:
        quantized = any(value.quant is not None for value in node.outputs)
        if quantized and not ROWS[node.op.name].integers(node):
            reason = f"TFLite has no integer kernel for this {node.op.name}"
            if too_coarse(node):
                reason = f"TFLite's integer kernel of {node.op.name} is too rough for its result"
            found.append(Note("float-region", node.name, f"{reason}; it computes on floats"))
    return found


def _tables(graph: Graph) -> list[Note]:
    """Returns which integer kernels are far from their function, and how far."""
    found: list[Note] = []
    for node in graph.nodes:
        steps = tabulated_reach(node) if ROWS[node.op.name].integers(node) else 0
        if steps:
            reason = f"LiteRT reads {node.op.name} of 16 bits from tables: up to {steps} steps off"
            found.append(Note("tabulated", node.name, reason))
    return found


def _name_all(graph: Graph) -> None:
    """Gives every result a name of its own, outputs theirs; no meaning depends on it."""
    taken = {*(value.name for value in graph.inputs), *graph.output_names}
    # From behind, so that a value with two names keeps the first.
    ends = dict(zip(reversed(graph.outputs), reversed(graph.output_names), strict=True))
    for node in graph.nodes:
        for value in node.outputs:
            if value in ends:
                value.name = ends[value]
                continue
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
