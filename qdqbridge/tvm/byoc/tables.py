"""The canonical table: every operator that the emitters write, in one entry each."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from qdqbridge.core.ops.normalization import NORMS, SOFTMAXES
from qdqbridge.core.ops.table import MOVED_ALIKE, OPERATORS
from qdqbridge.tvm.byoc import descriptions
from qdqbridge.tvm.byoc.constraints import Constraints
from qdqbridge.tvm.byoc.pattern import (
    WEIGHT,
    Anything,
    CallPattern,
    ConstantPattern,
    Either,
    Optional,
    Pattern,
    Tensor,
    Tuple,
    choices,
    optional,
)
from qdqbridge.tvm.byoc.records import Record
from qdqbridge.tvm.byoc.table import Describe, Entry, Table
from qdqbridge.tvm.qnn.read import ROWS

# ---- Convolutions, dense layers and matrix products: sum, bias, one rounding, clamp --------------
# Each operator has three entries: ``conv2d`` is rounded into a quantized result; ``conv2d_float``
# ends in a float result; ``conv2d_float_bias`` adds a float bias, and rounds if the result is
# quantized.


TWO = (ConstantPattern(), ConstantPattern())
"""A scale and a zero point."""
FOUR = TWO * 2


def clipped(inner: Pattern) -> Optional:
    """Returns ``inner``, clamped where the module clamps it."""
    return optional(inner, lambda p: CallPattern("clip", p).named("clip"))


def biased(inner: Pattern) -> Optional:
    """Returns ``inner`` with an integer bias where there is one; Relay has an operator for it."""
    bias = ConstantPattern().named("bias")
    return optional(inner, lambda p: choices("add", "nn.bias_add")(p, bias))


def _float_biased(inner: Pattern) -> Either:
    bias = ConstantPattern().named("float_bias")
    column = Either(bias, CallPattern("reshape", bias), CallPattern("expand_dims", bias))
    return choices("add", "nn.bias_add")(inner, column)


def _family(name: str, operator: Pattern, describing: Describe) -> Iterator[Entry]:
    total = biased(operator)
    rounded = clipped(CallPattern("qnn.requantize", total, *FOUR).named("requantize"))
    real = CallPattern("qnn.dequantize", total, *TWO).named("dequantize")
    added = _float_biased(CallPattern("qnn.dequantize", operator, *TWO).named("dequantize"))
    quantized = clipped(CallPattern("qnn.quantize", added, *TWO).named("quantize"))
    yield Entry(name, rounded, describing)
    yield Entry(f"{name}_float_bias", Either(quantized, added), describing)
    yield Entry(f"{name}_float", real, describing)


def _operator(name: str) -> CallPattern:
    return CallPattern(f"qnn.{name}", Anything(), WEIGHT, *FOUR).named("op")


def _flat(name: str) -> Optional:
    """A product of vectors has its axes of length 1 removed."""
    return optional(_operator(name), lambda p: CallPattern("squeeze", p))


def _dynamic(name: str, describing: Describe) -> Entry:
    product = CallPattern(f"qnn.{name}", Anything(), WEIGHT, *TWO).named("op")
    return Entry(name, Either(_float_biased(product), product), describing)


CONVOLUTIONS = tuple(
    entry
    for name in (
        "conv2d", "conv1d", "conv3d", "conv2d_transpose", "conv1d_transpose", "conv3d_transpose",
    )
    for entry in _family(name, _operator(name), descriptions.convolution)
)  # fmt: skip
DENSE = tuple(_family("dense", _operator("dense"), descriptions.dense))
DYNAMIC = (
    _dynamic("dynamic_dense", descriptions.dynamic_dense),
    *(_dynamic(f"dynamic_conv{n}d", descriptions.dynamic_convolution) for n in (1, 2, 3)),
)
MATMUL = tuple(_family("batch_matmul", _flat("batch_matmul"), descriptions.batch_matmul))


# ---- Operators of two operands, functions of one element, and rows: softmax and norms ------------


_BINARY = tuple(row.qnn for row in OPERATORS if row.arity == 2)
UNARY_NAMES = (
    *(row.qnn for row in OPERATORS if row.arity == 1 and row.qnn), "relu", "clip", "rsqrt",
)  # fmt: skip


def one(name: str, operator: str, describing: Describe, *args: Pattern) -> Entry:
    """Returns an entry of one operator, clamped where the module clamps it."""
    return Entry(name, clipped(CallPattern(operator, *args).named("op")), describing)


_OPERAND = Anything()
BINARY = (
    *(
        one(name, f"qnn.{name}", descriptions.binary, _OPERAND, _OPERAND, *FOUR, *TWO)
        for name in _BINARY
    ),
    one("where", "qnn.where", descriptions.binary, *(_OPERAND,) * 3, *FOUR, *TWO),
)
UNARY = (
    *(one(name, f"qnn.{name}", descriptions.unary, _OPERAND, *FOUR) for name in UNARY_NAMES),
    one("lookup", "qnn.lookup", descriptions.lookup, _OPERAND, ConstantPattern()),
)
ROW_ENTRIES = (
    *(one(row.qnn, f"qnn.{row.qnn}", descriptions.softmax, _OPERAND, *FOUR) for row in SOFTMAXES),
    *(one(row.qnn, f"qnn.{row.qnn}", descriptions.normalization) for row in NORMS),
)


# ---- Pools, reductions and resizing --------------------------------------------------------------


_INTEGERS = frozenset(("int8", "uint8", "int16", "uint16"))


def integers_only(values: Iterable[Tensor]) -> list[str]:
    """Returns why values are refused that are no codes."""
    wrong = sorted({value.dtype for value in values} - _INTEGERS)
    return [f"it works on {', '.join(wrong)}, 8- or 16-bit integers are taken"] if wrong else []


def on_codes(record: Record) -> list[str]:
    """Returns why a record that states no parameters is refused: its data are no codes."""
    return integers_only((*record.inputs, record.output))


POOLS = (
    *(
        one(
            f"avg_pool{rank}d", f"qnn.avg_pool{rank}d", descriptions.average_pool, Anything(), *FOUR
        )
        for rank in (2, 1, 3)
    ),
    *(
        one(f"max_pool{rank}d", f"nn.max_pool{rank}d", descriptions.max_pool, Anything()).checked(
            on_codes
        )
        for rank in (2, 1, 3)
    ),
)
REDUCTIONS = (
    one("mean", "qnn.mean", descriptions.reduction, Anything(), *FOUR),
    one("sum", "qnn.sum", descriptions.reduction, Anything(), *FOUR),
    Entry("max", CallPattern("max", Anything()).named("op"), descriptions.extremum, on_codes),
    Entry("min", CallPattern("min", Anything()).named("op"), descriptions.extremum, on_codes),
)
RESIZES = tuple(
    one(name, f"qnn.{name}", descriptions.resize, Anything(), *FOUR)
    for name in ("resize2d", "resize1d", "resize3d", "resize")
)


# ---- Data movement and concatenation of stored integers, and conversions between types -----------


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


# ---- The canonical table: every operator that the emitters write, in one entry each --------------
# A vendor's table is a choice of it under constraints::
#
#     NPU = canonical("npu", constraints=Constraints(Limits(activations=("int8",))))
#     NPU = canonical("npu").only("conv2d", "dense", "add")


CANONICAL = (
    *CONVOLUTIONS, *DENSE, *DYNAMIC, *MATMUL, *BINARY, *UNARY, *ROW_ENTRIES, *POOLS, *REDUCTIONS,
    *RESIZES, *CONCATS, *DATA_MOVEMENT, *CONVERSIONS,
)  # fmt: skip
"""Entries in order of preference: whole chains before the conversions that end them."""


def canonical(name: str = "canonical", constraints: Constraints | None = None) -> Table:
    """Returns the canonical table under a backend's name and constraints."""
    return Table(name, CANONICAL, constraints or Constraints())


# ---- Float operators beside the QNN dialect, for backends that compute them too ------------------


_PAIRS = frozenset(
    (
        "add", "divide", "floor_divide", "greater", "less", "matmul", "maximum", "minimum",
        "multiply", "power", "subtract",
    )
)  # fmt: skip
"""Operators of two operands; TVM's matcher asks some of these for both."""
_PARTS = frozenset(("greater", "less", "nn.leakyrelu"))
"""Operators that are read as parts of others, or under another name."""


def _on_floats(record: Record) -> list[str]:
    floats = record.output.is_float or any(value.is_float for value in record.inputs)
    return [] if floats else ["it works on integers that are no codes"]


FLOATS = tuple(
    Entry(
        f"float_{name.removeprefix('nn.')}",
        CallPattern(name, *(Anything(),) * (2 if name in _PAIRS else 1)),
        descriptions.other,
        _on_floats,
    )
    for name in sorted(ROWS.keys() | _PARTS)
    if not name.startswith("qnn.")
)
"""Single operators that ``read_function`` reads, where they work on floats."""
