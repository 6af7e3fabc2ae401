"""Every form of an operator means the operator."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from qdqbridge.core.graph.operator import Form, Operator
from qdqbridge.core.graph.patterns import Pattern
from qdqbridge.core.ops.bodies import OPERANDS, form_for, outermost_forms
from qdqbridge.core.ops.table import BY_NAME, OPERATORS

FORMS = [(op, form) for op in OPERATORS for form in op.forms]
NUMBERS = {"alpha": 1.25, "gamma": 0.75, "beta": 0.375}
COMPARED = {"Less": np.less, "Greater": np.greater, "Where": np.where, "Cast": np.float64}
Array = np.ndarray[Any, Any]


def value(pattern: Pattern, known: dict[str, Any]) -> Any:
    """Returns what a chain comes to, by the rows of its own steps."""
    if not isinstance(pattern, tuple):
        return known[pattern] if isinstance(pattern, str) else np.float64(pattern)
    if pattern[0] in COMPARED:
        return COMPARED[pattern[0]](*(value(part, known) for part in pattern[1:]))
    op = BY_NAME[pattern[0]]
    parts = [np.asarray(value(part, known)) for part in pattern[1:]]
    count = len(parts) - len(op.fields)
    attributes = op.attributes(**dict(zip(op.fields, map(float, parts[count:]), strict=True)))
    return op.compute(attributes, parts[:count])[0]


@pytest.mark.parametrize(("op", "form"), FORMS, ids=lambda x: getattr(x, "name", "form"))
def test_a_form_means_its_operator(op: Operator, form: Form) -> None:
    rng = np.random.default_rng(0)
    operands = [rng.normal(0, 2, 500) for _ in range(op.arity)]
    numbers = {name: form.given.get(name, NUMBERS.get(name, 0.0)) for name in op.fields}
    known = dict(zip(OPERANDS[op.arity], operands, strict=True))
    for name, number in numbers.items():
        if not isinstance(number, str):
            known |= {f"#{name}": np.float64(number), f"#-{name}": -np.float64(number)}
    (wanted,) = op.compute(op.attributes(**numbers), operands)
    # The constants of forms are float32: 1/6 and the root of 1/2 are off by some 1e-8.
    np.testing.assert_allclose(value(form.pattern, known), wanted, rtol=1e-6, atol=1e-7)


def test_a_form_that_is_part_of_another_is_no_whole_one() -> None:
    softplus = BY_NAME["Softplus"]
    assert outermost_forms(softplus) == softplus.forms[:2]
    assert all(outermost_forms(op) for op in OPERATORS if op.forms)


def test_emission_finds_a_form_for_any_attributes() -> None:
    for op in OPERATORS:
        if op.forms and all(name in NUMBERS for name in op.fields):
            attributes = op.attributes(**{name: NUMBERS[name] for name in op.fields})
            assert form_for(op, attributes) is not None, op.name
