"""Direct convolution of channels-last images on the register tile, finished on registers."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from qdqbridge.tvm.qnn.dialect.arithmetic import tirx
from qdqbridge.tvm.relax.kernels.codegen.lanes import Buffer, Prim, flat
from qdqbridge.tvm.relax.kernels.codegen.loops import total_of
from qdqbridge.tvm.relax.kernels.codegen.script import T, prim_func, root
from qdqbridge.tvm.relax.kernels.elementwise.lookup import TABLE
from qdqbridge.tvm.relax.kernels.epilogues.dequantized_sums import Scaled, ScaledWriter
from qdqbridge.tvm.relax.kernels.epilogues.float_sums import Plain, PlainWriter
from qdqbridge.tvm.relax.kernels.epilogues.integer_sums import ENDS, Extras, Writer
from qdqbridge.tvm.relax.kernels.tiles.amx_loops import AmxLoops
from qdqbridge.tvm.relax.kernels.tiles.byte_halves import Halves, HalvesWriter
from qdqbridge.tvm.relax.kernels.tiles.direct_loops import AnyWriter, DirectLoops
from qdqbridge.tvm.relax.kernels.tiles.geometry import Direct
from qdqbridge.tvm.relax.kernels.tiles.repeated_loops import RepeatedLoops


def build_direct_conv(description: Direct) -> Any:
    """Returns the PrimFunc ``(x, weights, bias, multiplier, ends, y)``."""
    return build_parts((description,))


def build_parts(parts: tuple[Direct, ...]) -> Any:
    """Returns the PrimFunc of convolutions that write parts of one result.

    Args:
        parts: The convolutions; they have operands and results of the same tensors, and one form.

    Returns:
        ``(x, other, weights and bias of each, multiplier, ends, extras, y)``; the other codes and
        the extras are those of :class:`~.epilogue.Extras`, where the form has them. Other codes
        that are constants stand behind the extras' ends. Floats have no multiplier and no ends.
    """
    return prim_func(lambda: _body(parts))


def _body(parts: tuple[Direct, ...]) -> None:
    d = parts[0]
    (given, taken), batch = opened(d)
    x = T.arg("x", T.buffer(given, "uint16" if d.paired else d.stored))
    other = T.arg("other", T.buffer(taken, _other(d))) if _other(d) else None
    packed = [packed_weights(part, i) for i, part in enumerate(parts)]
    arguments = _arguments(d, other)
    y = T.arg("y", T.buffer(taken, d.form.dtype))
    with root():
        source, result = flat(x, "uint8" if d.paired else ""), flat(y)
        arguments = arguments if other is None else replace(arguments, other=flat(other))
        code = tirx.const(0.0, "float32") if d.floats else arguments.numbers[ENDS]
        for part, (weights, bias) in zip(parts, packed, strict=True):
            writer = _writer(part, arguments, result)
            loops_of(part)(part, source, flat(weights), bias, code, writer).write(batch)


def opened(d: Direct) -> tuple[tuple[list[Any], list[Any]], Prim]:
    """Returns the shapes of operand and result, and how many images there are (or open rows)."""
    axes = max(len(d.operand), len(d.outcome))
    names = [tirx.Var(f"n{axis}" if axis else "n", "int64") for axis in range(axes)]
    given, taken = (
        [name if extent is None else extent for name, extent in zip(names, shape, strict=False)]
        for shape in (d.operand, d.outcome)
    )
    if not d.open_rows:
        return (given, taken), names[0] if d.batch is None else d.batch
    return (given, taken), total_of(given[:-1])


def _other(d: Direct) -> str:
    """Returns the element type of a tensor that is added to the result; empty for none."""
    if isinstance(d.form, Plain):
        return "float32" if d.form.added else ""
    if isinstance(d.form, Scaled | Halves):
        return ""
    return "uint8" if d.form.linear is not None and d.form.linear.other == "tensor" else ""


def _arguments(d: Direct, other: Buffer) -> Extras:
    """Declares the operands of what happens to sums."""
    extras = Extras(other=other)
    if isinstance(d.form, Plain):
        bounds = T.arg("bounds", T.buffer((2,), "float32")) if d.form.clamped else None
        return replace(extras, factors=bounds)
    channels = d.lanes // 2 if d.paired else d.lanes
    multiplier = T.arg("multiplier", T.buffer((channels,), "float32"))
    extras = replace(extras, multiplier=multiplier)
    extras = replace(extras, numbers=T.arg("ends", T.buffer((ENDS + 1,), "int32")))
    if isinstance(d.form, Halves):
        return replace(extras, factors=T.arg("offsets", T.buffer((channels,), d.form.offsets)))
    if isinstance(d.form, Scaled):
        added = T.arg("added", T.buffer((d.lanes,), "float32")) if d.form.added else None
        return replace(extras, factors=added)
    if d.form.linear is not None:
        factors = T.arg("factors", T.buffer((ENDS,), "float32"))
        extras = replace(extras, factors=factors, ends=T.arg("sum", T.buffer((ENDS,), "int32")))
        if other is None:
            extras = replace(extras, other=T.arg("other", T.buffer((d.lanes,), "uint8")))
    if d.form.table:
        extras = replace(extras, table=T.arg("table", T.buffer((TABLE,), d.form.table)))
    return extras


def _writer(d: Direct, arguments: Extras, result: Buffer) -> AnyWriter:
    if isinstance(d.form, Halves):
        return HalvesWriter(d.cpu, d.form, arguments, result)
    if isinstance(d.form, Plain):
        return PlainWriter(d.cpu, d.form, arguments.factors, arguments.other, result)
    if isinstance(d.form, Scaled):
        return ScaledWriter(d.cpu, d.form, arguments, result)
    return Writer(d.cpu, d.form, arguments, result)


def loops_of(d: Direct) -> type[DirectLoops | RepeatedLoops]:
    """Returns what writes the loops around the tiles: of vectors, or of AMX."""
    if d.repeats != (1, 1):
        return RepeatedLoops
    return DirectLoops if d.amx is None else AmxLoops


def packed_weights(d: Direct, index: int) -> tuple[Buffer, Buffer]:
    """Declares the weights and the bias of a convolution as the arguments that come next."""
    runs = d.weights * d.runs[0] * d.runs[1]
    shape = (d.groups, d.blocks, runs, d.steps, d.cpu.lanes, d.elements.depth)
    weights = T.arg(f"weights{index}", T.buffer(shape, d.elements.weight))
    return weights, T.arg(f"bias{index}", T.buffer((d.lanes,), d.elements.sum))
