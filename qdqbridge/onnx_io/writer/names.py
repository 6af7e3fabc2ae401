"""Names for the tensors and nodes of a written file: the old ones where they are free."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from qdqbridge.core.graph.graph import Graph, Node, Value
from qdqbridge.core.graph.operator import Flow
from qdqbridge.errors import UnsupportedTargetError
from qdqbridge.onnx_io.opaque.nodes import OpaqueAttrs
from qdqbridge.onnx_io.reading.structure import subgraphs

_QUANTIZED = "_QuantizeLinear_Output"


class Names:
    """Hands out names, each only once."""

    def __init__(self, taken: Iterable[str] = ()) -> None:
        self._taken = {""} | set(taken)
        self._next: dict[str, int] = {}

    def take(self, wanted: str) -> str:
        """Returns ``wanted`` where it is free, else a numbered one."""
        wanted = wanted.encode("utf-8", "replace").decode()  # protobuf refuses lone surrogates
        name = wanted
        while name in self._taken:
            self._next[wanted] = self._next.get(wanted, 0) + 1
            name = f"{wanted or 'tensor'}_{self._next[wanted]}"
        self._taken.add(name)
        return name


class TensorNames:
    """The name of every value of a graph, and free ones for what stands between them.

    Inputs and outputs keep their interface names. A value whose bits are those of another one
    (``reinterpret``) shares its tensor.

    Attributes:
        free: Hands out further names.
    """

    def __init__(self, graph: Graph) -> None:
        outputs = list(zip(graph.output_names, graph.outputs, strict=True))
        _check_interface(graph.inputs, outputs)
        self._names: dict[Value, str] = {value: value.name for value in graph.inputs}
        self.free = Names([*self._names.values(), *graph.output_names, *_names_inside(graph.nodes)])
        for name, value in outputs:
            root = tensor_of(value)
            if root.producer is not None and root not in self._names:
                self._names[root] = name
        for value in graph.values():
            root = tensor_of(value)
            if root not in self._names:
                self._names[root] = self.free.take(root.name or _invented(root))

    def adopt(self, value: Value, name: str) -> None:
        """Gives a value that stands between the graph's own a name."""
        self._names[value] = name

    def of(self, value: Value) -> str:
        """Returns the name of the tensor that holds a value's stored elements."""
        return self._names[tensor_of(value)]


def tensor_of(value: Value) -> Value:
    """Returns the value whose tensor also holds ``value``: reinterpreting moves no bits."""
    while value.producer is not None and value.producer.op.flow is Flow.REINTERPRET:
        source = value.producer.operand(0)
        if source.type.dtype is not value.type.dtype:
            raise UnsupportedTargetError(
                f"ONNX cannot reinterpret {source.type.dtype} as {value.type.dtype}",
                where=f"tensor '{value.name}'",
                fix="requantize the tensor instead",
            )
        value = source
    return value


def _invented(value: Value) -> str:
    """Returns a name for a value that a rule made."""
    maker = value.producer
    return "constant" if maker is None else f"{maker.name or maker.op.name}_output"


def real_name(quantized: str) -> str:
    """Returns the name of the float tensor that ``quantized`` is made of (onnxruntime's habit)."""
    stem = quantized.removesuffix(_QUANTIZED)
    return stem if stem and stem != quantized else f"{quantized}_float"


def stem(quantized: str) -> str:
    """Returns what the names of a quantized tensor's neighbours begin with."""
    return quantized.removesuffix(_QUANTIZED) or quantized


def _check_interface(values: Sequence[Value], outputs: Sequence[tuple[str, Value]]) -> None:
    inputs = [value.name for value in values]
    own = {value.name: value for value in values}
    twice = [name for name in inputs if inputs.count(name) > 1] if len(own) < len(inputs) else []
    clash = False  # a name may be that of an input, or stand there twice, for one tensor
    for name, value in outputs:
        clash |= own.setdefault(name, tensor_of(value)) is not tensor_of(value)
    if twice or clash or "" in (*inputs, *(name for name, _ in outputs)):
        raise UnsupportedTargetError(
            "the names of the graph's inputs and outputs are not unique",
            why=f"inputs {inputs}, outputs {[name for name, _ in outputs]}",
            fix="give every input and output a name of its own",
        )


def _names_inside(nodes: Iterable[Node]) -> Iterable[str]:
    """Yields the names inside subgraphs: outer tensors may not have them (ONNX, SSA)."""
    for node in nodes:
        if isinstance(node.attributes, OpaqueAttrs):
            pending = list(subgraphs(node.attributes.node.proto()))
            while pending:
                body = pending.pop()
                yield from (t.name for t in (*body.input, *body.initializer))
                for inner in body.node:
                    yield from inner.output
                    pending.extend(subgraphs(inner))
