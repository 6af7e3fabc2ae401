"""Random models that ONNX's checker may or may not take: one operator, or a graph of a dozen.

Operators, element types and attributes come from ONNX's own schemas; most attributes are of a
sensible size, some at the ends of their type. Half of the float operands come from a
DequantizeLinear, half of the float results go into a QuantizeLinear, and some extents are open.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from random import Random
from typing import Any

import numpy as np
import onnx
from onnx import NodeProto, TensorProto, defs, helper

from tests.onnx_models import Builder

_TYPES = {
    "float": "float32", "uint8": "uint8", "int8": "int8", "uint16": "uint16", "int16": "int16",
    "int32": "int32", "int64": "int64", "bool": "bool", "float16": "float16", "double": "float64",
}  # fmt: skip
_NESTED = ("If", "Loop", "Scan", "SequenceMap")
_OLDEST, _NEWEST = 7, 24
_ENDS = (-(2**63), -(2**31), 2**31 - 1, 2**63 - 1)
_SMALL = (0, 1, 1, 1, 2, 2, 3, -1, -2, 4)
_TEXTS = (
    "SAME_UPPER", "SAME_LOWER", "VALID", "NOTSET", "linear", "nearest", "cubic", "ij,jk->ik",
    "...a,b->", "ij->ji", "", "constant", "reflect", "edge", "wrap", "none", "add", "max", "DCR",
    "CRD", "half_pixel", "asymmetric", "align_corners", "floor", "forward", "bidirectional",
    "LEFT", "tanh", "mean",
)  # fmt: skip


@cache
def _schemas() -> list[Any]:
    """Returns the newest schema of every operator and opset between the oldest and the newest."""
    found = [s for s in defs.get_all_schemas_with_history() if not s.domain and not s.deprecated]
    wanted = [s for s in found if s.name not in _NESTED and s.since_version <= _NEWEST]
    return sorted(wanted, key=lambda s: (s.name, s.since_version))


def random_node(rng: Random) -> bytes:
    """Returns a model of one operator between quantized neighbours."""
    schema = rng.choice(_schemas())
    b = Builder(min(max(schema.since_version, _OLDEST, 10) + rng.choice((0, 0, 3)), _NEWEST))
    most = min(schema.max_input, schema.min_input + rng.choice((0, 0, 1, 2)))
    shape = _shape(rng)
    names = [
        "" if i >= schema.min_input and rng.random() < 0.2 else _operand(b, schema, i, shape, rng)
        for i in range(max(most, schema.min_input))
    ]
    count = max(schema.min_output, min(schema.max_output, rng.choice((1, 1, 2, 3))))
    results = [f"result_{i}" for i in range(count)]
    node = NodeProto(op_type=schema.name, input=names, output=results, name="node")
    for attribute in schema.attributes.values():
        if attribute.required or rng.random() < 0.4:
            _attribute(node, attribute, rng)
    b.nodes.append(node)
    for name in results:
        value = b.qdq(name, 0.1, rng.choice((0, 128))) if rng.random() < 0.3 else name
        b.outputs.append(onnx.ValueInfoProto(name=value))
    return b.model().SerializeToString()


def _shape(rng: Random) -> list[int]:
    return [rng.choice((1, 1, 2, 3, 4, 5, 8)) for _ in range(rng.choice((0, 1, 2, 2, 3, 4, 4, 5)))]


def _operand(b: Builder, schema: Any, index: int, common: list[int], rng: Random) -> str:
    """Adds an operand of a type that the schema takes; most share one shape, some broadcast."""
    formal = schema.inputs[min(index, len(schema.inputs) - 1)]
    kinds = [t[len("tensor(") : -1] for t in formal.types if t.startswith("tensor(")]
    kinds = sorted(kind for kind in kinds if kind in _TYPES) or ["float"]
    kind = "float" if "float" in kinds and rng.random() < 0.7 else rng.choice(kinds)
    kind = "int64" if kinds == ["int32", "int64"] and rng.random() < 0.8 else kind
    dtype = np.dtype(_TYPES[kind])
    shape = list(common) if rng.random() < 0.7 else _shape(rng)
    if index and dtype == np.int64:
        shape = [rng.choice((1, 1, len(common), 2))] if rng.random() < 0.8 else shape
    if rng.random() < 0.1 and shape:
        shape[rng.randrange(len(shape))] = rng.choice((0, 1))
    if rng.random() < (0.7 if index else 0.15):
        return b.init(_data(shape, dtype, rng))
    opened = [f"d{i}" if rng.random() < 0.08 else extent for i, extent in enumerate(shape)]
    name = b.input(f"in_{index}", opened, helper.np_dtype_to_tensor_dtype(dtype))
    return (
        b.qdq(name, 0.1, rng.choice((0, 3, 128)))
        if kind == "float" and rng.random() < 0.4
        else name
    )


def _data(shape: list[int], dtype: Any, rng: Random) -> Any:
    size = int(np.prod(shape))
    if dtype.kind == "f":
        return np.array([rng.gauss(0, 2) for _ in range(size)], dtype).reshape(shape)
    if dtype.kind == "b":
        return np.array([rng.random() < 0.5 for _ in range(size)], dtype).reshape(shape)
    info = np.iinfo(dtype)
    ends = [end for end in _ENDS if info.min <= end <= info.max] or [int(info.max)]
    values = [rng.choice(ends) if rng.random() < 0.03 else rng.choice(_SMALL) for _ in range(size)]
    return np.array([max(v, int(info.min)) for v in values], dtype).reshape(shape)


def _attribute(node: NodeProto, attribute: Any, rng: Random) -> None:
    kind = attribute.type.name

    def integer() -> int:
        return rng.choice(_ENDS) if rng.random() < 0.05 else rng.choice(_SMALL)

    makers: dict[str, Callable[[], Any]] = {
        "INT": integer,
        "INTS": lambda: [integer() for _ in range(rng.choice((1, 2, 2, 4, 3)))],
        "FLOAT": lambda: rng.choice((0.0, 1.0, -1.0, 0.5, 1e30)),
        "FLOATS": lambda: [rng.choice((1.0, 2.0, 0.5)) for _ in range(rng.choice((1, 2, 4)))],
        "STRING": lambda: rng.choice(_TEXTS),
        "TENSOR": lambda: helper.make_tensor("t", TensorProto.INT64, [1], [rng.choice((0, 1, 5))]),
    }
    if kind in makers:
        node.attribute.append(helper.make_attribute(attribute.name, makers[kind]()))


# ---- graphs -----------------------------------------------------------------------------------


class _Graph:
    """A graph that grows by nodes that fit; shapes are tracked, open extents by the name ``n``."""

    def __init__(self, rng: Random) -> None:
        self.rng, self.b = rng, Builder(rng.choice((13, 17, 18, 21)))
        self.values: list[tuple[str, tuple[int, ...]]] = []
        self.opened = rng.random() < 0.4
        for i in range(rng.choice((1, 1, 2))):
            shape = (rng.choice((1, 2)), *(rng.choice((1, 2, 3, 4, 6, 8)) for _ in range(3)))
            declared = ["n", *shape[1:]] if self.opened and rng.random() < 0.7 else list(shape)
            self.add(self.b.input(f"in{i}", declared), shape)

    def add(self, name: str, shape: tuple[int, ...]) -> None:
        if self.rng.random() < 0.5:
            scale, dtype = self.rng.choice((0.02, 0.1, 0.5)), self.rng.choice((np.uint8, np.int8))
            name = self.b.qdq(name, scale, self.rng.choice((0, 3)), dtype)
        self.values.append((name, shape))

    def any(self, *ranks: int) -> tuple[str, tuple[int, ...]]:
        fits = [v for v in self.values if not ranks or len(v[1]) in ranks]
        return self.rng.choice(fits or self.values[:1])

    def array(self, *shape: int) -> str:
        return self.b.init(np.array([self.rng.gauss(0, 1) for _ in range(int(np.prod(shape)))],
                                    np.float32).reshape(shape))  # fmt: skip


def _unary(g: _Graph) -> None:
    x, shape = g.any()
    name = g.rng.choice((
        "Relu", "Sigmoid", "Tanh", "Abs", "Neg", "Exp", "HardSwish", "Softplus", "Sqrt", "Log",
        "Reciprocal", "Elu", "LeakyRelu", "Floor", "Sign", "Erf", "Identity", "ThresholdedRelu",
    ) if g.b.opset > 13 else ("Relu", "Sigmoid", "Abs", "Exp", "Identity"))  # fmt: skip
    g.add(g.b.op(name, x), shape)


def _binary(g: _Graph) -> None:
    x, shape = g.any()
    same = [v for v in g.values if v[1] == shape]
    own = tuple(1 if g.rng.random() < 0.4 else e for e in shape)[g.rng.choice((0, 0, 1)) :]
    y = g.rng.choice(same)[0] if g.rng.random() < 0.6 else g.array(*own)
    operands = (x, y) if g.rng.random() < 0.5 else (y, x)
    g.add(g.b.op(g.rng.choice(("Add", "Sub", "Mul", "Div", "Max", "Min")), *operands), shape)


def _transpose(g: _Graph) -> None:
    x, shape = g.any()
    perm = list(range(len(shape)))
    g.rng.shuffle(perm)
    g.add(g.b.op("Transpose", x, perm=perm), tuple(shape[i] for i in perm))


def _reshape(g: _Graph) -> None:
    """A Reshape whose target is computed, or written with -1."""
    x, shape = g.any()
    first, rest = shape[0], int(np.prod(shape[1:]))
    if g.rng.random() < 0.5:
        extents = g.b.op("Shape", x)
        head = g.b.op("Gather", extents, g.b.init(np.array([0])), axis=0)
        target = g.b.op("Concat", head, g.b.init(np.array([-1])), axis=0)
    else:
        target = g.b.init(np.array([0, -1]))
    g.add(g.b.op("Reshape", x, target), (first, rest))


def _image(g: _Graph) -> None:
    x, shape = g.any(4)
    if len(shape) != 4 or min(shape[2:]) < 2:
        return
    kind, kernel = g.rng.choice(("MaxPool", "AveragePool", "Conv", "Conv", "Global")), (2, 2)
    smaller = (shape[2] - 1, shape[3] - 1)
    if kind == "Global":
        g.add(g.b.op("GlobalAveragePool", x), (*shape[:2], 1, 1))
    elif kind == "Conv":
        codes = np.array([g.rng.randrange(-127, 128) for _ in range(3 * shape[1] * 4)], np.int8)
        w = g.b.weight(codes.reshape(3, shape[1], 2, 2), 0.02)
        g.add(g.b.op("Conv", x, w), (shape[0], 3, *smaller))
    else:
        g.add(g.b.op(kind, x, kernel_shape=kernel), (*shape[:2], *smaller))


def _product(g: _Graph) -> None:
    x, shape = g.any(2, 3, 4)
    if len(shape) < 2:
        return
    if g.rng.random() < 0.3:
        perm = [*range(len(shape) - 2), len(shape) - 1, len(shape) - 2]
        permuted = g.b.op("Transpose", x, perm=perm)
        g.add(g.b.op("MatMul", x, permuted), (*shape[:-1], shape[-2]))
        return
    codes = np.array([g.rng.randrange(-127, 128) for _ in range(shape[-1] * 5)], np.int8)
    g.add(g.b.op("MatMul", x, g.b.weight(codes.reshape(-1, 5), 0.02)), (*shape[:-1], 5))


def _concat(g: _Graph) -> None:
    x, shape = g.any()
    same = [v for v in g.values if v[1] == shape]
    axis, count = g.rng.randrange(len(shape)), g.rng.choice((2, 3))
    operands = [x, *(g.rng.choice(same)[0] for _ in range(count - 1))]
    made = tuple(e * count if i == axis else e for i, e in enumerate(shape))
    if int(np.prod(made)) < 1 << 12:
        g.add(g.b.op("Concat", *operands, axis=axis), made)


def _reduce(g: _Graph) -> None:
    x, shape = g.any()
    axis = g.rng.randrange(len(shape))
    name = g.rng.choice(("ReduceMean", "ReduceMax", "Softmax", "TopK", "CumSum", "Gather", "Slice"))
    one = g.b.init(np.array([axis]))
    if name == "Softmax":
        g.add(g.b.op(name, x, axis=axis), shape)
    elif name == "CumSum":
        g.add(g.b.op(name, x, g.b.init(np.int64(axis))), shape)
    elif name == "TopK":
        made = tuple(1 if i == axis else e for i, e in enumerate(shape))
        g.add(g.b.op(name, x, g.b.init(np.array([1])), axis=axis, outputs=2), made)
    elif name == "Gather":
        made = tuple(2 if i == axis else e for i, e in enumerate(shape))
        g.add(g.b.op(name, x, g.b.init(np.array([0, -1])), axis=axis), made)
    elif name == "Slice":
        made = tuple(1 if i == axis else e for i, e in enumerate(shape))
        bounds = g.b.init(np.array([0])), g.b.init(np.array([1]))
        g.add(g.b.op(name, x, *bounds, one), made)
    else:
        axes = [one] if g.b.opset >= 18 else []
        named = None if axes else [axis]
        made = tuple(1 if i == axis else e for i, e in enumerate(shape))
        g.add(g.b.op(name, x, *axes, axes=named), made)


_GROW = (_unary, _unary, _binary, _binary, _transpose, _reshape, _image, _image, _product, _concat,
         _reduce, _reduce)  # fmt: skip


def random_graph(rng: Random) -> bytes:
    """Returns a model of about a dozen nodes with values that are read twice, or never."""
    g = _Graph(rng)
    for _ in range(rng.choice((4, 8, 14))):
        rng.choice(_GROW)(g)
    inputs = {value.name for value in g.b.inputs}
    chosen = dict.fromkeys(name for name, _ in (*g.values[-2:], rng.choice(g.values)))
    g.b.outputs += [onnx.ValueInfoProto(name=name) for name in chosen if name not in inputs]
    if not g.b.outputs:
        g.b.output(g.b.op("Relu", g.values[0][0]))
    model = g.b.model()
    for value in model.graph.output:
        value.CopyFrom(helper.make_tensor_value_info(value.name, TensorProto.FLOAT, None))
    return model.SerializeToString()
