"""Float elementwise operators between one dequantize and a quantize are one function."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from qdqbridge.core.graph.dtypes import DType
from qdqbridge.core.graph.graph import Node, Value
from qdqbridge.core.graph.operator import Flow, Operator
from qdqbridge.core.graph.types import TensorType
from qdqbridge.core.ops.build import result
from qdqbridge.core.ops.composition import COMPOSITION, CompositionAttrs, Step
from qdqbridge.core.ops.conversion import QUANTIZE
from qdqbridge.core.ops.elementwise import CONCAT, WHERE
from qdqbridge.core.rewrite.rule import (
    Proposal,
    Reject,
    Replace,
    RuleContext,
    rule,
    stored_behind,
)

_MOST = 64
_NOT_ELEMENTWISE = (CONCAT, WHERE, COMPOSITION)
_STORAGE = (DType.INT8, DType.UINT8, DType.INT16, DType.UINT16)


@rule("compose-elementwise", QUANTIZE)
def compose_elementwise(node: Node, context: RuleContext) -> Proposal:
    """``quantize(Erf(Div(dequantize(q), c))) -> Composition(q, c)`` into the quantized type."""
    target, end = node.output.quant, node.operand(0).producer
    if target is None or end is None or not _is_step(end):
        return None
    if not target.params.per_tensor or target.params.storage_dtype not in _STORAGE:
        return None
    makers = [v.producer for v in end.inputs if v is not None and v.producer is not None]
    if not any(_is_step(maker) for maker in makers):
        return None
    region = _ElementwiseRegion()
    refusal = region.grow(end)
    if refusal is not None:
        return replace(refusal, about=end)
    if region.source is None:
        return None
    leak = _leak(region, end, context)
    if leak is not None:
        return replace(leak, about=end)
    origin = end.origin.joined(node.origin)
    operands = [region.source, *region.scalars]
    attributes = CompositionAttrs(tuple(_composition_steps(region)))
    value = result(COMPOSITION, attributes, operands, node.output.type, origin, node.output.name)
    return Replace({node.output: value})


def _is_step(node: Node) -> bool:
    plain = node.op.flow is Flow.ELEMENTWISE and node.op not in _NOT_ELEMENTWISE
    types = [v.type for v in node.outputs]
    return (
        plain
        and len(types) == 1
        and isinstance(types[0], TensorType)
        and types[0].dtype is DType.FLOAT32
    )


@dataclass(slots=True)
class _ElementwiseRegion:
    """The operators behind a value up to one dequantize, operands first."""

    order: list[Node] = field(default_factory=list[Node])
    scalars: list[Value] = field(default_factory=list[Value])
    source: Value | None = None
    done: set[Node] = field(default_factory=set[Node])

    def grow(self, end: Node) -> Reject | None:
        stack: list[tuple[Node, bool]] = [(end, False)]
        begun = 0
        while stack:
            node, ready = stack.pop()
            if node in self.done:
                continue
            if ready:
                self.done.add(node)
                self.order.append(node)
                continue
            begun += 1
            if begun > _MOST + 1:
                return Reject(f"more than {_MOST} float operators follow one another")
            stack.append((node, True))
            for value in reversed(node.inputs):
                refusal = self._operand(value, stack)
                if refusal is not None:
                    return refusal
        return None

    def _operand(self, value: Value | None, stack: list[tuple[Node, bool]]) -> Reject | None:
        if value is None:
            return None
        if value.constant is not None:
            if value.constant.size != 1 or value.quant or value.type.dtype is not DType.FLOAT32:
                return Reject("a constant operand is no float scalar", (value.name,))
            if value not in self.scalars:
                self.scalars.append(value)
            return None
        stored = stored_behind(value)
        if stored is not None:
            return self._read(stored)
        if value.producer is None or not _is_step(value.producer):
            maker = "a graph input" if value.producer is None else value.producer.op.name
            return Reject(f"its float operand is the result of {maker}", (value.name,))
        stack.append((value.producer, False))
        return None

    def _read(self, stored: Value) -> Reject | None:
        quant = stored.quant
        if quant is None or not quant.params.per_tensor or stored.type.dtype not in _STORAGE:
            return Reject("an operand is no 8- or 16-bit tensor", (stored.name,))
        if self.source is not None and self.source is not stored:
            return Reject("it combines two tensors", (self.source.name, stored.name))
        self.source = stored
        return None


def _leak(region: _ElementwiseRegion, end: Node, context: RuleContext) -> Reject | None:
    for node in region.order:
        value = node.output
        inside = {QUANTIZE} if node is end else set[Operator]()
        for reader in context.readers(value):
            if reader not in region.done and reader.op not in inside:
                return Reject(f"the float result of {node.op.name} is also read elsewhere")
        if context.is_output(value):
            return Reject(f"the float result of {node.op.name} is a graph output")
    return None


def _composition_steps(region: _ElementwiseRegion) -> list[Step]:
    numbers: dict[Value, int] = {value: i for i, value in enumerate(region.scalars, 1)}
    first = 1 + len(region.scalars)
    steps: list[Step] = []
    for node in region.order:
        operands = tuple(numbers.get(v, 0) for v in node.inputs if v is not None)
        steps.append(Step(node.op, node.attributes, operands, node.origin, node.output.name))
        numbers[node.output] = first + len(steps) - 1
    return steps
