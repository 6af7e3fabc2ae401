"""Products that onnxruntime gets wrong: of bytes on some x86 processors, of half floats."""

from __future__ import annotations

import re
import tempfile
from collections import ChainMap
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from functools import cache
from itertools import count
from pathlib import Path
from typing import Any, Literal, TypeAlias

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from qdqbridge.core.ops.matmul import EIGHT_BITS
from qdqbridge.onnx_io.control_flow.subgraph_names import bodies, nodes_inside

# ---- What onnxruntime makes of a model before it runs it: other operators, fewer of them ---------


def optimized(source: Path | bytes, *, layouts: bool = True) -> onnx.ModelProto | None:
    """Returns the model that onnxruntime runs; None where it does not load the given one.

    Args:
        source: A file, or its bytes.
        layouts: Also what depends on the processor: blocks of channels, channels last.
    """
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.log_severity_level = 4
    if not layouts:
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_EXTENDED
    with tempfile.TemporaryDirectory() as folder:
        options.optimized_model_filepath = str(Path(folder) / "optimized.onnx")
        try:
            ort.InferenceSession(source, options, providers=["CPUExecutionProvider"])
        except Exception:  # whatever a runtime raises of a file: who runs it will tell
            return None
        return onnx.load(options.optimized_model_filepath, load_external_data=False)


# ---- byte products -------------------------------------------------------------------------------
# Products of uint8 and int8 that onnxruntime's CPU kernels get wrong on some x86 processors.
#
# Without VNNI, onnxruntime (1.32) multiplies uint8 by int8 with an instruction that adds two
# products in 16 bits and saturates (``vpmaddubsw``): 64 products of 255 and 127 come to 1,048,544
# instead of 2,072,640. Products of uint8 and uint8 are exact. Its option
# ``session.x64quantprecision`` makes those of the former, but is an optimization
# (``keep_fused_products``): where these are off, it does nothing, and the model itself has to be
# changed (``keep_byte_products``).


MARKS = re.compile(r"(_token_\d+|_nchwc|_nhwc)+$")
"""What onnxruntime appends to the names of nodes and tensors whose layout it changes."""
_WITH_BIAS = "/MatMulAddFusion"
"""What it appends to the name of a MatMul that has taken an Add."""
_HALF = 1 << 7
"""What makes uint8 of int8, of a weight and of its zero point."""


@dataclass(frozen=True, slots=True)
class ByteOperands:
    """Which operands an operator multiplies as signed bytes, and which as unsigned ones.

    Attributes:
        signed: Indices of each operand that goes in as it is stored, and of its zero point.
        unsigned: Those of the other one; None where the operator makes it, as uint8.
        scale: Index of the scale of the signed one; None where the operator has none.
    """

    signed: tuple[tuple[int, int], ...]
    unsigned: tuple[int, int] | None
    scale: int | None = None


PRODUCTS_OF_BYTES = {
    "QLinearConv": ByteOperands(((3, 5),), (0, 2), 4),
    "QLinearMatMul": ByteOperands(((3, 5),), (0, 2), 4),
    "QGemm": ByteOperands(((3, 5),), (0, 2), 4),
    "ConvInteger": ByteOperands(((0, 2),), (1, 3)),  # it multiplies weights by windows
    "MatMulInteger": ByteOperands(((1, 3),), (0, 2)),
    "MatMulIntegerToFloat": ByteOperands(((1, 5),), (0, 4), 3),
    "DynamicQuantizeMatMul": ByteOperands(((1, 3),), None, 2),
    "DynamicQuantizeLSTM": ByteOperands(((1, 9), (2, 11)), None),
    "QAttention": ByteOperands(((1, 7),), (0, 6)),
}

_ZERO_OF_RESULT = {"QuantizeLinear": 2, "QLinearConv": 7, "QLinearMatMul": 7, "QGemm": 8}
"""Index of what has the type of the result; of `_MOVED` it is that of the first input."""

_MOVED = frozenset(
    {
        "Clip", "Concat", "DepthToSpace", "Expand", "Flatten", "Gather", "Identity", "Max",
        "MaxPool", "Min", "Pad", "Relu", "Reshape", "Resize", "Slice", "SpaceToDepth", "Split",
        "Squeeze", "Tile", "Transpose", "Unsqueeze",
    }
)  # fmt: skip


@dataclass(frozen=True, slots=True, eq=False)
class StoredWeights:
    """What the signed operand of a product has in its file; the canonical form may move both.

    Attributes:
        zero_point: One number, or one for each channel of the result.
        negative: Where its scale is, in the same manner.
    """

    zero_point: NDArray[np.int64]
    negative: NDArray[np.bool_]


_AS_READ = StoredWeights(np.zeros(1, np.int64), np.zeros(1, np.bool_))


@cache
def saturates() -> bool:
    """Returns whether products of uint8 and int8 saturate in onnxruntime on this processor."""
    import onnxruntime as ort

    size = 64
    weight = np.full((size, size), 127, np.int8)
    graph = helper.make_graph(
        [helper.make_node("MatMulInteger", ["x", "w"], ["y"])], "pairs",
        [helper.make_tensor_value_info("x", TensorProto.UINT8, [1, size])],
        [helper.make_tensor_value_info("y", TensorProto.INT32, [1, size])],
        [numpy_helper.from_array(weight, "w")],
    )  # fmt: skip
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = 1
    data = model.SerializeToString()
    session = ort.InferenceSession(data, options, providers=["CPUExecutionProvider"])
    (found,) = session.run(None, {"x": np.full((1, size), 255, np.uint8)})
    return bool(np.asarray(found)[0, 0] != size * 255 * 127)


def saturating_products(source: Path | bytes) -> Mapping[str, StoredWeights]:
    """Returns what names products whose pairs saturate without VNNI: nodes, results and weights.

    With how their weights are stored: pairs are of these codes, whatever zero point they have. What
    is inside of a body is also named by the If, the Loop or the Scan that has it.

    onnxruntime itself says what it makes of a file: which products are of integers, and of which.

    Args:
        source: The file, or its bytes. One that onnxruntime does not load has none.
    """
    model = optimized(source)
    if model is None:
        return {}
    given = set(_names(_read(source).graph))
    found = _saturating(model.graph, _ReadableTensors(), given)
    return {name: stored for name, stored in found.items() if name}


def _read(source: Path | bytes) -> onnx.ModelProto:
    if isinstance(source, bytes):
        return onnx.load_from_string(source)
    return onnx.load(source, load_external_data=False)


def _names(graph: onnx.GraphProto) -> Iterator[str]:
    """Yields the names of nodes and of what they read and give, bodies' too."""
    for outside in graph.node:
        for node in (outside, *nodes_inside(outside)):
            yield from (node.name, *node.input, *node.output)


def _saturating(
    graph: onnx.GraphProto, outer: _ReadableTensors, given: Set[str]
) -> dict[str, StoredWeights]:
    tensors, found = outer.inside(graph), dict[str, StoredWeights]()
    types = tensors.types
    for node in graph.node:
        tensors.see(node)
        held = (body for attribute in node.attribute for body in bodies(attribute))
        for inside in (_saturating(body, tensors, given) for body in held):
            found |= inside
            found |= dict.fromkeys((node.name, *node.output), _AS_READ) if inside else {}
        if node.op_type == "DynamicQuantizeLinear":
            types[node.output[2]] = TensorProto.UINT8
        factors = PRODUCTS_OF_BYTES.get(node.op_type)
        if factors is None:
            continue
        names = [*node.input, *[""] * 12]
        data, zero = ("", "") if factors.unsigned is None else (names[i] for i in factors.unsigned)
        other = types.get(zero or data, TensorProto.UINT8)
        signed = any(types.get(names[w]) == TensorProto.INT8 for w, _ in factors.signed)
        if signed and other == TensorProto.UINT8:
            own = (node.name, *node.output, *(names[w] for w, _ in factors.signed))
            # Files that onnxruntime has written have such names of their own.
            plain = [name if name in given else MARKS.sub("", name) for name in own]
            stored = _stored_weights(names, factors, tensors)
            found |= dict.fromkeys([*plain, plain[0].removesuffix(_WITH_BIAS)], stored)
    return found


def _stored_weights(
    names: Sequence[str], factors: ByteOperands, tensors: _ReadableTensors
) -> StoredWeights:
    points = tensors.elements(names[factors.signed[0][1]])
    scales = None if factors.scale is None else tensors.elements(names[factors.scale])
    return StoredWeights(
        np.zeros(1, np.int64) if points is None else points.astype(np.int64).reshape(-1),
        np.zeros(1, np.bool_) if scales is None else scales.reshape(-1) < 0,
    )


def keep_fused_products(options: Any) -> None:
    """Asks onnxruntime's optimizations for products that do not saturate, where theirs would.

    Args:
        options: ``SessionOptions``.
    """
    if saturates():
        options.add_session_config_entry("session.x64quantprecision", "1")


def keep_byte_products(graph: onnx.GraphProto) -> None:
    """Makes factors of int8 ones of uint8, where the other factor is not int8 itself.

    Codes and their zero point become larger by 128, which changes no product: constants of the
    file here, others while it runs (inputs, what nodes compute, constants that lie outside of it).

    Args:
        graph: A model's graph, also with bodies; it is changed.
    """
    _keep(graph, _ReadableTensors())


@dataclass
class _ReadableTensors:
    """What nodes may read.

    Attributes:
        constants: Those of the file, by name; None for others that hide one.
        types: Element types by name, of all that have a known one.
        unsigned: What has become uint8, and its name now; empty for what hides it.
        numbers: Numbers for new names.
    """

    constants: ChainMap[str, TensorProto | None] = field(
        default_factory=ChainMap[str, "TensorProto | None"]
    )
    types: ChainMap[str, int] = field(default_factory=ChainMap[str, int])
    unsigned: ChainMap[str, str] = field(default_factory=ChainMap[str, str])
    numbers: Iterator[int] = field(default_factory=count)

    def inside(self, graph: onnx.GraphProto) -> _ReadableTensors:
        """Returns what nodes of a graph in this one may read, before any of them."""
        fed = {value.name: value.type.tensor_type.elem_type for value in graph.input}
        own = {tensor.name: tensor for tensor in graph.initializer}
        types = fed | {name: tensor.data_type for name, tensor in own.items()}
        return _ReadableTensors(
            self.constants.new_child(dict.fromkeys(fed) | own),
            self.types.new_child(types),
            self.unsigned.new_child(dict.fromkeys(types, "")),
            self.numbers,
        )

    def elements(self, name: str) -> NDArray[Any] | None:
        """Returns what a constant holds; None of what is computed, or lies outside of the file."""
        tensor = self.constants.get(name)
        if tensor is None or tensor.data_location == TensorProto.EXTERNAL:
            return None
        return numpy_helper.to_array(tensor)

    def see(self, node: onnx.NodeProto) -> None:
        """Takes in the type of what a node computes, if the node tells it."""
        value = next((a.t for a in node.attribute if a.name == "value"), None)
        if node.op_type == "Constant" and value is not None:
            self.constants[node.output[0]] = value
            self.types[node.output[0]] = value.data_type
        at = 0 if node.op_type in _MOVED else _ZERO_OF_RESULT.get(node.op_type)
        if at is not None and at < len(node.input):
            type_ = self.types.get(node.input[at], TensorProto.UNDEFINED)
            self.types.update(dict.fromkeys(node.output, type_))
        elif node.op_type == "Cast":
            to = next((a.i for a in node.attribute if a.name == "to"), TensorProto.UNDEFINED)
            self.types[node.output[0]] = to


def _keep(graph: onnx.GraphProto, outer: _ReadableTensors) -> None:
    tensors, nodes = outer.inside(graph), list[onnx.NodeProto]()
    for node in graph.node:
        for attribute in node.attribute:
            for body in bodies(attribute):
                _keep(body, tensors)
        factors = PRODUCTS_OF_BYTES.get(node.op_type)
        if factors is not None:
            nodes += _made_unsigned(node, factors, tensors)
        tensors.see(node)
        nodes.append(node)
    del graph.node[:]
    graph.node.extend(nodes)


def _made_unsigned(
    node: onnx.NodeProto, factors: ByteOperands, tensors: _ReadableTensors
) -> Iterator[onnx.NodeProto]:
    """Gives a node other factors and zero points, if these are int8; yields what computes them."""
    needed = 1 + max(zero for _, zero in factors.signed)
    names = [*node.input, *[""] * (needed - len(node.input))]
    beside = [names[i] for i in factors.unsigned or () if i < len(names)]
    signed = [names[data] for data, _ in factors.signed]
    zeros = [names[zero] for _, zero in factors.signed if names[zero]]
    if any(tensors.types.get(name) == TensorProto.INT8 for name in beside):
        return
    if any(tensors.types.get(name) != TensorProto.INT8 for name in signed + zeros):
        return
    for pair in factors.signed:
        for index in pair:
            if not tensors.unsigned.get(names[index]):
                yield from _unsigned(names[index], tensors)
            names[index] = tensors.unsigned[names[index]]
    del node.input[:]
    node.input.extend(names)


def _unsigned(name: str, tensors: _ReadableTensors) -> Iterator[onnx.NodeProto]:
    """Yields what makes a tensor uint8; where there is none, a zero point of 0."""
    new = tensors.unsigned[name] = f"{name}:unsigned:{next(tensors.numbers)}"
    stored = tensors.elements(name)
    if name and stored is None:
        wide, half, moved = (f"{new}:{part}" for part in ("wide", "half", "moved"))
        yield helper.make_node("Cast", [name], [wide], to=TensorProto.INT32)
        yield _make_constant_node(half, np.asarray(_HALF, np.int32))
        yield helper.make_node("Add", [wide, half], [moved])
        yield helper.make_node("Cast", [moved], [new], to=TensorProto.UINT8)
        return
    codes = np.zeros((), np.int8) if stored is None else stored
    yield _make_constant_node(new, (codes.astype(np.int16) + _HALF).astype(np.uint8))


def _make_constant_node(name: str, array: np.ndarray[Any, Any]) -> onnx.NodeProto:
    return helper.make_node("Constant", [], [name], value=numpy_helper.from_array(array))


# ---- Products of half floats that onnxruntime gets wrong where its optimizations are off ---------


def rounds_activations(node: onnx.NodeProto) -> bool:
    """Returns whether a node is a packed product whose activations are rounded to 8 bits."""
    level = next((a.i for a in node.attribute if a.name == "accuracy_level"), 0)
    return node.op_type == "MatMulNBits" and level == EIGHT_BITS


def keep_half_products(graph: onnx.GraphProto, outer: Set[str] = frozenset()) -> None:
    """Puts an Identity behind packed products of half floats, which keeps these half floats.

    Between nodes that its CPU has in float32 only, onnxruntime 1.32 makes such a product one of
    float32, and its scales the result of a Cast. Without constant folding they stay that (and in
    the body of an If or Loop with it, where they are constants of the graph around it), and with
    ``accuracy_level`` 4 its kernel takes scales that are no constants for 0 (rule
    ``scales-of-run-time``). A node beside one with a kernel of half floats keeps its type.

    Args:
        graph: A model's graph, or a body; it is changed.
        outer: Constants of half floats of the graphs around a body.
    """
    halves = outer | {
        tensor.name for tensor in graph.initializer if tensor.data_type == onnx.TensorProto.FLOAT16
    }
    nodes = list(graph.node)
    del graph.node[:]
    for node in nodes:
        for attribute in node.attribute:
            for body in bodies(attribute):
                keep_half_products(body, halves)
        graph.node.append(node)
        if rounds_activations(node) and halves & set(node.input):
            made, result = graph.node[-1], node.output[0]
            made.output[0] = f"{result}:half"
            graph.node.append(helper.make_node("Identity", [made.output[0]], [result]))


# ---- pairs ---------------------------------------------------------------------------------------
# Sums of two products in 16 bits: where ``vpmaddubsw`` saturates, and how little prevents it.
#
# The instruction multiplies unsigned bytes by signed ones and adds neighbours with saturation to
# int16. Kernels for CPUs without VNNI are built on it (onnxruntime's MLAS on AVX2, TVM's x86
# schedules). What they do, of onnxruntime 1.32 read in its source and proved value by value
# (``scripts/engines/engine_models.py onnxruntime-avx2 FOLDER --predicted``):
#
# * Activations go in as stored codes, 0 to 255; signed ones of a QDQ file are shifted by 128.
#   Weights go in as stored, signed. Products of unsigned weights are exact, and those of signed
#   activations that a file has as an operator (QLinearConv, MatMulInteger). ConvInteger multiplies
#   weights by windows of its data, taps before channels: only uint8 weights by int8 data saturate
#   there.
# * MatMulNBits with ``accuracy_level`` 4 is exact: codes of 2, 4 and 8 bits at their ends give the
#   sums of a processor with VNNI, but for the order in which blocks are added.
# * Zero points are corrected outside, so that no code is centred before it is multiplied.
# * A convolution is a product of matrices whose inner axis runs over channels of a group first and
#   over taps last (``channels-last``), in one flat row; blocks of four channels of its own kernel
#   for symmetric weights (``NCHW4c``), strides of 128 and 384 terms and the kernel for one row of
#   activations form the same pairs. ``channels-first`` is the other order.
# * A term that is left over is paired with zero, and cannot saturate: ``255 * 128 <= 32767``.
# * A pair alone saturates: its sums are added in 32 bits.
# * Convolutions of one channel to one do not run on such products, 16-bit operands do not either.


Order: TypeAlias = "Literal['channels-last', 'channels-first']"
"""In which order the inner axis of a convolution runs over channels and taps."""

FULL = (0, 255)
"""All codes of an unsigned byte."""
_STEPS = 23
MARGIN = 1 + 2.0**-20
"""Room for three float32 roundings: of the scale, of the real weight, of their quotient."""


def paired(rows: NDArray[Any]) -> NDArray[np.int64]:
    """Returns ``rows`` of weights, shape (channels, terms), as (channels, pairs, 2)."""
    even = rows[:, : rows.shape[1] // 2 * 2].astype(np.int64)
    return even.reshape(len(rows), -1, 2)


def can_saturate(pairs: NDArray[np.int64], codes: tuple[int, int] = FULL) -> NDArray[np.bool_]:
    """Returns for each pair whether some input makes its sum leave int16.

    Args:
        pairs: Stored signed weights, shape (..., 2).
        codes: Smallest and largest unsigned input code.
    """
    low, high = codes
    ends = np.stack([pairs * low, pairs * high])
    largest, smallest = ends.max(axis=0).sum(axis=-1), ends.min(axis=0).sum(axis=-1)
    return (largest > np.iinfo(np.int16).max) | (smallest < np.iinfo(np.int16).min)


def saturating(rows: NDArray[Any], codes: tuple[int, int] = FULL) -> NDArray[np.int64]:
    """Returns how many pairs of neighbouring weights can saturate, per channel.

    Args:
        rows: Stored signed weights in the kernel's order, shape (channels, terms).
        codes: Smallest and largest unsigned input code.
    """
    return can_saturate(paired(rows), codes).sum(axis=1).astype(np.int64)


def remedy(rows: NDArray[Any]) -> NDArray[np.float64]:
    """Returns by which factor the scale of each channel has to grow so that no pair saturates.

    1 where none does; never more than 2, which is what seven bits for all weights cost. The real
    weights are taken to be what the stored ones stand for.

    Args:
        rows: Stored signed weights in the kernel's order, shape (channels, terms).
    """
    pairs = paired(rows)
    # Magnitudes of rounded weights do not grow with the factor: no other pair ever saturates.
    channels, places = np.nonzero(can_saturate(pairs))
    suspects = pairs[channels, places]
    low, high = np.ones(len(suspects)), np.full(len(suspects), 2.0)
    for _ in range(_STEPS):
        middle = (low + high) / 2
        still = can_saturate(np.rint(suspects / middle[:, None]).astype(np.int64))
        low, high = np.where(still, middle, low), np.where(still, high, middle)
    factors = np.ones(len(rows))
    np.maximum.at(factors, channels, np.minimum(high * MARGIN, 2.0))
    return factors


def lost(codes: NDArray[Any], weights: NDArray[Any]) -> NDArray[np.int64]:
    """Returns what saturation adds to the exact sums of a product of matrices.

    Args:
        codes: Unsigned codes, shape (..., M, K).
        weights: Stored signed weights, shape (..., K, N).
    """
    if weights.ndim == 2:
        flat = codes.reshape(-1, codes.shape[-1])
        return _lost(flat, weights).reshape(*codes.shape[:-1], weights.shape[-1])
    stacked = np.broadcast_shapes(codes.shape[:-2], weights.shape[:-2])
    codes = np.broadcast_to(codes, (*stacked, *codes.shape[-2:]))
    weights = np.broadcast_to(weights, (*stacked, *weights.shape[-2:]))
    found = np.zeros((*stacked, codes.shape[-2], weights.shape[-1]), np.int64)
    for index in np.ndindex(*stacked):
        found[index] = _lost(codes[index], weights[index])
    return found


def _lost(codes: NDArray[Any], weights: NDArray[Any]) -> NDArray[np.int64]:
    found = np.zeros((len(codes), weights.shape[1]), np.int64)
    if not len(codes):
        return found
    a, pairs = codes.astype(np.int32), paired(weights.T)
    low, high = a.min(axis=0), a.max(axis=0)
    ends = [pairs * end[: pairs.shape[1] * 2].reshape(-1, 2) for end in (low, high)]
    info = np.iinfo(np.int16)
    suspects = np.maximum(*ends).sum(axis=-1) > info.max
    suspects |= np.minimum(*ends).sum(axis=-1) < info.min
    pairs = pairs.astype(np.int32)
    for place in np.flatnonzero(suspects.any(axis=0)):
        channels = np.flatnonzero(suspects[:, place])
        first, second = pairs[channels, place].T
        raw = a[:, 2 * place, None] * first + a[:, 2 * place + 1, None] * second
        found[:, channels] += np.clip(raw, info.min, info.max) - raw
    return found
