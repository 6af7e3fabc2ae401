"""Products of float32 on loops: along the columns, with every bit of TVM's own loops."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tvm
from tvm import relax as tvm_relax
from tvm import tirx

from qdqbridge.tvm.relax.executable import lowered
from qdqbridge.tvm.relax.nonfinite import along_columns

relax: Any = tvm_relax
N, M = (tirx.Var(name, "int64") for name in "nm")
SHAPES: dict[str, tuple[tuple[Any, ...], tuple[Any, ...]]] = {
    "one-row": ((1, 64), (64, 33)),
    "scores": ((1, 4, N, 64), (1, 4, 64, M)),
    "weights": ((1, 4, N, M), (1, 4, M, 64)),
    "shared": ((2, 3, N, 16), (1, 16, 5)),
}
EXTENTS = {"n": 3, "m": 21}


def _module(shapes: tuple[tuple[Any, ...], ...], dtype: str, times: int = 1) -> Any:
    builder = relax.BlockBuilder()
    given = [
        relax.Var(name, relax.TensorType(s, dtype)) for name, s in zip("ab", shapes, strict=True)
    ]
    with builder.function("main", given):
        results = [builder.emit(relax.op.matmul(*given)) for _ in range(times)]
        builder.emit_func_output(results[0] if times == 1 else relax.Tuple(results))
    return builder.get()


def _run(module: Any, arrays: list[np.ndarray[Any, Any]]) -> np.ndarray[Any, Any]:
    library: Any = tvm.compile(module, tvm.target.Target("llvm"))
    machine = relax.VirtualMachine(library, tvm.cpu())
    return machine["main"](*map(tvm.runtime.tensor, arrays)).numpy()


@pytest.mark.parametrize("name", SHAPES)
def test_every_bit_is_that_of_the_loops_of_tvm(name: str) -> None:
    rng = np.random.default_rng(0)
    shapes = [
        tuple(EXTENTS[str(e.name)] if isinstance(e, tirx.Var) else e for e in shape)
        for shape in SHAPES[name]
    ]
    arrays = [rng.normal(0, 1, shape).astype(np.float32) for shape in shapes]
    module = _module(SHAPES[name], "float32")
    found, wanted = _run(lowered(module), arrays), _run(module, arrays)
    assert found.tobytes() == wanted.tobytes()


def test_columns_are_innermost_and_alike_products_share_a_function() -> None:
    module: Any = lowered(_module(SHAPES["scores"], "float32", times=2))
    functions = [each for each in module.functions.values() if isinstance(each, tirx.PrimFunc)]
    assert len(functions) == 1
    text = functions[0].script(show_meta=False)
    assert "matmul_init" in text
    assert "SSSSR" in text


def _operand(*shape: int, dtype: str = "float32") -> Any:
    return relax.Var("x", relax.TensorType(shape, dtype))


@pytest.mark.parametrize(
    "operands",
    [
        (_operand(4, 5, dtype="int32"), _operand(5, 6, dtype="int32")),
        (_operand(4, 5), _operand(5)),
        (_operand(5), _operand(5, 6)),
    ],
)
def test_others_are_left(operands: tuple[Any, Any]) -> None:
    builder = relax.BlockBuilder()
    call: Any = builder.normalize(relax.op.matmul(*operands))
    assert along_columns(builder, call) is None
