"""Quantized files of any tool with one tensor spoiled: what has to be found."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
from numpy.typing import NDArray
from onnx import helper, numpy_helper
from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_static

from qdqbridge.autoquant.attribution import SuspectTensor

Array = NDArray[Any]
_PRODUCTS = ("Conv", "ConvTranspose", "Gemm", "MatMul")
_MOVES = ("Relu", "Clip", "DepthToSpace", "Slice", "Transpose", "Reshape", "MaxPool", "Flatten")
_STEPS = (*_MOVES, "Cast", "Identity", "Add")
"""What stands between a product and the pair that rounds its result."""


@dataclass(frozen=True)
class Sabotage:
    """What was done to a file.

    Attributes:
        kind: The name of the sabotage.
        tensors: Names that the spoiled tensors go by: of the tensor, of its stored integers, and
            of their real numbers.
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
    model: Path, out: Path, name: str, data: Array, *, per_channel: bool, signed: bool,
    optimized: bool = False,
) -> Path:  # fmt: skip
    """Writes a QDQ file as onnxruntime's own tool makes it.

    Args:
        model: The float file.
        out: The file to write.
        name: The input.
        data: What it is calibrated on.
        per_channel: One scale per channel of a weight.
        signed: int8 activations.
        optimized: Of the graph that onnxruntime has optimized, whose operators are others.
    """
    source = model
    if optimized:
        source = out.with_suffix(".optimized.onnx")
        options = ort.SessionOptions()
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_BASIC
        options.optimized_model_filepath = str(source)
        options.log_severity_level = 3
        ort.InferenceSession(str(model), options, providers=["CPUExecutionProvider"])
    quantize_static(
        str(source), str(out), _Reader(name, data), quant_format=QuantFormat.QDQ,
        per_channel=per_channel, weight_type=QuantType.QInt8,
        activation_type=QuantType.QInt8 if signed else QuantType.QUInt8,
    )  # fmt: skip
    return out


def renamed(path: Path, out: Path) -> Path:
    """Writes a file with other names for everything but its inputs and outputs."""
    model = onnx.load(path)
    kept = {port.name for port in (*model.graph.input, *model.graph.output)} | {""}
    names: dict[str, str] = {name: name for name in kept}

    def other(name: str) -> str:
        return names.setdefault(name, f"v{len(names)}")

    for initializer in model.graph.initializer:
        initializer.name = other(initializer.name)
    for number, node in enumerate(model.graph.node):
        node.name = f"n{number}"
        node.input[:] = [other(name) for name in node.input]
        node.output[:] = [other(name) for name in node.output]
    del model.graph.value_info[:]
    onnx.save(model, out)
    return out


@dataclass
class _Pair:
    """A tensor that a file rounds: an activation, or a constant.

    Attributes:
        names: What it goes by.
        scales: The nodes' operand 1: of the QuantizeLinear if there is one, and the others.
        stored: The name of stored integers, or of a float constant before a QuantizeLinear.
        quantize: The QuantizeLinear.
        reads: The DequantizeLinear nodes.
    """

    names: tuple[str, ...]
    reads: list[onnx.NodeProto]
    stored: str = ""
    quantize: onnx.NodeProto | None = None


@dataclass
class _File:
    """What a file rounds; every pair has parameters of its own."""

    model: onnx.ModelProto
    constants: dict[str, onnx.TensorProto] = field(default_factory=dict[str, onnx.TensorProto])
    activations: list[_Pair] = field(default_factory=list[_Pair])
    weights: list[_Pair] = field(default_factory=list[_Pair])
    biases: list[str] = field(default_factory=list[str])

    def __post_init__(self) -> None:
        graph = self.model.graph
        for node in list(graph.node):
            if node.op_type == "Constant":
                value = next(a for a in node.attribute if a.name == "value")
                value.t.name = node.output[0]
                graph.initializer.append(value.t)
                graph.node.remove(node)
        self.constants = {i.name: i for i in graph.initializer}
        self.readers: dict[str, list[onnx.NodeProto]] = {}
        for node in graph.node:
            for name in node.input:
                self.readers.setdefault(name, []).append(node)
        self.makers = {name: node for node in graph.node for name in node.output}
        for node in graph.node:
            if node.op_type == "QuantizeLinear":
                self._pair(node)
            elif node.op_type == "DequantizeLinear" and node.input[0] in self.constants:
                self._constant(_Pair((node.input[0], node.output[0]), [node], node.input[0]))
        for node in graph.node:
            if node.op_type in _PRODUCTS and len(node.input) > 2:
                self.biases += self._bias(node.input[2])

    def _pair(self, node: onnx.NodeProto) -> None:
        readers = self.readers.get(node.output[0], [])
        reads = [n for n in readers if n.op_type == "DequantizeLinear"]
        if len(reads) != len(readers) or node.input[1] not in self.constants or not reads:
            return
        if node.input[0] not in self.constants and self.array(node.input[1]).size != 1:
            return  # an activation per channel
        names = (node.input[0], node.output[0], *(read.output[0] for read in reads), node.name)
        stored = node.input[0] if node.input[0] in self.constants else ""
        pair = _Pair(names, reads, stored, node)
        if stored:
            self._constant(pair)
        elif node.input[0] in self.makers:
            for part in (node, *reads):
                self._part(part, names[0])
            self.activations.append(pair)

    def _constant(self, pair: _Pair) -> None:
        array = self.array(pair.stored)
        if array.ndim > 1 and pair.reads[0].input[1] in self.constants:
            used = {n.op_type for read in pair.reads for n in self.readers.get(read.output[0], [])}
            if used & {*_PRODUCTS, "Transpose"}:
                for part in (pair.quantize, *pair.reads):
                    if part is not None:
                        self._part(part, pair.names[0])
                self.weights.append(pair)

    def _bias(self, name: str) -> Iterator[str]:
        maker = self.makers.get(name)
        if maker is not None and maker.op_type == "DequantizeLinear":
            name = maker.input[0]
        if name in self.constants and self.array(name).any():
            yield name

    def _part(self, node: onnx.NodeProto, name: str) -> None:
        """Gives a node a scale and a zero point that nobody else reads."""
        for index, word in ((1, "scale"), (2, "zero")):
            if index < len(node.input) and node.input[index] in self.constants:
                own = f"{name}__{word}_{node.output[0]}"
                self.add(own, self.array(node.input[index]))
                node.input[index] = own

    def add(self, name: str, array: Array) -> None:
        tensor = numpy_helper.from_array(array, name)
        self.model.graph.initializer.append(tensor)
        self.constants[name] = self.model.graph.initializer[-1]

    def array(self, name: str) -> Array:
        return numpy_helper.to_array(self.constants[name])

    def set(self, name: str, array: Array) -> None:
        self.constants[name].CopyFrom(
            numpy_helper.from_array(array.astype(self.array(name).dtype), name)
        )

    def scale(self, pair: _Pair) -> Array:
        return self.array(pair.reads[0].input[1])

    def rescale(self, pair: _Pair, factor: float | Array, *, all_of_it: bool = True) -> None:
        for node in (pair.quantize, *pair.reads):
            if node is not None and (all_of_it or node.op_type == "DequantizeLinear"):
                self.set(node.input[1], self.array(node.input[1]) * factor)

    def move(self, pair: _Pair, zero: Array) -> None:
        for node in (pair.quantize, *pair.reads):
            if node is not None:
                self.set(node.input[2], zero)

    def _one_operand(self, node: onnx.NodeProto) -> bool:
        return all(name in self.constants for name in node.input[1:] if name)

    def behind(self, pair: _Pair) -> tuple[str, ...]:
        """Returns the names of an activation, and of the clamps and products before it."""
        names = list(pair.names)
        name = pair.names[0]
        for _ in range(8):
            maker = self.makers.get(name)
            if maker is None:
                break
            names.append(maker.name)
            if maker.op_type not in _STEPS or not self._one_operand(maker):
                break
            name = maker.input[0]
            names.append(name)
        return tuple(dict.fromkeys(names))


def spoil(path: Path, out: Path, seed: int, data: dict[str, Array] | None = None) -> Sabotage:
    """Writes a file with one tensor spoiled, which one and how drawn by ``seed``.

    Args:
        path: The file.
        out: The one to write.
        seed: What decides.
        data: One array per input, for what needs to know how large results get.
    """
    rng, file = np.random.default_rng(seed), _File(onnx.load(path))
    kinds: list[Callable[[_File, Any], Sabotage]] = [
        _clipped_range, _scale_of_another, _coarse_weight, _wrong_zero_point,
        _bias_in_the_wrong_scale, _stale_calibration, _swapped_scales,
        lambda file, rng: _saturated_accumulators(file, rng, data or {}), _float_island,
        _weight_of_another_scale, _clipped_weight,
    ]  # fmt: skip
    made = kinds[seed % len(kinds)](file, rng)
    onnx.save(file.model, out)
    return made


KINDS = 11
"""The kinds of :func:`spoil`."""


def _activation(file: _File, rng: Any) -> _Pair:
    return file.activations[int(rng.integers(len(file.activations)))]


def _clipped_range(file: _File, rng: Any) -> Sabotage:
    pair = _activation(file, rng)
    file.rescale(pair, 0.15)
    return Sabotage(
        "clipped range", file.behind(pair), ("activation clipping", "constant clipping")
    )


def _scale_of_another(file: _File, rng: Any) -> Sabotage:
    del rng
    scales = [float(file.scale(pair).item()) for pair in file.activations]
    low, high = int(np.argmin(scales)), int(np.argmax(scales))
    file.rescale(file.activations[low], max(scales[high] / scales[low], 12.0))
    return Sabotage(
        "scale of another", file.behind(file.activations[low]),
        ("activation rounding", "constant rounding"),
    )  # fmt: skip


def _wrong_zero_point(file: _File, rng: Any) -> Sabotage:
    pair = _activation(file, rng)
    stored = file.array(pair.reads[0].input[2])
    zero, limits = stored.astype(np.int32), np.iinfo(stored.dtype)
    file.move(pair, zero + 110 if zero + 110 <= limits.max else zero - 110)
    return Sabotage("wrong zero point", file.behind(pair), ("activation clipping",))


def _stale_calibration(file: _File, rng: Any) -> Sabotage:
    pair = _activation(file, rng)
    file.rescale(pair, 0.25)
    return Sabotage("stale calibration", file.behind(pair), ("activation clipping",))


def _swapped_scales(file: _File, rng: Any) -> Sabotage:
    del rng
    ordered = sorted(file.activations, key=lambda pair: float(file.scale(pair).item()))
    a, b = ordered[0], ordered[-1]
    ratio = float(file.scale(b).item()) / float(file.scale(a).item())
    file.rescale(a, ratio)
    file.rescale(b, 1 / ratio)
    return Sabotage(
        "swapped scales", (*file.behind(a), *file.behind(b)),
        ("activation clipping", "activation rounding"),
    )  # fmt: skip


def _saturated_accumulators(file: _File, rng: Any, data: dict[str, Array]) -> Sabotage:
    """The sums of a product saturate at a quarter of what they come to, as narrow registers do."""
    graph = file.model.graph
    behind = [pair for pair in file.activations if _product(file, pair) is not None]
    pair = behind[int(rng.integers(len(behind)))]
    product = _product(file, pair)
    assert product is not None
    name = product.output[0]
    shown = onnx.ModelProto()
    shown.CopyFrom(file.model)
    shown.graph.output.append(helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, None))
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 3
    session = ort.InferenceSession(shown.SerializeToString(), options)
    port = session.get_inputs()[0]
    rows = data[port.name]
    step = port.shape[0] if isinstance(port.shape[0], int) else len(rows)
    most = max(
        float(np.abs(np.asarray(session.run([name], {port.name: rows[i : i + step]})[0])).max())
        for i in range(0, len(rows) - step + 1, step)
    )
    file.add("__low", np.asarray(-most / 4, np.float32))
    file.add("__high", np.asarray(most / 4, np.float32))
    product.output[0] = "__accumulated"
    clip = helper.make_node("Clip", ["__accumulated", "__low", "__high"], [name], name="__clip")
    graph.node.insert(list(graph.node).index(product) + 1, clip)
    return Sabotage("saturated accumulators", file.behind(pair), ("activation clipping",))


def _product(file: _File, pair: _Pair) -> onnx.NodeProto | None:
    name = pair.names[0]
    for _ in range(6):
        maker = file.makers.get(name)
        if maker is None or maker.op_type in _PRODUCTS:
            return maker
        if maker.op_type not in _MOVES:
            return None
        name = maker.input[0]
    return None


def _float_island(file: _File, rng: Any) -> Sabotage:
    """A weight that was left float, and is another one than it was."""
    pair = file.weights[int(rng.integers(len(file.weights)))]
    real = _real(file, pair)
    file.add("__island", real.astype(np.float32) * np.float32(1.5))
    for read in pair.reads:
        for node in file.readers[read.output[0]]:
            node.input[:] = ["__island" if n == read.output[0] else n for n in node.input]
    names = (*_of_weight(file, pair), "__island")
    return Sabotage("float island of a wrong constant", names, _of_constant("of other numbers"))


def _real(file: _File, pair: _Pair) -> Array:
    """Returns a constant's real numbers."""
    stored = file.array(pair.stored)
    if pair.quantize is not None:
        return stored
    zero = file.array(pair.reads[0].input[2]) if len(pair.reads[0].input) > 2 else np.zeros(1, int)
    return (stored.astype(np.int32) - _along(file, pair, zero.astype(np.int32))) * _along(
        file, pair, file.scale(pair)
    )


def _along(file: _File, pair: _Pair, numbers: Array) -> Array:
    """Returns numbers per channel as they lie against the constant."""
    ndim = file.array(pair.stored).ndim
    axis = next((a.i for a in pair.reads[0].attribute if a.name == "axis"), 1)
    return (
        numbers.reshape([-1 if i == axis % ndim else 1 for i in range(ndim)])
        if (numbers.size > 1)
        else numbers.reshape(())
    )


def _requantized(file: _File, pair: _Pair, scale: Array) -> None:
    if pair.quantize is None:
        wide = _real(file, pair) / _along(file, pair, scale)
        zero = file.array(pair.reads[0].input[2]) if len(pair.reads[0].input) > 2 else None
        offset = 0 if zero is None else _along(file, pair, zero.astype(np.int32))
        limits = np.iinfo(file.array(pair.stored).dtype)
        file.set(pair.stored, np.clip(np.rint(wide) + offset, limits.min, limits.max))
    file.rescale(pair, scale / file.scale(pair))


def _of_weight(file: _File, pair: _Pair) -> tuple[str, ...]:
    readers = (node for read in pair.reads for node in file.readers.get(read.output[0], []))
    return (*pair.names, *(node.name for node in readers))


def _of_constant(error: str) -> tuple[str, ...]:
    """Returns the causes of a constant's error: only operands of products are called weights."""
    return f"weight {error}", f"constant {error}"


def _coarse_weight(file: _File, rng: Any) -> Sabotage:
    pair = file.weights[int(rng.integers(len(file.weights)))]
    scale = file.scale(pair)
    _requantized(file, pair, np.full_like(scale, scale.max() * 16))
    names = _of_weight(file, pair)
    return Sabotage("per-tensor weight among wide channels", names, _of_constant("rounding"))


def _weight_of_another_scale(file: _File, rng: Any) -> Sabotage:
    pair = file.weights[int(rng.integers(len(file.weights)))]
    file.rescale(pair, 1.6, all_of_it=False)
    names = _of_weight(file, pair)
    return Sabotage("weight in another scale", names, _of_constant("of other numbers"))


def _clipped_weight(file: _File, rng: Any) -> Sabotage:
    pair = file.weights[int(rng.integers(len(file.weights)))]
    _requantized(file, pair, file.scale(pair) * np.float32(0.3))
    return Sabotage("clipped weight", _of_weight(file, pair), _of_constant("clipping"))


def _bias_in_the_wrong_scale(file: _File, rng: Any) -> Sabotage:
    del rng
    real: dict[str, float] = {}
    for name in file.biases:
        array = file.array(name)
        scales = [file.array(n.input[1]) for n in file.readers[name] if len(n.input) > 1
                  and n.op_type == "DequantizeLinear"]  # fmt: skip
        real[name] = float(np.abs(array * (scales[0] if scales else 1.0)).mean())
    name = max(real, key=real.__getitem__)
    file.set(name, file.array(name) * 6)
    readers = file.readers[name]
    if readers[0].op_type == "DequantizeLinear":
        readers = file.readers[readers[0].output[0]]
    names = (name, *(node.name for node in readers))
    return Sabotage("bias in the wrong scale", names, ("bias of other numbers",))


def named(worst: SuspectTensor, made: Sabotage) -> bool:
    """Returns whether a tensor is one that was spoiled: by its name, or its node's and its kind."""
    if {worst.name, worst.quantized_name} & set(made.tensors):
        return True
    kinds = {cause.split()[0] for cause in made.causes}
    node = worst.node.partition(" ")[2]
    return worst.kind in kinds and node in made.tensors
