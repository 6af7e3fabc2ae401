"""The parser of the text form: one statement after another, every name defined before its use."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import MISSING, dataclass, fields
from functools import cache
from types import NoneType
from typing import Any, get_args, get_type_hints

from numpy.typing import NDArray

from qdqbridge.core.graph.dtypes import DType
from qdqbridge.core.graph.edit import link, name_values, verify
from qdqbridge.core.graph.graph import Graph, Node, Value
from qdqbridge.core.graph.operator import (
    AnyAttributes,
    Attributes,
    NoAttributes,
    Operator,
    Serialized,
)
from qdqbridge.core.graph.printer import RAW_VERSION, VERSION
from qdqbridge.core.graph.types import NestedType
from qdqbridge.core.ops.attributes import SplitAttrs
from qdqbridge.core.ops.composition import Step
from qdqbridge.core.ops.run_time_parameters import SIMULATE
from qdqbridge.core.ops.table import BY_NAME
from qdqbridge.core.text.types import Lexer, Token, TokenKind, Types, real
from qdqbridge.errors import InputDataError, InvalidModelError, ModelFileError

# ---- attribute records of the text form, read as their fields are declared -----------------------


@cache
def _declared(record: type[Attributes]) -> dict[str, Any]:
    hints = get_type_hints(record)
    return {field.name: hints[field.name] for field in fields(record)}  # type: ignore[arg-type]


@cache
def _required(record: type[Attributes]) -> tuple[str, ...]:
    return tuple(
        field.name
        for field in fields(record)  # type: ignore[arg-type] # a dataclass
        if field.default is MISSING and field.default_factory is MISSING
    )


def read_attributes(types: Types, record: type[AnyAttributes]) -> AnyAttributes:
    """Reads ``{name=value, …}``; what is left out has its default.

    Raises:
        ModelFileError: It does not give what the record wants.
    """
    if record is NoAttributes and not types.lexer.at("{"):
        return record()
    lexer, start = types.lexer, types.lexer.ahead
    declared, given = _declared(record), dict[str, Any]()
    if lexer.take("{"):
        while not lexer.take("}"):
            if given:
                lexer.want(",")
            token = lexer.want(TokenKind.NAME)
            if token.text not in declared or token.text in given:
                known = ", ".join(declared) or "none"
                lexer.refuse(
                    "the attribute is not expected here", f"{token}; there are: {known}", token
                )
            lexer.want("=")
            given[token.text] = _value(types, declared[token.text])
    missing = [name for name in _required(record) if name not in given]
    if missing:
        lexer.refuse("attributes are missing", ", ".join(missing), start)
    return record(**given)


def _value(types: Types, declared: Any) -> Any:
    lexer = types.lexer
    choices = get_args(declared)
    if NoneType in choices:
        if lexer.take("None"):
            return None
        (declared,) = (each for each in choices if each is not NoneType)
        choices = get_args(declared)
    if choices:  # a tuple of any length
        lexer.want("[")
        found: list[Any] = []
        while not lexer.take("]"):
            found.append(_value(types, choices[0]))
        return tuple(found)
    if declared is Step:
        return _step(types)
    if declared is DType:
        return types.dtype()
    if declared is str:
        return lexer.string()
    if declared is bool:
        return _boolean(lexer)
    if declared is int:
        return lexer.integer()
    if declared is float:
        return _parse_number(lexer)
    if issubclass(declared, Serialized):
        return _serialized(types, declared)
    raise AssertionError(f"no attribute has the type {declared}")


def _boolean(lexer: Lexer) -> bool:
    if lexer.take("True"):
        return True
    lexer.want("False")
    return False


def _parse_number(lexer: Lexer) -> float:
    token = lexer.want(TokenKind.NUMBER)
    number = real(token.text)
    if number is None:
        lexer.refuse("the number is too large", f"it is {token}", token)
    return number


def _serialized(types: Types, declared: type[Serialized]) -> Serialized:
    lexer, token = types.lexer, types.lexer.ahead
    if token.kind is TokenKind.HASH:
        lexer.refuse(
            "only the hash of the node is given", f"it is {token}; base64:… is needed", token
        )
    return declared(types.data())


def _step(types: Types) -> Step:
    lexer = types.lexer
    token = lexer.want(TokenKind.NAME)
    op = BY_NAME.get(token.text)
    if op is None or op.attributes is BY_NAME["Composition"].attributes:
        lexer.refuse("no step of a composition is of this operator", f"it is {token}", token)
    lexer.want("(")
    operands: list[int] = []
    while not lexer.take(")"):
        if operands:
            lexer.want(",")
        operands.append(lexer.integer(0))
    return Step(op, read_attributes(types, op.attributes), tuple(operands))


_HEADER = re.compile(r"(?:\s+|//[^\n]*)*([^\n]*)")


@dataclass(frozen=True, slots=True)
class OpaqueNodes:
    """How nodes without a row are read; the format that such a node comes from knows.

    Attributes:
        attributes: The record that a node carries.
        operator: Returns the operator of a record.
        record_problem: Says how a record contradicts itself; empty where it does not.
        interface_problem: Says how a node has other operands or results than its record says.
    """

    attributes: type[Attributes]
    operator: Callable[[Any], Operator]
    record_problem: Callable[[Any], str]
    interface_problem: Callable[[Node], str]


def parse_text(
    text: str,
    weights: Mapping[str, NDArray[Any]] | None = None,
    *,
    opaque: OpaqueNodes | None = None,
) -> Graph:
    """Returns the graph of a text, verified.

    Args:
        text: What :meth:`~qdqbridge.core.graph.graph.Graph.text` wrote, or somebody by hand.
        weights: Long constants by hash.
        opaque: How nodes without a row are read; by default they are refused.

    Raises:
        ModelFileError: The text cannot be read; ``where`` is line and column.
        InvalidModelError: A node breaks the rules of its operator.
        InputDataError: Long constants are missing, or others.
        GraphError: The text claims to be canonical and is not.
    """
    found = _HEADER.match(text)
    assert found is not None  # it matches the empty text
    header = found[1].strip()
    if header not in (VERSION, RAW_VERSION):
        raise ModelFileError(
            "the text is not a graph of this version",
            where=Lexer("").place(0),
            why=f"it begins with '{header[:40]}', not with '{VERSION}' or '{RAW_VERSION}'",
            fix="write it again with graph.text(weights='inline') of this version",
        )
    weights = {} if weights is None else weights
    if not isinstance(weights, Mapping):  # pyright: ignore[reportUnnecessaryIsInstance] - a user's
        raise InputDataError(
            "the weights of a text are arrays by their hash",
            why=f"they are of type {type(weights).__name__}",
            fix="give the mapping that graph.text(weights=mapping) has filled",
        )
    graph = _TextParser(Lexer(text, found.end()), weights, opaque).graph()
    graph.canonical = header == VERSION
    verify(graph, "text")
    return name_values(graph)


class _TextParser:
    def __init__(
        self, lexer: Lexer, weights: Mapping[str, NDArray[Any]], opaque: OpaqueNodes | None
    ) -> None:
        self.lexer, self.opaque = lexer, opaque
        self.types = Types(lexer, weights)
        self.values: dict[str, Value] = {}
        self.read = Graph([], [], [], [])

    def graph(self) -> Graph:
        lexer, graph = self.lexer, self.read
        while lexer.ahead.kind is not TokenKind.END:
            if lexer.take("input"):
                graph.inputs.append(self.input())
            elif lexer.take("output"):
                self.output()
            else:
                graph.nodes.append(self.node())
        if not graph.outputs:
            lexer.refuse("the graph has no outputs", "'output %…' is expected")
        return graph

    def input(self) -> Value:
        lexer, token = self.lexer, self.lexer.want(TokenKind.VALUE)
        named = lexer.ahead
        name = self.name(token, f"input_{len(self.read.inputs)}")
        if any(value.name == name for value in self.read.inputs):
            lexer.refuse("two inputs have one name", f"it is '{name}'", named)
        lexer.want(":")
        value = Value(self.types.type(), name)
        self.define(token, value)
        return value

    def output(self) -> None:
        graph, token = self.read, self.lexer.ahead
        value = self.use()
        if value is None:
            self.lexer.refuse("an output is a value", f"it is {token}", token)
        if value in graph.outputs:
            default = graph.output_names[graph.outputs.index(value)]
        else:
            default = f"output_{len(graph.outputs)}"
        graph.outputs.append(value)
        graph.output_names.append(self.name(token, default))

    def name(self, token: Token, default: str) -> str:
        """Returns the name of an input or output: what follows it, or its own unless numbered."""
        if self.lexer.ahead.kind is TokenKind.STRING:
            return self.lexer.string()
        return _own_name(token) or default

    def define(self, token: Token, value: Value) -> None:
        if self.values.setdefault(token.text, value) is not value:
            self.lexer.refuse("the value is defined twice", f"it is {token}", token)

    def use(self) -> Value | None:
        """Reads an operand or output: a value, a constant, or ``_`` where it is left out."""
        lexer = self.lexer
        if lexer.take("_"):
            return None
        if lexer.take("const"):
            type_, constant = self.types.constant()
            return Value(type_, constant=constant)
        token = lexer.want(TokenKind.VALUE)
        value = self.values.get(token.text)
        if value is None:
            lexer.refuse("the value is not defined before its use", f"it is {token}", token)
        return value

    def node(self) -> Node:
        lexer, start = self.lexer, self.lexer.ahead
        defined = [lexer.want(TokenKind.VALUE)]
        while lexer.take(","):
            defined.append(lexer.want(TokenKind.VALUE))
        lexer.want("=")
        named = lexer.ahead
        name = lexer.string() if named.kind is TokenKind.STRING else lexer.want(TokenKind.NAME).text
        lexer.want("(")
        operands: list[Value | None] = []
        while not lexer.take(")"):
            if operands:
                lexer.want(",")
            operands.append(self.use())
        op, attributes = self.operator(name, named)
        lexer.want(":")
        types = [self.types.type()]
        while lexer.take(","):
            types.append(self.types.type())
        if len(types) != len(defined):
            why = f"{len(defined)} results, {len(types)} types"
            lexer.refuse("every result has one type", why, start)
        results = [
            Value(type_, _own_name(token)) for token, type_ in zip(defined, types, strict=True)
        ]
        for token, value in zip(defined, results, strict=True):
            self.define(token, value)
        node = Node(op, attributes, operands, results)
        self.check(node, start)
        link(node)
        return node

    def operator(self, name: str, token: Token) -> tuple[Operator, Attributes]:
        op = SIMULATE if name == SIMULATE.name else BY_NAME.get(name)
        if op is not None:
            return op, read_attributes(self.types, op.attributes)
        if self.opaque is None or not self.lexer.at("{"):
            self.lexer.refuse("there is no such operator", f"it is {token}", token)
        attributes = read_attributes(self.types, self.opaque.attributes)
        problem = self.opaque.record_problem(attributes)
        if problem:
            self.lexer.refuse("the opaque node contradicts itself", problem, token)
        op = self.opaque.operator(attributes)
        if op.name != name:
            why = f"its attributes are those of {op.name}"
            self.lexer.refuse("the opaque node contradicts itself", why, token)
        return op, attributes

    def check(self, node: Node, start: Token) -> None:
        """Refuses a node that its operator does not take.

        Raises:
            InvalidModelError: It is one.
        """
        problem = next(self.problems(node), None)
        if problem is not None:
            raise InvalidModelError(
                f"{node.op.name} does not take this",
                where=self.lexer.place(start.start),
                why=problem,
                fix="correct the operands, attributes or types of the node",
            )

    def problems(self, node: Node) -> Iterator[str]:
        if node.op.name in BY_NAME or node.op is SIMULATE:
            sizes = node.attributes.sizes if isinstance(node.attributes, SplitAttrs) else (0,)
            if len(node.outputs) != len(sizes) and not node.op.apart:
                yield f"it has {len(node.outputs)} results, and gives {len(sizes)}"
            if not node.inputs or node.inputs[0] is None:
                yield "its first operand is left out"
            if any(v and isinstance(v.type, NestedType) for v in (*node.inputs, *node.outputs)):
                yield "it takes and gives tensors only"
        else:
            assert self.opaque is not None  # it gave the operator
            problem = self.opaque.interface_problem(node)
            if problem:
                yield problem
        try:
            yield from node.op.problems(node)
        # The checks take what a reader made, which never leaves out what an operator needs.
        except (AssertionError, LookupError, TypeError, ValueError, ArithmeticError) as error:
            yield f"operands or attributes are missing ({error or type(error).__name__})"


def _own_name(token: Token) -> str:
    """Returns the name that a value has in the text; empty where it is a number."""
    own = token.text.removeprefix("%")
    return "" if token.kind is not TokenKind.VALUE or own.isdigit() else own
