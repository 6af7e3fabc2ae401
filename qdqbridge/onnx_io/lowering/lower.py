"""Other encodings of quantization, rewritten into Q/DQ nodes around ONNX's operators.

Done on the file, node by node in topological order, before shapes are inferred, so that everything
behind it sees one idiom: a QLinearConv reads exactly as DQ -> Conv -> Q with the same parameters.
A node whose encoding has no such meaning stays as it is: an opaque node.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import onnx

from qdqbridge.core.graph.graph import Note
from qdqbridge.errors import UnsupportedQuantization
from qdqbridge.onnx_io.domains import ONNX_DOMAINS
from qdqbridge.onnx_io.lowering.context import MICROSOFT, LoweringContext, transposed
from qdqbridge.onnx_io.lowering.known import Known
from qdqbridge.onnx_io.lowering.table import lowering_of
from qdqbridge.onnx_io.reading.model_file import default_opset


@dataclass(frozen=True, slots=True)
class Lowered:
    """What a lowered file does not show any more.

    Attributes:
        variants: How the file writes what makes a tensor, by the tensor's name, where a writer may
            have to write it so again.
        notes: The nodes that stay as they are though others of their kind are rewritten, and why.
    """

    variants: Mapping[str, str] = field(default_factory=dict[str, str])
    notes: tuple[Note, ...] = ()


def lower(model: onnx.ModelProto, folder: Path, file: str) -> Lowered:
    """Replaces every node that has a lowering (those in subgraphs stay).

    Args:
        model: A checked model with sorted nodes; changed in place.
        folder: Where its external data lies.
        file: File name, for messages.

    Raises:
        InvalidModelError: A node contradicts itself.
    """
    opset = default_opset(model)
    if not any(lowering_of(node, opset) for node in model.graph.node):
        return Lowered()
    if not any(entry.domain == MICROSOFT for entry in model.opset_import):
        model.opset_import.append(onnx.helper.make_opsetid(MICROSOFT, 1))
    known = Known(model, folder, file)
    notes: list[Note] = []
    for node in model.graph.node:
        row = lowering_of(node, opset)
        if row is not None:
            mark = known.mark()
            try:
                row.apply(LoweringContext(node, known))
            except UnsupportedQuantization as error:
                known.take_back(mark)
                known.lowered.append(node)
                notes.append(_carried(node, error))
        elif node.op_type == "Transpose" and node.domain in ONNX_DOMAINS:
            _transpose(node, known)
        else:
            known.lowered.append(node)
    nodes = [onnx.NodeProto.FromString(node.SerializeToString()) for node in known.lowered]
    del model.graph.node[:]
    model.graph.node.extend(nodes)
    return Lowered(known.variants, tuple(notes))


def _carried(node: onnx.NodeProto, error: UnsupportedQuantization) -> Note:
    name = node.name or node.output[0]
    reason = f"{error.what} ({error.why}); it is kept as it is; to read it: {error.fix}"
    return Note("opaque-operator", name, reason, (name,))


def _transpose(node: onnx.NodeProto, known: Known) -> None:
    """Keeps a Transpose, or takes the source where it undoes another one."""
    context = LoweringContext(node, known)
    perm = context.ints("perm", None)
    if perm is None:
        known.lowered.append(node)
        return
    source = transposed(context, node.input[0], perm)
    context.op("Identity", [source], node.output[0])
    if source in known.layouts:
        known.layouts[node.output[0]] = known.layouts[source]
