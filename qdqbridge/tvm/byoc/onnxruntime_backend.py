"""A complete backend for Relax, in Python alone: regions run in onnxruntime.

::

    executable, coverage = compile(qb.load("model.onnx"))
    executable.run({"input": x})

A backend has four parts: a table of what it takes (:func:`table`), a code generator that TVM calls
for the regions (:func:`codegen`, registered as ``relax.ext.<NAME>``), a run time that computes a
region (:class:`Region`), and a module that carries the regions in the library (:func:`_carrier`),
so that another process can load it (:func:`restore`).

A region is read back as a graph, written as QDQ ONNX and given to an onnxruntime session with all
graph optimizations. TVM looks for the function of a region's name first in the library and then
among the global functions of the process; a function registered from Python is one of these.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnxruntime as ort
import tvm
import tvm_ffi
from tvm import ir, relax, tirx

from qdqbridge.core.canonical import canonicalize
from qdqbridge.core.graph.graph import Graph
from qdqbridge.errors import UnsupportedTargetError
from qdqbridge.onnx_io.runtime.products import keep_fused_products
from qdqbridge.targets.profiles.export import exported_proto
from qdqbridge.tvm.byoc.coverage import Coverage
from qdqbridge.tvm.byoc.partition import partition
from qdqbridge.tvm.byoc.table import Table
from qdqbridge.tvm.byoc.tables import FLOATS, canonical
from qdqbridge.tvm.relax.emit import emit
from qdqbridge.tvm.relax.executable import Executable, compiled
from qdqbridge.tvm.relax.kernels.codegen.processors import target_of
from qdqbridge.tvm.relax.read import read_function

NAME = "qdqbridge_onnxruntime"
_LOAD, _MODEL, _MODELS = f"{NAME}.load", f"{NAME}_model", f"{NAME}_models"


def table() -> Table:
    """Returns what the backend takes: the QNN dialect, and float operators beside it."""
    return Table(NAME, (*canonical().entries, *FLOATS))


# ---- compile time ----------------------------------------------------------------------------


def compile(
    graph: Graph, target: Any = "llvm", *, taken: Table | None = None, threads: int = 0
) -> tuple[Executable, Coverage]:
    """Builds a graph with its regions in onnxruntime, and the rest in TVM.

    Args:
        graph: A canonical graph.
        target: TVM's target for the rest.
        taken: What to take, a choice of :func:`table`; by default all of it.
        threads: Threads of one session; 0 for as many as there are cores.

    Returns:
        The executable, and what onnxruntime runs, what TVM, and why.

    Raises:
        UnsupportedTargetError: TVM cannot express the graph, or onnxruntime refuses a region.
    """
    module, _ = emit(graph)
    divided, coverage = partition(module, table() if taken is None else taken)
    library = compiled(offload(divided, threads=threads), target_of(target))
    return Executable(graph, module, library), coverage


def offload(module: ir.IRModule, *, threads: int = 0) -> ir.IRModule:
    """Gives the regions of a partitioned module to :func:`codegen`.

    A region is named by its content: equal ones share a session, and the regions of two models
    never meet under one name.

    Args:
        module: What :func:`qdqbridge.tvm.byoc.partition` returns.
        threads: Threads of one session; 0 for as many as there are cores.

    Raises:
        UnsupportedTargetError: onnxruntime refuses a region.
    """
    functions: dict[Any, Any] = dict(module.functions)
    for variable, function in functions.items():
        if function.attrs and function.attrs.get("Codegen") == NAME:
            model = _exported(function)
            symbol = f"{NAME}_{hashlib.sha256(model).hexdigest()}_{threads}"
            load(symbol, model, threads)  # here, because TVM would hand a refusal on as text
            functions[variable] = function.with_attrs({"global_symbol": symbol, _MODEL: model})
    named = ir.IRModule(functions, attrs=module.attrs)
    return relax.transform.RunCodegen({NAME: {"threads": threads}})(named)


def _exported(region: relax.Function) -> bytes:
    graph = read_function(region, where=f"region '{region.attrs['global_symbol']}'")
    canonicalize(graph)
    return exported_proto(graph).SerializeToString()


@tvm_ffi.register_global_func(f"relax.ext.{NAME}", override=True)
def codegen(functions: Sequence[Any], options: Mapping[str, Any], names: Any) -> list[Any]:
    """TVM's hook: returns the modules that hold the code of the regions.

    Args:
        functions: The regions as :func:`offload` names them.
        options: ``threads`` of a session.
        names: TVM's names of constants; not needed, every region holds its own.
    """
    del names
    models = {str(f.attrs["global_symbol"]): bytes(f.attrs[_MODEL]) for f in functions}
    return [_carrier(models, int(options["threads"]))]


def _carrier(models: Mapping[str, bytes], threads: int) -> Any:
    """Returns machine code that loads the models: calls of a Python function with long strings."""
    texts = {name: base64.b64encode(model).decode("ascii") for name, model in models.items()}
    calls = [tirx.call_packed(_LOAD, name, text, threads) for name, text in texts.items()]
    body: Any = [tirx.Evaluate(call) for call in calls]
    function = tirx.PrimFunc([], tirx.SeqStmt(body) if len(body) > 1 else body[0])
    named = function.with_attr("global_symbol", _MODELS)
    return tvm.compile(ir.IRModule({_MODELS: named}), tvm.target.Target("llvm")).mod


# ---- run time --------------------------------------------------------------------------------


class Region:
    """A region in onnxruntime; TVM calls it with its inputs, then the tensors of its results.

    Calls from several threads are allowed: a session has no state between calls.
    """

    def __init__(self, symbol: str, model: bytes, threads: int) -> None:
        options = ort.SessionOptions()
        options.intra_op_num_threads, options.log_severity_level = threads, 4
        keep_fused_products(options)
        try:
            session = ort.InferenceSession(model, options, providers=["CPUExecutionProvider"])
        except Exception as error:  # onnxruntime has no common error of its own
            raise UnsupportedTargetError(
                "onnxruntime cannot load a region",
                where=f"region '{symbol}'",
                why=" ".join(str(error).split())[:400],
                fix="leave its operators to TVM: compile(…, taken=table().without(…))",
            ) from error
        self._run = session.run
        self._inputs = [value.name for value in session.get_inputs()]
        self._outputs = [value.name for value in session.get_outputs()]

    def __call__(self, *tensors: Any) -> None:
        """Computes the results; inputs are read where they lie, results are copied once."""
        arrays = map(np.from_dlpack, tensors)
        feeds = dict(zip(self._inputs, arrays, strict=False))
        results = self._run(self._outputs, feeds)
        for tensor, result in zip(tensors[len(feeds) :], results, strict=True):
            memory = np.from_dlpack(tensor)
            if memory.flags.writeable:
                np.copyto(memory, np.asarray(result))
            else:  # NumPy 1 takes no memory of others to write into
                tensor.copyfrom(result)


def load(symbol: str, model: bytes | str, threads: int) -> None:
    """Makes the function of a region known to TVM.

    Args:
        symbol: Its name.
        model: The ONNX file, as bytes or as base64.
        threads: Threads of its session.

    Raises:
        UnsupportedTargetError: onnxruntime refuses it.
    """
    if tvm_ffi.get_global_func(symbol, allow_missing=True) is None:
        data = base64.b64decode(model) if isinstance(model, str) else model
        tvm_ffi.register_global_func(symbol, Region(symbol, data, int(threads)))


tvm_ffi.register_global_func(_LOAD, load, override=True)


def restore(library: Any) -> None:
    """Loads the regions of a library that was read from a file, before it runs.

    Args:
        library: What ``tvm.runtime.load_module`` returned for a file of ``export_library``.
    """
    if library.implements_function(_MODELS, query_imports=True):  # it has regions
        library.get_function(_MODELS, query_imports=True)()
