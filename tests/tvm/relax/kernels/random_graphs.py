"""The nodes that random graphs are made of, a function for each kind; see graph_maker."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np

from qdqbridge.core.canonical import canonicalize
from qdqbridge.core.graph.edit import verify
from qdqbridge.core.graph.graph import Graph
from qdqbridge.core.graph.interpreter import evaluate
from qdqbridge.core.graph.operator import NO_ATTRIBUTES, Attributes
from qdqbridge.core.graph.types import QuantType
from qdqbridge.core.ops import attributes as at
from qdqbridge.tvm.relax.executable import compile_relax
from tests.core.graph.graphs import apply, const
from tests.tvm.dialect.contract import every_code
from tests.tvm.relax.kernels.graph_maker import GraphMaker
from tests.tvm.relax.kernels.kernel_cases import DOT_CPUS, target_of

_LOOKUPS = ("Sigmoid", "HardSwish", "Tanh", "Relu", "Exp", "Neg", "Gelu", "LeakyRelu", "Clip")


def _window(m: GraphMaker, image: tuple[int, ...], most: int = 3) -> tuple[Any, ...]:
    """Returns kernel, strides, dilations and pads that fit an image."""
    rank = len(image)
    kernel = tuple(int(m.rng.integers(1, min(most, e) + 1)) for e in image)
    if m.chance(0.5):
        strides = (1,) * rank
        pads = tuple(k // 2 for k in kernel) * 2
        return kernel, strides, (1,) * rank, pads
    strides = tuple(m.pick(1, 2, 3) for _ in image)
    pads = tuple(int(m.rng.integers(0, k)) for k in (*kernel, *kernel))
    fits = [(k - 1) * 2 < e for k, e in zip(kernel, image, strict=True)]
    return kernel, strides, tuple(m.pick(1, 2) if f else 1 for f in fits), pads


def convolution(m: GraphMaker) -> None:
    x = m.value(3, 4)
    if x is None:
        return
    _, channels, *image = m.shape(x)
    kernel, strides, dilations, pads = _window(m, tuple(image))
    groups = [1, 1, *(g for g in (2, 3, 4, 5) if channels % g == 0), channels]
    group = m.pick(*groups)
    outputs = group if group == channels and m.chance(0.8) else group * m.pick(1, 2, 3, 8, 16)
    w = m.weight((outputs, channels // group, *kernel), 0)
    attributes = at.ConvAttrs(strides, dilations, pads, group)
    result = m.accumulated(x, int(np.prod(kernel)) * channels // group)
    m.add("Conv", attributes, [x, w, *m.bias(x, w, outputs)], result)


def pointwise(m: GraphMaker) -> None:
    """A Conv that keeps extents, and a sum with what it reads."""
    x = m.value(3, 4)
    if x is None:
        return
    channels, rank = m.shape(x)[1], len(m.shape(x)) - 2
    w = m.weight((channels, channels, *(1,) * rank), 0)
    attributes = at.ConvAttrs((1,) * rank, (1,) * rank, (0,) * (2 * rank), 1)
    bias = m.bias(x, w, channels)
    y = m.add("Conv", attributes, [x, w, *bias], m.accumulated(x, channels))
    if y is not None and m.chance(0.7):
        operands = [x, y] if m.chance(0.5) else [y, x]
        m.add(m.pick("Add", "Add", "Sub", "Mul"), NO_ATTRIBUTES, operands, m.quant())


def transposed(m: GraphMaker) -> None:
    x = m.value(4)
    if x is None:
        return
    _, channels, *image = m.shape(x)
    strides = tuple(m.pick(1, 2) for _ in image)
    kernel = tuple(max(s, m.pick(1, 2, 3)) for s in strides)
    outputs = m.pick(1, 2, 8, 17)
    w = m.weight((channels, outputs, *kernel), 1)
    attributes = at.ConvTransposeAttrs(strides, (1, 1), (0,) * 4, (0, 0), 1)
    result = m.accumulated(x, int(np.prod(kernel)) * channels)
    m.add("ConvTranspose", attributes, [x, w], result)


def dense(m: GraphMaker) -> None:
    x = m.value(2, 3, 4)
    if x is None:
        return
    inner, units = m.shape(x)[-1], m.pick(1, 3, 10, 16, 33)
    w = m.weight((units, inner), 0)
    m.add("Dense", NO_ATTRIBUTES, [x, w, *m.bias(x, w, units)], m.accumulated(x, inner))


def matmul(m: GraphMaker) -> None:
    """A product of a value and another one or itself, turned."""
    x = m.value(3, 4)
    if x is None:
        return
    rank = len(m.shape(x))
    perm = at.TransposeAttrs((*range(rank - 2), rank - 1, rank - 2))
    same = [v for v in m.values if m.shape(v) == m.shape(x)]
    other = m.moved("Transpose", perm, m.pick(*same))
    if other is not None:
        inner = m.shape(x)[-1]
        m.add("MatMul", NO_ATTRIBUTES, [x, other], m.accumulated(x, inner * 200))


def binary(m: GraphMaker) -> None:
    x = m.value()
    assert x is not None
    shape, name = m.shape(x), m.pick("Add", "Add", "Sub", "Mul", "Mul", "Min", "Max", "Div")
    others = [v for v in m.values if m.shape(v) == shape]
    other = m.pick(*others)
    if m.chance(0.35):
        own = tuple(1 if i == 0 or m.chance(0.4) else e for i, e in enumerate(shape))
        own = own[int(m.rng.integers(len(own))) :] if m.chance(0.3) else own
        dtype = m.pick("uint8", "int8")
        other = const(every_code(m.rng, dtype, own), m.quant(dtype=dtype))
    elif m.chance(0.3):
        axes = at.ReduceAttrs(tuple(range(2, len(shape))), keepdims=True)
        gate = m.add("ReduceMean", axes, [other], m.quant()) if axes.axes else None
        other = gate or other
    operands = [x, other] if m.chance(0.5) else [other, x]
    m.add(name, NO_ATTRIBUTES, operands, m.quant())


def lookup(m: GraphMaker) -> None:
    x, name = m.value(), m.pick(*_LOOKUPS)
    assert x is not None
    attributes: Attributes = {
        "LeakyRelu": at.AlphaAttrs(0.1),
        "Clip": at.ClipAttrs(-1.0, 3.0),
        "Gelu": at.GeluAttrs(),
    }.get(name, NO_ATTRIBUTES)
    m.add(name, attributes, [x], m.quant())


def requantize(m: GraphMaker) -> None:
    x = m.value()
    assert x is not None
    m.add("requantize", NO_ATTRIBUTES, [x], m.quant())


def chain(m: GraphMaker) -> None:
    """Some float operators in a row, which become one Composition."""
    x = m.value()
    assert x is not None
    others = [v for v in m.values if m.shape(v) == m.shape(x)]
    value = apply("dequantize", x)
    for _ in range(m.pick(2, 3, 4)):
        if m.chance(0.5):
            value = apply(m.pick("Sigmoid", "Tanh", "Relu", "HardSwish", "Abs"), value)
        else:
            other = apply("dequantize", m.pick(*others))
            value = apply(m.pick("Add", "Mul", "Sub"), value, other)
    m.values.append(apply("quantize", value, type_=QuantType(m.quant(), x.type.shape)))


def pool(m: GraphMaker) -> None:
    x = m.value(3, 4)
    if x is None:
        return
    kernel, strides, dilations, pads = _window(m, m.shape(x)[2:], 4)
    attributes = at.PoolAttrs(
        kernel, strides, dilations, pads, m.chance(0.2), count_include_pad=m.chance(0.5)
    )
    if m.chance(0.4):
        m.moved("MaxPool", attributes, x)
    elif m.chance(0.5):
        m.add("AveragePool", attributes, [x], m.quant())
    else:
        m.add("GlobalAveragePool", NO_ATTRIBUTES, [x], m.quant())


def reduction(m: GraphMaker) -> None:
    x = m.value(2, 3, 4)
    if x is None:
        return
    first = int(m.rng.integers(1, len(m.shape(x))))
    axes = tuple(range(first, int(m.rng.integers(first, len(m.shape(x)))) + 1))
    attributes = at.ReduceAttrs(axes, keepdims=m.chance(0.5))
    if m.chance(0.5):
        m.moved(m.pick("ReduceMax", "ReduceMin"), attributes, x)
    else:
        m.add(m.pick("ReduceMean", "ReduceSum"), attributes, [x], m.quant())


def resize(m: GraphMaker) -> None:
    x = m.value(4)
    if x is None:
        return
    scales = (1.0, 1.0, float(m.pick(1, 2, 3)), float(m.pick(1, 2, 0.5)))
    coordinates = m.pick("half_pixel", "asymmetric", "align_corners")
    mode = m.pick("nearest", "linear")
    rounding = m.pick("floor", "round_prefer_floor")
    attributes = at.ResizeAttrs(mode, coordinates, rounding, scales, None)
    if mode == "nearest":
        m.moved("Resize", attributes, x)
    else:
        m.add("Resize", attributes, [x], m.quant())


def norm(m: GraphMaker) -> None:
    x = m.value()
    assert x is not None
    shape = m.shape(x)
    kind = m.pick("Softmax", "LayerNormalization", "InstanceNormalization")
    if kind == "Softmax":
        axis = int(m.rng.integers(min(1, len(shape) - 1), len(shape)))
        m.add(kind, at.SoftmaxAttrs((axis,)), [x], m.quant(1 / 255))
        return
    if kind == "InstanceNormalization" and len(shape) < 3:
        return
    count = shape[1] if kind[0] == "I" else shape[-1]
    factors = [const(m.rng.normal(1, 0.5, count).astype(np.float32)) for _ in range(2)]
    attributes = at.EpsilonAttrs(1e-5) if kind[0] == "I" else at.NormAttrs(len(shape) - 1, 1e-5)
    m.add(kind, attributes, [x, *factors], m.quant())


def concat(m: GraphMaker) -> None:
    x = m.value(2, 3, 4)
    if x is None:
        return
    shape, axis = m.shape(x), int(m.rng.integers(1, len(m.shape(x))))
    rest = shape[:axis] + shape[axis + 1 :]
    fits = [v for v in m.values if m.shape(v)[:axis] + m.shape(v)[axis + 1 :] == rest]
    fits = [v for v in fits if len(m.shape(v)) == len(shape)]
    operands = [x, *(m.pick(*fits) for _ in range(m.pick(1, 1, 2)))]
    assert x.quant is not None
    result = x.quant.params if m.chance(0.4) else m.quant()
    m.add("Concat", at.AxisAttrs(axis), operands, result)


def move(m: GraphMaker) -> None:
    x = m.value(2, 3, 4)
    if x is None:
        return
    shape = m.shape(x)
    rank, axis = len(shape), int(m.rng.integers(1, len(shape)))
    name = m.pick("Transpose", "Transpose", "Slice", "Slice", "Pad", "Reshape", "Unsqueeze", "Tile")
    attributes: Attributes
    if name == "Transpose":
        attributes = at.TransposeAttrs((0, *(int(i) + 1 for i in m.rng.permutation(rank - 1))))
    elif name == "Slice":
        start, step = int(m.rng.integers(shape[axis])), m.pick(1, 1, 2, -1)
        end = 1 << 40 if step > 0 else -(1 << 40)
        attributes = at.SliceAttrs((start,), (end,), (axis,), (step,))
    elif name == "Pad":
        pads = [int(p) for p in m.rng.integers(0, 3, 2 * rank)]
        pads[0] = pads[rank] = 0
        attributes = at.PadAttrs(tuple(pads), "constant", float(m.rng.normal()))
    elif name == "Reshape":
        attributes = at.ReshapeAttrs(m.pick((0, -1), (0, shape[1], -1), (0, 1, -1), (0, -1, 1, 1)))
    elif name == "Unsqueeze":
        if rank == 4:
            return
        attributes = at.AxesAttrs((axis,))
    else:
        attributes = at.TileAttrs((1, *(m.pick(1, 1, 2) for _ in range(rank - 1))))
    m.moved(name, attributes, x)


def depth(m: GraphMaker) -> None:
    """Space to depth and back, or a Split into two parts, one of which may be left."""
    x = m.value(4)
    if x is None:
        return
    _, channels, height, width = m.shape(x)
    if channels % 4 == 0:
        m.moved("DepthToSpace", at.DepthSpaceAttrs(2, m.pick("DCR", "CRD")), x)
    elif height % 2 == 0 and width % 2 == 0:
        m.moved("SpaceToDepth", at.DepthSpaceAttrs(2), x)
    else:
        indices = const(m.rng.integers(0, channels, m.pick(1, 2, 5)).astype(np.int64))
        m.moved("Gather", at.AxisAttrs(1), x, indices)


Kind = Callable[[GraphMaker], None]
KINDS: tuple[Kind, ...] = (
    convolution, convolution, convolution, pointwise, pointwise, transposed, dense, matmul, binary,
    binary, lookup, requantize, chain, pool, reduction, resize, norm, concat, concat, move, move,
    depth,
)  # fmt: skip
"""Makers of nodes; what has many forms is there several times."""


def random_graph(seed: int, nodes: int) -> tuple[GraphMaker, Graph]:
    """Returns a graph of about so many nodes and its maker; odd seeds leave the batch open."""
    maker = GraphMaker(np.random.default_rng(seed), opened=bool(seed % 2))
    return maker, maker.made(KINDS, nodes)


def differences(seed: int, nodes: int, counts: Counter[str]) -> list[str]:
    """Runs one graph and returns what is wrong.

    Args:
        seed: Decides the graph, the class of CPUs, and whether one thread runs it or two.
        nodes: Of the graph, about.
        counts: Takes the operators of the canonical graph.
    """
    maker, graph = random_graph(seed, nodes)
    verify(graph)
    batches = (1, 3, 7) if maker.opened else (1,)
    feeds = [maker.feeds(seed + batch, batch) for batch in batches]
    before = [evaluate(graph, data)[0] for data in feeds]
    canonicalize(graph)
    verify(graph)
    cpu, threads = DOT_CPUS[seed // 2 % len(DOT_CPUS)], 1 + seed // 2 // len(DOT_CPUS) % 2
    counts.update(node.op.name for node in graph.nodes)
    found = [
        f"batch {batch}: canonical {name}"
        for batch, data, first in zip(batches, feeds, before, strict=True)
        for name, array in evaluate(graph, data)[0].items()
        if not np.array_equal(array, first[name], equal_nan=True)
    ]
    executable = compile_relax(graph, target_of(cpu), threads=threads)
    for batch, data in zip(batches, feeds, strict=True):
        meant, got = evaluate(graph, data)[0], executable.run(data)
        for name, array in meant.items():
            different = int(np.sum(got[name] != array)) if got[name].shape == array.shape else -1
            if different:
                found.append(
                    f"{cpu.name}, {threads} threads, batch {batch}: {name} "
                    f"{different} of {array.size} differ"
                )
    return found
