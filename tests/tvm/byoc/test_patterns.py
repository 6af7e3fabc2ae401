"""The algebra and its matcher, without TVM: captures, choices, and words for what is missing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from qdqbridge.errors import QdqBridgeError
from qdqbridge.tvm.byoc.pattern import (
    Anything,
    Applied,
    CallPattern,
    ConstantPattern,
    Either,
    FixedTerm,
    Free,
    Group,
    Match,
    Mismatch,
    Pattern,
    Term,
    Tuple,
    match_byoc_pattern,
    operators,
    optional,
    pattern_text,
    roots,
)
from qdqbridge.tvm.byoc.table import Entry, Table
from qdqbridge.tvm.byoc.tables import canonical


def free(name: str = "x") -> Free:
    return Free(None, (1, 4), "int8", name)


def fixed(value: Any = 0) -> FixedTerm:
    return FixedTerm(None, (), "int32", lambda: np.asarray(value))


def call(op: str, *args: Term, **attrs: Any) -> Applied:
    return Applied(None, (1, 4), "int8", op, lambda: args, lambda: attrs, name=f"the {op}")


def group(*fields: Term) -> Group:
    return Group(None, lambda: fields)


def found(pattern: Pattern, term: Term) -> Match:
    result = match_byoc_pattern(pattern, term)
    assert isinstance(result, Match), result
    return result


def missing(pattern: Pattern, term: Term) -> str:
    result = match_byoc_pattern(pattern, term)
    assert isinstance(result, Mismatch)
    return result.reason


CONV = CallPattern("conv", Anything().named("x"), ConstantPattern()).named("conv")
BIASED = optional(
    CONV, lambda p: Either(CallPattern("add", p, ConstantPattern()), CallPattern("bias_add", p))
)
WHOLE = optional(CallPattern("round", BIASED), lambda p: CallPattern("clip", p).named("clip"))


def test_optional_parts_are_taken_where_they_are() -> None:
    x = free()
    conv = call("conv", x, fixed())
    bare, full = call("round", conv), call("clip", call("round", call("add", conv, fixed())))
    assert found(WHOLE, bare).call("clip") is None
    whole = found(WHOLE, full)
    assert whole.call("clip") is full and whole["x"] is x and whole.call("conv") is conv
    assert [c.op for c in whole.calls] == ["clip", "round", "add", "conv"]
    assert found(WHOLE, call("round", call("bias_add", conv))).calls[1].op == "bias_add"


def test_a_failed_choice_leaves_no_captures() -> None:
    a, b = free("a"), free("b")
    first = CallPattern("f", Anything().named("x"), ConstantPattern())
    second = CallPattern("f", ConstantPattern(), Anything().named("y"))
    result = found(Either(first, second), call("f", fixed(), b))
    assert set(result.captures) == {"y"} and result["y"] is b
    inner = found(CallPattern("g", Either(first, second)), call("g", call("f", a, fixed())))
    assert set(inner.captures) == {"x"} and len(inner.calls) == 2


def test_one_name_is_one_value() -> None:
    twice = CallPattern("mul", Anything().named("x"), Anything().named("x"))
    x = free()
    assert found(twice, call("mul", x, x))["x"] is x
    assert "two different values" in missing(twice, call("mul", x, free()))


@pytest.mark.parametrize(
    ("term", "reason"),
    [
        (call("round", call("dense", free())), "conv is wanted, dense is found"),
        (call("round", call("conv", free(), free("w"))), "a constant is wanted, variable w is"),
        (call("round", call("conv", free())), "conv has 1 of 2 arguments"),
        (call("floor", free()), "round is wanted, floor is found"),
    ],
)
def test_a_mismatch_names_the_place_that_was_reached_last(term: Term, reason: str) -> None:
    assert reason in missing(CallPattern("round", CONV), term)


def test_attributes_and_tuples() -> None:
    linear = CallPattern("resize", attrs={"method": "linear", "size": [2, 2]})
    assert found(linear, call("resize", free(), method="linear", size=(2, 2)))
    assert "method of resize is 'cubic'" in missing(linear, call("resize", method="cubic"))
    pair = CallPattern("concat", Tuple(Anything(), ConstantPattern()))
    assert found(pair, call("concat", group(free(), fixed())))
    assert "a tuple of 2 is wanted, one of 1" in missing(pair, call("concat", group(free())))
    assert "a tuple is wanted" in missing(pair, call("concat", free()))
    constants = CallPattern("concat", Tuple(every=ConstantPattern()))
    assert found(constants, call("concat", group(fixed(), fixed(), fixed())))
    assert "a constant is wanted" in missing(constants, call("concat", group(fixed(), free())))


def test_roots_come_longest_first() -> None:
    assert [pattern_text(root) for root in roots(WHOLE)] == [
        "clip(round([add(conv(*, C), C) | bias_add(conv(*, C))]))",
        "round([add(conv(*, C), C) | bias_add(conv(*, C))])",
    ]
    assert operators(WHOLE) == {"conv", "add", "bias_add", "round", "clip"}


def test_patterns_are_values() -> None:
    assert CallPattern("f", ConstantPattern(), attrs={"a": 1}) == CallPattern(
        "f", ConstantPattern(), attrs={"a": 1}
    )
    assert len({CallPattern("f"), CallPattern("f"), CallPattern("g")}) == 2
    with pytest.raises(AttributeError):
        CallPattern("f").op = "g"  # pyright: ignore[reportAttributeAccessIssue]


def entries(*names: str) -> Sequence[Entry]:
    return canonical().only(*names).entries


def test_tables_are_checked_and_chosen_from() -> None:
    with pytest.raises(QdqBridgeError, match="not well formed"):
        Table("npu", (*entries("add"), *entries("add")))
    with pytest.raises(QdqBridgeError, match="not well formed"):
        Table("my.npu", ())
    with pytest.raises(QdqBridgeError, match="has no entry 'conv9d'"):
        canonical().only("conv9d")
    few = canonical("npu").only("dense", "conv2d")
    assert [e.name for e in few.entries] == ["conv2d", "dense"]
    assert [e.name for e in few.without("dense").entries] == ["conv2d"]
    assert few.entry("npu.dense") is few.entries[1]
    for wrong in ("other.dense", "conv9d", ""):
        with pytest.raises(QdqBridgeError, match="'npu' has no entry") as caught:
            few.entry(wrong)
        assert caught.value.why == "it has conv2d, dense"
    with pytest.raises(QdqBridgeError, match=r"did you mean batch_matmul or batch_matmul_float"):
        canonical().entry("matmul")
    with pytest.raises(QdqBridgeError, match="has no entry 'conv9d'"):
        few.without("conv9d")


def test_a_check_is_added_to_the_entry_own() -> None:
    (entry,) = entries("max")
    stricter = entry.checked(lambda record: ["never"])
    reasons = stricter.judge(call("max", free(), axis=(1,), keepdims=True)).reasons
    assert reasons == ("never",)
