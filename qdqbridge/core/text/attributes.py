"""Attribute records of the text form, read as their fields are declared."""

from __future__ import annotations

from dataclasses import MISSING, fields
from functools import cache
from types import NoneType
from typing import Any, get_args, get_type_hints

from qdqbridge.core.graph.dtypes import DType
from qdqbridge.core.graph.operator import (
    AnyAttributes,
    Attributes,
    NoAttributes,
    Serialized,
)
from qdqbridge.core.ops.composition import Step
from qdqbridge.core.ops.table import BY_NAME
from qdqbridge.core.text.lexer import Lexer, TokenKind, real
from qdqbridge.core.text.types import Types


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
