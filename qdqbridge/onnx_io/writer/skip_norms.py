"""A sum and the norm of it as the one operator of com.microsoft that their file had."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from qdqbridge.core.graph.graph import Node, Value
from qdqbridge.core.graph.types import TensorType
from qdqbridge.core.ops.attributes import NormAttrs
from qdqbridge.core.ops.elementwise import ADD
from qdqbridge.core.ops.normalization import LAYER_NORMALIZATION, RMS_NORMALIZATION
from qdqbridge.onnx_io.lowering.context import MICROSOFT
from qdqbridge.onnx_io.lowering.normalization import DATA, SKIP
from qdqbridge.onnx_io.writer.rows import RowWriter, real_dtype
from qdqbridge.onnx_io.writer.spec import NodeRow

_OF_ROW = {LAYER_NORMALIZATION: SKIP[True], RMS_NORMALIZATION: SKIP[False]}


@dataclass(frozen=True, slots=True)
class SkipNorm:
    """Nodes that one operator stands for.

    Attributes:
        norm: The norm.
        total: The last sum, the operator's fourth result.
        sums: The sums in their order.
        data: The operand that has the shape of the result.
        skip: The other one.
        bias: The vector that is added, too.
        asked: Others read the sum, too.
    """

    norm: Node
    total: Value
    sums: tuple[Node, ...]
    data: Value
    skip: Value
    bias: Value | None
    asked: bool

    @property
    def place(self) -> Node:
        """The node in whose place the operator is written.

        Whoever reads the sum stands behind it, and what makes the norm's parameters before that.
        """
        return self.sums[-1] if self.asked else self.norm


def skip_norms(nodes: Iterable[Node], outputs: set[Value]) -> dict[Node, SkipNorm]:
    """Returns, for each node that goes into such an operator, the whole.

    Its sums are among the nodes, too: part of a graph, or of a body, is written by itself.
    """
    found: dict[Node, SkipNorm] = {}
    here = dict.fromkeys(nodes)
    for node in here:
        whole = _match_skip_norm(node, outputs)
        if whole is not None and all(each in here and each not in found for each in whole.sums):
            found.update(dict.fromkeys((*whole.sums, node), whole))
    return found


def _match_skip_norm(norm: Node, outputs: set[Value]) -> SkipNorm | None:
    variant, _, name = norm.origin.variant.partition(DATA)
    variant, _, bias = variant.partition("+")
    if variant != _OF_ROW.get(norm.op) or not _has_no_quant(norm):  # pyright: ignore[reportArgumentType]
        return None
    rank = norm.operand(0).rank
    if rank not in (2, 3) or norm.record(NormAttrs).axis != rank - 1:
        return None
    last = norm.operand(0).producer
    if last is None or last.op is not ADD or not _has_no_quant(last):
        return None
    if not bias:
        return _made(norm, (last,), None, outputs, name)
    for added, other in (last.inputs, reversed(last.inputs)):
        first = None if other is None else other.producer
        if added is None or added.rank != 1 or first is None:
            continue
        alone = len(first.output.users) == 1 and first.output not in outputs
        if first.op is ADD and _has_no_quant(first) and alone:
            return _made(norm, (first, last), added, outputs, name)
    return None


def _has_no_quant(node: Node) -> bool:
    """True where a node has no quantized operand or result."""
    values = (*(value for value in node.inputs if value is not None), *node.outputs)
    return all(value.quant is None for value in values)


def _made(
    norm: Node, sums: tuple[Node, ...], bias: Value | None, outputs: set[Value], name: str
) -> SkipNorm | None:
    """Returns the whole; None where none of what is added first is known to have the sum's shape.

    Args:
        norm: The norm.
        sums: The sums in their order.
        bias: The vector that is added, too.
        outputs: Those of the graph.
        name: The tensor that had the sum's shape in the operator of the file.
    """
    first, total = sums[0], norm.operand(0)
    if len(first.inputs) != 2:
        return None
    shape, added = first.output.type.shape, (first.operand(0), first.operand(1))
    if shape is None:
        return None
    data = next((value for value in added if value.type.shape == shape), None)
    data = data or next((value for value in added if _is_data(value, name, len(shape))), None)
    if data is None:
        return None
    skip = added[1] if data is added[0] else added[0]
    if (skip.rank or 0) not in (len(shape), 2):
        return None
    asked = len(total.users) > 1 or total in outputs
    own = (*norm.inputs[1:], bias)
    if asked and any(value is not None and value.producer is not None for value in own):
        return None
    return SkipNorm(norm, total, sums, data, skip, bias, asked)


def _is_data(value: Value, name: str, rank: int) -> bool:
    """True where only the file says that a value is not repeated: extents have other names."""
    return value.name == name and value.rank == rank and 1 not in (value.type.shape or ())


def skip_norm_row(writer: RowWriter, whole: SkipNorm) -> None:
    """Adds the row of the operator."""
    norm, dtype = whole.norm, real_dtype(whole.norm)
    name, metadata = writer.identity(norm, f"{writer.tensors.of(norm.output)}_{norm.op.name}")
    affine = [writer.real(value, dtype) for value in norm.inputs[1:] if value is not None]
    bias = "" if whole.bias is None else writer.real(whole.bias, dtype)
    centred = norm.op is LAYER_NORMALIZATION
    if centred and len(affine) < 2 and bias:
        affine.append("")
    inputs = [writer.real(whole.data, dtype), writer.real(whole.skip, dtype), *affine]
    result, total = writer.tensors.of(norm.output), writer.tensors.of(whole.total)
    inputs += [bias] if bias else []
    outputs = [result, "", "", total] if whole.asked else [result]
    attributes = {"epsilon": norm.record(NormAttrs).epsilon}
    row = NodeRow(SKIP[centred], inputs, outputs, attributes, name, metadata, domain=MICROSOFT)
    writer.spec.nodes.append(row)
    writer.spec.imports.setdefault(MICROSOFT, 1)
    for value, tensor in ((norm.output, result), (whole.total, total)):
        writer.spec.types[tensor] = TensorType(value.type.dtype, value.type.shape)


__all__ = ["SkipNorm", "skip_norm_row", "skip_norms"]
