"""Relay modules to files and back, bit for bit."""

from __future__ import annotations

import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tvm
from tvm import relay

from qdqbridge.errors import ModelFileError, OutputFileError
from qdqbridge.tvm.relay import build, load, readable, save
from qdqbridge.tvm.relay.dialect import call
from tests.tvm.relay.relay_cases import const

SCALE, ALPHA = np.float32(0.034159623), 0.1 + 1e-12
"""Neither survives being printed with six digits."""


def module() -> Any:
    x = relay.var("x", shape=(2, 4, 6, 6), dtype="int8")
    w = relay.var("w", shape=(4, 4, 3, 3), dtype="int8")
    scale, zero = const(SCALE, "float32"), const(0, "int32")
    conv = call(
        "qnn.conv2d",
        [x, w, zero, zero, scale, const(np.full(4, SCALE), "float32")],
        {"padding": [1, 1, 1, 1], "kernel_size": [3, 3], "channels": 4},
    )
    bias = relay.nn.bias_add(conv, const(np.arange(4) * 1000, "int32"))
    row = const(np.full(4, SCALE * SCALE), "float32")
    value = call("qnn.requantize", [bias, row, zero, scale, zero], {"axis": 1})
    value = call("qnn.leaky_relu", [value, scale, zero, scale, zero], {"alpha": ALPHA})
    value = call("qnn.elu", [value, scale, zero, scale, zero], {"alpha": ALPHA})
    function = relay.Function([x, w], value)
    function = function.with_attr("input_names", ["image:0"]).with_attr("output_names", ["y/z"])
    return relay.transform.InferType()(tvm.IRModule.from_expr(function))


def weights() -> dict[str, Any]:
    rng = np.random.default_rng(0)
    return {"w": rng.integers(-128, 128, (4, 4, 3, 3)).astype(np.int8)}


def test_round_trip_is_exact_where_text_is_not(tmp_path: Path) -> None:
    path = tmp_path / "model.relay"
    save(module(), weights(), path)
    again, params = load(path)
    tvm.ir.assert_structural_equal(module(), again)
    np.testing.assert_array_equal(params["w"].numpy(), weights()["w"])
    assert params["w"].dtype == "int8"
    assert [p.name for p in tmp_path.iterdir()] == ["model.relay"]
    x = np.random.default_rng(1).integers(-128, 128, (2, 4, 6, 6)).astype(np.int8)
    runs = [build(m, p).run({"image:0": x}) for m, p in ((module(), weights()), (again, params))]
    assert list(runs[0]) == ["y/z"]
    np.testing.assert_array_equal(runs[0]["y/z"], runs[1]["y/z"])


def test_plain_text_loses_scalars() -> None:
    """Why text is not stored; if TVM ever prints all digits this fails and text may be used."""
    x = relay.var("x", shape=(2,), dtype="float32")
    body = relay.qnn.op.quantize(x, const(SCALE, "float32"), const(0, "int32"), out_dtype="int8")
    plain = relay.transform.InferType()(tvm.IRModule.from_expr(body))
    again = relay.transform.InferType()(relay.fromtext(plain.astext()))
    assert not tvm.ir.structural_equal(plain, again)


def test_readable_text_names_its_scalars() -> None:
    text, values = readable(module())
    assert "%scalar0" in text
    assert "0.0341596f" not in text
    assert {float(value.numpy()) for value in values.values()} == {float(SCALE)}


def test_failures_leave_what_was_there(tmp_path: Path) -> None:
    with pytest.raises(OutputFileError, match="cannot write"):
        save(module(), None, tmp_path / "missing" / "model.relay")
    path = tmp_path / "model.relay"
    for data in (b"", b"PK", b"x" * 100):
        path.write_bytes(data)
        with pytest.raises(ModelFileError, match="cannot read"):
            load(path)
    with pytest.raises(ModelFileError, match="cannot read"):
        load(tmp_path / "nothing")
    save(module(), None, path)
    with zipfile.ZipFile(path) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    for name, data in (("format.txt", b"qdqbridge relay 9"), ("module.json", b"{")):
        with zipfile.ZipFile(path, "w") as archive:
            for member, content in (members | {name: data}).items():
                archive.writestr(member, content)
        with pytest.raises(ModelFileError, match="cannot read"):
            load(path)
