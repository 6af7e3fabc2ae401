"""One subgraph of a TFLite file on its way into a graph: its tensors as names of an assembly.

A quantized tensor is known by two names: its stored integers, and the real numbers they stand for
(a DequantizeLinear of them, added when first asked for). Operators compute on real numbers; their
results are quantized as their tensors say. So a TFLite file becomes the QDQ model that says the
same, and the canonical rules do the rest.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from qdqbridge.core.graph.dtypes import DType
from qdqbridge.core.graph.graph import Note
from qdqbridge.core.graph.types import Shape
from qdqbridge.errors import InvalidModelError, UnsupportedModelError
from qdqbridge.onnx_io.assembly import Assembly
from qdqbridge.tflite_io.schema import (
    DAMAGED,
    Model,
    Op,
    Sparsity,
    Subgraph,
    TFLiteQuantization,
    TFLiteTensor,
)

DTYPES: Mapping[str, DType] = {
    "FLOAT64": DType.FLOAT64, "FLOAT32": DType.FLOAT32, "FLOAT16": DType.FLOAT16,
    "BFLOAT16": DType.BFLOAT16, "INT64": DType.INT64, "INT32": DType.INT32, "INT16": DType.INT16,
    "INT8": DType.INT8, "INT4": DType.INT4, "INT2": DType.INT2, "UINT64": DType.UINT64,
    "UINT32": DType.UINT32, "UINT16": DType.UINT16, "UINT8": DType.UINT8, "UINT4": DType.UINT4,
    "BOOL": DType.BOOL,
}  # fmt: skip
"""Element types by TFLite's names; the others (complex, strings, resources) have no tensor here."""
_QUANTIZED = (DType.INT8, DType.UINT8, DType.INT16, DType.INT4, DType.INT2, DType.INT32)
_ACTIVATIONS: Mapping[int, tuple[str, float, float]] = {
    1: ("Relu", 0.0, 0.0), 2: ("Clip", -1.0, 1.0), 3: ("Clip", 0.0, 6.0),
}  # fmt: skip
_TANH, _SIGN_BIT = 4, 5

Row: TypeAlias = "Callable[[SubgraphConversion, Op], None]"
"""Adds the nodes of an operator and says what its results are."""


class UnknownForm(Exception):
    """An operator in a form without a counterpart; the message says which."""


@dataclass(slots=True)
class FileState:
    """What the subgraphs of a file share.

    Attributes:
        rows: What adds the nodes of an operator, by TFLite's name.
        notes: What somebody should know.
        refused: Operators without a counterpart, and why.
        resources: Tensors of variables: what they hold now, by name.
        initial: What the initializing subgraph has put into variables.
        called: The subgraphs that are open, each called by the one before.
        left: How many more operators may be added: subgraphs that call others twice, and these
            again, multiply.
    """

    model: Model
    rows: Mapping[str, Row]
    notes: list[Note] = field(default_factory=list[Note])
    refused: dict[tuple[str, str], list[str]] = field(
        default_factory=dict[tuple[str, str], list[str]]
    )
    resources: dict[str, Resource] = field(default_factory=dict[str, "Resource"])
    initial: dict[str, tuple[SubgraphConversion, int]] = field(
        default_factory=dict[str, "tuple[SubgraphConversion, int]"]
    )
    called: list[int] = field(default_factory=list[int])
    left: int = 0

    def __post_init__(self) -> None:
        own = sum(len(subgraph.ops) for subgraph in self.model.subgraphs)
        self.left = own + _MOST_INLINED


@dataclass(slots=True)
class Resource:
    """A variable that keeps its tensor from one run to the next: an input and an output more.

    Attributes:
        tensor: A tensor of its type.
        name: The input's name.
        stored: What it holds at this point of the program, as the file stores it.
    """

    tensor: TFLiteTensor
    name: str
    stored: str


_MOST_CALLS = 32
"""Subgraphs that may be open at a time."""
_MOST_INLINED = 1 << 14
"""Operators that calls of subgraphs may add beyond those that the file lists."""


class SubgraphConversion:
    """The operators of one subgraph, added to an assembly.

    Args:
        state: What all subgraphs share.
        to: Where its nodes go.
    """

    def __init__(self, state: FileState, subgraph: Subgraph, to: Assembly) -> None:
        self.state, self.subgraph, self.to = state, subgraph, to
        self.stored_names: dict[int, str] = {}
        self.real_names: dict[int, str] = {}
        self.arrays: dict[int, NDArray[Any]] = {}
        self.resources: dict[int, str] = {}
        """Handles of variables: the variable's name."""
        self.wide_names: dict[int, str] = {}
        """Indices that TFLite has in 32 bits and ONNX in 64: the latter."""

    # ---- running ------------------------------------------------------------------------------

    def run(self) -> None:
        """Adds every operator.

        Raises:
            InvalidModelError: One has not the operands, results or options that it takes.
        """
        self.state.left -= len(self.subgraph.ops)
        if self.state.left < 0:
            raise UnknownForm("its subgraphs call one another too often")
        for op in self.subgraph.ops:
            row = self.state.rows.get(op.name)
            try:
                if row is None:
                    raise UnknownForm("it has no counterpart")
                row(self, op)
            # All refusals are collected: the error at the end names every operator, and not the
            # first.
            except UnknownForm as refusal:
                first = self.subgraph.tensors[op.outputs[0]].label if op.outputs else ""
                self.state.refused.setdefault((op.name, str(refusal)), []).append(first)
                self._stand_in(op)
            except DAMAGED as error:
                raise InvalidModelError(
                    f"{op.name} has other operands, results or options than it takes",
                    where=f"{self.to.file}: operator {op.place} of '{self.subgraph.name}'",
                    why=str(error) or type(error).__name__,
                    fix="convert the model again",
                ) from error

    def _stand_in(self, op: Op) -> None:
        """Gives the results of a refused operator names, so that all others are looked at too."""
        for index in op.outputs:
            if index >= 0 and not self.known(index):
                self.stored_names[index] = self.to.name(self.tensor(index).name)

    def called(self, index: int, operands: Sequence[str], to: Assembly | None = None) -> list[str]:
        """Adds another subgraph's operators on operands as stored; returns its results as stored.

        Raises:
            UnknownForm: It does not exist, takes other operands, or calls itself.
        """
        if not 0 < index < len(self.state.model.subgraphs):
            raise UnknownForm(f"subgraph {index} does not exist")
        # A loop of calls would never end; TFLite's own loops have operators.
        if index in self.state.called:
            raise UnknownForm(f"subgraph {index} calls itself")
        if len(self.state.called) >= _MOST_CALLS:
            raise UnknownForm(f"more than {_MOST_CALLS} subgraphs call one another")
        body = self.state.model.subgraphs[index]
        if len(body.inputs) != len(operands):
            raise UnknownForm(f"subgraph {index} takes {len(body.inputs)} operands")
        # Its nodes go where the caller's go: a call without a condition is its body.
        inner = SubgraphConversion(self.state, body, to or self.to)
        inner.stored_names.update(zip(body.inputs, operands, strict=True))
        self.state.called.append(index)
        try:
            inner.run()
        finally:
            self.state.called.pop()
        return [inner.stored(i) for i in body.outputs]

    def note(self, rule: str, op: Op, reason: str) -> None:
        """Remarks something about an operator."""
        name = self.tensor(op.outputs[0]).label if op.outputs else op.name
        self.state.notes.append(Note(rule, name, reason, (name,)))

    def kept(self, op: Op, name: str, tensor: TFLiteTensor, beginning: str = "") -> Resource:
        """Returns what is kept from one run to the next: an input of the graph, and an output.

        Args:
            op: Who asks.
            name: Of what is kept.
            tensor: Its type.
            beginning: What it holds before the first run, in words.
        """
        found = self.state.resources.get(name)
        if found is None:
            shape = tensor.shape
            if shape is None or -1 in shape:
                raise UnknownForm("its variable's extents are open")
            given = self.to.input(name, self.dtype(tensor), shape)
            found = self.state.resources[name] = Resource(tensor, given, given)
            self.note(
                "state", op,
                f"the variable '{name}' is an input, and its next value an output: feed the one "
                "with the other" + beginning,
            )  # fmt: skip
        return found

    # ---- tensors ------------------------------------------------------------------------------

    def tensor(self, index: int) -> TFLiteTensor:
        """Returns a tensor's record."""
        if index < 0:
            raise UnknownForm("an operand is left out")
        return self.subgraph.tensors[index]

    def has(self, op: Op, place: int) -> bool:
        """Returns whether an operand is given."""
        return place < len(op.inputs) and op.inputs[place] >= 0

    def at(self, op: Op, place: int) -> TFLiteTensor:
        """Returns the record of an operand."""
        if not self.has(op, place):
            raise UnknownForm(f"operand {place} is left out")
        return self.tensor(op.inputs[place])

    def shape(self, index: int) -> tuple[int, ...]:
        """Returns a tensor's declared extents, -1 where open."""
        shape = self.tensor(index).shape
        if shape is None:
            raise UnknownForm(f"the rank of '{self.tensor(index).label}' is not known")
        return shape

    def rank(self, index: int) -> int:
        """Returns a tensor's number of axes."""
        return len(self.shape(index))

    def dtype(self, tensor: TFLiteTensor) -> DType:
        """Returns a tensor's element type."""
        dtype = DTYPES.get(tensor.type)
        if dtype is None:
            raise UnknownForm(f"'{tensor.label}' is {tensor.type}")
        return dtype

    def quantization(self, tensor: TFLiteTensor) -> TFLiteQuantization | None:
        """Returns the parameters of a tensor whose numbers are quantized."""
        if DTYPES.get(tensor.type) not in _QUANTIZED:
            return None
        return tensor.quantization if tensor.blocks is None else self._in_blocks(tensor)

    def _in_blocks(self, tensor: TFLiteTensor) -> TFLiteQuantization:
        """Returns the parameters of blocks along the last axis, which are tensors."""
        blocks, shape = tensor.blocks, tensor.shape or ()
        assert blocks is not None
        if blocks.size < 1 or not shape or shape[-1] % blocks.size:
            raise UnknownForm(f"'{tensor.label}' is quantized along several axes")
        found = [shape[-1] // blocks.size]
        scale, zero_point = (
            None if at < 0 else self.array(at) for at in (blocks.scales, blocks.zero_points)
        )
        if scale is None or scale.size != math.prod(shape[:-1]) * found[0]:
            raise UnknownForm(f"the scales of the blocks of '{tensor.label}' do not fit")
        if zero_point is None:
            zero_point = np.zeros(scale.shape, np.int64)
        if blocks.zero_points >= 0 and zero_point.size != scale.size:
            raise UnknownForm(f"the zero points of the blocks of '{tensor.label}' do not fit")
        of_blocks = (*shape[:-1], *found)
        return TFLiteQuantization(
            scale.astype(np.float32).reshape(of_blocks),
            zero_point.astype(np.int64).reshape(of_blocks),
            len(shape) - 1,
            blocks.size,
        )

    def known(self, index: int) -> bool:
        """Returns whether a tensor is given or has been computed."""
        return index in self.stored_names or index in self.real_names

    def array(self, index: int) -> NDArray[Any] | None:
        """Returns the elements of a constant, None where it is none."""
        tensor = self.tensor(index)
        if self.known(index) and index not in self.arrays and tensor.offset is None:
            return None
        if index not in self.arrays:
            if tensor.offset is None or tensor.variable:
                return None
            self.arrays[index] = _elements(tensor, self.dtype(tensor), self.state.model.data)
        return self.arrays[index]

    def numbers(self, op: Op, place: int) -> list[int]:
        """Returns an operand that has to be constant integers."""
        array = self.array(self.at(op, place).index)
        if array is None:
            raise UnknownForm(f"operand {place} is computed while the model runs")
        return [int(i) for i in array.reshape(-1)]

    def stored(self, index: int) -> str:
        """Returns a tensor's elements as the file stores them."""
        if index not in self.stored_names:
            tensor = self.tensor(index)
            if index in self.real_names:
                self.stored_names[index] = self.quantized(self.real_names[index], tensor)
            else:
                self.stored_names[index] = self._constant(tensor)
        return self.stored_names[index]

    def real(self, index: int) -> str:
        """Returns a tensor's real numbers: of a quantized one, its integers dequantized."""
        if index not in self.real_names:
            tensor = self.tensor(index)
            self.real_names[index] = self.dequantized(self.stored(index), tensor)
        return self.real_names[index]

    def operands(self, op: Op) -> list[str]:
        """Returns the real numbers of all operands, empty names for those left out."""
        return [self.real(i) if i >= 0 else "" for i in op.inputs]

    def float_of(self, index: int) -> str:
        """Returns a tensor as float32: real numbers, half floats widened."""
        name, tensor = self.real(index), self.tensor(index)
        if tensor.type in ("FLOAT16", "BFLOAT16"):
            return self.cast(name, DType.FLOAT32)
        return name

    def longs(self, numbers: NDArray[Any] | Iterable[int]) -> str:
        """Returns a constant vector of int64."""
        listed = numbers if isinstance(numbers, np.ndarray) else list(numbers)
        return self.to.constant(np.asarray(listed, np.int64))

    def long(self, op: Op, place: int) -> str:
        """Returns an integer operand as int64, as ONNX wants sizes and indices."""
        tensor = self.at(op, place)
        array = self.array(tensor.index)
        if array is not None:
            return self.to.constant(array.astype(np.int64))
        name = self.stored(tensor.index)
        return name if tensor.type == "INT64" else self.cast(name, DType.INT64)

    def cast(self, name: str, dtype: DType) -> str:
        """Returns a tensor in another element type."""
        return self.to.node("Cast", [name], to=_CODES[dtype])

    def put(self, op: Op, result: str, place: int = 0) -> None:
        """Says what real numbers a result has; a quantized tensor's are quantized."""
        index = op.outputs[place]
        if index < 0:
            return
        tensor = self.tensor(index)
        if self.quantization(tensor) is None:
            self.stored_names[index] = self.real_names[index] = result
            return
        self.stored_names[index] = self.quantized(result, tensor)

    def put_stored(self, op: Op, result: str, place: int = 0) -> None:
        """Says what a result's elements are, as the file stores them."""
        self.stored_names[op.outputs[place]] = result

    def activated(self, result: str, op: Op, kind: int) -> str:
        """Returns a result behind its fused activation, TFLite's number ``kind``."""
        if kind in _ACTIVATIONS:
            name, low, high = _ACTIVATIONS[kind]
            if name == "Relu":
                return self.to.node("Relu", [result], label=self.label(op))
            bounds = [self.to.constant(np.float32(low)), self.to.constant(np.float32(high))]
            return self.to.node("Clip", [result, *bounds], label=self.label(op))
        if kind == _TANH:
            return self.to.node("Tanh", [result], label=self.label(op))
        if kind == _SIGN_BIT:
            raise UnknownForm("its fused activation is SIGN_BIT")
        return result

    def label(self, op: Op) -> str:
        """Returns the name that an operator's nodes have: of its first result."""
        return self.tensor(op.outputs[0]).name if op.outputs else ""

    # ---- quantization -------------------------------------------------------------------------

    def _constant(self, tensor: TFLiteTensor) -> str:
        if tensor.variable:
            raise UnknownForm(f"'{tensor.label}' keeps its data from one run to the next")
        if tensor.offset is None and 0 not in (tensor.shape or (1,)):
            raise UnknownForm(f"'{tensor.label}' has no data and nothing computes it")
        dtype, shape = self.dtype(tensor), self.shape(tensor.index)
        if tensor.offset is None:
            return self.to.constant(np.zeros(shape, dtype.numpy), tensor.name or "constant")
        data = self.state.model.data
        if tensor.sparsity is not None:
            self.arrays[tensor.index] = _elements(tensor, dtype, data)
            return self.to.constant(self.arrays[tensor.index], tensor.name or "constant")
        _check_size(tensor, dtype)
        return self.to.stored(tensor.name, dtype, shape, data, tensor.offset, tensor.nbytes)

    def _params(self, tensor: TFLiteTensor, params: TFLiteQuantization) -> tuple[list[str], int]:
        """Returns the operands of Q and DQ behind the data, and their axis."""
        dtype = self.dtype(tensor)
        scale, zero_point = params.scale, params.zero_point
        # ONNX says per tensor by rank 0; a vector of one entry would be per axis.
        if params.per_tensor and not params.block_size:
            scale, zero_point = scale.reshape(()), zero_point.reshape(())
        # TFLite has zero points in 64 bits, and files are not trusted: a cast would wrap.
        if not (dtype.qmin <= zero_point.min() and zero_point.max() <= dtype.qmax):
            raise UnknownForm(f"a zero point of '{tensor.label}' does not fit {dtype}")
        stored = zero_point.astype(np.int64).astype(dtype.numpy)
        return [self.to.constant(scale), self.to.constant(stored)], params.axis

    def dequantized(self, stored: str, tensor: TFLiteTensor) -> str:
        """Returns the real numbers of what is stored as a tensor says."""
        params = self.quantization(tensor)
        return stored if params is None else self._dequantized(stored, tensor, params)

    def _dequantized(self, stored: str, tensor: TFLiteTensor, params: TFLiteQuantization) -> str:
        operands, axis = self._params(tensor, params)
        blocks: dict[str, Any] = {"block_size": params.block_size} if params.block_size else {}
        return self.to.node(
            "DequantizeLinear", [stored, *operands], label=tensor.name, axis=axis, **blocks
        )

    def quantized(self, real: str, tensor: TFLiteTensor) -> str:
        """Returns real numbers as a tensor stores them."""
        params = self.quantization(tensor)
        if params is None:
            return real
        if tensor.type == "INT32":
            raise UnknownForm(f"'{tensor.label}' is quantized to int32 while the model runs")
        operands, axis = self._params(tensor, params)
        return self.to.node(
            "QuantizeLinear", [real, *operands], label=tensor.name, result=tensor.name, axis=axis
        )


_CODES: Mapping[DType, int] = {
    DType.FLOAT32: 1, DType.UINT8: 2, DType.INT8: 3, DType.UINT16: 4, DType.INT16: 5,
    DType.INT32: 6, DType.INT64: 7, DType.BOOL: 9, DType.FLOAT16: 10, DType.FLOAT64: 11,
    DType.UINT32: 12, DType.UINT64: 13, DType.BFLOAT16: 16,
}  # fmt: skip
"""ONNX's numbers of element types that a Cast gives."""


def _check_size(tensor: TFLiteTensor, dtype: DType) -> None:
    count = int(np.prod(tensor.shape or (), dtype=object))
    wanted = (count * dtype.bits + 7) // 8
    if wanted != tensor.nbytes:
        raise UnknownForm(
            f"'{tensor.label}' has {tensor.nbytes} bytes of data, its shape takes {wanted}"
        )


def _elements(tensor: TFLiteTensor, dtype: DType, data: bytes) -> NDArray[Any]:
    assert tensor.offset is not None
    raw = np.frombuffer(data, np.uint8, tensor.nbytes, tensor.offset)
    if tensor.sparsity is not None:
        return densified(raw.view(dtype.numpy), tensor.shape or (), tensor.sparsity)
    _check_size(tensor, dtype)
    if dtype.bits < 8:
        raise UnknownForm(f"'{tensor.label}' is packed {dtype} where plain numbers are wanted")
    return raw.view(dtype.numpy).reshape(tensor.shape or ())


def refuse(state: FileState, where: str) -> None:
    """Raises for all operators that had no counterpart.

    Raises:
        UnsupportedModelError: There are any; all of them are listed.
    """
    if not state.refused:
        return
    lines = [
        f"{name} ({len(found)}, '{found[0]}'): {why}"
        for (name, why), found in state.refused.items()
    ]
    raise UnsupportedModelError(
        "operators of the TFLite file have no counterpart",
        where=where,
        why="; ".join(lines),
        fix="convert the model to ONNX from its source, or replace these operators",
    )


# ---- Sparse constants of TFLite files made dense

_MOST, _SPARSEST = 1 << 22, 100
"""A dense tensor may have so many elements, and so many for each that is stored."""


def densified(values: NDArray[Any], shape: tuple[int, ...], sparsity: Sparsity) -> NDArray[Any]:
    """Returns the dense array of a sparse constant.

    Source: TFLite's ``SparsityParameters``: the levels of a storage tree in traversal order, dense
    or compressed (as in TACO); levels after the tensor's rank are the insides of blocks.

    Args:
        values: The stored elements.
        shape: The tensor's extents.
        sparsity: How they lie.

    Raises:
        ValueError: The description makes no sense.
    """
    rank = len(shape)
    order, blocks = sparsity.traversal, sparsity.block_map
    if len(order) != len(sparsity.dimensions) or sorted(order) != list(range(len(order))):
        raise ValueError("the levels of a sparse tensor do not fit its traversal order")
    if len(order) != rank + len(blocks) or any(not 0 <= b < rank for b in blocks):
        raise ValueError("the blocks of a sparse tensor do not fit its rank")
    sizes = {
        rank + place: sparsity.dimensions[order.index(rank + place)][0]
        for place in range(len(blocks))
    }
    count = int(np.prod(shape, dtype=object))
    # A few bytes of a file could ask for all memory otherwise.
    if count > _MOST + _SPARSEST * values.size:
        raise ValueError(f"a sparse tensor of {values.size} elements would have {count}")
    positions = np.zeros((1, len(order)), np.int64)
    """Of every entry of the level, its index along the levels so far."""
    for level, axis in enumerate(order):
        size, segments, indices = sparsity.dimensions[level]
        if segments is None or indices is None:
            # Checked before the array is made, since it grows with every level.
            if len(positions) * size > count:
                raise ValueError("a sparse tensor has fewer elements than its levels say")
            inner = np.tile(np.arange(size), len(positions))
            positions = np.repeat(positions, size, axis=0)
        else:
            if len(segments) != len(positions) + 1 or (np.diff(segments) < 0).any():
                raise ValueError("the segments of a sparse tensor do not fit")
            if segments[0] != 0 or segments[-1] != len(indices) or len(indices) > values.size:
                raise ValueError("the indices of a sparse tensor do not fit")
            inner = indices
            positions = np.repeat(positions, np.diff(segments), axis=0)
        positions[:, axis] = inner
    if len(positions) != values.size:
        raise ValueError("a sparse tensor has other elements than its levels say")
    places = [positions[:, axis].copy() for axis in range(rank)]
    for place, axis in enumerate(blocks):
        # The levels behind the tensor's axes are places inside a block.
        places[axis] = places[axis] * sizes[rank + place] + positions[:, rank + place]
    for axis, extent in enumerate(shape):
        if places[axis].size and not 0 <= places[axis].min() <= places[axis].max() < extent:
            raise ValueError("an element of a sparse tensor lies outside of it")
    dense = np.zeros(shape, values.dtype)
    dense[tuple(places)] = values
    return dense


# ---- Names of open extents in a TFLite file, which has -1 for each of them and no names ----------
# Two inputs that share their batch would come back with two batches. So a file that we write says
# the names in its metadata; LiteRT and Vela pass over what they do not know.


METADATA_NAME = "qdqbridge.open_extents"
"""The entry of a file's metadata."""
_MOST_NAMED = 1 << 16
"""Bytes of the entry; a damaged file may claim more."""


def encoded(shapes: Iterable[Shape]) -> bytes | None:
    """Returns the metadata of inputs of these shapes; None where no extent is open."""
    names = [
        [extent if isinstance(extent, str) else "" for extent in shape or ()] for shape in shapes
    ]
    return json.dumps(names).encode() if any(any(each) for each in names) else None


def named(metadata: Mapping[str, memoryview], shapes: Iterable[Shape]) -> list[Shape]:
    """Returns the inputs' shapes with the names that a file says, where it says fitting ones."""
    given = list(shapes)
    data = metadata.get(METADATA_NAME)
    found = None if data is None or len(data) > _MOST_NAMED else _decoded(bytes(data))
    if found is None or len(found) != len(given):
        return given
    return [_name_symbolic_extents(shape, names) for shape, names in zip(given, found, strict=True)]


def _name_symbolic_extents(shape: Shape, names: list[str]) -> Shape:
    if shape is None or len(shape) != len(names):
        return shape
    return tuple(
        name if isinstance(extent, str) and name else extent
        for extent, name in zip(shape, names, strict=True)
    )


def _decoded(data: bytes) -> list[list[str]] | None:
    try:
        found: Any = json.loads(data)
    except (ValueError, RecursionError):  # no JSON: somebody else's, or damaged
        return None
    if not isinstance(found, list):
        return None
    rows: list[list[str]] = []
    for row in found:  # pyright: ignore[reportUnknownVariableType]
        if not isinstance(row, list) or not all(
            isinstance(name, str)
            for name in row  # pyright: ignore[reportUnknownVariableType]
        ):
            return None
        rows.append([str(name) for name in row])  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType]
    return rows
