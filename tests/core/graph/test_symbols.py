"""Sums of products of names."""

import pytest

from qdqbridge.core.graph.symbols import (
    dim_name,
    name_in_files,
    product,
    quotient,
    total,
    with_numbers,
)


def test_a_sum_has_one_name() -> None:
    assert total(["n", "m", 3]) == total([3, "m", "n"]) == "(m+n+3)"
    assert product(["n", 8]) == product([2, "n", 4]) == "(n*8)"
    assert total(["n", product(["n", -1])]) == 0
    assert product([total(["a", 1]), total(["a", -1])]) == total([product(["a", "a"]), -1])
    assert product([]) == 1
    assert product(["n", 0]) == 0


@pytest.mark.parametrize(
    ("dividend", "divisor", "result"),
    [("(n*8)", 8, "n"), ("(h*n*8)", "n", "(h*8)"), ("(n*8)", 3, None), ("n", "m", None),
     ("n", 0, None), ("(n*4+8)", 4, "(n+2)"), ("(n+m)", "(n+m)", None)],
)  # fmt: skip
def test_quotients_leave_nothing_over(dividend, divisor, result) -> None:
    assert quotient(dividend, divisor) == result


def test_names_that_would_be_read_as_something_else_stand_in_quotes() -> None:
    named = product(["past + sequence", 2])
    assert named == "('past + sequence'*2)"
    assert quotient(named, 2) == "past + sequence"
    assert product(["n*8", "a b", 2]) == "('a b'*'n*8'*2)"
    assert total(["-3", 1, "-3"]) == "('-3'*2+1)"
    assert total([named, "past", "sequence"]) == "(past+'past + sequence'*2+sequence)"
    assert with_numbers("('1'*n+'past + 1')", {"1": 4, "past + 1": 3}) == "(n*4+3)"
    assert total(["it's", 1]) is None
    assert total([None, 1]) is None


@pytest.mark.parametrize(
    ("given", "here", "written"),
    [("n", "n", "n"), ("1", "1", "1"), ("?0", "\\?0", "?0"), ("(n*2)", "\\(n*2)", "(n*2)"),
     ("\\n", "\\\\n", "\\n"), ("a\\b", "a\\b", "a\\b")],
)  # fmt: skip
def test_names_of_files(given: str, here: str, written: str) -> None:
    assert dim_name(given) == here
    assert name_in_files(here) == written


def test_what_nobody_named_has_no_name_in_files() -> None:
    assert [name_in_files(dim) for dim in ("?r3", "(?r3+n)", "(n*2)", 4)] == [
        None,
        None,
        "(n*2)",
        4,
    ]
    assert name_in_files(product([dim_name("(n*2)"), 3]) or 0) is None


def test_what_grows_without_end_has_no_name() -> None:
    dim = total(["a", "b", "c", "d"])
    for _ in range(8):
        dim = product([dim, dim]) if dim is not None else None
    assert dim is None
    assert product([1 << 30, 4]) is None


def test_names_become_numbers() -> None:
    assert with_numbers("(n*m*8+h+-3)", {"n": 2, "h": 5}) == "(m*16+2)"
    assert with_numbers("(n*8)", {"n": 3}) == 24
    assert with_numbers("n", {"m": 3}) == "n"
    assert with_numbers(7, {"n": 3}) == 7
