"""Ranges narrower than the storage type, as ONNX nodes: on real numbers or on stored integers."""

from __future__ import annotations

from collections.abc import Iterable

import ml_dtypes
import numpy as np

from qdqbridge.core.graph.constant import Constant
from qdqbridge.core.graph.dtypes import DType
from qdqbridge.core.graph.graph import Value
from qdqbridge.core.graph.numerics import dequantize
from qdqbridge.core.graph.types import QuantParams, QuantType, TensorType
from qdqbridge.errors import UnsupportedTargetError
from qdqbridge.onnx_io.writer.spec import RowWriter, quantizing, real_bounds, starts_at_zero, stem

COARSE = 2
"""How many steps of a result one of its operand has, from which a wrong end of a range is seen."""
ON_A_STEP = 1e-3
"""How far from a step an end may lie to be that, in steps: it was rounded to float32."""


def rounded(writer: RowWriter, tensor: str, dtype: DType, value: Value) -> str:
    """Returns ``tensor`` after a Q/DQ pair; a clamp behind it gives the same integers.

    Args:
        writer: Where the rows go.
        tensor: A float tensor that becomes ``value``.
        dtype: Its type.
        value: A quantized value.
    """
    assert value.quant is not None
    type_, name = value.quant, stem(writer.tensors.of(value))
    inputs = [tensor, *writer.parameters.of(type_.params, name)]
    stored = writer.row(
        "QuantizeLinear", inputs, writer.free.take(f"{name}_unclamped"),
        TensorType(type_.dtype, type_.shape), quantizing(type_.params),
    )  # fmt: skip
    target = writer.free.take(f"{name}_unclamped_DequantizeLinear_Output")
    return writer.dequantize(stored, type_, target, dtype)


def clip_stored(writer: RowWriter, tensor: str, value: Value) -> None:
    """Adds the Clip of stored integers that makes the narrow range of ``value``."""
    assert value.quant is not None
    params, target = value.quant.params, writer.tensors.of(value)
    ends = zip(("low", "high"), (params.qmin, params.qmax), strict=True)
    dtype = params.storage_dtype.numpy
    bounds = [writer.array(np.array(end, dtype), f"{target}_{side}") for side, end in ends]
    type_ = TensorType(params.storage_dtype, value.type.shape)
    writer.row("Clip", [tensor, *bounds], target, type_)


def clamp_real(writer: RowWriter, tensor: str, dtype: DType, value: Value) -> str:
    """Returns ``tensor`` behind the Relu or Clip that makes the narrow range of ``value``.

    Raises:
        UnsupportedTargetError: The range has other real ends in every channel.
    """
    assert value.quant is not None
    params, target = value.quant.params, writer.tensors.of(value)
    type_ = TensorType(dtype, value.type.shape)
    if starts_at_zero(params):
        return writer.row("Relu", [tensor], writer.free.take(f"{stem(target)}_relu"), type_)
    if not params.per_tensor:
        raise UnsupportedTargetError(
            "ONNX cannot clamp to a range per channel",
            where=f"tensor '{target}'",
            fix="use per-tensor parameters",
        )
    bounds = (
        "" if bound is None else writer.array(np.array(bound, dtype.numpy), f"{target}_{side}")
        for side, bound in zip(("low", "high"), real_bounds(params), strict=True)
    )
    name = writer.free.take(f"{stem(target)}_clip")
    return writer.row("Clip", _trimmed([tensor, *bounds]), name, type_)


def clamp_extremes(writer: RowWriter, tensor: str, dtype: DType, value: Value) -> str:
    """Returns ``tensor`` behind a Relu, or a Max and a Min of stored numbers, a Q/DQ pair between.

    Args:
        writer: Where the rows go.
        tensor: Real numbers of the type of ``value``, over all of its storage type.
        dtype: Their type.
        value: A quantized value whose range is narrower than that.
    """
    assert value.quant is not None
    params, full = value.quant.params, value.quant.params.storage_dtype
    if starts_at_zero(params) or not params.per_tensor:
        return clamp_real(writer, tensor, dtype, value)
    ends = (("Max", "low", params.qmin, full.qmin), ("Min", "high", params.qmax, full.qmax))
    active = [end for end in ends if end[2] != end[3]]
    name, type_ = stem(writer.tensors.of(value)), TensorType(dtype, value.type.shape)
    for op_type, side, end, _ in active:
        if op_type == "Min" and len(active) > 1:
            tensor = rounded(writer, tensor, dtype, value)
        number = Constant.of(np.array(end, full.numpy))  # its own: Hexagon has one scale a tensor
        code = writer.constant(number, writer.free.take(f"{name}_{side}"))
        bound = writer.free.take(f"{stem(code)}_DequantizeLinear_Output")
        bound = writer.dequantize(code, QuantType(params, ()), bound, dtype)
        target = writer.free.take(f"{name}_{op_type.lower()}")
        tensor = writer.row(op_type, [tensor, bound], target, type_)
    return tensor


def clip_to_range(writer: RowWriter, tensor: str, dtype: DType, value: Value) -> str:
    """Returns ``tensor`` behind a Clip to what ``value`` can hold, also where it rounds to that.

    A runtime that leaves a QuantizeLinear out leaves its clamp out as well.
    """
    assert value.quant is not None
    params = value.quant.params
    ends = np.array([params.qmin, params.qmax], params.storage_dtype.numpy)
    name = stem(writer.tensors.of(value))
    bounds = [
        writer.array(end.astype(dtype.numpy), f"{name}_{side}")
        for side, end in zip(("low", "high"), dequantize(ends, params.widened()), strict=True)
    ]
    target, type_ = writer.free.take(f"{name}_clip"), TensorType(dtype, value.type.shape)
    return writer.row("Clip", [tensor, *bounds], target, type_)


def idle_max(writer: RowWriter, tensor: str, dtype: DType, value: Value) -> str:
    """Returns ``tensor`` behind a Max with the lowest number there is, which changes nothing.

    Some runtimes take what stands before and behind it apart only then.
    """
    lowest = np.array(ml_dtypes.finfo(dtype.numpy).min, dtype.numpy)
    name = stem(writer.tensors.of(value))
    target, type_ = writer.free.take(f"{name}_max"), TensorType(dtype, value.type.shape)
    return writer.row("Max", [tensor, writer.array(lowest, f"{name}_lowest")], target, type_)


def cut_between_steps(source: QuantParams, result: QuantParams) -> bool:
    """Returns whether a range ends between two stored numbers of what is rounded to it.

    That is, further from one of them than the result can tell: OpenVINO moves a Clip in front of
    the DequantizeLinear, where its ends are stored numbers.
    """
    if result.full_range or not (source.per_tensor and result.per_tensor):
        return False
    step, own = float(source.scale), float(result.scale)
    kind = result.storage_dtype
    ends = [(result.qmin, kind.qmin), (result.qmax, kind.qmax)]
    places = [(end - int(result.zero_point)) * own / step for end, last in ends if end != last]
    return step > COARSE * own and any(abs(p - round(p)) > ON_A_STEP for p in places)


def _trimmed(inputs: Iterable[str]) -> list[str]:
    kept = list(inputs)
    while kept and not kept[-1]:
        kept.pop()
    return kept
