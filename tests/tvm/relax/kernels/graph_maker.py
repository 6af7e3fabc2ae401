"""Random small graphs of quantized operators: what is read twice, diamonds, residuals, outputs.

A graph grows node by node from one or two inputs. Each node reads a value that is there, most often
one of the last; extents are often 1 or next to the length of a register, zero points often at the
end of a range.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from qdqbridge.core.graph.dtypes import DType
from qdqbridge.core.graph.edit import Editor
from qdqbridge.core.graph.graph import Graph, Value
from qdqbridge.core.graph.operator import Attributes
from qdqbridge.core.graph.types import QuantParams, QuantType, Shape, TensorType
from qdqbridge.core.ops.table import BY_NAME
from tests.core.graph.graphs import apply, const
from tests.tvm.dialect.contract import Array, every_code, params

BATCH = "N"
_ASSUMED = 3
"""The batch with which extents are computed."""
_MOST = 1 << 13
"""Elements of a value."""
_CHANNELS = (1, 2, 3, 4, 5, 8, 12, 16, 17, 20, 31, 33)
_IMAGE = (1, 2, 3, 5, 7, 8, 11, 13)
_ZEROS = {
    "uint8": (0, 255, 128, 77, 1),
    "int8": (0, -128, 127, 5, -1),
    "int16": (0,),
    "uint16": (0, 32768, 65535),
}


class GraphMaker:
    """Grows one graph.

    Args:
        rng: Where everything random comes from.
        opened: Whether the batch is known at run time only.
    """

    def __init__(self, rng: np.random.Generator, *, opened: bool) -> None:
        self.rng, self.opened = rng, opened
        self.inputs: list[Value] = []
        self.values: list[Value] = []
        self.weights: dict[tuple[tuple[int, ...], int], Value] = {}

    def made(self, kinds: Sequence[Callable[[GraphMaker], None]], nodes: int) -> Graph:
        """Returns a graph of about so many nodes of some kinds."""
        for _ in range(1 + int(self.rng.random() < 0.4)):
            self._input()
        for _ in range(nodes):
            self.pick(*kinds)(self)
        outputs = [v for v in self.values if not v.users]
        others = [v for v in self.values if v.users and v not in self.inputs]
        outputs += [v for v in others if self.chance(0.15)]
        outputs = [apply("dequantize", v) if self.chance(0.3) else v for v in outputs]
        names = [f"y{i}" for i in range(len(outputs))]
        graph = Graph(self.inputs, outputs, names, [], "random")
        Editor(graph).finish()
        return graph

    # ---- what is random -------------------------------------------------------------------------

    def pick(self, *choices: Any) -> Any:
        return choices[int(self.rng.integers(len(choices)))]

    def chance(self, share: float) -> bool:
        return bool(self.rng.random() < share)

    def dtype(self) -> str:
        return self.pick(*["uint8"] * 6, *["int8"] * 5, "int16", "uint16")

    def quant(self, scale: float | None = None, dtype: str = "") -> QuantParams:
        """Returns parameters; of 16 bits, which hold the same range, in finer steps."""
        kind = dtype or self.dtype()
        step = float(np.exp(self.rng.uniform(-4, -1))) if scale is None else scale
        found = params(kind, step / (256 if "16" in kind else 1), self.pick(*_ZEROS[kind]))
        if not self.chance(0.15):
            return found
        low = min(int(found.zero_point), found.qmax - 1) if self.chance(0.5) else found.qmin
        return found.with_range(low, max(low + 1, found.qmax - int(self.rng.integers(100))))

    def value(self, *ranks: int) -> Value | None:
        """Returns a value of one of the ranks, most often one of the last."""
        found = [v for v in self.values if not ranks or len(self.shape(v)) in ranks]
        if not found:
            return None
        return found[-1 - min(int(self.rng.geometric(0.5)) - 1, len(found) - 1)]

    # ---- building -------------------------------------------------------------------------------

    def shape(self, value: Value) -> tuple[int, ...]:
        """Returns extents, the assumed one for the batch."""
        assert value.type.shape is not None
        return tuple(e if isinstance(e, int) else _ASSUMED for e in value.type.shape)

    def typed(self, shape: tuple[int, ...]) -> Shape:
        return (BATCH, *shape[1:]) if self.opened else shape

    def _input(self) -> None:
        batch = _ASSUMED if self.opened else self.pick(1, 1, 2, 3)
        image = [self.pick(*_IMAGE) for _ in range(self.pick(0, 1, 2, 2, 2, 2))]
        shape = self.typed((batch, self.pick(*_CHANNELS), *image))
        name = f"x{len(self.inputs)}"
        if self.chance(0.5):
            value = Value(TensorType(DType.FLOAT32, shape), name)
            inner = apply("quantize", value, type_=QuantType(self.quant(), shape))
        else:
            value = inner = Value(QuantType(self.quant(), shape), name)
        self.inputs.append(value)
        self.values.append(inner)

    def add(
        self, name: str, attributes: Attributes, operands: list[Value], result: QuantParams
    ) -> Value | None:
        """Adds a node, unless its result would be empty, too large or without a batch."""
        arrays = [
            v.constant.numpy()
            if v.constant and v.quant is None
            else np.ones(self.shape(v), np.float32)
            for v in operands
        ]
        with np.errstate(all="ignore"):
            shape = BY_NAME[name].compute(attributes, arrays)[0].shape
        if not 0 < np.prod(shape) <= _MOST or (self.opened and shape[:1] != (_ASSUMED,)):
            return None
        type_ = QuantType(result, self.typed(shape))
        made = apply(name, *operands, type_=type_, attributes=attributes)
        self.values.append(made)
        return made

    def moved(self, name: str, attributes: Attributes, x: Value, *others: Value) -> Value | None:
        """Adds a node that keeps its operand's parameters."""
        assert x.quant is not None
        return self.add(name, attributes, [x, *others], x.quant.params)

    def weight(self, shape: tuple[int, ...], axis: int) -> Value:
        """Returns a weight; one that is there already where it fits."""
        if (shape, axis) in self.weights and self.chance(0.3):
            return self.weights[shape, axis]
        dtype = self.pick("int8", "int8", "int8", "uint8")
        entries = () if self.chance(0.3) else (shape[axis],)
        zero: Any = 128 if dtype == "uint8" else self.pick(0, 0, 0, 3)
        own = params(
            dtype,
            self.rng.uniform(0.002, 0.01, entries),
            np.full(entries, zero),
            axis if entries else None,
        )
        self.weights[shape, axis] = const(every_code(self.rng, dtype, shape), own)
        return self.weights[shape, axis]

    def bias(self, x: Value, w: Value, channels: int) -> list[Value]:
        assert x.quant is not None and w.quant is not None
        if self.chance(0.4):
            return []
        scale = x.quant.params.scale.astype(np.float32) * w.quant.params.scale.astype(np.float32)
        codes = self.rng.integers(-9000, 9000, channels).astype(np.int32)
        own = params("int32", scale, np.zeros(scale.shape), 0 if scale.ndim else None)
        return [const(codes, own)]

    def accumulated(self, x: Value, products: int) -> QuantParams:
        """Returns parameters of a result most of whose codes lie within 8 bits."""
        assert x.quant is not None
        span = x.quant.params.scale.item() * (256 if "16" in x.type.dtype.label else 1)
        return self.quant(span * 0.006 * np.sqrt(products) * 74 * 60 / self.pick(30, 60, 120))

    def feeds(self, seed: int, batch: int) -> dict[str, Array]:
        """Returns inputs of a graph."""
        rng, found = np.random.default_rng(seed), dict[str, Array]()
        for value in self.inputs:
            assert value.type.shape is not None
            shape = tuple(e if isinstance(e, int) else batch for e in value.type.shape)
            label = value.type.dtype.label
            found[value.name] = (
                rng.normal(0, 3, shape).astype(np.float32)
                if label == "float32"
                else every_code(rng, label, shape)
            )
            if value.quant is not None:
                found[value.name] = found[value.name].clip(
                    value.quant.params.qmin, value.quant.params.qmax
                )
        return found
