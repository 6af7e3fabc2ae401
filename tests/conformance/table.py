"""Prints which quantization tests of ONNX pass: ``python -m tests.conformance.table``."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import redirect_stdout
from io import StringIO
from typing import Any

import onnx
from onnx import numpy_helper

from qdqbridge.core.graph.interpreter import evaluate
from tests.conformance.node_tests import NodeTest, node_tests
from tests.onnx_models import Array, canonical

_OPSET, _IR = 25, 13
"""The newest that onnxruntime 1.31 and TVM 0.27 take; the tests themselves are of opset 28."""


def _interpreter(case: NodeTest) -> Mapping[str, Array]:
    return evaluate(canonical(case.model), case.inputs)[0]


def _tvm(case: NodeTest) -> Mapping[str, Array]:
    from qdqbridge.tvm.relax.executable import compile_relax

    return compile_relax(canonical(case.model)).run(case.inputs)


def _unusual(array: Array) -> bool:
    """True for element types of ml_dtypes, which onnxruntime does not exchange with NumPy."""
    return array.dtype.type.__module__ == "ml_dtypes"


def _restamped(case: NodeTest) -> onnx.ModelProto:
    """Returns the model at an opset that others have, every array they cannot be fed a constant."""
    model = onnx.ModelProto()
    model.CopyFrom(case.model)
    model.ir_version = min(model.ir_version, _IR)
    for entry in model.opset_import:
        entry.version = min(entry.version, _OPSET)
    fed = [i for i in model.graph.input if not _unusual(case.inputs[i.name])]
    for info in model.graph.input:
        if info not in fed:
            tensor = numpy_helper.from_array(case.inputs[info.name], info.name)
            model.graph.initializer.append(tensor)
    del model.graph.input[:]
    model.graph.input.extend(fed)
    return model


def _plain_output(model: onnx.ModelProto, case: NodeTest) -> onnx.ModelProto:
    """Casts results that NumPy does not have to float32, which holds each of them exactly."""
    for info in model.graph.output:
        if _unusual(case.outputs[info.name]):
            name = f"{info.name}_stored"
            for node in model.graph.node:
                node.output[:] = [name if o == info.name else o for o in node.output]
            model.graph.node.append(onnx.helper.make_node("Cast", [name], [info.name], to=1))
            info.type.tensor_type.elem_type = 1
    return model


def _cast_back(case: NodeTest, found: Mapping[str, Array]) -> dict[str, Array]:
    return {
        name: array.astype(case.outputs[name].dtype) if _unusual(case.outputs[name]) else array
        for name, array in found.items()
    }


def _onnxruntime(case: NodeTest) -> Mapping[str, Array]:
    import onnxruntime as ort

    options: Any = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 4
    model = _plain_output(_restamped(case), case)
    session: Any = ort.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    given = {i.name: case.inputs[i.name] for i in session.get_inputs()}
    names = [o.name for o in session.get_outputs()]
    return _cast_back(case, dict(zip(names, session.run(None, given), strict=True)))


def _own_importer(case: NodeTest) -> Mapping[str, Array]:
    import tvm
    from tvm import relax
    from tvm.relax.frontend.onnx import from_onnx

    model: Any = _restamped(case)
    compiled: Any = tvm.compile
    machine: Any = relax.VirtualMachine
    module = relax.transform.LegalizeOps()(from_onnx(model, keep_params_in_input=False))
    machine = machine(compiled(module, "llvm"), tvm.cpu())
    given = [tvm.runtime.tensor(case.inputs[i.name]) for i in model.graph.input]
    result = machine["main"](*given)
    results = [result] if isinstance(result, tvm.runtime.Tensor) else list(result)
    names = [o.name for o in model.graph.output]
    return {name: tensor.numpy() for name, tensor in zip(names, results, strict=True)}


ENGINES: dict[str, Callable[[NodeTest], Mapping[str, Any]]] = {
    "interpreter": _interpreter,
    "TVM": _tvm,
    "onnxruntime": _onnxruntime,
    "TVM's importer": _own_importer,
}


def verdict(engine: Callable[[NodeTest], Mapping[str, Any]], case: NodeTest) -> str:
    """Returns ``ok`` or what went wrong, in a few words."""
    try:
        case.check(engine(case))
    except Exception as error:  # whatever an engine raises is its result here
        return " ".join(f"{type(error).__name__}: {error}".split())[:70]
    return "ok"


def main() -> None:
    """Prints one row per test and the number of passes per engine."""
    passed = dict.fromkeys(ENGINES, 0)
    print("| test |", " | ".join(ENGINES), "|")
    print("|---" * (len(ENGINES) + 1) + "|")
    for case in node_tests():
        with redirect_stdout(StringIO()):  # TVM's importer prints before it raises
            row = [verdict(engine, case) for engine in ENGINES.values()]
        for name, result in zip(ENGINES, row, strict=True):
            passed[name] += result == "ok"
        print(f"| {case.name.removeprefix('test_')} |", " | ".join(row), "|")
    print("| passed |", " | ".join(f"{n} of {len(node_tests())}" for n in passed.values()), "|")


if __name__ == "__main__":
    main()
