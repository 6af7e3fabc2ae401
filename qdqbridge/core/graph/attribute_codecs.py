"""Attribute codecs: a field of a record says once how ONNX and TVM name and hold it.

A field without a codec is held under its own name by everybody. What reads and writes attributes
(ONNX codecs, emission, reading back) goes over the fields of the record, whatever operator it is::

    class PoolAttrs(Attributes):
        kernel_shape: Annotated[Ints, AttributeCodec(tvm="pool_size", holds=Holds.SPATIAL)]
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from enum import Enum
from functools import cache
from types import MappingProxyType
from typing import Annotated, Any, TypeAlias, TypeVar, get_args, get_origin, get_type_hints

from qdqbridge.core.graph.operator import Attributes

Ints: TypeAlias = tuple[int, ...]
Record = TypeVar("Record", bound=Attributes)


class Holds(Enum):
    """What a field is about."""

    VALUE = "a number, a flag, a word or a list that means the same everywhere"
    AXIS = "an axis of the first operand"
    AXES = "axes of the first operand, sorted"
    LAST_AXES = "the first one of the last axes of the first operand"
    IN_ORDER = "axes of the first operand, in the order of the record's other lists"
    EACH = "one entry per axis of the first operand"
    BOTH = "two entries per axis of the first operand, those of the begins first"
    SPATIAL = "one number per spatial axis"
    ENDS = "two numbers per spatial axis, those of the begins first"


_NO_WORDS: Mapping[str, str] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class AttributeCodec:
    """How others name and hold a field.

    Attributes:
        onnx: ONNX's name; by default the field's.
        tvm: TVM's name, in the QNN dialect too; by default the field's.
        holds: What it is about.
        alone: Others are given a number, not a list, where there is one axis.
        words: TVM's words for those that it has others for.
        kind: The Python type of the field; found from its annotation.
    """

    onnx: str = ""
    tvm: str = ""
    holds: Holds = Holds.VALUE
    alone: bool = False
    words: Mapping[str, str] = field(default_factory=lambda: _NO_WORDS)
    kind: Any = None


@cache
def attribute_codecs_of(record: type[Attributes]) -> Mapping[str, AttributeCodec]:
    """Returns the codec of every field of an attribute record, names filled in."""
    hints = get_type_hints(record, include_extras=True)
    found: dict[str, AttributeCodec] = {}
    for each in fields(record):
        kind, codec = hints[each.name], AttributeCodec()
        if get_origin(kind) is Annotated:
            kind, *notes = get_args(kind)
            codec = next((note for note in notes if isinstance(note, AttributeCodec)), codec)
        names = {"onnx": codec.onnx or each.name, "tvm": codec.tvm or each.name}
        found[each.name] = replace(codec, kind=kind, **names)
    return MappingProxyType(found)


def spatial_axes(attributes: Attributes) -> int:
    """Returns how many spatial axes a record is about; 0 where it names none."""
    found = (
        name
        for name, codec in attribute_codecs_of(type(attributes)).items()
        if codec.holds is Holds.SPATIAL
    )
    name = next(found, None)
    return 0 if name is None else len(getattr(attributes, name))


def call_attributes(attributes: Attributes) -> dict[str, Any]:
    """Returns a record as the attributes of a call, under TVM's names."""
    found: dict[str, Any] = {}
    for name, codec in attribute_codecs_of(type(attributes)).items():
        value = getattr(attributes, name)
        if isinstance(value, tuple):
            value = value[0] if codec.alone and len(value) == 1 else list(value)  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType]
        found[codec.tvm] = codec.words.get(value, value) if isinstance(value, str) else value
    return found


def read_attributes(
    record: type[Attributes], given: Mapping[str, Any], rank: int, spatial: int = 0
) -> dict[str, Any]:
    """Returns the fields of a record that the attributes of a call show.

    Args:
        record: The type of the record.
        given: Attributes of a call, under TVM's names.
        rank: The rank of the first operand.
        spatial: How many of its axes are spatial.
    """
    shown = {
        name: codec for name, codec in attribute_codecs_of(record).items() if codec.tvm in given
    }
    return {
        name: _decode_attribute(codec, given[codec.tvm], rank, spatial)
        for name, codec in shown.items()
    }


def _decode_attribute(codec: AttributeCodec, value: Any, rank: int, spatial: int) -> Any:
    around = max(rank, 1)
    match codec.holds:
        case Holds.AXIS | Holds.LAST_AXES:
            return int(value) % around
        case Holds.AXES:
            every = range(rank) if value is None else [value] if isinstance(value, int) else value
            return tuple(sorted(int(axis) % around for axis in every))
        case Holds.SPATIAL:
            return _repeat_scalar_ints(value, spatial)
        case Holds.ENDS:
            sizes = _repeat_scalar_ints(value, 2 * spatial)
            return sizes if len(sizes) == 2 * spatial else sizes * (2 * spatial // len(sizes))
        case _:
            if isinstance(value, str):
                return next((own for own, word in codec.words.items() if word == value), value)
            return codec.kind(value) if codec.kind in (int, float, bool) else value


def _repeat_scalar_ints(value: Any, count: int) -> Ints:
    """Returns a list of numbers; one number stands for ``count`` equal ones."""
    return (value,) * count if isinstance(value, int) else tuple(int(item) for item in value)


def permuted_attributes(attributes: Record, perm: Ints) -> Record:
    """Returns the attributes of an operator whose operands are transposed.

    Axis ``i`` of what they are about then is axis ``perm[i]`` before. Last axes stay what they are:
    who normalizes over them cannot be moved through a transpose.
    """
    found: dict[str, Any] = {}
    for name, codec in attribute_codecs_of(type(attributes)).items():
        value, move = getattr(attributes, name), _PERMUTED.get(codec.holds)
        if move is not None and value is not None:
            found[name] = move(value, perm)
    return replace(attributes, **found) if found else attributes


def _both(entries: Sequence[Any], perm: Ints) -> tuple[Any, ...]:
    rank = len(perm)
    halves = (entries[:rank], entries[rank:]) if entries else ()
    return tuple(half[axis] for half in halves for axis in perm)


_PERMUTED: Mapping[Holds, Callable[[Any, Ints], Any]] = {
    Holds.AXIS: lambda axis, perm: perm.index(axis),
    Holds.AXES: lambda axes, perm: tuple(sorted(perm.index(axis) for axis in axes)),
    Holds.IN_ORDER: lambda axes, perm: tuple(perm.index(axis) for axis in axes),
    Holds.EACH: lambda entries, perm: tuple(entries[axis] for axis in perm),
    Holds.BOTH: _both,
}
