"""The deterministic text form of a graph.

It says everything that the graph's results depend on and nothing else: no names, no provenance,
no derived shapes. Floats are written in hexadecimal, so they are exact; long constants are written
as a hash of their elements. The first line is the version of the form.
"""

from __future__ import annotations

from dataclasses import fields
from enum import Enum
from typing import Any

import numpy as np
from numpy.typing import NDArray

from qdqbridge.graph.digest import array_hash
from qdqbridge.graph.dtypes import DType
from qdqbridge.graph.graph import Graph, Node, Value
from qdqbridge.graph.operator import Attributes
from qdqbridge.graph.quantization import QuantParams
from qdqbridge.graph.types import NestedType, QuantType, Shape, ValueType

VERSION = "qnn-canonical 3"
_SHORT = 4


def text(graph: Graph) -> str:
    """Returns the text form of ``graph``."""
    return "\n".join(_Printer(graph).lines()) + "\n"


class _Printer:
    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.numbers: dict[Value, str] = {}
        self.dims: dict[str, str] = {}

    def lines(self) -> list[str]:
        lines = [VERSION if self.graph.canonical else "qnn-raw 1"]
        for value in self.graph.inputs:
            lines.append(f"input {self.define(value)}: {self.type(value.type, shape=True)}")
        lines += [self.node(node) for node in self.graph.nodes]
        lines += [f"output {self.use(value)}" for value in self.graph.outputs]
        return lines

    def define(self, value: Value) -> str:
        return self.numbers.setdefault(value, f"%{len(self.numbers)}")

    def use(self, value: Value | None) -> str:
        if value is None:
            return "_"
        if value.constant is not None:
            return f"const {self.type(value.type, shape=True)} {elements(value.constant.numpy())}"
        return self.numbers[value]

    def node(self, node: Node) -> str:
        operands = ", ".join(self.use(value) for value in node.inputs)
        results = ", ".join(self.define(value) for value in node.outputs)
        types = ", ".join(self.type(value.type) for value in node.outputs)
        attributes = attributes_text(node.attributes)
        return f"{results} = {node.op.name}({operands}){attributes}: {types}"

    def type(self, type_: ValueType, *, shape: bool = False) -> str:
        if isinstance(type_, NestedType):
            return str(type_)
        element = params_text(type_.params) if isinstance(type_, QuantType) else str(type_.dtype)
        return element + (self.shape(type_.shape) if shape else "")

    def shape(self, shape: Shape) -> str:
        if shape is None:
            return "[*]"
        return "[" + ",".join(self.dim(dim) for dim in shape) + "]"

    def dim(self, dim: int | str) -> str:
        if isinstance(dim, int):
            return str(dim)
        return self.dims.setdefault(dim, f"d{len(self.dims)}")


def params_text(params: QuantParams) -> str:
    """Returns quantization parameters as text, e.g. ``quant<uint8, 0x1p-7, 128>``."""
    parts = [str(params.storage_dtype)]
    if params.expressed_dtype is not DType.FLOAT32:
        parts[0] += f":{params.expressed_dtype}"
    if params.scale_dtype is not params.expressed_dtype:
        parts[0] += f":{params.scale_dtype}"
    if not params.saturate:
        parts[0] += ":unsaturated"
    zero_point = params.zero_point
    if zero_point.size and (zero_point == zero_point.flat[0]).all():
        zero_point = zero_point.reshape(-1)[0]
    parts += [elements(params.scale), elements(np.asarray(zero_point))]
    if params.axis is not None:
        parts.append(f"axis={params.axis}")
    if params.block_size is not None:
        parts.append(f"block={params.block_size}")
    if not params.full_range:
        parts.append(f"range={params.qmin}..{params.qmax}")
    return f"quant<{', '.join(parts)}>"


def elements(array: NDArray[Any]) -> str:
    """Returns a scalar or a short array literally, a long one as shape and hash."""
    if array.dtype == np.object_:
        return repr(array.tolist())
    if array.size > _SHORT:
        extents = "x".join(map(str, array.shape))
        return f"#{extents}:{array_hash(array)}"
    items = [_number(item) for item in array.reshape(-1)]
    return items[0] if array.ndim == 0 else "[" + " ".join(items) + "]"


def _number(item: Any) -> str:
    if item.dtype.kind in "iub":
        return str(int(item))
    if DType.of(item.dtype).is_integer:
        return str(int(item))
    return float(item).hex()


def attributes_text(attributes: Attributes) -> str:
    """Returns an attribute record as ``{name=value, …}``; empty where it has no fields."""
    names = [field.name for field in fields(attributes)]  # type: ignore[arg-type] # a dataclass
    if not names:
        return ""
    pairs = (f"{name}={_attribute(getattr(attributes, name))}" for name in names)
    return " {" + ", ".join(pairs) + "}"


def _attribute(value: object) -> str:
    if isinstance(value, float):
        return value.hex()
    if isinstance(value, tuple):
        return "[" + " ".join(_attribute(item) for item in value) + "]"  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType]
    if isinstance(value, Enum):
        return str(value)
    return repr(value) if isinstance(value, str) else str(value)
