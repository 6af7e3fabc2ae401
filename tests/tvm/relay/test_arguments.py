"""What users of the Relay side hand over wrongly is refused in words."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tvm
from tvm import relay

import qdqbridge as qb
import qdqbridge.tvm.relay as relay_side
from qdqbridge.errors import QdqBridgeError
from tests.places import MODELS

W = np.ones((4, 3), np.float32)
qr: Any = relay_side
"""The functions as untyped callers see them."""


def product() -> Any:
    """Returns ``dense(x, w)``, both of them variables."""
    x, w = relay.var("x", shape=(2, 3)), relay.var("w", shape=(4, 3))
    return tvm.IRModule.from_expr(relay.Function([x, w], relay.nn.dense(x, w)))


def free_variable() -> Any:
    body = relay.nn.relu(relay.var("x", shape=(2, 3)))
    return tvm.IRModule({relay.GlobalVar("main"): relay.Function([], body)})


def emitted(**extents: Any) -> Any:
    return qr.emit(qb.load(MODELS / "digits_cnn_u8s8_per_channel.onnx"), extents=extents)


def exported(path: Path, dataset: Any = None, w: Any = W, **config: Any) -> Any:
    params = None if w is None else {"w": w}
    return qr.export_quantized(
        product(), params, dataset, path, qconfig={"skip_dense_layer": False, **config}
    )


X = np.ones((2, 3), np.float32)
OBSERVED = {"calibrate_mode": "percentile"}
CASES: dict[str, tuple[Callable[[Path], Any], str]] = {
    "module": (lambda _: qr.from_relay(None), "needs an IRModule"),
    "path": (lambda _: qr.from_simulated("a.json"), "needs an IRModule"),
    "no main": (lambda _: qr.from_relay(tvm.IRModule()), "no functions"),
    "types": (lambda _: qr.from_relay(free_variable()), "well-typed"),
    "no mapping": (lambda _: qr.from_relay(product(), [W]), "not a mapping"),
    "no numbers": (lambda _: qr.bind(product(), {"w": "w"}), "not an array of numbers"),
    "shape": (lambda _: qr.from_relay(product(), {"w": W.T}), r"give float32\[4, 3\]"),
    "dtype": (lambda _: qr.bind(product(), {"w": W.astype("f8")}), r"it is float64\[4, 3\]"),
    "graph": (lambda _: qr.emit("a.onnx"), "needs a graph"),
    "unknown extent": (lambda _: emitted(batch=1, time=2), "no symbolic extent 'time'"),
    "extent 0": (lambda _: emitted(batch=0), "it is 0"),
    "extent text": (lambda _: emitted(batch="1"), "it is '1'"),
    "save": (lambda p: qr.save(None, None, p), "needs an IRModule"),
    "readable": (lambda _: qr.readable(None), "needs an IRModule"),
    "load": (lambda _: qr.load(None), "not a path"),
    "quantize": (lambda p: qr.export_quantized(None, None, None, p), "needs an IRModule"),
    "settings": (lambda p: exported(p, nbits=4), "qconfig has no 'nbits'"),
    "mode": (lambda p: exported(p, calibrate_mode="guess"), "choose global_scale"),
    "data": (lambda p: exported(p, 5, **OBSERVED), "the dataset is one int"),
    "one batch": (lambda p: exported(p, {"x": X}, **OBSERVED), "the dataset is one dict"),
    "batch": (lambda p: exported(p, [X], **OBSERVED), "a batch of the dataset is ndarray"),
    "batch names": (lambda p: exported(p, [{"y": X}], **OBSERVED), r"give exactly \['x'\]"),
    "batch shape": (lambda p: exported(p, [{"x": X.T}], **OBSERVED), r"give float32\[2, 3\]"),
    "no weight": (lambda p: exported(p, w=None), "a weight of the module has no value"),
    "nan": (lambda p: exported(p, w=W * np.nan), "is not finite"),
    "nothing": (lambda p: exported(p, skip_dense_layer=True), "nothing to quantize"),
}


@pytest.mark.parametrize("case", CASES)
def test_refused(case: str, tmp_path: Path) -> None:
    call, words = CASES[case]
    with pytest.raises(QdqBridgeError, match=words):
        call(tmp_path / "file.onnx")
    assert not list(tmp_path.iterdir())


def test_what_is_no_module_is_no_file_of_one(tmp_path: Path) -> None:
    qr.save(product(), None, tmp_path / "a.relay")
    assert qr.load(tmp_path / "a.relay")[1] == {}
    with pytest.raises(QdqBridgeError, match="cannot read the Relay module"):
        qr.load(tmp_path)


def test_the_module_of_the_user_stays_as_it_is(tmp_path: Path) -> None:
    """TVM's own ``relay.quantize`` binds the parameters in the module that it is given."""
    module = product()
    before = tvm.ir.structural_hash(module, map_free_vars=True)
    config = {"skip_dense_layer": False, "weight_scale": "max"}
    qr.export_quantized(module, {"w": W * 0}, None, tmp_path / "zeros.onnx", qconfig=config)
    assert tvm.ir.structural_hash(module, map_free_vars=True) == before
    graph = qb.load(tmp_path / "zeros.onnx")
    assert all(float(v.quant.params.scale.min()) > 0 for v in graph.values() if v.quant)
