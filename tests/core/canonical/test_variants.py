"""Importers write one operator in several ways: every one of them is one form, bit for bit."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from qdqbridge.core.graph.graph import NO_ORIGIN
from qdqbridge.core.ops.attributes import (
    ClipAttrs,
    DepthSpaceAttrs,
)
from tests.core.canonical.at_work import settled
from tests.core.canonical.written_out import Make, halves, made, reshaped, vector
from tests.onnx_models import Builder, load, ops

# ---- products ----------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(3, 1, 1), (1, 3, 1, 1)])
@pytest.mark.parametrize("first", [True, False])
def test_columns_added_to_a_convolution_are_its_bias(shape: Any, *, first: bool) -> None:
    w, c = halves(3, 2, 1, 1), halves(*shape)

    def written(b: Builder, x: str) -> str:
        conv, bias = b.op("Conv", x, b.init(w)), b.init(c)
        return b.op("Add", *((bias, conv) if first else (conv, bias)))

    whole = made(lambda b, x: b.op("Conv", x, b.init(w), b.init(c.reshape(3))), [1, 2, 4, 4])
    assert made(written, [1, 2, 4, 4]).digest == whole.digest


def test_a_bias_that_is_computed() -> None:
    b = Builder(13)
    x, bias = b.input("x", [1, 2, 4, 4]), b.input("bias", [3])
    conv = b.op("ConvTranspose", x, b.init(halves(2, 3, 2, 2)))
    b.output(b.op("Add", conv, b.op("Reshape", bias, b.init(vector(1, -1, 1, 1)))), None)
    found = settled(load(b.model()))
    assert ops(found) == ["Reshape", "ConvTranspose", "Add"]
    for node in (raw := load(b.model())).nodes:
        node.origin = NO_ORIGIN  # of a reader that knows of no file
    assert ops(settled(raw)) == ["ConvTranspose"]
    assert raw.nodes[0].operand(2) is raw.inputs[1]


@pytest.mark.parametrize("shape", [(1,), (4,), (2, 3, 1, 1), (3, 4, 4)])
def test_other_addends_of_a_convolution_stay(shape: Any) -> None:
    w, c = halves(3, 2, 1, 1), halves(*shape)
    found = made(lambda b, x: b.op("Add", b.op("Conv", x, b.init(w)), b.init(c)), [2, 2, 4, 4])
    assert ops(found) == ["Conv", "Add"]


def test_a_convolution_that_is_read_elsewhere_keeps_its_result() -> None:
    b = Builder(13)
    conv = b.op("Conv", b.input("x", [1, 2, 4, 4]), b.init(halves(3, 2, 1, 1)))
    b.output(b.op("Add", conv, b.init(halves(3, 1, 1))), None)
    b.output(conv, None)
    assert ops(settled(load(b.model()))) == ["Conv", "Add"]


def test_products_of_matrices_have_one_form() -> None:
    w, c = halves(6, 3), halves(3)
    variants: list[Make] = [
        lambda b, x: b.op("Add", b.op("MatMul", x, b.init(w)), b.init(c)),
        lambda b, x: b.op("Add", b.init(c.reshape(1, 3)), b.op("MatMul", x, b.init(w))),
        lambda b, x: b.op("Gemm", x, b.init(w), b.init(c)),
        lambda b, x: b.op("Gemm", x, b.init(w.T.copy()), b.init(c), transB=1),
    ]
    assert len({made(make, [2, 6]).digest for make in variants}) == 1
    bare: list[Make] = [
        lambda b, x: b.op("MatMul", x, b.init(w)),
        lambda b, x: b.op("Gemm", x, b.init(w.T.copy()), transB=1),
    ]
    assert len({made(make, [2, 6]).digest for make in bare}) == 1
    assert ops(made(bare[0], [2, 6])) == ["Gemm"]


@pytest.mark.parametrize("shape", [(1,), (2, 1), (2, 3)])
def test_other_addends_of_a_product_stay(shape: Any) -> None:
    w, c = halves(6, 3), halves(*shape)
    found = made(lambda b, x: b.op("Add", b.op("MatMul", x, b.init(w)), b.init(c)), [2, 6])
    assert ops(found) == ["Gemm", "Add"]


def test_stacks_of_matrices_keep_their_sum() -> None:
    w, c = halves(6, 3), halves(3)
    found = made(lambda b, x: b.op("Add", b.op("MatMul", x, b.init(w)), b.init(c)), [2, 4, 6])
    assert ops(found) == ["MatMul", "Add"]


# ---- pools, softmax, norms ---------------------------------------------------------------------


@pytest.mark.parametrize(("reduction", "pool"), [("Mean", "Average"), ("Max", "Max")])
def test_reductions_over_space_are_pools(reduction: str, pool: str) -> None:
    reduce, whole = f"Reduce{reduction}", f"Global{pool}Pool"
    for shape, axes, name in (([1, 2, 4, 4], [2, 3], whole), ([1, 2, 4], [2], reduce)):
        written = made(lambda b, x, a=axes: b.op(reduce, x, axes=a), shape)
        direct = made(lambda b, x: b.op(whole, x), shape)
        assert written.digest == direct.digest
        assert ops(direct) == [name]
    kept = made(lambda b, x: b.op(reduce, x, axes=[1, 2]), [1, 2, 4, 4])
    dropped = made(lambda b, x: b.op(reduce, x, axes=[2, 3], keepdims=0), [1, 2, 4, 4])
    assert ops(kept) == ops(dropped) == [reduce]


def test_softmax_of_rows() -> None:
    direct = made(lambda b, x: b.op("Softmax", x, axis=-1), [2, 3, 4])

    def written(b: Builder, x: str) -> str:
        flat = b.op("Softmax", reshaped(6, 4)(b, x), axis=-1)
        return reshaped(2, 3, 4)(b, flat)

    assert made(written, [2, 3, 4]).digest == direct.digest


def test_softmax_of_other_rows_stays() -> None:
    def other(b: Builder, x: str) -> str:
        return reshaped(2, 3, 4)(b, b.op("Softmax", reshaped(2, 12)(b, x), axis=-1))

    assert len(ops(made(other, [2, 3, 4]))) == 3


# ---- element by element ------------------------------------------------------------------------


def bound(value: float) -> Callable[[Builder], str]:
    return lambda b: b.init(np.float32(value))


LOW, HIGH = bound(-0.5), bound(1.5)


def test_extremes_of_numbers_are_clips() -> None:
    variants: list[Make] = [
        lambda b, x: b.op("Clip", x, LOW(b), HIGH(b)),
        lambda b, x: b.op("Min", b.op("Max", x, LOW(b)), HIGH(b)),
        lambda b, x: b.op("Clip", b.op("Clip", x, LOW(b)), "", HIGH(b)),
        lambda b, x: b.op("Max", b.op("Min", HIGH(b), x), LOW(b)),
    ]
    found = [made(make, [3, 4]) for make in variants]
    assert {n.attributes for g in found for n in g.nodes} == {ClipAttrs(-0.5, 1.5)}
    assert ops(made(lambda b, x: b.op("Max", x, b.init(halves(4))), [3, 4])) == ["Max"]
    assert ops(made(lambda b, x: b.op("Min", x, b.init(np.float32(np.nan))), [3, 4])) == ["Min"]
    crossed = made(lambda b, x: b.op("Clip", b.op("Clip", x, HIGH(b)), "", LOW(b)), [3, 4])
    assert ops(crossed) == ["Clip", "Clip"]
    # without bounds it is a Clip to finite numbers
    assert ops(made(lambda b, x: b.op("Relu", b.op("Clip", x)), [3, 4])) == ["Clip", "Relu"]


def test_reciprocal() -> None:
    assert ops(made(lambda b, x: b.op("Div", bound(1)(b), x), [3, 4])) == ["Reciprocal"]
    assert ops(made(lambda b, x: b.op("Div", bound(2)(b), x), [3, 4])) == ["Div"]


def test_indices_count_from_the_front() -> None:
    def written(b: Builder, x: str) -> str:
        index, extent = b.init(vector(1, -1)), b.init(vector(4))
        test = b.op("Less", index, b.init(vector(0)))
        return b.op("Gather", x, b.op("Where", test, b.op("Add", index, extent), index), axis=1)

    plain = made(lambda b, x: b.op("Gather", x, b.init(vector(1, -1)), axis=1), [3, 4])
    assert made(written, [3, 4]).digest == plain.digest
    assert plain.nodes[0].operand(1).constant.numpy().tolist() == [1, 3]  # type: ignore[union-attr]
    unknown = made(lambda b, x: b.op("Gather", x, b.init(vector(-1)), axis=0), ["n", 4])
    assert unknown.nodes[0].operand(1).constant.numpy().tolist() == [-1]  # type: ignore[union-attr]


@pytest.mark.parametrize(("extent", "wanted"), [(4, ["Gather"]), (3, None)])
def test_indices_at_run_time(extent: int, wanted: list[str] | None) -> None:
    b = Builder(13)
    x, index = b.input("x", [3, 4]), b.input("i", [2], 7)
    test = b.op("Less", index, b.init(vector(0)))
    wrapped = b.op("Where", test, b.op("Add", index, b.init(vector(extent))), index)
    b.output(b.op("Gather", x, wrapped, axis=1), None)
    from qdqbridge.core.canonical import canonicalize

    found = canonicalize(load(b.model()))
    if wanted is None:
        assert "Where" in ops(found)
        assert any("not counted from the end" in note.reason for note in found.notes)
    else:
        assert ops(found) == wanted


@pytest.mark.parametrize("batch", [2, "n"])
@pytest.mark.parametrize(
    ("op", "attributes", "split", "perm", "joined"),
    [
        ("DepthToSpace", DepthSpaceAttrs(2), (0, 2, 2, 3, 2, 4), (0, 3, 4, 1, 5, 2), (0, 3, 4, 8)),
        ("DepthToSpace", DepthSpaceAttrs(2, "CRD"), (0, 3, 2, 2, 2, 4), (0, 1, 4, 2, 5, 3),
         (0, 3, 4, 8)),
        ("SpaceToDepth", DepthSpaceAttrs(2), (0, 12, 1, 2, 2, 2), (0, 3, 5, 1, 2, 4),
         (0, 48, 1, 2)),
    ],
)  # fmt: skip
def test_blocks(
    op: str, attributes: DepthSpaceAttrs, split: Any, perm: Any, joined: Any, batch: Any
) -> None:
    def written(b: Builder, x: str) -> str:
        permuted = b.op("Transpose", reshaped(*split)(b, x), perm=list(perm))
        return reshaped(*joined)(b, permuted)

    found = made(written, [batch, 12, 2, 4])
    assert [(n.op.name, n.attributes) for n in found.nodes] == [(op, attributes)]
    other = made(
        lambda b, x: reshaped(0, 3, 8, 4)(b, reshaped(0, 2, 2, 3, 2, 4)(b, x)), [2, 12, 2, 4]
    )
    assert ops(other) == ["Reshape"]
