"""A TFLite flatbuffer as plain records, every offset and length checked against the file.

The package ``tflite`` (generated from TFLite's schema) decodes tables; flatbuffers' Python runtime
verifies nothing, so that a damaged file may ask for vectors longer than itself, or for one table
over and over. Here a vector must fit into the file, and no more tables are visited than the file
has room for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from importlib import import_module
from struct import error as truncated
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from qdqbridge.errors import InvalidModelError, ModelFileError, UnsupportedModelError

_IDENTIFIER = b"TFL3"
_SMALLEST_TABLE = 4
"""Bytes of the smallest table: the offset to its description."""
DAMAGED = (truncated, ValueError, IndexError, TypeError, OverflowError, ZeroDivisionError)
"""What flatbuffers' runtime and arithmetic raise where a file's offsets and numbers are wrong."""
_CUSTOM = 32
_LATER_TYPES = {19: "INT2", 20: "UINT4", 21: "FLOAT8_E4M3FN", 22: "FLOAT8_E5M2"}
"""Element types that the schema has got since the package ``tflite`` was made of it."""
_BLOCKWISE, _MULTI_AXIS = 2, 3
"""Kinds of ``QuantizationDetails``; the package knows neither."""
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class TFLiteQuantization:
    """A tensor's scales and zero points: one each, or one per index along ``axis``.

    With ``block_size`` there is one for so many neighbours along ``axis``, for each index of the
    other axes.
    """

    scale: NDArray[np.float32]
    zero_point: NDArray[np.int64]
    axis: int
    block_size: int = 0

    @property
    def per_tensor(self) -> bool:
        """One scale for the whole tensor."""
        return self.scale.size == 1


@dataclass(frozen=True, slots=True)
class Sparsity:
    """How a sparse constant is laid out (TFLite's ``SparsityParameters``)."""

    traversal: tuple[int, ...]
    block_map: tuple[int, ...]
    dimensions: tuple[tuple[int, NDArray[Any] | None, NDArray[Any] | None], ...]
    """For each level its dense size, or its segments and indices where it is compressed."""


@dataclass(frozen=True, slots=True)
class QuantizedBlocks:
    """Where the parameters of blocks are: tensors of their own (``BlockwiseQuantization``).

    Attributes:
        scales: The tensor of scales, of the shape of the blocks.
        zero_points: That of zero points; below 0 where all are 0.
        size: Elements along the last axis for one scale; 0 where blocks are of another kind.
    """

    scales: int
    zero_points: int
    size: int


@dataclass(frozen=True, slots=True)
class TFLiteTensor:
    """A tensor of a subgraph.

    Attributes:
        index: Its place in the subgraph.
        name: Its name, possibly empty or not unique.
        type: The element type as TFLite names it, ``INT8`` say.
        shape: Its extents; -1 where they are open; None where even the rank is unknown.
        offset: Where its data lies in the file; None for what is computed or given.
        nbytes: How many bytes that are.
        quantization: Its parameters; None for tensors that are not quantized.
        sparsity: How its data are laid out, where they are sparse.
        variable: It keeps its data from one run to the next.
        blocks: Where its parameters are, if it is quantized in blocks.
    """

    index: int
    name: str
    type: str
    shape: tuple[int, ...] | None
    offset: int | None
    nbytes: int
    quantization: TFLiteQuantization | None
    sparsity: Sparsity | None
    variable: bool
    blocks: QuantizedBlocks | None = None

    @property
    def label(self) -> str:
        """A name for messages."""
        return self.name or f"#{self.index}"


@dataclass(frozen=True, slots=True)
class Op:
    """One application of an operator; ``options`` is a decoded table of the schema's package."""

    name: str
    version: int
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    options: Any
    custom: bytes
    intermediates: tuple[int, ...]
    place: int

    def option(self, name: str, default: Any = 0) -> Any:
        """Returns an option by its accessor's name; the default where the operator has no options.

        Raises:
            ValueError: It has the options of another operator.
        """
        if self.options is None:
            return default
        accessor = getattr(self.options, name, None)
        if accessor is None:
            raise ValueError(f"its options, {type(self.options).__name__}, have no {name}")
        return accessor()


@dataclass(frozen=True, slots=True)
class Subgraph:
    """The tensors and operators of one function; the first is the model."""

    name: str
    tensors: tuple[TFLiteTensor, ...]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    ops: tuple[Op, ...]


@dataclass(slots=True)
class Model:
    """A whole file.

    Attributes:
        data: Its bytes.
        subgraphs: The functions, the model itself first.
        description: What its converter wrote.
        signatures: Per subgraph, its tensors' names in the first signature that runs it.
        metadata: What the file says beside its graphs, by name.
    """

    data: bytes
    subgraphs: tuple[Subgraph, ...]
    description: str
    signatures: dict[int, dict[int, str]] = field(default_factory=dict[int, dict[int, str]])
    metadata: dict[str, memoryview] = field(default_factory=dict[str, memoryview])


def parsed(data: bytes, where: str) -> Model:
    """Decodes a file.

    Args:
        data: Its bytes.
        where: Its name, for messages.

    Raises:
        ModelFileError: It is no TFLite file, or a damaged one.
        InvalidModelError: It names tensors or operators that it does not have.
        UnsupportedModelError: The package ``tflite`` is not installed.
    """
    if data[4:8] != _IDENTIFIER:
        raise ModelFileError(
            "it is no TFLite file",
            where=where,
            why=f"bytes 4 to 8 are {data[4:8]!r}, not {_IDENTIFIER!r}",
            fix="give a .tflite file of TensorFlow 2 or LiteRT",
        )
    schema = _schema()
    try:
        return _FlatbufferParser(data, schema, where).model()
    except DAMAGED as error:
        why = str(error) or type(error).__name__
        raise ModelFileError("the TFLite file is damaged", where=where, why=why) from error


def _schema() -> Any:
    try:
        return import_module("tflite")
    except ModuleNotFoundError as error:
        raise UnsupportedModelError(
            "reading TFLite files needs tflite, which is not installed",
            why=str(error),
            fix="pip install tflite",
        ) from error


class _FlatbufferParser:
    def __init__(self, data: bytes, schema: Any, where: str) -> None:
        self.data, self.schema, self.where = data, schema, where
        self.left = len(data) // _SMALLEST_TABLE
        """Tables that may still be visited: each takes some bytes of its own."""

    @cached_property
    def operators(self) -> dict[int, str]:
        return _enum(self.schema.BuiltinOperator)

    @cached_property
    def types(self) -> dict[int, str]:
        return {**_LATER_TYPES, **_enum(self.schema.TensorType)}

    def model(self) -> Model:
        root = self.schema.Model.GetRootAsModel(self.data, 0)
        codes = [self._code(code) for code in self._each(root, "OperatorCodes")]
        buffers = [self._extent(buffer) for buffer in self._each(root, "Buffers")]
        subgraphs = tuple(
            self._subgraph(graph, codes, buffers) for graph in self._each(root, "Subgraphs")
        )
        if not subgraphs:
            raise ModelFileError("the TFLite file holds no graph", where=self.where)
        model = Model(self.data, subgraphs, _text(root.Description()))
        for signature in self._each(root, "SignatureDefs"):
            names = model.signatures.setdefault(int(signature.SubgraphIndex()), {})
            for kind in ("Inputs", "Outputs"):
                for entry in self._each(signature, kind):
                    names.setdefault(int(entry.TensorIndex()), _text(entry.Name()))
        for entry in self._each(root, "Metadata"):
            extent = buffers[int(entry.Buffer())]
            if extent is not None:
                model.metadata[_text(entry.Name())] = memoryview(self.data)[extent[0] : sum(extent)]
        return model

    # ---- vectors ------------------------------------------------------------------------------

    def _each(self, table: Any, name: str) -> Iterator[Any]:
        """Yields the tables of a vector of tables."""
        if not hasattr(table, f"{name}Length"):
            return
        count = self._fits(int(getattr(table, f"{name}Length")()), 4)
        # Offsets may point backwards or at one table many times: a small file could be visited
        # without end.
        self.left -= count
        if self.left < 0:
            raise ValueError("it visits more tables than it has bytes for")
        at: Callable[[int], Any] = getattr(table, name)
        for index in range(count):
            entry = at(index)
            if entry is not None:
                yield entry

    def _ints(self, table: Any, name: str) -> tuple[int, ...]:
        return tuple(int(i) for i in self._array(table, name))

    def _array(self, table: Any, name: str) -> NDArray[Any]:
        self._fits(int(getattr(table, f"{name}Length")()), 1)
        array = getattr(table, f"{name}AsNumpy")()
        return np.zeros(0, np.int32) if isinstance(array, int) else np.asarray(array)

    def _fits(self, count: int, size: int) -> int:
        if count * size > len(self.data):
            raise ValueError(f"a vector of {count} entries is longer than the file")
        return count

    # ---- records ------------------------------------------------------------------------------

    def _code(self, code: Any) -> tuple[str, int]:
        # the package gives the old field where the new one has a number that fits it, but newer
        # tools leave the old one out
        number = max(_int_field(code, 10), int(code.DeprecatedBuiltinCode()))
        if number == _CUSTOM:
            return f"CUSTOM {_text(code.CustomCode())}", int(code.Version())
        return self.operators.get(number, f"operator {number}"), int(code.Version())

    def _extent(self, buffer: Any) -> tuple[int, int] | None:
        """Returns where a buffer's bytes lie, None where it has none."""
        table = buffer._tab
        field_ = table.Offset(4)
        if field_:
            start, length = int(table.Vector(field_)), int(table.VectorLen(field_))
        else:
            start, length = self._outside(buffer)
        if length == 0:
            return None
        if not 0 <= start <= start + length <= len(self.data):
            raise ValueError(f"a buffer of {length} bytes lies outside of the file")
        return start, length

    @staticmethod
    def _outside(buffer: Any) -> tuple[int, int]:
        """Data behind the flatbuffer, as files over 2 GB keep it."""
        if not hasattr(buffer, "Offset"):
            return 0, 0
        offset, size = int(buffer.Offset()), int(buffer.Size())
        return (offset, size) if offset > 1 else (0, 0)

    def _subgraph(
        self, graph: Any, codes: list[tuple[str, int]], buffers: list[tuple[int, int] | None]
    ) -> Subgraph:
        tensors = tuple(
            self._tensor(index, tensor, buffers)
            for index, tensor in enumerate(self._each(graph, "Tensors"))
        )
        ops = tuple(
            self._op(place, op, codes) for place, op in enumerate(self._each(graph, "Operators"))
        )
        made = Subgraph(
            _text(graph.Name()), tensors, self._ints(graph, "Inputs"),
            self._ints(graph, "Outputs"), ops,
        )  # fmt: skip
        named = [*made.inputs, *made.outputs]
        for op in ops:
            named += [*op.inputs, *op.outputs]
        for index in named:
            # -1 stands for an operand that is left out.
            if not -1 <= index < len(tensors):
                raise InvalidModelError(
                    f"tensor {index} does not exist",
                    where=self.where,
                    why=f"its graph has {len(tensors)} tensors",
                    fix="convert the model again",
                )
        return made

    def _tensor(
        self, index: int, tensor: Any, buffers: list[tuple[int, int] | None]
    ) -> TFLiteTensor:
        buffer = int(tensor.Buffer())
        if buffer >= len(buffers):
            raise ValueError(f"buffer {buffer} does not exist")
        extent = buffers[buffer]
        shape: tuple[int, ...] | None = self._ints(tensor, "Shape")
        # Converters write 1 for an open extent into the shape, and -1 into the signature.
        signature = self._ints(tensor, "ShapeSignature")
        if signature and len(signature) == len(shape or ()):
            shape = signature
        if not shape and not tensor.HasRank() and extent is None:
            shape = None if self._unranked(tensor) else ()
        return TFLiteTensor(
            index,
            _text(tensor.Name()),
            self.types.get(int(tensor.Type()), str(tensor.Type())),
            shape,
            None if extent is None else extent[0],
            0 if extent is None else extent[1],
            self._quantization(tensor.Quantization()),
            self._sparsity(tensor.Sparsity()),
            bool(tensor.IsVariable()),
            self._blocks(tensor.Quantization()),
        )

    @staticmethod
    def _unranked(tensor: Any) -> bool:
        """A vector of no extents is a scalar; no vector at all may be anything."""
        return bool(tensor.ShapeIsNone())

    def _quantization(self, found: Any) -> TFLiteQuantization | None:
        if found is None or found.ScaleLength() == 0:
            return None
        scale = self._array(found, "Scale").astype(np.float32)
        zero_point = self._array(found, "ZeroPoint").astype(np.int64)
        # A file may leave zeros out.
        if zero_point.size == 0:
            zero_point = np.zeros(scale.shape, np.int64)
        if zero_point.size not in (1, scale.size):
            raise ValueError(f"{scale.size} scales have {zero_point.size} zero points")
        zero_point = np.broadcast_to(zero_point, scale.shape)
        return TFLiteQuantization(scale, zero_point, int(found.QuantizedDimension()))

    @staticmethod
    def _blocks(found: Any) -> QuantizedBlocks | None:
        if found is None:
            return None
        kind, details = int(found.DetailsType()), found.Details()
        if details is None or kind not in (_BLOCKWISE, _MULTI_AXIS):
            return None
        if kind == _MULTI_AXIS:
            return QuantizedBlocks(-1, -1, 0)
        scales, zero_points, size = (_int_field(details, at) for at in (4, 6, 8))
        return QuantizedBlocks(scales, zero_points, size)

    def _sparsity(self, found: Any) -> Sparsity | None:
        if found is None:
            return None
        dimensions = tuple(self._level(level) for level in self._each(found, "DimMetadata"))
        return Sparsity(
            self._ints(found, "TraversalOrder"), self._ints(found, "BlockMap"), dimensions
        )

    def _level(self, level: Any) -> tuple[int, NDArray[Any] | None, NDArray[Any] | None]:
        if int(level.Format()) == 0:
            return int(level.DenseSize()), None, None
        found: list[NDArray[Any]] = []
        for name in ("ArraySegments", "ArrayIndices"):
            kind = int(getattr(level, f"{name}Type")())
            vector = (None, "Int32Vector", "Uint16Vector", "Uint8Vector")[kind]
            if vector is None:
                raise ValueError("a compressed dimension has no indices")
            table = getattr(self.schema, vector)()
            union = getattr(level, name)()
            table.Init(union.Bytes, union.Pos)
            found.append(self._array(table, "Values").astype(np.int64))
        return 0, found[0], found[1]

    def _op(self, place: int, op: Any, codes: list[tuple[str, int]]) -> Op:
        name, version = codes[int(op.OpcodeIndex())]
        custom = self._array(op, "CustomOptions").astype(np.uint8).tobytes()
        return Op(
            name,
            version,
            self._ints(op, "Inputs"),
            self._ints(op, "Outputs"),
            self._options(op),
            custom,
            self._ints(op, "Intermediates"),
            place,
        )

    def _options(self, op: Any) -> Any:
        for union, kind, kinds in (
            (op.BuiltinOptions(), op.BuiltinOptionsType(), self._kinds),
            (op.BuiltinOptions2(), op.BuiltinOptions2Type(), self._kinds2),
        ):
            name = kinds.get(int(kind), "NONE")
            if union is not None and name != "NONE":
                table = getattr(self.schema, name)()
                table.Init(union.Bytes, union.Pos)
                return table
        return None

    @cached_property
    def _kinds(self) -> dict[int, str]:
        return _enum(self.schema.BuiltinOptions)

    @cached_property
    def _kinds2(self) -> dict[int, str]:
        return _enum(self.schema.BuiltinOptions2)


def _int_field(table: Any, place: int) -> int:
    """Returns an int32 of a table by its place, 0 where it is left out."""
    from flatbuffers.number_types import Int32Flags

    inner = getattr(table, "_tab", table)
    offset = inner.Offset(place)
    return int(inner.Get(Int32Flags, inner.Pos + offset)) if offset else 0


def _enum(names: Any) -> dict[int, str]:
    members: dict[str, Any] = dict(vars(names))
    return {value: key for key, value in members.items() if isinstance(value, int)}


def _text(raw: bytes | None) -> str:
    return bytes(raw or b"").decode("utf-8", "replace")
