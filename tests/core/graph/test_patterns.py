"""The pattern language: what each of its words finds, and chains of random patterns."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from qdqbridge.core.graph.edit import Editor
from qdqbridge.core.graph.graph import Graph, Value
from qdqbridge.core.graph.patterns import AnyOf, AnyPattern, Part, PatternMatch, matches
from qdqbridge.core.ops.attributes import ReduceAttrs
from tests.core.graph.graphs import apply, const, plain

COMMUTATIVE = ("Add", "Mul", "Max", "Min")
OTHERS = ("Sub", "Div", "Pow")


def found(
    value: Value, pattern: AnyPattern, is_output: Callable[[Value], bool] = lambda v: False
) -> list[PatternMatch]:
    graph = Graph(inputs=[], outputs=[value], output_names=["y"], nodes=[])
    Editor(graph).finish()  # enters every node into the user lists of its operands
    return list(matches(value, pattern, either_order=True, is_output=is_output))


def test_a_name_is_one_value_and_operands_change_places() -> None:
    x, y = plain("x", (3,)), plain("y", (3,))
    silu = apply("Mul", apply("Sigmoid", x), x)
    (match,) = found(silu, ("Mul", "x", ("Sigmoid", "x")))
    assert match["x"] is x
    assert [node.op.name for node in match.nodes] == ["Mul", "Sigmoid"]
    assert not found(apply("Mul", apply("Sigmoid", x), y), ("Mul", "x", ("Sigmoid", "x")))
    assert not found(apply("Sub", apply("Sigmoid", x), x), ("Sub", "x", ("Sigmoid", "x")))


def test_an_order_that_fails_later_is_tried_again() -> None:
    x, y = plain("x", (3,)), plain("y", (3,))
    value = apply("Sub", apply("Mul", y, x), x)
    (match,) = found(value, ("Sub", ("Mul", "x", "y"), "x"))
    assert (match["x"], match["y"]) == (x, y)


def test_numbers() -> None:
    x = plain("x", (3,))
    value = apply("Add", const(np.full((1,), 2.5, np.float32)), x)
    (match,) = found(value, ("Add", "x", "#n"))
    assert match.numbers == {"n": 2.5}
    (match,) = found(value, ("Add", "x", "#-n"))
    assert match.numbers == {"n": -2.5}
    assert found(value, ("Add", "x", 2.5))
    assert not found(value, ("Add", "x", 2.0))
    assert not found(apply("Add", x, const(np.ones(3, np.float32))), ("Add", "x", "#n"))


def test_attributes_by_field() -> None:
    mean = apply("ReduceMean", plain("x", (2, 3)), attributes=ReduceAttrs((1,), keepdims=False))
    (match,) = found(mean, ("ReduceMean", "x", {"axes": "#axes"}))
    assert match.numbers == {"axes": (1,)}
    assert found(mean, ("ReduceMean", "x", {"keepdims": False}))
    assert not found(mean, ("ReduceMean", "x", {"keepdims": True}))
    assert not found(mean, ("ReduceMean", "x", {"kept": True}))


def test_optional_operands() -> None:
    x, w, b = plain("x", (2, 3)), plain("w", (4, 3)), plain("b", (4,))
    pattern = ("Gemm", "x", "w", "bias?")
    (without,), (with_bias,) = (
        found(apply("Gemm", x, w), pattern),
        found(apply("Gemm", x, w, b), pattern),
    )
    assert "bias" not in without.values
    assert with_bias["bias"] is b
    assert not found(apply("Gemm", x, w, b), ("Gemm", "x", "w"))
    assert not found(apply("Gemm", x, w, b), ("Gemm", "x", "w", Part("bias?", constant=True)))
    assert found(apply("Gemm", x, w), ("Gemm", "x", "w", Part("bias?", constant=True)))


def test_parts_that_nobody_else_reads() -> None:
    x = plain("x", (3,))
    inner = apply("Neg", x)
    pattern = ("Abs", Part("inner", ("Neg", "x"), sole=True))
    value = apply("Abs", inner)
    assert found(value, pattern)
    assert not found(value, pattern, lambda v: v is inner)
    assert not found(apply("Add", value, inner), ("Add", pattern, "inner"))


def test_alternatives_and_operators_of_several_names() -> None:
    x = plain("x", (3,))
    value = apply("Abs", apply("Neg", x))
    assert found(value, ("Abs", (("Relu", "Neg"), "x")))
    (match,) = found(value, ("Abs", AnyOf((("Relu", "x"), Part("n", ("Neg", "x"))))))
    assert match.node("n").op.name == "Neg"
    assert not found(value, ("Abs", AnyOf((("Relu", "x"), ("Sqrt", "x")))))


def test_constants() -> None:
    x, c = plain("x", (3,)), const(np.ones(3, np.float32))
    (match,) = found(
        apply("Add", c, x), ("Add", Part("x", constant=False), Part("c", constant=True))
    )
    assert (match["x"], match["c"]) == (x, c)
    assert not found(apply("Add", x, plain("y", (3,))), ("Add", "x", Part("c", constant=True)))


def random_pattern(rng: np.random.Generator, depth: int) -> Any:
    """Returns a pattern of some operators; its leaves are three names, and numbers."""
    if depth == 0 or rng.random() < 0.2:
        return str(rng.choice(["x", "y", "z"])) if rng.random() < 0.8 else float(rng.integers(1, 4))
    if rng.random() < 0.2:
        return ("Neg", random_pattern(rng, depth - 1))
    op = str(rng.choice((*COMMUTATIVE, *OTHERS)))
    return (op, random_pattern(rng, depth - 1), random_pattern(rng, depth - 1))


def built(pattern: Any, values: dict[str, Value], rng: np.random.Generator) -> Value:
    """Returns what a pattern says, its commutative operands in any order."""
    if isinstance(pattern, str):
        return values[pattern]
    if isinstance(pattern, float):
        return const(np.asarray(pattern, np.float32))
    operands = [built(part, values, rng) for part in pattern[1:]]
    if pattern[0] in COMMUTATIVE and rng.random() < 0.5:
        operands.reverse()
    return apply(pattern[0], *operands)


def names(pattern: Any) -> set[str]:
    if isinstance(pattern, tuple):
        return set[str]().union(*(names(part) for part in pattern[1:]))
    return {pattern} if isinstance(pattern, str) else set()


@pytest.mark.parametrize("seed", range(100))
def test_what_a_pattern_says_is_found_in_any_order(seed: int) -> None:
    rng = np.random.default_rng(seed)
    pattern = ("Sub", random_pattern(rng, 3), random_pattern(rng, 3))
    values = {name: plain(name, (3,)) for name in "xyz"}
    value = built(pattern, values, rng)
    wanted = {name: values[name] for name in names(pattern)}
    assert wanted in [match.values for match in found(value, pattern)]
    assert not found(value, ("Sub", pattern[1], ("Tanh", pattern[2])))
    other = {name: plain(name, (3,)) for name in "xyz"}  # same operators, of other values
    mixed = apply("Sub", built(pattern[1], values, rng), built(pattern[2], other, rng))
    shared = names(pattern[1]) & names(pattern[2])
    assert not shared or wanted not in [match.values for match in found(mixed, pattern)]
