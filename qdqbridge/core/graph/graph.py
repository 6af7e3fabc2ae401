"""The typed graph: values with types, nodes with operators, edges both ways."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from qdqbridge.control_characters import visible
from qdqbridge.core.graph.constant import Constant
from qdqbridge.core.graph.dtypes import DType
from qdqbridge.core.graph.operator import AnyAttributes, Attributes, Operator
from qdqbridge.core.graph.types import QuantType, Shape, ValueType
from qdqbridge.errors import InputDataError

if TYPE_CHECKING:
    from qdqbridge.core.graph.printer import Weights


# ---- what the file of a graph says about itself, beside the graph --------------------------------


@dataclass(frozen=True, slots=True)
class Header:
    """The header of a model file.

    Attributes:
        file: Name of the file.
        ir_version: Version of ONNX's file format; None where it is another format.
        opsets: Version of every operator domain, or of TVM for its modules.
        producer: Name and version of the program that wrote it.
        operators: Number of nodes by operator, the most frequent first.
    """

    file: str
    ir_version: int | None
    opsets: Mapping[str, int | str]
    producer: str
    operators: Mapping[str, int]


# ---- the form in which a file has a graph, for as long as nobody changes the graph ---------------


@dataclass(frozen=True, slots=True, eq=False)
class AsRead:
    """What a file says, node by node, and the state of the graph that means the same.

    Attributes:
        form: The file's own nodes, as the writer of its format takes them.
        state: All that the graph says; empty before it has its canonical form.
    """

    form: object
    state: tuple[Any, ...] = ()

    def of(self, graph: Graph) -> AsRead:
        """Returns the same form, which stands for ``graph`` as it is now."""
        return replace(self, state=_state(graph))

    def stands_for(self, graph: Graph) -> bool:
        """True while nothing of the graph has changed: no node, type, constant or name."""
        return bool(self.state) and self.state == _state(graph)


def _state(graph: Graph) -> tuple[Any, ...]:
    """Returns all parts of a graph; nodes and values are what they are by identity."""
    # By identity of nodes and values: a walk, without a hash of any weight.
    nodes = tuple(
        (node, node.op, node.attributes, node.origin, tuple(node.inputs), tuple(node.outputs))
        for node in graph.nodes
    )
    values = tuple((value, value.name, value.type, value.constant) for value in graph.values())
    ends = (tuple(graph.inputs), tuple(graph.outputs), tuple(graph.output_names))
    return (*ends, graph.opset, nodes, values)


_REMEMBERED = 256
"""Nodes of the file that one node remembers; a chain of any length may become one node."""


@dataclass(frozen=True, slots=True)
class Whole:
    """What a node is a step of, in a graph that a host is given.

    Attributes:
        op: The operator.
        shapes: The shape of each of its operands that is a constant.
    """

    op: str
    attributes: Attributes
    shapes: tuple[tuple[int, ...] | None, ...]


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a node comes from: names of the file's nodes and their ``metadata_props``.

    Attributes:
        nodes: Names of the file's nodes, the first few hundred.
        metadata: Their ``metadata_props``, likewise.
        variant: How the file writes it where there are several ways.
        with_add: The file adds its bias behind it.
        computed: The float type in which the file computes it, where Casts around it say another
            one than the scales of its operands have. Only writers and reports look at it.
        whole: What it is a step of, on its way to a host and back.
    """

    nodes: tuple[str, ...] = ()
    metadata: tuple[tuple[str, str], ...] = ()
    variant: str = ""
    with_add: bool = False
    computed: DType | None = None
    whole: Whole | None = None

    def joined(self, other: Origin) -> Origin:
        """Returns the origin of a node made from two."""
        return Origin(
            # Bounded: a chain of thousands of nodes that become one would else copy its names at
            # each step.
            tuple(dict.fromkeys((*self.nodes, *other.nodes)))[:_REMEMBERED],
            tuple(dict((*self.metadata, *other.metadata)).items())[:_REMEMBERED],
            self.variant or other.variant,
            self.with_add or other.with_add,
            self.computed or other.computed,
        )


NO_ORIGIN = Origin()


class Value:
    """One edge of the graph: a graph input, a constant or the result of a node.

    Attributes:
        type: Its type, the place where quantization lives.
        name: The tensor's name in the file, kept as provenance; no meaning depends on it.
        producer: The node that computes it; None for graph inputs and constants.
        constant: Its data where it is a constant.
        users: ``(node, operand index)`` pairs that read it.
        written: The constant as its file wrote it, where ``constant`` is a rounding of it
            (a float bias next to its derived int32 form). Only writers look at it.
        declared: The shape that its file declares, where nothing tells the rank. It may be wrong,
            so nothing is decided by it; hosts that check it when they run may need it.
    """

    __slots__ = (
        "constant", "declared", "metadata", "name", "producer", "type", "users", "written",
    )  # fmt: skip

    def __init__(
        self, type_: ValueType, name: str = "", *, constant: Constant | None = None
    ) -> None:
        self.type = type_
        self.name = name
        self.constant = constant
        self.producer: Node | None = None
        self.users: dict[tuple[Node, int], None] = {}
        self.metadata: tuple[tuple[str, str], ...] = ()
        self.written: Constant | None = None
        self.declared: Shape = None

    @property
    def quant(self) -> QuantType | None:
        """Its type where it is quantized, else None."""
        return self.type if isinstance(self.type, QuantType) else None

    @property
    def is_constant(self) -> bool:
        """True for constants."""
        return self.constant is not None

    @property
    def rank(self) -> int | None:
        """Number of axes, None where unknown."""
        return None if self.type.shape is None else len(self.type.shape)

    def __repr__(self) -> str:
        return f"Value({self.name!r}: {self.type})"


class Node:
    """One application of an operator.

    A node is a proposal until :func:`qdqbridge.core.graph.edit.link` enters it into the user lists
    of its operands; rules build nodes freely, only the editor links them.
    """

    __slots__ = ("attributes", "inputs", "linked", "op", "origin", "outputs")

    def __init__(
        self,
        op: Operator,
        attributes: Attributes,
        inputs: Sequence[Value | None],
        outputs: Sequence[Value],
        origin: Origin = NO_ORIGIN,
    ) -> None:
        self.op, self.attributes, self.origin = op, attributes, origin
        self.inputs: list[Value | None] = list(inputs)
        self.outputs: list[Value] = list(outputs)
        self.linked = False
        for value in self.outputs:
            value.producer = self

    @property
    def name(self) -> str:
        """The first name of the file's node it comes from (for messages)."""
        return (
            self.origin.nodes[0]
            if self.origin.nodes
            else (self.outputs[0].name if self.outputs else "")
        )

    @property
    def output(self) -> Value:
        """The first result."""
        return self.outputs[0]

    def operand(self, index: int) -> Value:
        """Returns operand ``index``, which must be present."""
        value = self.inputs[index]
        assert value is not None, f"{self.op.name} has no operand {index}"
        return value

    def optional(self, index: int) -> Value | None:
        """Returns operand ``index`` or None where it is left out."""
        return self.inputs[index] if index < len(self.inputs) else None

    def record(self, kind: type[AnyAttributes]) -> AnyAttributes:
        """Returns the attributes, which the operators that get here have as records of ``kind``."""
        assert isinstance(self.attributes, kind), f"{self.op.name} has other attributes"
        return self.attributes

    def data_operands(self) -> Iterable[tuple[int, Value]]:
        """Yields the operands that may be quantized, with their indices."""
        for index, value in enumerate(self.inputs):
            if value is not None and self.op.is_data(index):
                yield index, value

    def __repr__(self) -> str:
        return f"Node({self.op.name} {self.name!r})"


@dataclass(slots=True, eq=False, repr=False)
class Graph:
    """A whole network.

    A graph is not pickled: send ``graph.text("inline")`` to another process and read it there with
    :func:`qdqbridge.parse`, or save a file. ``copy.copy`` and ``copy.deepcopy`` make a graph of its
    own whose constants share their data.

    Attributes:
        inputs: Graph inputs in the file's order; their names are the interface.
        outputs: Result values in the file's order.
        output_names: The interface names of the outputs.
        nodes: All nodes in a topological order.
        name: The file's graph name.
        metadata: The file's model properties (provenance).
        opset: The default-domain opset of the file it was read from; 0 if none.
        canonical: True once the canonical rules have run.
        notes: What the canonical rules refused or want said (see ``explain``).
        as_read: How its file has it, where that decides bits (:mod:`qdqbridge.core.graph.graph`).
            Only writers look at it.
    """

    inputs: list[Value]
    outputs: list[Value]
    output_names: list[str]
    nodes: list[Node]
    name: str = ""
    metadata: dict[str, str] = field(default_factory=dict[str, str])
    opset: int = 0
    canonical: bool = False
    notes: list[Note] = field(default_factory=list["Note"])
    as_read: AsRead | None = None

    def __repr__(self) -> str:
        inputs = ", ".join(f"{value.name}: {value.type}" for value in self.inputs)
        named = zip(self.output_names, self.outputs, strict=True)
        outputs = ", ".join(f"{name}: {value.type}" for name, value in named)
        return visible(f"Graph(({inputs}) -> ({outputs}), {len(self.nodes)} nodes)")

    def __reduce__(self) -> str:
        """Refuses to be pickled.

        Raises:
            InputDataError: Always.
        """
        raise InputDataError(
            "a graph cannot be pickled",
            why="its nodes refer to one another and to operators that hold functions",
            fix="send graph.text('inline') and read it with qdqbridge.parse, or save a file and "
            "load it",
        )

    def __copy__(self) -> Graph:
        from qdqbridge.core.graph.copying import copied

        copy, kept = copied(self).graph, self.as_read
        if kept is not None:  # an unchanged graph is saved with its file's nodes, and so its copy
            copy.as_read = kept.of(copy) if kept.stands_for(self) else None
        return copy

    def __deepcopy__(self, memo: object) -> Graph:
        del memo
        return self.__copy__()

    def text(self, weights: Weights = None) -> str:
        """Returns the deterministic text form (see :mod:`qdqbridge.core.graph.printer`).

        Args:
            weights: Makes it complete, so that :func:`qdqbridge.parse` reads it: ``"inline"``
                writes long constants into it, and a mapping takes them by their hash, to be kept
                beside it. By default they are hashes, and names and derived shapes are left out.
        """
        from qdqbridge.core.graph.printer import text

        return text(self, weights)

    @property
    def digest(self) -> str:
        """SHA-256 of the text form; equal for equal networks however their files are written."""
        from qdqbridge.core.graph.printer import text

        return hashlib.sha256(text(self).encode()).hexdigest()

    def values(self) -> Iterable[Value]:
        """Yields every value once: inputs, then operands and results in node order."""
        seen: dict[Value, None] = dict.fromkeys(self.inputs)
        for node in self.nodes:
            seen.update(dict.fromkeys(v for v in node.inputs if v is not None))
            seen.update(dict.fromkeys(node.outputs))
        seen.update(dict.fromkeys(self.outputs))
        return seen

    def intermediates(self) -> list[Value]:
        """Returns the results of nodes that are no outputs and have a name of their own."""
        outputs = set(self.outputs)
        results = [value for node in self.nodes for value in node.outputs]
        times = Counter(value.name for value in results)
        taken = {*self.output_names, *(value.name for value in self.inputs)}
        return [
            value
            for value in results
            if value not in outputs
            and value.name
            and value.name not in taken
            and times[value.name] == 1
        ]


@dataclass(frozen=True, slots=True)
class Note:
    """Something worth telling about a node: why it stayed float, what was assumed.

    Attributes:
        rule: The rule (or reader) that speaks, kebab-case.
        node: Name of the node in the file.
        reason: One sentence.
        culprits: Names of the tensors or nodes that cause it.
    """

    rule: str
    node: str
    reason: str
    culprits: tuple[str, ...] = ()
