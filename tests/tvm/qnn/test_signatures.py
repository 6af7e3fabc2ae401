"""Where operands stand in calls, against the names that the dialect gives its arguments."""

from __future__ import annotations

import pytest

from qdqbridge.tvm.qnn.ranges import SIGNATURES

pytest.importorskip("tvm")

from qdqbridge.tvm.qnn.dialect import QNN_OPS

pytestmark = pytest.mark.relax
OPS = {op.name: op for op in QNN_OPS}


def stem(name: str) -> str:
    return name.removesuffix("s").removesuffix("_scale").removesuffix("_zero_point")


@pytest.mark.parametrize("name", sorted(SIGNATURES))
def test_scales_and_zero_points_stand_where_the_dialect_has_them(name: str) -> None:
    names, signature = OPS[name].arguments, SIGNATURES[name]
    pairs = [(operand.scale, operand.zero_point) for operand in signature.operands]
    if signature.result is not None:
        pairs.append((signature.result, signature.result + 1))
    for scale, zero_point in pairs:
        assert "scale" in names[scale] and "zero_point" in names[zero_point]
        assert stem(names[scale]) == stem(names[zero_point])
    told = {index for pair in pairs for index in pair}
    assert told == {i for i, each in enumerate(names) if "scale" in each or "zero_point" in each}
    data = [operand.data for operand in signature.operands]
    assert sorted(data) == data and told.isdisjoint(data)


def test_every_operator_with_parameters_has_a_signature() -> None:
    stated = {op.name for op in QNN_OPS if any("scale" in each for each in op.arguments)}
    assert sorted(stated - SIGNATURES.keys()) == []
