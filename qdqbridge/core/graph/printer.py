"""The deterministic text form of a graph, and its SHA-256: the digest.

It says everything that the graph's results depend on and nothing else: no names, no provenance,
no derived shapes. Floats are written in hexadecimal, so they are exact; long constants are written
as a hash of their elements. The first line is the version of the form.

The complete form says what the digest only depends on, so that it can be read back
(:mod:`qdqbridge.core.text`): the names of inputs, outputs and extents, every shape, the nodes that
a graph carries, and the elements of long constants behind their hash, or in a mapping by hash.
"""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Callable, MutableMapping
from dataclasses import fields
from enum import Enum
from typing import Any, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from qdqbridge.core.graph.constant import parts
from qdqbridge.core.graph.dtypes import DType
from qdqbridge.core.graph.graph import Graph, Node, Value
from qdqbridge.core.graph.operator import UNSAID, Attributes, Serialized
from qdqbridge.core.graph.types import NestedType, QuantParams, QuantType, Shape, ValueType
from qdqbridge.errors import InputDataError

# ---- ids of tensors that do not depend on how a file is stored or its nodes are numbered ---------


def tensor_id(value: Value) -> str:
    """Returns the stable id of a tensor.

    It is made of the tensor's name, the operator that computes it and which result it is.
    """
    return id_of(value.name, *origin_of(value))


def id_of(name: str, operator: str, index: int) -> str:
    """Returns the id of the result ``index`` of an operator; a graph input has none, so ``""``."""
    return hashlib.sha256(f"{name}\0{operator}\0{index}".encode()).hexdigest()[:16]


def origin_of(value: Value) -> tuple[str, int]:
    """Returns the operator that computes a value, and which of its results it is."""
    if value.producer is None:
        return "", 0
    return value.producer.op.name, value.producer.outputs.index(value)


VERSION = "qnn-canonical 4"
RAW_VERSION = "qnn-raw 1"
_SHORT, _SHORT_COMPLETE = 4, 16
_PLAIN_NAME = re.compile(r"[^\W\d]\w*", re.ASCII)
_PLAIN_OP = re.compile(r"[^\W\d][\w.:/-]*", re.ASCII)
Weights: TypeAlias = "MutableMapping[str, NDArray[Any]] | Literal['inline'] | None"
"""Where long constants go: behind their hash, into a mapping by hash, or nowhere (the digest)."""


def text(graph: Graph, weights: Weights = None) -> str:
    """Returns the text form of ``graph``, the complete one where ``weights`` go somewhere.

    Raises:
        InputDataError: ``weights`` are something else.
    """
    known = weights is None or isinstance(weights, MutableMapping)
    if not known and not (isinstance(weights, str) and weights == "inline"):
        raise InputDataError(
            "a text cannot put its weights there", why=f"they are to go to {weights!r:.60}",
            fix="give a mapping, 'inline' or None",
        )  # fmt: skip
    printer = _Printer() if weights is None else _CompletePrinter(weights)
    outputs = zip(graph.outputs, graph.output_names, strict=True)
    lines = [VERSION if graph.canonical else RAW_VERSION]
    lines += [printer.input(value) for value in graph.inputs]
    lines += [printer.node(node) for node in graph.nodes]
    lines += [f"output {printer.use(value)}{printer.named(name)}" for value, name in outputs]
    return "\n".join(lines) + "\n"


class _Printer:
    """Writes what the digest is made of."""

    def __init__(self) -> None:
        self.numbers: dict[Value, str] = {}
        self.dims: dict[str, str] = {}
        self.known_params: dict[QuantParams, str] = {}

    def input(self, value: Value) -> str:
        named = f"{self.define(value)}{self.named(value.name)}"
        return f"input {named}: {self.type(value.type, shape=True)}"

    def define(self, value: Value) -> str:
        return self.numbers.setdefault(value, f"%{len(self.numbers)}")

    def named(self, name: str) -> str:
        del name  # the digest does not depend on it
        return ""

    def use(self, value: Value | None) -> str:
        if value is None:
            return "_"
        if value.constant is not None:
            type_ = self.type(value.type, shape=True)
            said = f"const {type_} {self.elements(value.constant.numpy())}"
            # Its elements are in the file as well: a digest holds one constant in memory at a time.
            value.constant.release()
            return said
        return self.numbers[value]

    def node(self, node: Node) -> str:
        operands = ", ".join(self.use(value) for value in node.inputs)
        results = ", ".join(self.define(value) for value in node.outputs)
        types = ", ".join(self.result(value.type) for value in node.outputs)
        attributes = self.attributes(node.attributes)
        return f"{results} = {self.operator(node.op.name)}({operands}){attributes}: {types}"

    def operator(self, name: str) -> str:
        return name

    def attributes(self, attributes: Attributes) -> str:
        return attributes_text(attributes)

    def result(self, type_: ValueType) -> str:
        return self.type(type_)

    def type(self, type_: ValueType, *, shape: bool = False) -> str:
        if isinstance(type_, NestedType):
            return str(type_)
        element = self.params(type_.params) if isinstance(type_, QuantType) else str(type_.dtype)
        return element + (self.shape(type_.shape) if shape else "")

    def params(self, params: QuantParams) -> str:
        if params not in self.known_params:
            self.known_params[params] = params_text(params)
        return self.known_params[params]

    def elements(self, array: NDArray[Any]) -> str:
        return elements(array)

    def shape(self, shape: Shape) -> str:
        if shape is None:
            return "[*]"
        return "[" + ",".join(self.dim(dim) for dim in shape) + "]"

    def dim(self, dim: int | str) -> str:
        if isinstance(dim, int):
            return str(dim)
        # Numbered as they are met: the digest does not depend on what a file calls an open extent.
        return self.dims.setdefault(dim, f"d{len(self.dims)}")


class _CompletePrinter(_Printer):
    """Writes what can be read back; constants of the same bytes are written once."""

    def __init__(self, weights: MutableMapping[str, NDArray[Any]] | Literal["inline"]) -> None:
        super().__init__()
        self.weights = None if isinstance(weights, str) else weights
        self.written: set[str] = set()

    def named(self, name: str) -> str:
        return f" {name!r}"

    def operator(self, name: str) -> str:
        return name if _PLAIN_OP.fullmatch(name) else repr(name)

    def attributes(self, attributes: Attributes) -> str:
        return attributes_text(attributes, complete=True)

    def result(self, type_: ValueType) -> str:
        return self.type(type_, shape=True)

    def params(self, params: QuantParams) -> str:
        return params_text(params, self.parameter)

    def parameter(self, array: NDArray[Any]) -> str:
        """Returns a scale or zero point, whose shape no type says."""
        return self.elements(array) if array.ndim < 2 else self.hashed(array)

    def elements(self, array: NDArray[Any]) -> str:
        # A long constant, or one with NaNs, keeps its bytes behind a hash.
        if array.dtype == np.object_ or (array.size <= _SHORT_COMPLETE and not _has_nan(array)):
            return elements(array, _SHORT_COMPLETE)
        return self.hashed(array)

    def hashed(self, array: NDArray[Any]) -> str:
        extents, key = "x".join(map(str, array.shape)), array_hash(array)
        if key in self.written:
            return f"#{extents}:{key}"
        self.written.add(key)
        if self.weights is not None:
            self.weights[key] = array
            return f"#{extents}:{key}"
        flat = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        return f"#{extents}:{key}={_base64(flat.data)}"

    def dim(self, dim: int | str) -> str:
        if isinstance(dim, int):
            return str(dim)
        return dim if _PLAIN_NAME.fullmatch(dim) else repr(dim)


def params_text(params: QuantParams, written: Callable[[NDArray[Any]], str] | None = None) -> str:
    """Returns quantization parameters as text, e.g. ``quant<uint8, 0x1p-7, 128>``.

    Args:
        params: The parameters.
        written: How to write scales and zero points; by default as the digest has them.
    """
    written = elements if written is None else written
    parts = [str(params.storage_dtype)]
    if params.expressed_dtype is not DType.FLOAT32:
        parts[0] += f":{params.expressed_dtype}"
    if params.scale_dtype is not params.expressed_dtype:
        parts[0] += f":{params.scale_dtype}"
    if not params.saturate:
        parts[0] += ":unsaturated"
    zero_point = params.zero_point
    # Files give one zero point or one per channel for the same mapping; both are one text.
    if zero_point.size and (zero_point == zero_point.flat[0]).all():
        zero_point = zero_point.reshape(-1)[0]
    parts += [written(params.scale), written(np.asarray(zero_point))]
    if params.axis is not None:
        parts.append(f"axis={params.axis}")
    if params.block_size is not None:
        parts.append(f"block={params.block_size}")
    if not params.full_range:
        parts.append(f"range={params.qmin}..{params.qmax}")
    return f"quant<{', '.join(parts)}>"


def elements(array: NDArray[Any], short: int = _SHORT) -> str:
    """Returns an array of at most ``short`` elements literally, a long one as shape and hash."""
    if array.dtype == np.object_:
        return repr(array.tolist())
    if array.size > short:
        extents = "x".join(map(str, array.shape))
        return f"#{extents}:{array_hash(array)}"
    items = [_print_element(item) for item in array.reshape(-1)]
    return items[0] if array.ndim == 0 else "[" + " ".join(items) + "]"


def array_hash(array: NDArray[Any]) -> str:
    """Returns a hash of the elements in row-major order (first 128 bits of SHA-256).

    A mapped or transposed array is never copied whole.
    """
    # Part by part, since a transposed view would be copied as a whole for one call.
    sha = hashlib.sha256()
    for part in parts(array):
        sha.update(part.data)
    return sha.hexdigest()[:32]


def _print_element(item: Any) -> str:
    if item.dtype.kind in "iub":
        return str(int(item))
    if DType.of(item.dtype).is_integer:
        return str(int(item))
    return float(item).hex()


def _has_nan(array: NDArray[Any]) -> bool:
    """Returns whether there is a NaN, of which a number in text would not keep the bits."""
    return DType.of(array.dtype).is_float and bool(np.isnan(array.astype(np.float64)).any())


def _base64(data: bytes | memoryview) -> str:
    return f"base64:{base64.b64encode(data).decode()}"


def attributes_text(attributes: Attributes, *, complete: bool = False) -> str:
    """Returns an attribute record as ``{name=value, …}``; empty where it has no fields.

    Args:
        attributes: The record.
        complete: Write the bytes of an opaque node instead of their hash.
    """
    names = [
        field.name
        for field in fields(attributes)  # type: ignore[arg-type] # a dataclass
        if not (field.metadata.get(UNSAID) and getattr(attributes, field.name) == field.default)
    ]
    if not names:
        return ""
    pairs = (f"{name}={_attribute(getattr(attributes, name), complete)}" for name in names)
    return " {" + ", ".join(pairs) + "}"


def _attribute(value: object, complete: bool) -> str:
    # Hexadecimal: exact, and the same on every platform and Python.
    if isinstance(value, float):
        return value.hex()
    if isinstance(value, tuple):
        return "[" + " ".join(_attribute(item, complete) for item in value) + "]"  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType]
    if isinstance(value, Serialized) and complete:
        return _base64(value.data)
    if isinstance(value, Enum):
        return str(value)
    return repr(value) if isinstance(value, str) else str(value)
