"""Random damage: a graph or a named error, never another exception."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from qdqbridge.errors import (
    QdqBridgeError,
)
from tests.onnx_io.bad_parts import Model, loaded
from tests.onnx_models import conv_model

VALID = conv_model(21).SerializeToString()


def only_named_errors(data: bytes, path: Path) -> str:
    path.write_bytes(data)
    try:
        loaded(path).text()
    except QdqBridgeError as error:
        assert str(error)
        return type(error).__name__
    return "read"


FUZZ = settings(
    max_examples=int(os.environ.get("QDQBRIDGE_FUZZ", "100")),
    derandomize="QDQBRIDGE_FUZZ" not in os.environ,
    deadline=None,
    database=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)


@FUZZ
@given(
    st.lists(st.tuples(st.integers(0, len(VALID) - 1), st.integers(0, 255)), min_size=1, max_size=8)
)
def test_changed_bytes(tmp_path: Path, changes: list[tuple[int, int]]) -> None:
    data = bytearray(VALID)
    for place, byte in changes:
        data[place] = byte
    only_named_errors(bytes(data), tmp_path / "fuzzed.onnx")


NUMBERS = st.sampled_from([-(2**63), -(2**31), -2, -1, 0, 1, 2, 3, 7, 100, 2**31, 2**40, 2**62])
TEXTS = st.sampled_from(["", "x", "axis", "Conv", "QuantizeLinear", "Reshape", "\0", "é", "../x"])


@FUZZ
@given(st.data())
def test_changed_fields(tmp_path: Path, data: st.DataObject) -> None:
    model = Model.FromString(VALID)
    for _ in range(data.draw(st.integers(1, 3))):
        change_field(model, data)
    only_named_errors(model.SerializeToString(), tmp_path / "fuzzed.onnx")


def change_field(message: Any, data: st.DataObject) -> None:
    """Walks into a random submessage and changes one of its fields."""
    while True:
        fields = message.ListFields()
        if not fields:
            return
        descriptor, value = data.draw(st.sampled_from(fields))
        repeated = hasattr(value, "append") or hasattr(value, "add")
        if descriptor.message_type is not None:
            children = list(value) if repeated else [value]
            if repeated and children and data.draw(st.integers(0, 9)) == 0:
                del value[data.draw(st.integers(0, len(children) - 1))]
                return
            message = data.draw(st.sampled_from(children))
            continue
        _change_scalar(message, descriptor, value, repeated, data)
        return


def _change_scalar(message: Any, descriptor: Any, value: Any, repeated: bool, data: Any) -> None:
    kinds = {
        descriptor.CPPTYPE_STRING: st.binary(max_size=40)
        if descriptor.type == descriptor.TYPE_BYTES
        else TEXTS,
        descriptor.CPPTYPE_FLOAT: st.floats(width=32),
        descriptor.CPPTYPE_DOUBLE: st.floats(),
        descriptor.CPPTYPE_INT64: NUMBERS,
        descriptor.CPPTYPE_UINT64: NUMBERS.map(abs),
        descriptor.CPPTYPE_INT32: NUMBERS.filter(lambda n: abs(n) < 2**31),
        descriptor.CPPTYPE_ENUM: st.sampled_from([0, 1, 2, 5]),
    }
    new = data.draw(kinds[descriptor.cpp_type])
    if repeated:
        value[data.draw(st.integers(0, len(value) - 1))] = new
        return
    setattr(message, descriptor.name, new)
