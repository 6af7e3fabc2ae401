"""Operators of operands whose extents differ in name: one of them may turn out to be 1."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper

pytest.importorskip("tvm")

import qdqbridge as qb
from qdqbridge.errors import InputDataError
from tests.onnx_models import Array, Builder, canonical

pytestmark = pytest.mark.relax

_KINDS: dict[str, tuple[str, str]] = {
    **dict.fromkeys(("And", "Or", "Xor"), ("bool", "bool")),
    **dict.fromkeys(("Equal", "Greater", "Less", "GreaterOrEqual", "LessOrEqual"),
                    ("float32", "bool")),
    **dict.fromkeys(("BitwiseAnd", "BitwiseOr", "BitwiseXor", "Mod"), ("int32", "int32")),
    **dict.fromkeys(("Sum", "Mean"), ("float32", "float32")),
}  # fmt: skip
"""Element types of operands and result."""
_SHAPES: tuple[tuple[Any, ...], ...] = (("n",), (0,), (3,), ("m",), ("k", 1))


def _given(kind: str, extent: int, shape: tuple[Any, ...]) -> Array:
    rng = np.random.default_rng(extent)
    drawn = rng.integers(1, 4, [extent if isinstance(n, str) else n for n in shape])
    return (drawn > 1 if kind == "bool" else drawn).astype(kind)


@pytest.mark.parametrize("shape", _SHAPES[1:])
def test_other_extents(shape: tuple[Any, ...]) -> None:
    """By onnxruntime, and where that refuses extents the run ends in an error."""
    b = Builder(21)
    for op_type, (kind, result) in _KINDS.items():
        elem, made = (helper.np_dtype_to_tensor_dtype(np.dtype(k)) for k in (kind, result))
        names = [b.input(f"{op_type}_{i}", s, elem) for i, s in enumerate((_SHAPES[0], shape))]
        b.output(b.op(op_type, *names), None, made)
    graph = canonical(b.model())
    assert qb.from_relax(qb.to_relax(graph)[0]).digest == graph.digest
    executable = qb.compile(graph)
    for n, other in ((1, 3), (3, 1), (3, 3), (0, 1), (1, 0), (1, 1)):
        given = {
            f"{op_type}_{index}": _given(kind, extent, s)
            for op_type, (kind, _) in _KINDS.items()
            for index, (extent, s) in enumerate(((n, _SHAPES[0]), (other, shape)))
        }
        try:
            np.broadcast_shapes(*(given[f"And_{index}"].shape for index in (0, 1)))
        except ValueError:
            with pytest.raises(InputDataError):
                executable.run(given)
            continue
        found, wanted = executable.run(given), qb.evaluate(graph, given)
        for name, array in wanted.items():
            np.testing.assert_array_equal(found[name], array, name)


def test_the_rows_of_a_product_and_of_what_is_added() -> None:
    """The product's have a name, the others are a number; it is the same one, or the run ends."""
    b = Builder(21)
    x = b.qdq(b.input("x", ["k", 4]), 0.1, 3)
    w = b.qdq(b.input("w", [1, 4]), 0.02, 7)
    y = b.op("Gemm", x, w, b.input("c", [2, 1]), transB=1)
    b.output(y, None)
    graph, rng = canonical(b.model()), np.random.default_rng(0)
    executable = qb.compile(graph)
    given = {name: rng.normal(size=s).astype(np.float32)
             for name, s in (("x", (2, 4)), ("w", (1, 4)), ("c", (2, 1)))}  # fmt: skip
    np.testing.assert_array_equal(executable.run(given)[y], qb.evaluate(graph, given)[y])
    with pytest.raises(InputDataError):
        executable.run(given | {"x": np.ones((3, 4), np.float32)})


def test_a_remainder_of_either_sign() -> None:
    b = Builder(21)
    names = [b.input("x", ["n"], TensorProto.FLOAT), b.input("y", ["m"], TensorProto.FLOAT)]
    b.output(b.op("Mod", *names, fmod=1), None)
    graph, x = canonical(b.model()), np.array([5, -5, 5.5, -7], np.float32)
    executable = qb.compile(graph)
    for y in ([3], [-3], [3, -3, -2, 2]):
        given = {"x": x, "y": np.array(y, np.float32)}
        (found,), (wanted,) = executable.run(given).values(), qb.evaluate(graph, given).values()
        np.testing.assert_array_equal(found, wanted)


@pytest.mark.parametrize("kind", ["float32", "float64", "int32"])
@pytest.mark.parametrize("width", [5, "m"])
def test_extents_of_an_equation(kind: str, width: int | str) -> None:
    """An Einsum sums along an extent that is 1 in one operand as often as the other has it."""
    b = Builder(21)
    elem = helper.np_dtype_to_tensor_dtype(np.dtype(kind))
    x, y = b.input("x", [2, "k", "n"], elem), b.input("y", [width, 3], elem)
    b.output(b.op("Einsum", x, y, equation="abc,cd->adb"), None, elem)
    graph = canonical(b.model())
    assert qb.from_relax(qb.to_relax(graph)[0]).digest == graph.digest
    executable = qb.compile(graph)
    for n, other in ((1, 5), (5, 5), (5, 1), (1, 1)):
        if isinstance(width, int) and other != width:
            continue
        given = {"x": _given(kind, n, (2, 4, "n")), "y": _given(kind, other, ("m", 3))}
        (found,) = executable.run(given).values()
        wanted = sum(
            given["x"][:, :, i % n, None] * given["y"][i % other] for i in range(max(n, other))
        )
        np.testing.assert_array_equal(found, np.swapaxes(wanted, 1, 2), str((n, other)))
