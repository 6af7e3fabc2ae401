"""Operands that may change places have one order, by structure; extremes have one form."""

from __future__ import annotations

import random
from collections.abc import Callable

import numpy as np
import pytest

from qdqbridge.core.canonical import canonicalize
from qdqbridge.core.canonical.order import commuting
from qdqbridge.core.graph.copying import copied
from qdqbridge.core.graph.graph import Graph, Node, Value
from qdqbridge.core.graph.types import TensorType
from qdqbridge.core.ops.attributes import AxisAttrs, SplitAttrs, TransposeAttrs
from qdqbridge.core.ops.selection import SPLIT
from tests.core.canonical.at_work import settled
from tests.core.graph.graphs import OUT, U8, apply, const, dq, graph, names, plain, q, stored

SHAPE = (4, 4)


def add(a: Value, b: Value) -> Value:
    return apply("Add", a, b)


def scalar(number: float) -> Value:
    return const(np.asarray(number, np.float32))


def both(build: Callable[[Callable[[Value, Value], Value]], Graph]) -> tuple[Graph, Graph]:
    """The graph, and the one whose sums are all written the other way round."""
    return settled(build(add)), settled(build(lambda a, b: add(b, a)))


def check_both(build: Callable[[Callable[[Value, Value], Value]], Graph]) -> Graph:
    one, other = both(build)
    assert one.text() == other.text()
    return one


def test_constants_are_last() -> None:
    x = plain("x", SHAPE)
    g = settled(graph([x], apply("Mul", scalar(3), x, type_=x.type)))
    assert g.nodes[0].operand(0) is x


def test_the_shorter_way_is_first() -> None:
    def build(plus: Callable[[Value, Value], Value]) -> Graph:
        x = plain("x", SHAPE)
        return graph([x], plus(apply("Sigmoid", apply("Tanh", x)), x))

    assert check_both(build).nodes[-1].operand(0).producer is None


def test_inputs_keep_their_order() -> None:
    def build(plus: Callable[[Value, Value], Value]) -> Graph:
        x, y = plain("x", SHAPE), plain("y", SHAPE)
        return graph([x, y], plus(y, x))

    assert [v.name for v in check_both(build).nodes[0].inputs if v] == ["x", "y"]


def test_long_constants_far_behind_decide() -> None:
    rng = np.random.default_rng(0)
    tables = [rng.normal(size=(4, 9)).astype(np.float32) for _ in range(2)]

    def build(plus: Callable[[Value, Value], Value]) -> Graph:
        x = plain("x", SHAPE)
        a, b = (
            apply("Tanh", apply("MatMul", x, const(w), type_=TensorType(x.type.dtype, (4, 9))))
            for w in tables
        )
        return graph([x], plus(a, b))

    check_both(build)


def test_values_computed_twice_are_told_apart_by_their_readers() -> None:
    def build(plus: Callable[[Value, Value], Value]) -> Graph:
        x = plain("x", SHAPE)
        a, b = apply("Tanh", x), apply("Tanh", x)
        return graph([x], plus(a, b), apply("Exp", b), a)

    check_both(build)


def test_twins_without_any_difference_follow_the_walk() -> None:
    """Operators of several results are not merged."""
    for seed in range(20):
        rng = random.Random(seed)

        def pair(a: Value, b: Value, rng: random.Random = rng) -> Value:
            return apply("Add", *rng.sample((a, b), 2), type_=a.type)

        x = plain("x", SHAPE)
        parts = [[plain("", (2, 4)), plain("", (2, 4))] for _ in range(2)]
        for made in parts:
            Node(SPLIT, SplitAttrs(0, (2, 2)), [x], made)
        (a, _), (b, _) = parts
        text = settled(graph([x], pair(a, b), pair(b, a), pair(a, b))).text()
        assert text.count("Add(%1, %3)") == 1
        assert "Add(%3, %1)" not in text


@pytest.mark.parametrize("name", ["Sub", "Div", "Pow", "PRelu"])
def test_others_keep_their_order(name: str) -> None:
    x = plain("x", SHAPE)
    g = settled(graph([x], apply(name, apply("Exp", apply("Tanh", x)), x)))
    assert g.nodes[-1].operand(1) is x


def test_steps_of_compositions_have_one_order() -> None:
    texts: set[str] = set()
    for seed in range(16):
        rng = random.Random(seed)

        def op(name: str, *operands: Value, rng: random.Random = rng) -> Value:
            widest = max(operands, key=lambda value: value.rank or 0)
            order = operands if rng.random() < 0.5 else operands[::-1]
            return apply(name, *order, type_=widest.type)

        x = stored("x", U8, (50,))
        real, half = dq(x), scalar(0.5)
        again = half if rng.random() < 0.5 else scalar(0.5)
        erf = apply("Erf", op("Mul", real, scalar(0.7)))
        y = op("Mul", op("Mul", real, half), op("Add", erf, op("Add", scalar(1), again)))
        g = settled(graph([x], q(y, OUT)))
        assert names(g) == ["Composition"]
        texts.add(g.text())
    assert len(texts) == 1


def test_an_extreme_of_extremes_is_one() -> None:
    x, y, z = (stored(name, U8, (30,)) for name in "xyz")
    inner = dq(q(apply("Max", dq(x), dq(y)), OUT))
    one = settled(graph([x, y, z], q(apply("Max", inner, dq(z)), OUT)))
    a, b, c = (stored(name, U8, (30,)) for name in "xyz")
    other = settled(graph([a, b, c], q(apply("Max", dq(c), dq(a), dq(b)), OUT)))
    assert names(one) == ["Max"]
    assert one.text() == other.text()


def test_an_extreme_that_is_rounded_otherwise_in_between_stays() -> None:
    x, y, z = (stored(name, U8, (30,)) for name in "xyz")
    inner = dq(q(apply("Max", dq(x), dq(y)), U8))
    assert names(settled(graph([x, y, z], q(apply("Max", inner, dq(z)), OUT)))) == ["Max", "Max"]


def test_an_extreme_of_equals_is_that_value() -> None:
    x = stored("x", U8, (30,))
    g = settled(graph([x], q(apply("Max", dq(x), dq(x), dq(x)), OUT)))
    assert names(g) == ["requantize"]
    y = plain("y", (30,))
    g = settled(graph([y], apply("Min", y, y)))
    assert names(g) == []


def test_a_number_among_several_is_a_clip() -> None:
    x, y = plain("x", SHAPE), plain("y", SHAPE)
    g = settled(graph([x, y], apply("Max", x, scalar(0), y)))
    assert names(g) == ["Max", "Clip"]


# ---- random graphs ----------------------------------------------------------------------------

_UNARY = ("Tanh", "Sigmoid", "Exp", "Relu")
_BINARY = ("Add", "Mul", "Min", "Max", "Sub")


def random_graph(seed: int) -> Graph:
    """Float and quantized operators with many equal parts, so that ties are common."""
    rng = random.Random(seed)
    values = [plain("a", SHAPE), plain("b", SHAPE)]
    inputs = list(values)
    for _ in range(rng.randint(4, 14)):
        kind = rng.random()
        if kind < 0.35:
            made = apply(rng.choice(_UNARY), rng.choice(values))
        elif kind < 0.45:
            made = dq(q(rng.choice(values), OUT))
        elif kind < 0.55:
            made = apply(rng.choice(_BINARY), rng.choice(values), scalar(rng.choice([0.5, 2])))
        elif kind < 0.62:
            made = apply("Transpose", rng.choice(values), attributes=TransposeAttrs((1, 0)))
        else:
            made = apply(rng.choice(_BINARY), rng.choice(values), rng.choice(values))
        values.append(made)
    outputs = rng.sample(values[2:], min(len(values) - 2, rng.randint(1, 3)))
    return graph(inputs, *outputs)


def swapped(g: Graph, rng: random.Random) -> Graph:
    """A copy with its commuting operands in any order."""
    g = copied(g).graph
    for node in g.nodes:
        first = list(commuting(node))
        rng.shuffle(first)
        shuffle(node, [*first, *node.inputs[len(first) :]])
    return g


def shuffle(node: Node, operands: list[Value | None]) -> None:
    from qdqbridge.core.graph.edit import link, unlink

    unlink(node)
    node.inputs = operands
    link(node)


@pytest.mark.parametrize("first", range(0, 300, 50))
def test_random_graphs_do_not_depend_on_the_order(first: int) -> None:
    for seed in range(first, first + 50):
        g, rng = random_graph(seed), random.Random(seed)
        twins = [swapped(g, rng) for _ in range(3)]
        expected = canonicalize(g).text()
        for twin in twins:
            assert canonicalize(twin).text() == expected, seed
        assert canonicalize(g).text() == expected, seed


def test_joins_are_not_reordered() -> None:
    x = plain("x", SHAPE)
    y = apply("Concat", apply("Tanh", x), x, attributes=AxisAttrs(0),
              type_=TensorType(x.type.dtype, (8, 4)))  # fmt: skip
    assert settled(graph([x], y)).nodes[-1].operand(1) is x
