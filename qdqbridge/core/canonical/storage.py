"""The storage of constants: uint8 around 128 and int8 around 0 are one constant, as are 8 and -120.

A weight is stored signed around 0 wherever that is possible
(:mod:`qdqbridge.core.canonical.weights`).
Any other constant is as signed as what it is combined with, so that kernels and runtimes find one
type on both sides: a constant addend of uint8 activations is uint8. So is a table that a Gather
reads, with all data movement behind it, up to where something computes with the values. Constants
that nothing quantized decides about are signed. None of this looks at an element.

Constants that are equal then are dequantized once.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from qdqbridge.core.canonical.conversions import covers
from qdqbridge.core.canonical.data_movement import moves
from qdqbridge.core.canonical.weights import NORMS, is_weight
from qdqbridge.core.graph.constant import Constant
from qdqbridge.core.graph.edit import Editor, rewire
from qdqbridge.core.graph.graph import Graph, Node, Value
from qdqbridge.core.graph.operator import Flow
from qdqbridge.core.graph.quantization import (
    QuantParams,
    shiftable,
    shifted_constant,
    shifted_params,
)
from qdqbridge.core.graph.types import QuantType
from qdqbridge.core.ops.build import constant
from qdqbridge.core.ops.conversion import DEQUANTIZE, REQUANTIZE

_COMPUTING = (Flow.ACCUMULATE, Flow.AVERAGE, Flow.ELEMENTWISE, Flow.ROUND)


def shifted_as(value: Value, params: QuantParams) -> Value | None:
    """Returns a constant in the signedness of ``params`` where that makes their types equal."""
    if value.constant is None or value.quant is None or not shiftable(value.quant.params):
        return None
    own = value.quant.params
    if own.same_mapping(params) or not shifted_params(own).same_mapping(params):
        return None
    return constant(shifted_constant(value.constant), shifted_params(own), value.name)


def propagate_storage(graph: Graph) -> bool:
    """Gives constants the signedness that their readers have; returns whether any changed."""
    editor = Editor(graph)
    changed = _Storage(editor, graph.nodes).propagate()
    if changed:
        editor.finish()
    return changed


def share_dequantized(graph: Graph) -> bool:
    """Makes one node of the dequantizes of equal constants; returns whether there were several.

    Elements are compared only where types and shapes agree, so hardly ever.
    """
    editor = Editor(graph)
    kept: dict[object, list[Node]] = {}
    changed = False
    for node in graph.nodes:
        source = node.inputs[0] if node.inputs else None
        if node.op is not DEQUANTIZE or source is None or source.constant is None:
            continue
        alike = kept.setdefault((source.type, node.output.type), [])
        for other in alike:
            first = other.operand(0).constant
            if first is not None and same_elements(first, source.constant):
                editor.replace_value(node.output, other.output)
                changed = True
                break
        else:
            alike.append(node)
    if changed:
        editor.finish()
    return changed


def same_elements(a: Constant, b: Constant) -> bool:
    """Returns whether two constants of one type and shape hold the same bits."""
    return a is b or a.numpy().tobytes() == b.numpy().tobytes()


@dataclass(slots=True)
class _ConstantRegion:
    """A constant and what data-movement operators make of it.

    Attributes:
        values: The results of the data-movement operators, in whatever order.
        shifts: Results of requantizes that change nothing but the signedness.
        overrides: Whether the readers want signed values, one entry for each that cares.
        fixed: Somebody looks at the bits.
    """

    values: list[Value] = field(default_factory=list[Value])
    shifts: list[Value] = field(default_factory=list[Value])
    overrides: set[bool] = field(default_factory=set[bool])
    fixed: bool = False

    @property
    def signed(self) -> bool:
        return True in self.overrides or not self.overrides


class _Storage:
    def __init__(self, editor: Editor, nodes: Sequence[Node]) -> None:
        self.editor, self.nodes = editor, nodes
        self.rooted: set[Value] = set()
        self.shifted: dict[tuple[Constant, QuantParams], Constant] = {}

    def propagate(self) -> bool:
        changed = False
        for node in self.nodes:
            source = node.inputs[0] if node.inputs else None
            rooted = source is not None and (source.is_constant or source in self.rooted)
            if rooted and _passes(node):
                self.rooted.update(node.outputs)
        for node in self.nodes:
            if _passes(node):
                changed |= self._propagate_table(node)
            elif node.op.flow in _COMPUTING or node.op is DEQUANTIZE:
                changed |= self._propagate_operands(node)
        return changed

    def _propagate_operands(self, node: Node) -> bool:
        changed = False
        for index, value in node.data_operands():
            quant = value.quant
            if value.constant is None or quant is None or not shiftable(quant.params):
                continue
            if index == 1 and is_weight(node, value):
                continue
            wish = self._wish(node, value)
            if (wish is None or wish) != quant.params.storage_dtype.is_signed:
                rewire(node, index, self._shifted(value, value.constant, quant))
                changed = True
        return changed

    def _propagate_table(self, node: Node) -> bool:
        """Settles what the data-movement operators behind a table make, once for each table."""
        table = node.operand(0)
        if table.constant is None or table.quant is None:
            return False
        region = self._region(node)
        signed = table.quant.params.storage_dtype.is_signed
        if region.fixed or (signed == region.signed and not region.shifts):
            return False
        if signed != region.signed:
            rewire(node, 0, self._shifted(table, table.constant, table.quant))
        for value in region.values:
            assert isinstance(value.type, QuantType)
            if value.type.dtype.is_signed != region.signed:
                value.type = value.type.with_params(shifted_params(value.type.params))
        for value in region.shifts:
            assert value.producer is not None
            self.editor.replace_value(value, value.producer.operand(0))
        return True

    def _region(self, node: Node) -> _ConstantRegion:
        region = _ConstantRegion()
        pending = [node]
        while pending:
            current = pending.pop()
            target = region.shifts if current.op is REQUANTIZE else region.values
            target += current.outputs
            for value in current.outputs:
                region.fixed |= self.editor.is_output(value)
                for reader, index in value.users:
                    if index == 0 and _passes(reader):
                        pending.append(reader)
                    elif reader.op.flow in (Flow.REINTERPRET, Flow.FLOAT):
                        region.fixed = True
                    elif (wish := self._wish(reader, value)) is not None:
                        region.overrides.add(wish)
        return region

    def _wish(self, reader: Node, value: Value) -> bool | None:
        """Returns whether ``reader`` wants ``value`` signed, None where it does not care."""
        parameter = reader.op in NORMS and value is not reader.inputs[0]
        if parameter or is_weight(reader, value):
            return True
        others = (v for _, v in reader.data_operands() if not v.is_constant)
        running = (v for v in others if v is not value and v not in self.rooted)
        kinds = _signedness((*reader.outputs, *running))
        return next(kinds, None)

    def _shifted(self, value: Value, data: Constant, quant: QuantType) -> Value:
        key = data, quant.params
        if key not in self.shifted:
            self.shifted[key] = shifted_constant(data)
        return constant(self.shifted[key], shifted_params(quant.params), value.name)


def _signedness(values: tuple[Value, ...]) -> Iterator[bool]:
    for value in values:
        if value.quant is not None and shiftable(value.quant.params):
            yield value.quant.params.storage_dtype.is_signed


def _passes(node: Node) -> bool:
    """True where the results of ``node`` are the stored values of its first operand, moved.

    Also where they are shifted to the other signedness, and nothing else.
    """
    source = node.inputs[0] if node.inputs else None
    if source is None or source.quant is None or not shiftable(source.quant.params):
        return False
    if any(value.quant is None for value in node.outputs):
        return False
    own, result = source.quant.params, node.output.quant
    if node.op is REQUANTIZE:
        return result is not None and covers(result.params, shifted_params(own))
    return moves(node) and all(v.type.dtype is own.storage_dtype for v in node.outputs)
