"""Tokens of the text form, and its types and elements: what follows ``:`` and ``const``."""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from qdqbridge.core.graph.constant import Constant
from qdqbridge.core.graph.dtypes import DType
from qdqbridge.core.graph.dtypes import DTypeKind as Family
from qdqbridge.core.graph.printer import array_hash
from qdqbridge.core.graph.types import (
    Dim,
    NestedType,
    QuantParams,
    QuantType,
    Shape,
    TensorType,
    ValueType,
)
from qdqbridge.errors import InputDataError, ModelFileError, UnsupportedQuantization

# ---- Tokens of the text form, each with its place ------------------------------------------------


class TokenKind(Enum):
    """What a token is, in words for messages."""

    VALUE = "a value such as %0"
    DATA = "bytes (base64:…)"
    HASH = "a hash such as #2x3:0f…"
    NUMBER = "a number"
    STRING = "a string"
    NAME = "a name"
    SIGN = "a sign"
    END = "the end of the text"


@dataclass(frozen=True, slots=True)
class Token:
    """A token: its kind, its text, and where it begins."""

    kind: TokenKind
    text: str
    start: int

    def __str__(self) -> str:
        if self.kind is TokenKind.END:
            return self.kind.value
        shown = self.text if len(self.text) <= _SHOWN else self.text[:_SHOWN] + "…"
        return f"'{shown}'"


_SHOWN = 40
_BLANK = re.compile(r"(?:\s+|//[^\n]*)+")
_TOKEN = re.compile(
    r"""
    (?P<VALUE>%\w+)
    |(?P<DATA>base64:[A-Za-z0-9+/]*={0,2})
    |(?P<HASH>\#(?:[0-9]+(?:x[0-9]+)*)?(?::[0-9a-f]+)?)
    |(?P<NUMBER>-?(?:0x[0-9a-fA-F]+(?:\.[0-9a-fA-F]*)?p[+-]?[0-9]+
        |(?:inf|nan)\b
        |[0-9]+(?:\.[0-9]+(?:[eE][+-]?[0-9]+)?|[eE][+-]?[0-9]+)?))
    |(?P<STRING>'(?:[^'\\\n]|\\.)*'|"(?:[^"\\\n]|\\.)*")
    |(?P<NAME>[A-Za-z_]\w*(?:(?:::|[./-])\w+)*)
    |(?P<SIGN>\.\.|[=(){}\[\]<>,:*])
    """,
    re.VERBOSE | re.ASCII,
)
_KINDS = {kind.name: kind for kind in TokenKind}
_ESCAPE = re.compile(r"\\(?:x([0-9a-f]{2})|u([0-9a-f]{4})|U([0-9a-f]{8})|(.))")
_ESCAPED = {"\\": "\\", "'": "'", '"': '"', "n": "\n", "r": "\r", "t": "\t"}
_LAST_CHARACTER = 0x10FFFF


class Lexer:
    """Reads a text token by token, one ahead.

    Args:
        start: Where to begin.
    """

    def __init__(self, text: str, start: int = 0) -> None:
        self.text = text
        self.ahead = self._token(start)

    def _token(self, at: int) -> Token:
        blank = _BLANK.match(self.text, at)
        at = at if blank is None else blank.end()
        if at == len(self.text):
            return Token(TokenKind.END, "", at)
        found = _TOKEN.match(self.text, at)
        if found is None or found.lastgroup is None:
            self.refuse("the text form has no such sign", repr(self.text[at]), at=at)
        return Token(_KINDS[found.lastgroup], found.group(), at)

    def next(self) -> Token:
        """Takes the next token."""
        token = self.ahead
        if token.kind is not TokenKind.END:
            self.ahead = self._token(token.start + len(token.text))
        return token

    def at(self, *texts: str) -> bool:
        """Returns whether the next token is one of these names or signs."""
        return self.ahead.kind in (TokenKind.NAME, TokenKind.SIGN) and self.ahead.text in texts

    def take(self, text: str) -> bool:
        """Takes the next token where it is this name or sign; returns whether it was."""
        if self.at(text):
            self.next()
            return True
        return False

    def want(self, wanted: TokenKind | str) -> Token:
        """Takes the next token, which must be of a kind, or this name or sign.

        Raises:
            ModelFileError: It is another one.
        """
        fits = self.at(wanted) if isinstance(wanted, str) else self.ahead.kind is wanted
        if not fits:
            name = f"'{wanted}'" if isinstance(wanted, str) else wanted.value
            self.refuse(f"{name} is expected here", f"it is {self.ahead}")
        return self.next()

    def integer(self, low: int = -(1 << 63), high: int = (1 << 63) - 1) -> int:
        """Takes an integer between two bounds.

        Raises:
            ModelFileError: It is something else.
        """
        token = self.want(TokenKind.NUMBER)
        number = integer(token.text)
        if number is None or not low <= number <= high:
            self.refuse(
                f"an integer from {low} to {high} is expected here", f"it is {token}", token
            )
        return number

    def string(self) -> str:
        """Takes a string and returns what it stands for.

        Raises:
            ModelFileError: It is none, or has an escape that Python does not write.
        """
        token = self.want(TokenKind.STRING)

        def character(found: re.Match[str]) -> str:
            code = next((each for each in found.groups()[:3] if each is not None), None)
            if code is not None and int(code, 16) <= _LAST_CHARACTER:
                return chr(int(code, 16))
            if found[4] in _ESCAPED:
                return _ESCAPED[found[4]]
            return self.refuse("the string has an unknown escape", f"it is {found[0]!r}", token)

        return _ESCAPE.sub(character, token.text[1:-1])

    def refuse(
        self, what: str, why: str, token: Token | None = None, *, at: int | None = None
    ) -> NoReturn:
        """Refuses the text.

        Args:
            what: What is wrong.
            why: The values that show it.
            token: The token at fault; by default the next one.
            at: Its place, where there is no token.

        Raises:
            ModelFileError: Always.
        """
        if at is None:
            at = (token or self.ahead).start
        raise ModelFileError(what, where=self.place(at), why=why, fix=_FIX)

    def place(self, at: int) -> str:
        """Returns a place as ``line:column``, counted from 1."""
        line = self.text.count("\n", 0, at) + 1
        return f"line {line}:{at - self.text.rfind(chr(10), 0, at)}"


_FIX = "correct the text there, or write it again with graph.text(weights='inline')"


def integer(text: str) -> int | None:
    """Returns the integer that a number's text stands for; None where it is none."""
    digits = text.removeprefix("-")
    if not digits.isdigit() or len(digits) > _DIGITS:
        return None
    return int(text)


_DIGITS = 24
"""More than any element type or extent needs; Python's own reading of digits is quadratic."""


def real(text: str) -> float | None:
    """Returns the number that a text stands for; None where it is beyond float64."""
    try:
        return float.fromhex(text) if "x" in text else float(text)
    except (OverflowError, ValueError):  # beyond float64; no number
        return None


# ---- Types and elements of the text form: what follows ``:`` and ``const`` -----------------------


_DTYPES = {dtype.label: dtype for dtype in DType}
_LAYERS = ("sequence", "optional")
_DEEPEST = 16
_RANK = 64  # NumPy's own limit

Array = NDArray[Any]


class Types:
    """Reads types and constants of one text.

    Args:
        lexer: The text.
        weights: Long constants by hash, beside those that stand in the text.
    """

    def __init__(self, lexer: Lexer, weights: Mapping[str, Array]) -> None:
        self.lexer = lexer
        self.weights = weights
        self.inline: dict[str, Array] = {}
        self.constants: dict[tuple[str, DType, tuple[int, ...]], Constant] = {}

    # ---- types ----------------------------------------------------------------------------------

    def type(self) -> ValueType:
        """Reads a type; a shape that is left out is not known."""
        lexer = self.lexer
        token = lexer.ahead
        layers: list[str] = []
        while lexer.at(*_LAYERS):
            # A text may come from anybody: its depth is bounded, not the stack's.
            if len(layers) == _DEEPEST:
                lexer.refuse("the type is nested too deep", f"more than {_DEEPEST} layers")
            layers.append(lexer.next().text)
            lexer.want("<")
        if layers:
            dtype = self.dtype()
            for _ in layers:
                lexer.want(">")
            return NestedType(dtype, None, tuple(layers))
        if not lexer.at("quant"):
            dtype = self.dtype()
            return TensorType(dtype, self.shape())
        return self.quantized(token)

    def dtype(self) -> DType:
        """Reads an element type."""
        token = self.lexer.want(TokenKind.NAME)
        found = _DTYPES.get(token.text)
        if found is None:
            self.lexer.refuse("there is no such element type", f"it is {token}", token)
        return found

    def shape(self) -> Shape:
        """Reads extents in brackets; none where there are no brackets."""
        lexer = self.lexer
        if not lexer.take("["):
            return None
        if lexer.take("*"):
            lexer.want("]")
            return None
        dims: list[Dim] = []
        while not lexer.at("]"):
            if dims:
                lexer.want(",")
            if len(dims) == _RANK:
                lexer.refuse("the shape has too many extents", f"more than {_RANK}")
            if lexer.ahead.kind is TokenKind.NUMBER:
                dims.append(lexer.integer(0))
            elif lexer.ahead.kind is TokenKind.STRING:
                dims.append(lexer.string())
            else:
                dims.append(lexer.want(TokenKind.NAME).text)
        lexer.want("]")
        return tuple(dims)

    def quantized(self, start: Token) -> QuantType:
        """Reads ``quant<storage, scale, zero point, …>`` and its shape."""
        lexer = self.lexer
        lexer.want("quant")
        lexer.want("<")
        storage, expressed, scale_dtype, saturate = self.storage()
        lexer.want(",")
        scale = self.array(scale_dtype)
        lexer.want(",")
        zero_point = self.array(DType.INT32)
        more = self.granularity()
        lexer.want(">")
        shape = self.shape()
        scale = _blocks(scale, shape, **more)
        # The text has no shapes of parameters: those of blocks are told from the data's.
        if zero_point.ndim and zero_point.size == scale.size:
            zero_point = zero_point.reshape(scale.shape)
        if zero_point.ndim and zero_point.shape != scale.shape:
            why = f"{zero_point.size} zero points, {scale.size} scales"
            lexer.refuse("there are other zero points than scales", why, start)
        try:
            params = QuantParams(
                storage, scale, zero_point, expressed_dtype=expressed, saturate=saturate, **more
            )
        except UnsupportedQuantization as error:
            lexer.refuse(error.what, error.why, start)
        type_ = QuantType(params, shape)
        if problem := type_.misfit():
            lexer.refuse("the scales do not fit the shape", problem, start)
        return type_

    def storage(self) -> tuple[DType, DType, DType, bool]:
        """Reads the types of stored and real values and of the scale, and whether it saturates."""
        lexer, start = self.lexer, self.lexer.ahead
        storage, expressed, power, saturate = self.dtype(), DType.FLOAT32, False, True
        if storage.kind in (Family.STRING, Family.BOOL):
            lexer.refuse("only numbers are quantized", f"these are of type {storage}", start)
        while lexer.take(":"):
            if lexer.take("unsaturated"):
                saturate = False
                continue
            token, dtype = lexer.ahead, self.dtype()
            if not dtype.is_float:
                lexer.refuse("a scale is a floating-point number", f"its type is {dtype}", token)
            if dtype is DType.FLOAT8_E8M0:
                power = True
            else:
                expressed = dtype
        return storage, expressed, DType.FLOAT8_E8M0 if power else expressed, saturate

    def granularity(self) -> dict[str, int]:
        """Reads ``axis``, ``block`` and ``range``, as :class:`QuantParams` names them."""
        lexer, found = self.lexer, dict[str, int]()
        while lexer.take(","):
            token = lexer.want(TokenKind.NAME)
            lexer.want("=")
            if token.text == "axis" and not found:
                found["axis"] = lexer.integer(-_RANK, _RANK)
            elif token.text == "block" and found.keys() == {"axis"}:
                found["block_size"] = lexer.integer(1)
            elif token.text == "range" and "qmin" not in found:
                found["qmin"] = lexer.integer()
                lexer.want("..")
                found["qmax"] = lexer.integer(found["qmin"])
            else:
                why = f"{token} is not one of axis, block and range, in this order"
                lexer.refuse("the parameter is not expected here", why, token)
        return found

    # ---- elements -------------------------------------------------------------------------------

    def constant(self) -> tuple[ValueType, Constant]:
        """Reads type and elements of a constant."""
        lexer, start = self.lexer, self.lexer.ahead
        type_ = self.type()
        extents = type_.shape
        if extents is None or any(isinstance(dim, str) for dim in extents):
            lexer.refuse("a constant has a shape of numbers", f"this one has {extents}", start)
        shape = tuple(int(dim) for dim in extents)
        if lexer.ahead.kind is TokenKind.HASH:
            return type_, self.hashed(type_.dtype, shape)
        token = lexer.ahead
        array = self.strings() if type_.dtype is DType.STRING else self.literal(type_.dtype)
        if array.size != _size(shape):
            why = f"{array.size} elements for {list(shape)}"
            lexer.refuse("the elements do not fit the shape", why, token)
        return type_, Constant.of(array.reshape(shape))

    def array(self, dtype: DType) -> Array:
        """Reads a scale or zero point."""
        if self.lexer.ahead.kind is TokenKind.HASH:
            return self.hashed(dtype, None).numpy()
        return self.literal(dtype)

    def literal(self, dtype: DType) -> Array:
        """Reads a number, or numbers in brackets."""
        lexer = self.lexer
        if not lexer.take("["):
            return _array([self.number(dtype)], dtype).reshape(())
        numbers: list[float | int] = []
        while not lexer.take("]"):
            numbers.append(self.number(dtype))
        return _array(numbers, dtype)

    def number(self, dtype: DType) -> float | int:
        """Reads a number that an element type holds."""
        lexer = self.lexer
        if dtype.is_float:
            token = lexer.want(TokenKind.NUMBER)
            number = real(token.text)
            if number is None:
                lexer.refuse("the number is too large", f"it is {token}", token)
            return number
        if dtype.kind is Family.BOOL:
            return lexer.integer(0, 1)
        return lexer.integer(dtype.qmin, dtype.qmax)

    def strings(self) -> Array:
        """Reads a string, or nested lists of strings."""
        lexer = self.lexer
        found: list[str] = []
        depth = 0
        while True:
            if lexer.take("["):
                depth += 1
            elif depth and lexer.take("]"):
                depth -= 1
            elif not (depth and lexer.take(",")):
                found.append(lexer.string())
            if not depth:
                break
        array = np.empty(len(found), np.object_)
        array[:] = found
        return array

    def hashed(self, dtype: DType, shape: tuple[int, ...] | None) -> Constant:
        """Reads ``#2x3:hash``, and ``=base64:…`` behind it the first time.

        Args:
            dtype: The element type.
            shape: The shape where the type says it.
        """
        lexer, token = self.lexer, self.lexer.want(TokenKind.HASH)
        extents, _, key = token.text[1:].partition(":")
        dims = [integer(each) for each in extents.split("x")] if extents else []
        if not key or len(dims) > _RANK or None in dims:
            lexer.refuse("a constant is written #2x3:hash", f"it is {token}", token)
        said = tuple(dim for dim in dims if dim is not None)
        if shape is not None and said != shape:
            why = f"{list(said)}, and its type says {list(shape)}"
            lexer.refuse("the constant has another shape", why, token)
        if lexer.take("="):
            data = np.frombuffer(self.data(), np.uint8)
            if array_hash(data) != key:
                why = f"their hash is {array_hash(data)}"
                lexer.refuse("the bytes are not those of the hash", why, token)
            self.inline[key] = data
        if dtype is DType.STRING:
            lexer.refuse("strings have no hash", "write them in brackets", token)
        found = self.constants.get((key, dtype, said))
        if found is None:
            found = self._known(token, key, dtype, said)
            self.constants[key, dtype, said] = found
        return found

    def _known(self, token: Token, key: str, dtype: DType, shape: tuple[int, ...]) -> Constant:
        lexer = self.lexer
        array = self.inline.get(key)
        if array is None:
            array = self.weights.get(key)
            if array is None:
                raise InputDataError(
                    f"the elements of the constant {key} are missing",
                    where=lexer.place(token.start),
                    why="they are neither in the text nor among the weights that are given",
                    fix="write the text with graph.text(weights='inline'), or give as weights the "
                    "mapping that graph.text(weights=mapping) has filled",
                )
            array = np.asarray(array)
            if array.dtype == np.object_ or array_hash(array) != key:
                raise InputDataError(
                    f"the weights under {key} are not those of the text",
                    where=lexer.place(token.start),
                    why="their bytes have another hash",
                    fix="give the mapping that graph.text(weights=mapping) has filled",
                )
        if array.nbytes != _size(shape) * dtype.numpy.itemsize:
            why = f"{array.nbytes} bytes for {dtype}{list(shape)}"
            lexer.refuse("the elements do not fit the shape", why, token)
        flat = np.ascontiguousarray(array).reshape(-1)
        return Constant.of(flat.view(np.uint8).view(dtype.numpy).reshape(shape))

    def data(self) -> bytes:
        """Reads ``base64:…``."""
        token = self.lexer.want(TokenKind.DATA)
        try:
            return base64.b64decode(token.text.removeprefix("base64:"), validate=True)
        except binascii.Error as error:
            self.lexer.refuse("the bytes are not base64", str(error), token)


def _size(shape: tuple[int, ...]) -> int:
    size = 1
    for extent in shape:
        size *= extent
    return size


def _array(numbers: list[float | int], dtype: DType) -> Array:
    if dtype.is_float:
        with np.errstate(over="ignore"):
            return np.array(numbers, np.float64).astype(dtype.numpy)
    wide = np.uint64 if dtype is DType.UINT64 else np.int64
    return np.array(numbers, wide).astype(dtype.numpy)


def _blocks(scale: Array, shape: Shape, **more: int) -> Array:
    """Returns scales per block in their shape, where a list gives them in row-major order."""
    axis, block = more.get("axis"), more.get("block_size")
    if axis is None or block is None or shape is None or scale.ndim != 1:
        return scale
    known = [dim for dim in shape if isinstance(dim, int)]
    if len(known) != len(shape) or not 0 <= axis < len(known):
        return scale
    known[axis] = -(-known[axis] // block)
    return scale.reshape(known) if _size(tuple(known)) == scale.size else scale
