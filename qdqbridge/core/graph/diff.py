"""Where two graphs differ, in words."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, fields
from enum import Enum
from itertools import islice
from typing import Any

import numpy as np
from numpy.typing import NDArray

from qdqbridge.core.graph.alignment import Alignment, align, main_operand, places_of
from qdqbridge.core.graph.constant import Constant
from qdqbridge.core.graph.graph import Graph, Node, Value
from qdqbridge.core.graph.operator import Flow
from qdqbridge.core.graph.printer import attributes_text
from qdqbridge.core.graph.types import QuantParams, QuantType, Shape, ValueType

# ---- what distinguishes two types, parameters or constants, in words with values -----------------

_CHUNK = 1 << 22


def type_words(a: ValueType, b: ValueType) -> Iterator[tuple[bool, str]]:
    """Yields how two types differ, shapes left out, with True where it is quantization.

    Args:
        a: One type.
        b: The other one.
    """
    if isinstance(a, QuantType) and isinstance(b, QuantType):
        yield from ((True, words) for words in params_words(a.params, b.params))
    elif isinstance(a, QuantType) != isinstance(b, QuantType):
        yield True, f"{_kind(a)} -> {_kind(b)}"
    elif a.dtype is not b.dtype:
        yield False, f"{a.dtype} -> {b.dtype}"


def _kind(type_: ValueType) -> str:
    if not isinstance(type_, QuantType):
        return f"not quantized ({type_.dtype})"
    params = type_.params
    scale = f"scale {float(params.scale):.6g}, " if params.per_tensor else ""
    zero = f"zero point {int(params.zero_point)}" if params.per_tensor else granularity(params)
    return f"quantized ({type_.dtype}, {scale}{zero})"


def granularity(params: QuantParams) -> str:
    """Returns how finely parameters vary."""
    if params.blocked:
        return f"in blocks of {params.block_size} along axis {params.axis}"
    return "per tensor" if params.per_tensor else f"per channel along axis {params.axis}"


def params_words(a: QuantParams, b: QuantParams) -> Iterator[str]:
    """Yields how quantization parameters differ, bit for bit."""
    if a == b:
        return
    shift = _recentred(a, b)
    # uint8 around 128 and int8 around 0 say the same: one sentence instead of storage, zero point
    # and range apart.
    if shift is not None:
        yield f"{a.storage_dtype} -> {b.storage_dtype} with all integers moved by {shift}"
        return
    if a.storage_dtype is not b.storage_dtype:
        yield f"storage {a.storage_dtype} -> {b.storage_dtype}"
    if a.expressed_dtype is not b.expressed_dtype:
        yield f"expressed type {a.expressed_dtype} -> {b.expressed_dtype}"
    if granularity(a) != granularity(b):
        yield f"granularity {granularity(a)} -> {granularity(b)}"
    if a.scale.shape == b.scale.shape:
        yield from _array_words("scale", a.scale, b.scale)
        yield from _array_words("zero point", a.zero_point, b.zero_point)
    elif granularity(a) == granularity(b):
        yield f"number of scales {a.scale.size} -> {b.scale.size}"
    else:
        yield f"scale {_format_value_range(a.scale)} -> {_format_value_range(b.scale)}"
    if (a.qmin, a.qmax) != (b.qmin, b.qmax) and not (a.full_range and b.full_range):
        yield f"range {a.qmin}..{a.qmax} -> {b.qmin}..{b.qmax}"
    if a.saturate is not b.saturate:
        yield f"saturate {a.saturate} -> {b.saturate}"


def _recentred(a: QuantParams, b: QuantParams) -> int | None:
    """Returns by how much stored integers move where they stand for the same real numbers."""
    same = a.scale.shape == b.scale.shape and a.scale.tobytes() == b.scale.tobytes()
    if not same or a.storage_dtype is b.storage_dtype or granularity(a) != granularity(b):
        return None
    shifts = b.zero_point.astype(np.int64) - a.zero_point
    shift = int(shifts.reshape(-1)[0]) if shifts.size else 0
    moved = (a.qmin + shift, a.qmax + shift) == (b.qmin, b.qmax)
    return shift if moved and (shifts == shift).all() else None


def _array_words(name: str, a: NDArray[Any], b: NDArray[Any]) -> Iterator[str]:
    if a.dtype == b.dtype and a.tobytes() == b.tobytes():
        return
    wide, other = a.astype(np.float64).reshape(-1), b.astype(np.float64).reshape(-1)
    changed = np.flatnonzero(wide != other)
    if not changed.size:
        yield f"{name}: the same numbers as {b.dtype} instead of {a.dtype}"
        return
    worst = int(changed[np.argmax(np.abs(other - wide)[changed])])
    pair = f"{_nine_digits(wide[worst])} -> {_nine_digits(other[worst])}"
    if name == "scale" and wide[worst]:
        pair += f" ({(other[worst] / wide[worst] - 1) * 100:+.3g} %)"
    where = "" if a.ndim == 0 else f" in {changed.size} of {a.size}, most at {worst}:"
    yield f"{name}{where} {pair}"


def _nine_digits(value: float) -> str:
    return f"{value:.9g}"


def _format_value_range(array: NDArray[Any]) -> str:
    wide = array.astype(np.float64)
    if wide.size == 1:
        return _nine_digits(float(wide.reshape(())))
    return f"{_nine_digits(wide.min())} .. {_nine_digits(wide.max())}" if wide.size else "none"


def constant_words(a: Constant, b: Constant, *, quantized: bool) -> str | None:
    """Returns how the elements of two constants differ, None where they are equal bit for bit.

    Args:
        a: One constant.
        b: The other one.
        quantized: True where the integers are stored codes, which are counted in LSB.
    """
    if a.shape != b.shape:
        return f"shape {list(a.shape)} -> {list(b.shape)}"
    first, second = a.numpy(), b.numpy()
    if np.object_ in (first.dtype, second.dtype):
        return None if first.tolist() == second.tolist() else "other strings"
    count, largest = _distance(first, second)
    if not count:
        return None if first.dtype == second.dtype else f"{a.dtype} -> {b.dtype}, equal numbers"
    unit = f"{largest:.0f} LSB" if quantized else f"{largest:.6g}"
    return f"{count} of {a.size} elements differ, by at most {unit}"


def _distance(a: NDArray[Any], b: NDArray[Any]) -> tuple[int, float]:
    """Returns the number of differing elements and the largest distance, a part at a time."""
    if a.ndim == 0 or a.nbytes <= _CHUNK:
        return _distance_of(a, b)
    rows = max(1, _CHUNK * len(a) // a.nbytes)
    parts = [_distance_of(a[i : i + rows], b[i : i + rows]) for i in range(0, len(a), rows)]
    return sum(count for count, _ in parts), max(largest for _, largest in parts)


def _distance_of(a: NDArray[Any], b: NDArray[Any]) -> tuple[int, float]:
    wide, other = a.astype(np.float64), b.astype(np.float64)
    # NaN is unequal to itself.
    differs = (wide != other) & ~(np.isnan(wide) & np.isnan(other))
    # 0 and -0 are equal numbers and other bits; digests tell them apart.
    differs |= np.signbit(wide) != np.signbit(other)
    if not differs.any():
        return 0, 0.0
    with np.errstate(invalid="ignore"):
        return int(differs.sum()), float(np.abs(wide - other)[differs].max())


_BIAS = 2
_LISTED = 16
"""Neighbours of a node that are looked at for words."""


class DifferenceKind(Enum):
    """What differs."""

    STRUCTURE = "structure"
    OPERATOR = "operator"
    ATTRIBUTE = "attribute"
    QUANTIZATION = "quantization"
    CONSTANT = "constant"
    BIAS = "bias"
    TYPE = "type"
    INTERFACE = "interface"


@dataclass(frozen=True, slots=True)
class GraphDifference:
    """One difference; ``a`` is what was, ``b`` what is.

    Attributes:
        kind: What differs.
        where: The operator and the names of the node in both graphs (or the graph's input).
        text: How, with values.
        a: Name of the node of ``a`` (of the input or output at the interface); may be empty.
        b: Name of the node of ``b``.
    """

    kind: DifferenceKind
    where: str
    text: str
    a: str = ""
    b: str = ""

    def __str__(self) -> str:
        return f"{self.kind.value}: {self.where}: {self.text}"


def diff(a: Graph, b: Graph) -> list[GraphDifference]:
    """Returns where two graphs differ; nothing where their text forms, and digests, are equal.

    Nodes are found by their place between inputs and outputs; names serve the words only.

    Args:
        a: One graph, canonical or raw.
        b: The other one.
    """
    if a.text() == b.text():
        return []
    found = _Pairing.of(a, b)
    differences = [*_interface(a, b), *_nodes(found), *_outputs(found)]
    if differences:
        return differences
    form = "canonical" if a.canonical else "raw"
    other = "canonical" if b.canonical else "raw"
    words = f"one is {form}, the other {other}" if form != other else _first_line(a, b)
    # Texts differ and nothing above does: so no difference is ever reported as none.
    return [GraphDifference(DifferenceKind.STRUCTURE, "the text form", words)]


@dataclass(slots=True)
class _Pairing:
    """Two graphs and which of their values are one.

    Attributes:
        a: One graph.
        b: The other one.
        nodes: Which nodes correspond.
        places: The place of each value among the inputs or its node's results.
        sources: What was found behind nodes that only one graph has.
    """

    a: Graph
    b: Graph
    nodes: Alignment
    places: dict[Value, int]
    sources: dict[Value, Value] = field(default_factory=dict[Value, Value])

    @staticmethod
    def of(a: Graph, b: Graph) -> _Pairing:
        """Aligns two graphs."""
        return _Pairing(a, b, align(a, b), places_of(a) | places_of(b))

    def same(self, x: Value, y: Value) -> bool:
        """True where two operands are one value, inserted and missing nodes between looked past."""
        x, y = self._behind(x, self.nodes.forward), self._behind(y, self.nodes.backward)
        if x.producer is None or y.producer is None:
            if x.producer is not y.producer or x.is_constant != y.is_constant:
                return False
            return x.is_constant or self.places.get(x) == self.places.get(y)
        if self.nodes.forward.get(x.producer) is not y.producer:
            return False
        return self.places[x] == self.places[y]

    def _behind(self, value: Value, partners: dict[Node, Node]) -> Value:
        """Returns the value before the nodes that only one graph has; they are reported already."""
        passed: list[Value] = []
        while value.producer is not None and value.producer not in partners:
            known = self.sources.get(value)
            source = main_operand(value.producer) if known is None else known
            if source is None:
                break
            passed.append(value)
            value = source
        self.sources.update(dict.fromkeys(passed, value))
        return value


def _first_line(a: Graph, b: Graph) -> str:
    lines = zip(a.text().splitlines(), b.text().splitlines(), strict=False)
    pairs = ((number, x, y) for number, (x, y) in enumerate(lines, 1) if x != y)
    number, x, y = next(pairs, (0, "", ""))
    return f"line {number}: {x} -> {y}"


def _interface(a: Graph, b: Graph) -> Iterator[GraphDifference]:
    for word, mine, others in (
        ("inputs", len(a.inputs), len(b.inputs)),
        ("outputs", len(a.outputs), len(b.outputs)),
    ):
        if mine != others:
            text = f"number of {word} {mine} -> {others}"
            yield GraphDifference(DifferenceKind.INTERFACE, "the graph", text)
    symbols: tuple[dict[str, int], dict[str, int]] = ({}, {})
    for index, (x, y) in enumerate(zip(a.inputs, b.inputs, strict=False)):
        where = f"input {index} ('{x.name}')"
        for quantization, words in type_words(x.type, y.type):
            kind = DifferenceKind.QUANTIZATION if quantization else DifferenceKind.INTERFACE
            yield GraphDifference(kind, where, words, x.name, y.name)
        if _numbered(x.type.shape, symbols[0]) != _numbered(y.type.shape, symbols[1]):
            text = f"shape {_shape_diff_text(x.type.shape)} -> {_shape_diff_text(y.type.shape)}"
            yield GraphDifference(DifferenceKind.INTERFACE, where, text, x.name, y.name)


def _numbered(shape: Shape, symbols: dict[str, int]) -> tuple[object, ...] | None:
    """Returns a shape whose symbols are numbered: their names mean nothing."""
    if shape is None:
        return None
    return tuple(
        ("symbol", symbols.setdefault(d, len(symbols))) if isinstance(d, str) else d for d in shape
    )


def _shape_diff_text(shape: Shape) -> str:
    return "unknown" if shape is None else f"[{', '.join(map(str, shape))}]"


def _outputs(found: _Pairing) -> Iterator[GraphDifference]:
    a, b = found.a, found.b
    for index, (x, y) in enumerate(zip(a.outputs, b.outputs, strict=False)):
        if not found.same(x, y):
            name, other = a.output_names[index], b.output_names[index]
            text = f"comes from {_origin(x)} -> from {_origin(y)}"
            yield GraphDifference(
                DifferenceKind.INTERFACE, f"output {index} ('{name}')", text, name, other
            )


def _nodes(found: _Pairing) -> Iterator[GraphDifference]:
    for node in found.a.nodes:
        other = found.nodes.forward.get(node)
        if other is None:
            text = f"only in the first graph, {_place(node)}"
            yield GraphDifference(DifferenceKind.STRUCTURE, _label(node), text, node.name)
        else:
            yield from _pair(node, other, found)
    for node in found.b.nodes:
        if node not in found.nodes.backward:
            text = f"only in the second graph, {_place(node)}"
            yield GraphDifference(DifferenceKind.STRUCTURE, _label(node), text, "", node.name)


def _pair(x: Node, y: Node, found: _Pairing) -> Iterator[GraphDifference]:
    where, names = _where(x, y), (x.name, y.name)
    if x.op.name != y.op.name:
        yield GraphDifference(DifferenceKind.OPERATOR, where, f"{x.op.name} -> {y.op.name}", *names)
    elif attributes_text(x.attributes) != attributes_text(y.attributes):
        for text in _diff_attributes(x, y):
            yield GraphDifference(DifferenceKind.ATTRIBUTE, where, text, *names)
    for index, (mine, theirs) in enumerate(zip(x.outputs, y.outputs, strict=False)):
        result = "result" if len(x.outputs) == 1 else f"result {index}"
        for quantization, words in type_words(mine.type, theirs.type):
            kind = DifferenceKind.QUANTIZATION if quantization else DifferenceKind.TYPE
            yield GraphDifference(kind, where, f"{result}: {words}", *names)
    for index in range(max(len(x.inputs), len(y.inputs))):
        for kind, text in _operands(x, y, index, found):
            yield GraphDifference(kind, where, text, *names)


def _diff_attributes(x: Node, y: Node) -> Iterator[str]:
    if type(x.attributes) is not type(y.attributes):
        yield f"{attributes_text(x.attributes)} -> {attributes_text(y.attributes)}"
        return
    for entry in fields(x.attributes):  # type: ignore[arg-type] # a dataclass
        mine, theirs = getattr(x.attributes, entry.name), getattr(y.attributes, entry.name)
        if str(mine) != str(theirs):
            yield f"{entry.name} {mine} -> {theirs}"


def _operands(
    x: Node, y: Node, index: int, found: _Pairing
) -> Iterator[tuple[DifferenceKind, str]]:
    mine, theirs = x.optional(index), y.optional(index)
    bias = index == _BIAS and x.op.flow is Flow.ACCUMULATE and x.op is y.op
    name = "bias" if bias else f"operand {index}"
    if mine is None or theirs is None:
        if mine is not theirs:
            gone = f"{_origin(mine)} -> none" if mine is not None else f"none -> {_origin(theirs)}"
            yield (DifferenceKind.BIAS if bias else DifferenceKind.STRUCTURE), f"{name}: {gone}"
        return
    if mine.constant is None or theirs.constant is None:
        if not found.same(mine, theirs):
            yield DifferenceKind.STRUCTURE, f"{name} reads {_origin(mine)} -> {_origin(theirs)}"
        return
    for quantization, words in type_words(mine.type, theirs.type):
        kind = DifferenceKind.QUANTIZATION if quantization else DifferenceKind.TYPE
        yield (DifferenceKind.BIAS if bias else kind), f"{name} '{mine.name}': {words}"
    quantized = isinstance(mine.type, QuantType)
    if quantized != isinstance(theirs.type, QuantType):
        return  # codes and real numbers have nothing to compare
    text = constant_words(mine.constant, theirs.constant, quantized=quantized)
    if text is not None:
        yield (
            (DifferenceKind.BIAS if bias else DifferenceKind.CONSTANT),
            f"{name} '{mine.name}': {text}",
        )


# ---- words --------------------------------------------------------------------------------------
def _label(node: Node) -> str:
    return f"{node.op.name} '{node.name}'"


def _where(x: Node, y: Node) -> str:
    if x.op.name != y.op.name:
        return f"{_label(x)} / {_label(y)}"
    return _label(x) if x.name == y.name else f"{_label(x)} / '{y.name}'"


def _origin(value: Value | None) -> str:
    if value is None:
        return "nothing"
    if value.constant is not None:
        return f"constant '{value.name}'"
    return f"input '{value.name}'" if value.producer is None else _label(value.producer)


def _place(node: Node) -> str:
    before = [_origin(v) for v in node.inputs[:_LISTED] if v is not None and v.constant is None]
    users = islice((user for value in node.outputs for user, _ in value.users), _LISTED)
    readers = dict.fromkeys(_label(user) for user in users)
    after = ", ".join(list(readers)[:3]) or "the graph's output"
    return f"between {', '.join(before[:3]) or 'constants'} and {after}"
