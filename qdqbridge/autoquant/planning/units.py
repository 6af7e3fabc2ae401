"""Which float values lie between two roundings, so that nothing quantizes them."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from qdqbridge.autoquant.planning.targets import CLAMPS
from qdqbridge.core.graph.graph import Node, Value
from qdqbridge.core.graph.operator import Flow
from qdqbridge.core.ops.convolution import CONV, CONV_TRANSPOSE
from qdqbridge.core.ops.elementwise import ADD, CONCAT, WHERE
from qdqbridge.core.ops.matmul import DENSE, MATMUL

_ROUNDING = (Flow.ACCUMULATE, Flow.AVERAGE, Flow.ELEMENTWISE, Flow.ROUND)
_SEVERAL = (CONCAT, WHERE)


class Units:
    """The units of a graph: a product with bias and clamp, or a function of one tensor.

    Attributes:
        quantized: The nodes that shall run on integers.
    """

    def __init__(
        self,
        nodes: Sequence[Node],
        outputs: Collection[Value],
        quantized: Collection[Node],
        *,
        functions: bool = True,
    ) -> None:
        """Finds them; ``functions`` as of :class:`~qdqbridge.autoquant.planning.targets.Target`."""
        self.quantized = set(quantized)
        self._outputs = set(outputs)
        self._source: dict[Value, Value | None] = {}
        self._inside: set[Value] = set()
        self._chained: set[Node] = set()
        for node in nodes:
            self._inside |= {value for value in node.outputs if self._continues(value)}
        if functions:
            self._find_functions(nodes)

    def is_inside(self, value: Value) -> bool:
        """True where nothing is rounded between the producer of ``value`` and its readers."""
        return value in self._inside

    def extends_function(self, node: Node) -> bool:
        """True for elementwise operators whose constants belong to a function of one tensor."""
        return node in self._chained

    def adds_bias(self, node: Node) -> bool:
        """True for an Add whose constant is the bias of a product."""
        return node.op is ADD and any(
            v in self._inside and v.producer is not None and v.producer.op.flow is Flow.ACCUMULATE
            for _, v in node.data_operands()
        )

    def _continues(self, value: Value) -> bool:
        """True for a product before its bias, and for what is clamped before anybody reads it."""
        node = value.producer
        if node not in self.quantized or value in self._outputs or len(value.users) != 1:
            return False
        reader, index = next(iter(value.users))
        if reader not in self.quantized:
            return False
        if reader.op in CLAMPS:
            return node.op.flow in _ROUNDING
        return node.op.flow is Flow.ACCUMULATE and _is_bias(node, reader, index)

    # ---- elementwise operators in a row ---------------------------------------------------------

    def _find_functions(self, nodes: Sequence[Node]) -> None:
        """Finds values that are functions of one tensor and read inside their function only."""
        for node in nodes:
            if self._is_step(node):
                sources = {
                    self._source.get(v, v) for _, v in node.data_operands() if not v.is_constant
                }
                if len(sources) == 1 and self._scalars_only(node):
                    self._source[node.output] = sources.pop()
        for node in reversed(nodes):
            value = node.output if node.outputs else None
            if value is None or value not in self._source or value in self._outputs:
                continue
            source = self._source[value]
            readers = {reader for reader, _ in value.users}
            if readers and all(self._source.get(r.output) is source for r in readers):
                self._inside.add(value)
                self._chained |= {node, *readers}

    def _is_step(self, node: Node) -> bool:
        if node.op.flow is not Flow.ELEMENTWISE or node.op in _SEVERAL:
            return False
        ends_product = any(v in self._inside for _, v in node.data_operands())
        return node in self.quantized and len(node.outputs) == 1 and not ends_product

    def _scalars_only(self, node: Node) -> bool:
        return all(v.constant is None or v.constant.size == 1 for v in node.inputs if v is not None)


def _is_bias(product: Node, reader: Node, index: int) -> bool:
    """True where ``reader`` adds a constant vector along the channels of ``product``."""
    if reader.op is not ADD or product.optional(2) is not None:
        return False
    if product.op not in (CONV, CONV_TRANSPOSE, MATMUL, DENSE):
        return False
    weight, addend = product.operand(1), reader.operand(1 - index)
    shape = product.output.type.shape
    if addend.constant is None or shape is None or not weight.is_constant:
        return False
    axis = len(shape) - 1 if product.op in (MATMUL, DENSE) else 1
    own = (1,) * (len(shape) - len(addend.constant.shape)) + addend.constant.shape
    expected = tuple(shape[axis] if i == axis else 1 for i in range(len(shape)))
    return own == expected
