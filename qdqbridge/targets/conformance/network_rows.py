"""Situations of Q and DQ beside other operators: clamps, movers, sharing, constants, bodies."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from qdqbridge.targets.conformance.case import (
    CaseBody,
    ConformanceSituation,
    Node,
    body,
    const,
    op,
    typed,
)
from qdqbridge.targets.conformance.exact import (
    Array,
    dequantized,
    ends,
    fractions_of,
    quantized,
    stored,
)

BYTES = ("uint8", "int8")


@dataclass(frozen=True)
class QuantizationGrid:
    """A scale and a zero point, of a whole tensor."""

    scale: float
    zero: int
    kind: str

    def real(self, x: Array) -> Array:
        """Returns what integers stand for, as fractions."""
        return fractions_of(dequantized(x, const(self.scale, "float32"), self.zero))

    def nearest(self, x: Array) -> Array:
        """Returns the integers of numbers that float32 has."""
        return quantized(stored(x), const(self.scale, "float32"), self.zero, self.kind)

    def constants(self, name: str) -> dict[str, Array]:
        """Returns the initializers of a Q or DQ."""
        return {
            f"{name}_scale": const(self.scale, "float32"),
            f"{name}_zero": const(self.zero, self.kind),
        }


def dq(x: str, grid: str, out: str) -> Node:
    """Returns a DequantizeLinear with the parameters of a grid."""
    return op("DequantizeLinear", f"{x} {grid}_scale {grid}_zero", out)


def q(x: str, grid: str, out: str) -> Node:
    """Returns a QuantizeLinear with the parameters of a grid."""
    return op("QuantizeLinear", f"{x} {grid}_scale {grid}_zero", out)


def ramp(kind: str, shape: tuple[int, ...], step: int = 37) -> Array:
    """Returns integers from the whole range of a type."""
    low, high = ends(kind)
    count = int(np.prod(shape))
    return const([low + k * step % (high - low + 1) for k in range(count)], kind).reshape(shape)


def grids(kind: str) -> tuple[QuantizationGrid, QuantizationGrid]:
    """Returns a grid of an input, and a coarser one of an output."""
    zero = 131 if kind == "uint8" else 5
    return QuantizationGrid(0.25, zero, kind), QuantizationGrid(0.5, zero - 8, kind)


def _through(
    name: str, x: Array, before: QuantizationGrid, after: QuantizationGrid,
    nodes: Sequence[Node], real: Array, more: Mapping[str, Array] | None = None, opset: int = 19,
) -> CaseBody:  # fmt: skip
    """Returns a case of ``DQ, nodes from r to f, Q``."""
    constants = before.constants("in") | after.constants("out") | dict(more or {})
    whole = [dq("x", "in", "r"), *nodes, q("f", "out", "y")]
    return body(name, whole, {"x": x}, constants, {"y": after.nearest(real)}, opset=opset)


def _requantizing() -> Iterator[CaseBody]:
    for from_, to in (("uint8", "int8"), ("int8", "uint8"), ("uint8", "uint8"), ("int8", "int8"),
                      ("int8", "int16"), ("int16", "int8"), ("uint16", "uint8")):  # fmt: skip
        x = ramp(from_, (4, 64), 1 if "8" in from_ else 257)
        for label, ratio, zero in (("halves", 2, 3), ("finer", 0.25, -1), ("same", 1, 0)):
            before = QuantizationGrid(0.5, sum(ends(from_)) // 2, from_)
            after = QuantizationGrid(0.5 * ratio, (sum(ends(to)) // 2) + zero, to)
            opset = 21 if "16" in from_ + to else 19
            nodes = [op("Identity", "r", "f")]
            yield _through(
                f"{from_}_{to}_{label}", x, before, after, nodes, before.real(x), opset=opset
            )
            if label == "halves":
                constants = before.constants("in") | after.constants("out")
                straight = [dq("x", "in", "r"), q("r", "out", "y")]
                found = {"y": after.nearest(before.real(x))}
                yield body(
                    f"{from_}_{to}_adjacent", straight, {"x": x}, constants, found, opset=opset
                )


def _fake_quantizing() -> Iterator[CaseBody]:
    x = const([k * 0.125 for k in range(-600, 600, 7)], "float32")
    for kind in BYTES:
        first, second = grids(kind)
        one = first.nearest(fractions_of(x))
        two = second.nearest(first.real(one))
        constants = first.constants("in") | second.constants("out")
        pair = [q("x", "in", "a"), dq("a", "in", "y")]
        yield body(f"{kind}_pair", pair, {"x": x}, constants, {"y": stored(first.real(one))})
        chain = [q("x", "in", "a"), dq("a", "in", "b"), q("b", "out", "c"), dq("c", "out", "y")]
        yield body(f"{kind}_two_pairs", chain, {"x": x}, constants, {"y": stored(second.real(two))})
        # The second pair changes nothing, so a runtime may leave it out.
        twice = [q("x", "in", "a"), dq("a", "in", "b"), q("b", "in", "c"), dq("c", "in", "y")]
        yield body(
            f"{kind}_the_same_pair_twice", twice, {"x": x}, first.constants("in"),
            {"y": stored(first.real(one))},
        )  # fmt: skip


def _clamps() -> Iterator[CaseBody]:
    for kind in BYTES:
        x = ramp(kind, (4, 64), 1)
        before, after = grids(kind)
        real = before.real(x)
        for where, grid in (("same_grid", before), ("other_grid", after)):
            for label, low, high in (
                ("relu", Fraction(0), None), ("relu6", Fraction(0), Fraction(6)),
                # Bounds between two codes: a runtime that clamps codes instead of numbers has to
                # round them.
                ("off_the_grid", Fraction(-13, 8), Fraction(27, 8)),
                ("half_steps", Fraction(-3, 4), Fraction(5, 4)),
                ("above_only", None, Fraction(3)), ("positive_range", Fraction(2), Fraction(9)),
            ):  # fmt: skip
                found = real.copy()
                for index in np.ndindex(found.shape):
                    if low is not None:
                        found[index] = max(found[index], low)
                    if high is not None:
                        found[index] = min(found[index], high)
                more = {
                    key: const(float(bound), "float32")
                    for key, bound in (("low", low), ("high", high)) if bound is not None
                }  # fmt: skip
                inputs = f"r {'-' if low is None else 'low'}{'' if high is None else ' high'}"
                node = op("Relu", "r", "f") if label == "relu" else op("Clip", inputs, "f")
                more = {} if label == "relu" else more
                yield _through(f"{kind}_{label}_{where}", x, before, grid, [node], found, more)


def _clamps_before() -> Iterator[CaseBody]:
    x = const([k * 0.125 for k in range(-200, 200, 3)], "float32")
    for kind in BYTES:
        grid = QuantizationGrid(0.25, 1 if kind == "uint8" else -128, kind)
        for label, low, high in (("relu", 0.0, None), ("inside", -0.125, 5.125)):
            kept = np.maximum(x, np.float32(low))
            kept = kept if high is None else np.minimum(kept, np.float32(high))
            node = op("Relu", "x", "f") if label == "relu" else op("Clip", "x low high", "f")
            more = (
                {}
                if high is None
                else {"low": const(low, "float32"), "high": const(high, "float32")}
            )
            found = {"y": grid.nearest(fractions_of(kept))}
            nodes = [node, q("f", "out", "y")]
            yield body(f"{kind}_{label}", nodes, {"x": x}, grid.constants("out") | more, found)


def _moves(real: Array) -> Iterator[tuple[str, list[Node], Array, dict[str, Array]]]:
    """Yields what only moves or selects values of a tensor of shape (1, 2, 4, 4)."""
    ints = lambda *values: const(values, "int32").astype(np.int64)  # noqa: E731
    yield "reshape", [op("Reshape", "r shape", "f")], real.reshape(2, 16), {"shape": ints(2, 16)}
    yield (
        "transpose",
        [op("Transpose", "r", "f", perm=[0, 2, 3, 1])],
        real.transpose(0, 2, 3, 1),
        {},
    )
    yield "flatten", [op("Flatten", "r", "f")], real.reshape(1, 32), {}
    yield "squeeze", [op("Squeeze", "r axes", "f")], real[0], {"axes": ints(0)}
    yield "concat", [op("Concat", "r r", "f", axis=1)], np.concatenate([real, real], 1), {}
    places = {"starts": ints(1, 0), "ends": ints(4, 4), "axes": ints(2, 3), "steps": ints(1, 2)}
    yield "slice", [op("Slice", "r starts ends axes steps", "f")], real[:, :, 1:4, ::2], places
    which = {"which": ints(3, 0)}
    yield "gather", [op("Gather", "r which", "f", axis=3)], real[..., [3, 0]], which
    pooled = np.max(
        real.reshape(1, 2, 2, 2, 2, 2).transpose(0, 1, 2, 4, 3, 5).reshape(1, 2, 2, 2, 4), -1
    )
    pool = op("MaxPool", "r", "f", kernel_shape=[2, 2], strides=[2, 2])
    yield "maxpool", [pool], pooled, {}
    room = {"pads": ints(0, 0, 1, 0, 0, 0, 0, 2)}
    around = [(0, 0), (0, 0), (1, 0), (0, 2)]
    padded = np.pad(real, around)
    yield "pad", [op("Pad", "r pads", "f")], padded, room
    room = room | {"fill": const(-1.5, "float32")}
    # NumPy pads fractions with 0: so all is moved until that is the value.
    padded = np.pad(real + Fraction(3, 2), around) - Fraction(3, 2)
    yield "pad_with_a_value", [op("Pad", "r pads fill", "f")], padded, room
    yield (
        "expand",
        [op("Expand", "r shape", "f")],
        np.tile(real, (3, 1, 1, 1)),
        {"shape": ints(3, 2, 4, 4)},
    )
    blocks = real.reshape(1, 2, 2, 2, 2, 2).transpose(0, 3, 5, 1, 2, 4).reshape(1, 8, 2, 2)
    yield "space_to_depth", [op("SpaceToDepth", "r", "f", blocksize=2)], blocks, {}


def _movers() -> Iterator[CaseBody]:
    for kind in BYTES:
        x = ramp(kind, (1, 2, 4, 4))
        before, after = grids(kind)
        for where, grid in (("same_grid", before), ("other_grid", after)):
            for label, nodes, real, more in _moves(before.real(x)):
                yield _through(f"{kind}_{label}_{where}", x, before, grid, nodes, real, more)


def _arithmetic() -> Iterator[CaseBody]:
    for kind in BYTES:
        a, b = ramp(kind, (2, 48)), ramp(kind, (2, 48), 53)
        left, right = grids(kind)
        out = QuantizationGrid(0.5, 120 if kind == "uint8" else -7, kind)
        x, y = left.real(a), right.real(b)
        both = left.constants("a") | right.constants("b") | out.constants("out")
        for label, real in (
            ("Add", x + y), ("Sub", x - y), ("Mul", x * y),
            ("Max", np.maximum(x, y)), ("Min", np.minimum(x, y)),
        ):  # fmt: skip
            nodes = [
                dq("a", "a", "l"),
                dq("b", "b", "r"),
                op(label, "l r", "f"),
                q("f", "out", "y"),
            ]
            found = {"y": out.nearest(real)}
            yield body(f"{kind}_{label.lower()}", nodes, {"a": a, "b": b}, both, found)
        image = ramp(kind, (1, 2, 4, 4))
        real = left.real(image)
        sums = real.reshape(1, 2, 2, 2, 2, 2).sum(axis=(3, 5)) / 4
        pool = op("AveragePool", "r", "f", kernel_shape=[2, 2], strides=[2, 2])
        yield _through(f"{kind}_averagepool", image, left, out, [pool], sums)
        mean = real.sum(axis=(2, 3), keepdims=True) / 16
        yield _through(
            f"{kind}_globalaveragepool", image, left, out, [op("GlobalAveragePool", "r", "f")], mean
        )
        yield _through(f"{kind}_neg", image, left, out, [op("Neg", "r", "f")], -real)
        leaky = np.where(real < 0, real / 4, real)
        node = op("LeakyRelu", "r", "f", alpha=0.25)
        yield _through(f"{kind}_leakyrelu", image, left, out, [node], leaky)


def _sharing() -> Iterator[CaseBody]:
    for kind in BYTES:
        x = ramp(kind, (4, 16))
        before, after = grids(kind)
        real = before.real(x)
        constants = before.constants("in") | after.constants("out")
        read = dq("x", "in", "r")
        twice = [read, op("Add", "r r", "f"), q("f", "out", "y")]
        yield body(
            f"{kind}_added_to_itself", twice, {"x": x}, constants, {"y": after.nearest(real * 2)}
        )
        square = [read, op("Mul", "r r", "f"), q("f", "out", "y")]
        yield body(
            f"{kind}_times_itself", square, {"x": x}, constants, {"y": after.nearest(real * real)}
        )
        shown = [read, op("Relu", "r", "f"), q("f", "out", "y"), op("Identity", "r", "z")]
        found = {"y": after.nearest(np.maximum(real, 0)), "z": stored(real)}
        yield body(f"{kind}_is_an_output_too", shown, {"x": x}, constants, found)
        split = [read, q("r", "in", "y"), q("r", "out", "z")]
        found = {"y": before.nearest(real), "z": after.nearest(real)}
        yield body(f"{kind}_two_quantizers", split, {"x": x}, constants, found)
        branches = [
            read,
            op("Relu", "r", "a"),
            op("Neg", "r", "b"),
            q("a", "out", "y"),
            q("b", "out", "z"),
        ]
        found = {"y": after.nearest(np.maximum(real, 0)), "z": after.nearest(-real)}
        yield body(f"{kind}_two_branches", branches, {"x": x}, constants, found)
        params = [
            read,
            op("DequantizeLinear", "w in_scale in_zero", "s"),
            op("Mul", "r s", "f"),
            q("f", "out", "y"),
        ]
        w = ramp(kind, (16,), 11)
        found = {"y": after.nearest(real * before.real(w))}
        yield body(f"{kind}_shared_parameters", params, {"x": x}, constants | {"w": w}, found)


def _constant_quantizing() -> Iterator[CaseBody]:
    # Eighths: float32 has them exactly, so that only the quantization rounds.
    values = const([k * 0.125 for k in range(-8, 8)], "float32")
    for kind in BYTES:
        before, after = grids(kind)
        x = ramp(kind, (2, 16))
        held = before.real(before.nearest(fractions_of(values)))
        grid = before.constants("in") | after.constants("out")
        nodes = [
            q("w", "in", "a"),
            dq("a", "in", "v"),
            dq("x", "in", "r"),
            op("Add", "r v", "f"),
            q("f", "out", "y"),
        ]
        found = {"y": after.nearest(before.real(x) + held)}
        yield body(f"{kind}_initializer", nodes, {"x": x}, grid | {"w": values}, found)
        node = op("Constant", "", "w", value=numpy_helper.from_array(values))
        yield body(f"{kind}_constant_node", [node, *nodes], {"x": x}, grid, found)
        parameters = [
            op("Constant", "", key, value=numpy_helper.from_array(value))
            for key, value in grid.items()
        ]
        made = [*parameters, *nodes]
        yield body(f"{kind}_parameters_of_nodes", made, {"x": x}, {"w": values}, found)
        # The same numbers quantized already, as weights are stored: what a runtime folds above has
        # to be equal.
        stored_ = [dq("c", "in", "v"), *nodes[2:]]
        whole = before.nearest(fractions_of(values))
        yield body(f"{kind}_stored_integers", stored_, {"x": x}, grid | {"c": whole}, found)


def _value(name: str, values: Array) -> Any:
    return typed(name, values)


def _inner(kind: str, x: str) -> tuple[list[Node], list[Node]]:
    """Returns two bodies over an outer ``x``: times two, and clamped."""
    return (
        [dq(x, "in", "ra"), op("Add", "ra ra", "fa"), q("fa", "out", "ya")],
        [dq(x, "in", "rb"), op("Relu", "rb", "fb"), q("fb", "out", "yb")],
    )


def _bodies() -> Iterator[CaseBody]:
    for kind in BYTES:
        x = ramp(kind, (2, 24))
        before, after = grids(kind)
        grid = before.constants("in") | after.constants("out")
        real = before.real(x)
        twice, clamped = after.nearest(real * 2), after.nearest(np.maximum(real, 0))
        left, right = _inner(kind, "x")
        branches = {
            "then_branch": helper.make_graph(left, "then", [], [_value("ya", x)]),
            "else_branch": helper.make_graph(right, "else", [], [_value("yb", x)]),
        }
        for label, which, wanted in (("then", True, twice), ("else", False, clamped)):
            inputs = {"which": np.asarray(which), "x": x}
            yield body(
                f"{kind}_if_{label}",
                [op("If", "which", "y", **branches)],
                inputs,
                grid,
                {"y": wanted},
            )
        steps = [
            op("Identity", "go", "go_on"),
            dq("state", "in", "r"),
            op("Add", "r half", "f"),
            q("f", "in", "next"),
        ]
        flag, count = np.asarray(True), np.asarray(3, np.int64)
        loop = helper.make_graph(
            steps, "body", [_value("i", count), _value("go", flag), _value("state", x)],
            [_value("go_on", flag), _value("next", x)],
        )  # fmt: skip
        found = x
        for _ in range(3):
            found = before.nearest(before.real(found) + Fraction(1, 2))
        more = before.constants("in") | {"half": const(0.5, "float32"), "count": count}
        yield body(
            f"{kind}_loop", [op("Loop", "count - x", "y", body=loop)], {"x": x}, more, {"y": found}
        )


def _functions() -> Iterator[CaseBody]:
    opsets = [helper.make_opsetid("", 19)]
    for kind in BYTES:
        x = ramp(kind, (2, 24))
        before, after = grids(kind)
        grid = before.constants("in") | after.constants("out")
        real = before.real(x)
        pair = helper.make_function(
            "local", "Clamped", ["x", "s", "z", "t", "o"], ["y"],
            [
                op("DequantizeLinear", "x s z", "r"),
                op("Relu", "r", "f"),
                op("QuantizeLinear", "f t o", "y"),
            ],
            opsets,
        )  # fmt: skip
        call = op("Clamped", "x in_scale in_zero out_scale out_zero", "y", domain="local")
        found = {"y": after.nearest(np.maximum(real, 0))}
        yield body(f"{kind}_relu", [call], {"x": x}, grid, found, functions=[pair])
        fake = helper.make_function(
            "local", "FakeQuantize", ["x", "s", "z"], ["y"],
            [op("QuantizeLinear", "x s z", "a"), op("DequantizeLinear", "a s z", "y")], opsets,
        )  # fmt: skip
        floats = const([k * 0.125 for k in range(-99, 99, 2)], "float32")
        call = op("FakeQuantize", "x in_scale in_zero", "y", domain="local")
        found = {"y": stored(before.real(before.nearest(fractions_of(floats))))}
        yield body(
            f"{kind}_pair", [call], {"x": floats}, before.constants("in"), found, functions=[fake]
        )
        along = helper.make_function(
            "local", "Along", ["x", "s", "z"], ["y"], [_with_axis()], opsets, attributes=["axis"]
        )
        scale, zero = const([0.5, 0.25], "float32"), const([3, 5], kind)
        call = op("Along", "x s z", "y", domain="local", axis=0)
        rows = floats[:98].reshape(2, 49)
        found = {"y": quantized(rows, scale, zero, kind, axis=0)}
        yield body(
            f"{kind}_axis_of_the_call",
            [call],
            {"x": rows},
            {"s": scale, "z": zero},
            found,
            functions=[along],
        )


def _with_axis() -> Node:
    node = op("QuantizeLinear", "x s z", "y")
    node.attribute.append(
        onnx.AttributeProto(name="axis", ref_attr_name="axis", type=onnx.AttributeProto.INT)
    )
    return node


def _open_extents() -> Iterator[CaseBody]:
    for kind in BYTES:
        x = ramp(kind, (2, 24))
        before, after = grids(kind)
        grid = before.constants("in") | after.constants("out")
        real = before.real(x)
        nodes = [dq("x", "in", "r"), op("Add", "r r", "f"), q("f", "out", "y")]
        found = {"y": after.nearest(real * 2)}
        yield body(f"{kind}_add", nodes, {"x": x}, grid, found, open_extents=True)
        scale, zero = const([0.5, 0.25], "float32"), const([3, 5], kind)
        nodes = [op("DequantizeLinear", "x s z", "y", axis=0)]
        found = {"y": dequantized(x, scale, zero, axis=0)}
        yield body(
            f"{kind}_axis", nodes, {"x": x}, {"s": scale, "z": zero}, found, open_extents=True
        )


def _casts() -> Iterator[CaseBody]:
    for kind in BYTES:
        x = ramp(kind, (2, 24))
        before, _ = grids(kind)
        for to, number in (("int32", TensorProto.INT32), ("float32", TensorProto.FLOAT)):
            nodes = [q("x", "in", "a"), op("Cast", "a", "y", to=number)]
            floats = stored(before.real(x))
            found = {"y": x.astype(np.int32 if to == "int32" else np.float32)}
            yield body(f"{kind}_{to}", nodes, {"x": floats}, before.constants("in"), found)


EACH = (
    "The operators are computed one after the other; QuantizeLinear rounds and saturates once, at "
    "the end."
)
ROWS = (
    ConformanceSituation(
        "requantize", "QuantizeLinear-19 and DequantizeLinear-19", EACH, _requantizing
    ),
    ConformanceSituation(
        "fake_quantize", "QuantizeLinear-19 and DequantizeLinear-19",
        "A pair is no identity: it rounds and saturates.", _fake_quantizing,
    ),
    ConformanceSituation("clamp_between", "Clip-13 and Relu-13", EACH, _clamps),
    ConformanceSituation("clamp_before_quantize", "Clip-13 and Relu-13", EACH, _clamps_before),
    ConformanceSituation("move_between", "QuantizeLinear-19", EACH, _movers),
    ConformanceSituation("arithmetic_between", "QuantizeLinear-19", EACH, _arithmetic),
    ConformanceSituation(
        "shared_dequantize", "IR.md, Graphs",
        "A value may be used by several nodes and be an output of the graph as well.", _sharing,
    ),
    ConformanceSituation(
        "quantize_constant", "QuantizeLinear-19",
        "A constant is quantized as any other value is.", _constant_quantizing,
    ),
    ConformanceSituation(
        "body", "If-19 and Loop-19", "Nodes of a body may use values of the graph around it.",
        _bodies,
    ),
    ConformanceSituation(
        "function", "IR.md, Functions",
        "The body of a function is computed with the inputs and attributes of the call.",
        _functions,
    ),
    ConformanceSituation(
        "open_extents", "IR.md, Static tensor shapes", "A dimension may be a symbol.", _open_extents
    ),
    ConformanceSituation("quantize_then_cast", "Cast-13", EACH, _casts),
)  # fmt: skip
"""The situations."""
