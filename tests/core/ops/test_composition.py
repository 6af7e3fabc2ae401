"""A composition is its steps one after the other, rounded once."""

from __future__ import annotations

import numpy as np

from qdqbridge.core.graph.dtypes import DType
from qdqbridge.core.graph.numerics import codes, dequantize, quantize
from qdqbridge.core.graph.operator import NO_ATTRIBUTES
from qdqbridge.core.graph.types import QuantType, per_tensor
from qdqbridge.core.ops.composition import COMPOSITION, CompositionAttrs, Step, table
from qdqbridge.core.ops.table import BY_NAME

HALF = np.asarray(0.5, np.float32)
STEPS = (
    Step(BY_NAME["Mul"], NO_ATTRIBUTES, (0, 1)),
    Step(BY_NAME["Sigmoid"], NO_ATTRIBUTES, (2,)),
    Step(BY_NAME["Mul"], NO_ATTRIBUTES, (0, 3)),
)
ATTRIBUTES = CompositionAttrs(STEPS)
X = per_tensor(DType.INT8, 0.07, 3)
Y = per_tensor(DType.UINT8, 0.05, 19)


def by_hand(x: np.ndarray) -> np.ndarray:
    (gate,) = BY_NAME["Sigmoid"].compute(NO_ATTRIBUTES, [x * HALF])
    return x * gate


def test_steps_read_operands_and_earlier_steps() -> None:
    x = np.linspace(-4, 4, 33, dtype=np.float32)
    (y,) = COMPOSITION.compute(ATTRIBUTES, [x, HALF])
    np.testing.assert_array_equal(y, by_hand(x))


def test_the_table_holds_every_code_by_its_bit_pattern() -> None:
    entries = table(ATTRIBUTES, X, Y, [HALF])
    expected = quantize(by_hand(dequantize(codes(X), X)), Y)
    np.testing.assert_array_equal(entries, expected)
    assert entries.dtype == np.uint8
    assert len(np.unique(entries)) > 50


def test_the_contract_looks_up() -> None:
    assert COMPOSITION.contract is not None
    stored = np.arange(-128, 128, dtype=np.int8).reshape(16, 16)
    types, results = [QuantType(X, (16, 16)), None], [QuantType(Y, (16, 16))]
    found = COMPOSITION.contract(ATTRIBUTES, [stored, HALF], types, results)
    assert found is not None
    np.testing.assert_array_equal(found[0], quantize(by_hand(dequantize(stored, X)), Y))


def test_names_and_origins_are_no_part_of_the_meaning() -> None:
    named = Step(BY_NAME["Erf"], NO_ATTRIBUTES, (0,), name="erf")
    assert named == Step(BY_NAME["Erf"], NO_ATTRIBUTES, (0,))
    assert str(named) == "Erf(0)"


def test_numbers_without_axes_stay_that() -> None:
    assert COMPOSITION.contract is not None
    types, results = [QuantType(X, ()), None], [QuantType(Y, ())]
    found = COMPOSITION.contract(ATTRIBUTES, [np.asarray(7, np.int8), HALF], types, results)
    assert found is not None
    assert found[0].shape == ()
