"""Quantized files of onnxruntime with one tensor spoiled: what has to be found."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import numpy_helper
from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_static

from qdqbridge.attribution import SuspectTensor

Array = NDArray[Any]


@dataclass(frozen=True)
class Sabotage:
    """What was done to a file.

    Attributes:
        kind: The name of the sabotage.
        tensors: The tensors that are spoiled.
        causes: What may be named as the cause.
    """

    kind: str
    tensors: tuple[str, ...]
    causes: tuple[str, ...]


class _Reader(CalibrationDataReader):
    def __init__(self, name: str, data: Array) -> None:
        self.rows = iter([{name: data[i : i + 16]} for i in range(0, len(data), 16)])

    def get_next(self) -> Any:
        return next(self.rows, None)


def quantized_by_onnxruntime(
    model: Path, out: Path, name: str, data: Array, *, per_channel: bool, signed: bool
) -> Path:
    """Writes a QDQ file as onnxruntime's own tool makes it."""
    quantize_static(
        str(model), str(out), _Reader(name, data), quant_format=QuantFormat.QDQ,
        per_channel=per_channel, weight_type=QuantType.QInt8,
        activation_type=QuantType.QInt8 if signed else QuantType.QUInt8,
    )  # fmt: skip
    return out


class _File:
    """The quantization parameters of a file by tensor."""

    def __init__(self, path: Path) -> None:
        self.model = onnx.load(path)
        self.constants = {i.name: i for i in self.model.graph.initializer}
        nodes = self.model.graph.node
        self.activations = [
            node.input[0]
            for node in nodes
            if node.op_type == "QuantizeLinear" and f"{node.input[0]}_scale" in self.constants
        ]
        suffix = "_quantized"
        stored = [
            node.input[0]
            for node in nodes
            if node.op_type == "DequantizeLinear" and node.input[0] in self.constants
        ]
        named = [name.removesuffix(suffix) for name in stored if name.endswith(suffix)]
        self.biases = [n for n in named if self.array(n + suffix).dtype == np.int32]
        self.weights = [n for n in named if self.array(n + suffix).ndim > 1]

    def array(self, name: str) -> Array:
        return numpy_helper.to_array(self.constants[name])

    def set(self, name: str, array: Array) -> None:
        self.constants[name].CopyFrom(
            numpy_helper.from_array(array.astype(self.array(name).dtype), name)
        )

    def scale(self, tensor: str) -> Array:
        return self.array(f"{tensor}_scale")


def spoil(path: Path, out: Path, seed: int) -> Sabotage:
    """Writes a file with one tensor spoiled, which one and how drawn by ``seed``."""
    rng, file = np.random.default_rng(seed), _File(path)
    kinds: list[Callable[[_File, Any], Sabotage]] = [
        _clipped_range, _scale_of_another, _wrong_zero_point, _stale_calibration, _swapped_scales,
        _coarse_weight, _weight_of_another_scale, _clipped_weight, _bias_in_the_wrong_scale,
    ]  # fmt: skip
    made = kinds[seed % len(kinds)](file, rng)
    onnx.save(file.model, out)
    return made


def _activation(file: _File, rng: Any) -> str:
    return str(rng.choice(file.activations[1:]))


def _clipped_range(file: _File, rng: Any) -> Sabotage:
    name = _activation(file, rng)
    file.set(f"{name}_scale", file.scale(name) * 0.15)
    return Sabotage("clipped range", (name,), ("activation clipping", "constant clipping"))


def _scale_of_another(file: _File, rng: Any) -> Sabotage:
    scales = {name: float(file.scale(name)) for name in file.activations[1:]}
    low, high = min(scales, key=scales.__getitem__), max(scales, key=scales.__getitem__)
    factor = max(scales[high] / scales[low], 12.0)
    file.set(f"{low}_scale", np.asarray(scales[low] * factor))
    return Sabotage("scale of another", (low,), ("activation rounding", "constant rounding"))


def _wrong_zero_point(file: _File, rng: Any) -> Sabotage:
    name = _activation(file, rng)
    zero = file.array(f"{name}_zero_point").astype(np.int32)
    limits = np.iinfo(file.array(f"{name}_zero_point").dtype)
    moved = zero + 110 if zero + 110 <= limits.max else zero - 110
    file.set(f"{name}_zero_point", moved)
    return Sabotage("wrong zero point", (name,), ("activation clipping",))


def _stale_calibration(file: _File, rng: Any) -> Sabotage:
    name = _activation(file, rng)
    file.set(f"{name}_scale", file.scale(name) * 0.25)
    return Sabotage("stale calibration", (name,), ("activation clipping",))


def _swapped_scales(file: _File, rng: Any) -> Sabotage:
    ordered = sorted(file.activations[1:], key=lambda name: float(file.scale(name)))
    a, b = ordered[0], ordered[-1]
    first, second = file.scale(a), file.scale(b)
    file.set(f"{a}_scale", second)
    file.set(f"{b}_scale", first)
    return Sabotage("swapped scales", (a, b), ("activation clipping", "activation rounding"))


def _requantized(file: _File, name: str, scale: Array, saturate: bool) -> None:
    stored, old = file.array(f"{name}_quantized"), file.scale(name)
    axis = _axis(file, name)
    shape = [-1 if i == axis else 1 for i in range(stored.ndim)]
    real = stored * (old.reshape(shape) if old.size > 1 else old)
    wide = real / (scale.reshape(shape) if scale.size > 1 else scale)
    file.set(f"{name}_quantized", np.clip(np.rint(wide), -127, 127))
    file.set(f"{name}_scale", scale)
    assert saturate or np.abs(wide).max() <= 127.5


def _axis(file: _File, name: str) -> int:
    for node in file.model.graph.node:
        if node.op_type == "DequantizeLinear" and node.input[0] == f"{name}_quantized":
            return next((a.i for a in node.attribute if a.name == "axis"), 1)
    return 1


def _of_constant(error: str) -> tuple[str, ...]:
    """Returns the causes of a constant's error: only operands of products are called weights."""
    return f"weight {error}", f"constant {error}"


def _coarse_weight(file: _File, rng: Any) -> Sabotage:
    name = str(rng.choice(file.weights))
    scale = file.scale(name)
    _requantized(file, name, np.full_like(scale, scale.max() * 16), saturate=False)
    return Sabotage("per-tensor weight among wide channels", (name,), _of_constant("rounding"))


def _weight_of_another_scale(file: _File, rng: Any) -> Sabotage:
    name = str(rng.choice(file.weights))
    file.set(f"{name}_scale", file.scale(name) * 1.6)
    return Sabotage("weight in another scale", (name,), _of_constant("of other numbers"))


def _clipped_weight(file: _File, rng: Any) -> Sabotage:
    name = str(rng.choice(file.weights))
    _requantized(file, name, file.scale(name) * 0.3, saturate=True)
    return Sabotage("clipped weight", (name,), _of_constant("clipping"))


def _bias_in_the_wrong_scale(file: _File, rng: Any) -> Sabotage:
    name = max(file.biases, key=lambda n: float(np.abs(file.array(f"{n}_quantized")).mean()))
    file.set(f"{name}_quantized", file.array(f"{name}_quantized") * 6)
    return Sabotage("bias in the wrong scale", (name,), ("bias of other numbers",))


def named(worst: SuspectTensor, made: Sabotage) -> bool:
    """Returns whether a tensor is one that was spoiled, by either model's name."""
    theirs = worst.quantized_name.partition("_QuantizeLinear")[0]
    return worst.name in made.tensors or theirs in made.tensors
