"""Order and editing: deterministic, both directions of every edge kept."""

from __future__ import annotations

import numpy as np
import pytest

from qdqbridge.core.graph.edit import Editor, execution_order, link, unlink
from qdqbridge.core.graph.graph import Graph, Node, Origin, Value
from qdqbridge.core.ops.attributes import IN_FLOAT32
from qdqbridge.core.ops.conversion import QUANTIZE
from qdqbridge.errors import InvalidModelError
from tests.core.graph.graphs import (
    OUT,
    U8,
    apply,
    const,
    dq,
    graph,
    names,
    plain,
    q,
    rq,
    stored,
    typed,
)


def diamond() -> tuple[Graph, list[Value]]:
    x = plain("x", (2,))
    a = apply("Abs", x, name="a")
    b, c = apply("Neg", a, name="b"), apply("Sqrt", a, name="c")
    d = apply("Add", b, c, name="d")
    return graph([x], d), [x, a, b, c, d]


def users(value: Value) -> list[tuple[str, int]]:
    return [(node.name, index) for node, index in value.users]


def test_order_is_operands_first_from_the_outputs() -> None:
    g, _ = diamond()
    assert [n.name for n in g.nodes] == ["a", "b", "c", "d"]
    g.nodes.reverse()
    Editor(g).finish()
    assert [n.name for n in g.nodes] == ["a", "b", "c", "d"]


def test_order_follows_outputs_then_operands() -> None:
    x = plain("x", (2,))
    a, b = apply("Abs", x, name="a"), apply("Neg", x, name="b")
    assert [n.name for n in execution_order([b, a])] == ["b", "a"]
    assert [n.name for n in execution_order([a, b, a])] == ["a", "b"]
    assert execution_order([x]) == []


def test_deep_graphs_do_not_recurse() -> None:
    value = plain("x", (1,))
    for _ in range(20_000):
        value = apply("Neg", value)
    assert len(execution_order([value])) == 20_000


@pytest.mark.parametrize("length", [1, 2, 5])
def test_cycles_are_found(length: int) -> None:
    x = plain("x", (1,))
    values = [apply("Neg", x, name="n0")]
    for i in range(1, length):
        values.append(apply("Neg", values[-1], name=f"n{i}"))
    first = values[0].producer
    assert first is not None
    first.inputs[0] = values[-1]
    with pytest.raises(InvalidModelError, match="cycle") as caught:
        execution_order([values[-1]])
    assert "n0" in caught.value.where
    assert caught.value.why


def test_a_value_read_twice_is_no_cycle() -> None:
    x = plain("x", (1,))
    a = apply("Abs", x)
    assert len(execution_order([apply("Add", a, a)])) == 2


def test_user_lists_know_every_edge() -> None:
    _, (x, a, b, c, d) = diamond()
    assert users(x) == [("a", 0)]
    assert users(a) == [("b", 0), ("c", 0)]
    assert users(b) == [("d", 0)]
    assert users(c) == [("d", 1)]
    assert users(d) == []


def test_link_and_unlink() -> None:
    x = plain("x", (1,))
    node = Node(QUANTIZE, IN_FLOAT32, [x, None, x], [stored("y", U8, (1,))])
    assert not node.linked
    assert not x.users
    link(node)
    assert node.linked
    assert list(x.users) == [(node, 0), (node, 2)]
    unlink(node)
    assert not node.linked
    assert not x.users


def test_replace_value_moves_readers_and_outputs() -> None:
    x = plain("x", (2,))
    a = apply("Abs", x, name="a")
    b = apply("Neg", a, name="b")
    g = graph([x], b, a, a)
    editor, new = Editor(g), apply("Sqrt", x, name="new")
    assert editor.is_output(a)
    assert [n.name for n in editor.insert(new)] == ["new"]
    readers = editor.replace_value(a, new)
    assert [n.name for n in readers] == ["b"]
    assert g.outputs == [b, new, new]
    assert users(new) == [("b", 0)]
    assert not a.users
    assert editor.is_output(new)
    assert not editor.is_output(a)
    editor.finish()
    assert [n.name for n in g.nodes] == ["new", "b"]
    assert users(x) == [("new", 0)]


def test_insert_links_whole_proposals_once() -> None:
    g, (x, a, *_) = diamond()
    editor = Editor(g)
    proposal = apply("Neg", apply("Abs", a, name="p"), name="p2")
    assert {n.name for n in editor.insert(proposal)} == {"p", "p2"}
    assert editor.insert(proposal) == []
    assert editor.insert(x) == []
    assert ("p", 0) in users(a)


def test_dead_nodes() -> None:
    g, (x, a, b, _, d) = diamond()
    editor = Editor(g)
    assert d.producer is not None
    assert b.producer is not None
    assert not editor.is_dead(d.producer)
    editor.replace_value(d, a)
    assert editor.is_dead(d.producer)
    assert {n.name for n in editor.remove(d.producer)} == {"b", "c"}
    assert editor.is_dead(b.producer)
    editor.finish()
    assert [n.name for n in g.nodes] == ["a"]
    assert users(a) == []
    assert users(x) == [("a", 0)]


def test_origin_joins_names_once() -> None:
    a = Origin(("conv", "relu"), (("k", "1"),), "Conv")
    b = Origin(("relu", "q"), (("k", "2"), ("l", "3")))
    assert a.joined(b) == Origin(("conv", "relu", "q"), (("k", "2"), ("l", "3")), "Conv")
    assert b.joined(a).variant == "Conv"


def test_values_lists_each_value_once() -> None:
    x = stored("x", U8, (2,))
    c = const(np.array([1, 2], np.uint8), U8)
    y = apply("Add", x, c, type_=typed((2,), OUT), name="add")
    g = graph([x], dq(y), y)
    assert [v.name for v in g.values()] == ["x", "c", "add", "dq"]
    assert names(g) == ["Add", "dequantize"]


def test_node_accessors() -> None:
    x = plain("x", (2,))
    node = q(x, U8).producer
    assert node is not None
    assert node.operand(0) is x
    assert node.optional(5) is None
    assert [i for i, _ in node.data_operands()] == [0]
    node.inputs.append(None)
    assert node.optional(1) is None
    with pytest.raises(AssertionError):
        node.operand(1)
    assert rq(node.output, OUT).producer is not None
    assert "quantize" in repr(node)
