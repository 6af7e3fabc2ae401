"""Modules as users have them: methods of ``nn.Module``, lowered, recursive, parameters apart."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("tvm")

import tvm
from tvm import relax
from tvm.relax.frontend import detach_params, nn
from tvm.relax.frontend.nn import spec

import qdqbridge as qb
from qdqbridge.app.sources import load_model
from qdqbridge.errors import InputDataError, ModelFileError, UnsupportedModelError
from qdqbridge.tvm.relax.dialect import tensor_type


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(8)
        self.dense = nn.Linear(8, 6)

    def forward(self, x: Any) -> Any:
        return nn.op.softmax(nn.op.reshape(self.dense(self.norm(x)), (1, 4, 6)), axis=-1)


def network() -> tuple[Any, dict[str, Any]]:
    rng = np.random.default_rng(3)
    inputs: Any = {"forward": {"x": spec.Tensor((4, 8), "float32")}}
    exported: Any = Net().export_tvm(inputs)
    module, params = exported
    arrays = {n: rng.standard_normal([int(e) for e in p.shape]) for n, p in params}
    return module, {name: array.astype(np.float32) for name, array in arrays.items()}


def test_a_method_of_an_nn_module_is_read(tmp_path: Path) -> None:
    module, params = network()
    graph = qb.from_relax(module, params)
    assert [value.name for value in graph.inputs] == ["x"]
    assert {node.op.name for node in graph.nodes} >= {"LayerNormalization", "Softmax"}
    np.savez(tmp_path / "p.npz", **params)
    (tmp_path / "m.json").write_text(tvm.ir.save_json(module))
    (tmp_path / "m.py").write_text(module.script())  # this writes dense_weight for dense.weight
    for name in ("m.json", "m.py"):
        found = load_model(tmp_path / name, params=tmp_path / "p.npz")
        assert found.digest == graph.digest


def test_one_of_several_functions_is_read_by_its_name() -> None:
    module, params = network()
    module["again"] = module["forward"].with_attr("global_symbol", "again")
    with pytest.raises(InputDataError, match="'main'") as error:
        qb.from_relax(module, params)
    assert "forward" in error.value.why
    assert "function=" in error.value.fix
    assert qb.from_relax(module, params, function="again").nodes


def test_a_saved_module_with_arithmetic_on_extents(tmp_path: Path) -> None:
    builder = relax.BlockBuilder()
    extents = [tvm.tirx.Var(name, "int64") for name in "nk"]
    x = relax.Var("x", tensor_type(extents, "float32"))
    with builder.function("main", [x]):
        joined = builder.emit(relax.op.concat([x, x], axis=1))
        builder.emit_func_output(builder.emit(relax.op.exp(joined)))
    module: Any = builder.finalize()
    (tmp_path / "m.json").write_text(tvm.ir.save_json(module))
    assert load_model(tmp_path / "m.json").digest == qb.from_relax(module).digest


@pytest.mark.parametrize("after", ["LegalizeOps", "zero"])
def test_a_lowered_module_is_refused_with_every_kernel(after: str) -> None:
    module, params = network()
    passes: Any = relax.get_pipeline("zero") if after == "zero" else relax.transform.LegalizeOps()
    with pytest.raises(UnsupportedModelError, match=r"[2-9] call\(s\)") as error:
        qb.from_relax(passes(module), params, function="forward")
    assert "before LegalizeOps" in error.value.why
    assert "a tuple is given" not in error.value.why


def test_a_function_that_calls_itself_is_refused() -> None:
    builder = relax.BlockBuilder()
    x = relax.Var("x", tensor_type((2, 4), "float32"))
    with builder.function("main", [x]):
        called = builder.emit(relax.op.exp(x))
        builder.emit_func_output(called)
    module: Any = builder.finalize()
    own = module.get_global_var("main")
    again = relax.Var("y", tensor_type((2, 4), "float32"))
    body = relax.SeqExpr(
        [relax.BindingBlock([relax.VarBinding(again, relax.Call(own, [x]))])], again
    )
    module["main"] = relax.Function([x], body, tensor_type((2, 4), "float32"))
    with pytest.raises(UnsupportedModelError, match=r"1 call\(s\)") as error:
        qb.from_relax(module)
    assert "calls itself" in error.value.why


def test_parameters_as_the_frontends_detach_them() -> None:
    module, arrays = network()
    function: Any = module["forward"]
    values = [tvm.runtime.tensor(array) for array in arrays.values()]
    module["forward"] = function.with_attr("params", values)
    whole = qb.from_relax(module, function="forward")
    detached, params = detach_params(module)
    assert list(params) == ["forward"]
    for graph in (
        qb.from_relax(detached, params, function="forward"),
        qb.from_relax(detached, arrays, function="forward"),
    ):
        assert graph.digest == whole.digest


def test_parameters_that_do_not_fit_are_refused() -> None:
    module, arrays = network()
    for other in (arrays["norm.weight"].astype(np.float64), arrays["norm.weight"][:4]):
        with pytest.raises(InputDataError, match=r"'norm\.weight' does not fit"):
            qb.from_relax(module, arrays | {"norm.weight": other}, function="forward")
    as_list: Any = list(arrays.values())
    with pytest.raises(InputDataError, match=r"(?s)params is given.*a mapping of \(anything\)"):
        qb.from_relax(module, as_list, function="forward")
    with pytest.raises(InputDataError, match="5 parameters"):
        qb.from_relax(module, {"forward": [*as_list, *as_list]}, function="forward")


def test_functions_that_multiply_are_refused_before_they_fill_the_memory() -> None:
    builder = relax.BlockBuilder()
    last = None
    for level in range(40):
        x = relax.Var("x", tensor_type((2,), "float32"))
        with builder.function("main" if level == 39 else f"f{level}", [x]):
            y = relax.op.abs(x) if last is None else relax.Call(last, [relax.Call(last, [x])])
            builder.emit_func_output(builder.emit(y))
        last = builder.get().get_global_var("main" if level == 39 else f"f{level}")
    with pytest.raises(UnsupportedModelError, match="too large"):
        qb.from_relax(builder.get())


def test_constants_that_a_file_lacks_are_named(tmp_path: Path) -> None:
    module, params = network()
    held: Any = params
    bound = relax.transform.BindParams("forward", held)(module)
    (tmp_path / "m.py").write_text(bound.script(show_meta=False))
    with pytest.raises(ModelFileError, match="show_meta=True"):
        load_model(tmp_path / "m.py")


def test_bits_of_signed_integers_are_not_shifted() -> None:
    builder = relax.BlockBuilder()
    x = relax.Var("x", tensor_type((2,), "int32"))
    with builder.function("main", [x]):
        builder.emit_func_output(builder.emit(relax.op.left_shift(x, x)))
    with pytest.raises(UnsupportedModelError, match="unsigned"):
        qb.from_relax(builder.get())
