"""LSTM, GRU and RNN of batches first (``layout=1``), as those of steps first between Transposes.

onnxruntime 1.32 has no kernel for ``layout=1``, and ONNX's reference leaves out lengths, clips and
directions.
"""

from __future__ import annotations

from collections.abc import Mapping

from onnx import NodeProto

from qdqbridge.onnx_io.lowering.context import LoweringContext
from qdqbridge.onnx_io.lowering.layout import Perm, transposed

_BATCH_SECOND: Perm = (1, 0, 2)
_OPERANDS = (0, 5, 6)
"""The input, and what is carried at first."""
_RESULTS: Mapping[int, Perm] = {0: (2, 0, 1, 3), 1: _BATCH_SECOND, 2: _BATCH_SECOND}
"""From (steps, directions, batch, size) and (directions, batch, size) on."""


def steps_first(context: LoweringContext) -> None:
    """Source: ONNX LSTM-22, attribute ``layout``."""
    node = NodeProto.FromString(context.proto.SerializeToString())
    if not context.int_("layout", 0):
        context.known.lowered.append(node)
        return
    kept = [attribute for attribute in node.attribute if attribute.name != "layout"]
    del node.attribute[:]
    node.attribute.extend(kept)
    for index in _OPERANDS:
        if context.input(index):
            node.input[index] = transposed(context, context.input(index), _BATCH_SECOND)
    first = next(name for name in node.output if name)
    for index, name in enumerate(node.output):
        if name:
            node.output[index] = context.known.fresh(f"{first}.steps_first")
    context.known.lowered.append(node)
    for index, name in enumerate(context.proto.output):
        if name:
            transposed(context, node.output[index], _RESULTS[index], name)
