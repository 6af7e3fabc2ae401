"""Data movement and concatenation of stored integers, and conversions between types."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from qdqbridge.core.ops.table import MOVED_ALIKE
from qdqbridge.tvm.byoc import descriptions
from qdqbridge.tvm.byoc.pattern import Anything, CallPattern, ConstantPattern, Either, Tuple
from qdqbridge.tvm.byoc.records import Record
from qdqbridge.tvm.byoc.table import Entry
from qdqbridge.tvm.byoc.tables.accumulations import FOUR, TWO
from qdqbridge.tvm.byoc.tables.elementwise import one
from qdqbridge.tvm.byoc.tables.windows import integers_only, on_codes

_DATA_MOVEMENT = (
    "reshape", "transpose", "squeeze", "expand_dims", "strided_slice", "nn.pad", "take", "tile",
    "broadcast_to", "split", "nn.batch_flatten", "nn.depth_to_space", "nn.space_to_depth",
    *(row.tvm for row in MOVED_ALIKE),
)  # fmt: skip


_TARGETS = ("newshape", "shape")
"""Attributes that hold the extents of the result."""


def _moves_codes(record: Record) -> list[str]:
    """The first input tells what is moved; a split has a tuple as its result."""
    wrong = integers_only(record.inputs[:1])
    known = set(_names(record.inputs[0].shape))
    targets = [v for k, v in getattr(record, "attributes", {}).items() if k in _TARGETS]
    unknown = sorted({name for target in targets for name in _names(target)} - known)
    if unknown:
        wrong.append(f"the symbolic extent {unknown[0]} of the result is not one of its input's")
    return wrong


def _names(extents: Iterable[int | str] | None) -> Iterator[str]:
    for extent in extents or ():
        if isinstance(extent, str):
            yield from re.findall(r"[^\W\d]\w*", extent)


def _converts_codes(record: Record) -> list[str]:
    """An int32 input is a sum whose operator was refused: the two belong together."""
    return integers_only(value for value in record.inputs if not value.is_constant)


DATA_MOVEMENT = tuple(
    Entry(
        name.removeprefix("nn."),
        CallPattern(name, Anything()).named("op"),
        descriptions.data_movement,
        _moves_codes,
    )
    for name in _DATA_MOVEMENT
)
CONCATS = (
    one(
        "concatenate_requantized", "qnn.concatenate", descriptions.concatenation, Tuple(),
        Tuple(every=ConstantPattern()), Tuple(every=ConstantPattern()), *TWO,
    ),
    one("concatenate", "concatenate", descriptions.concatenation, Tuple()).checked(on_codes),
)  # fmt: skip
_DATA = Either(ConstantPattern(name="data"), Anything(name="data"))


def _along_blocks(name: str) -> CallPattern:
    repeat = "repeat" if name == "scale" else ""
    return CallPattern(
        "strided_slice", CallPattern("repeat", ConstantPattern().named(name), name=repeat)
    )


_CENTRED = CallPattern("subtract", CallPattern("cast", _DATA), _along_blocks("zero_point"))
CONVERSIONS = (
    Entry(
        "dequantize_blocked",
        CallPattern("multiply", CallPattern("cast", _CENTRED), _along_blocks("scale")),
        descriptions.blocked,
    ),
    one("requantize", "qnn.requantize", descriptions.conversion, Anything(), *FOUR).checked(
        _converts_codes
    ),
    one("quantize", "qnn.quantize", descriptions.conversion, Anything(), *TWO),
    Entry(
        "dequantize",
        CallPattern("qnn.dequantize", Anything(), *TWO).named("op"),
        descriptions.conversion,
        _converts_codes,
    ),
    Entry("clamp", CallPattern("clip", Anything()).named("op"), descriptions.conversion, on_codes),
)
