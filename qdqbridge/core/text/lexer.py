"""Tokens of the text form, each with its place."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum
from typing import NoReturn

from qdqbridge.errors import ModelFileError


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
        text: The text.
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
