"""A compiled graph that runs under the model's own input and output names."""

from __future__ import annotations

import hashlib
import logging
import os
import re
import traceback
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
import tvm
from numpy.typing import NDArray
from tvm import ir, relax, tirx
from tvm.relax.expr_functor import PyExprMutator, mutator

import qdqbridge
from qdqbridge.core.arguments import path_of
from qdqbridge.core.canonical import canonicalize
from qdqbridge.core.graph.copying import symbolic_extents
from qdqbridge.core.graph.dtypes import DType
from qdqbridge.core.graph.edit import verify
from qdqbridge.core.graph.graph import Graph
from qdqbridge.core.graph.interpreter import check_inputs
from qdqbridge.core.graph.types import Dim, NestedType, static_shape
from qdqbridge.errors import InputDataError, OutputFileError, QdqBridgeError, UnsupportedTargetError
from qdqbridge.tvm.qnn.emit.emitter import from_tvm_array, reason
from qdqbridge.tvm.qnn.emit.graph import agreed
from qdqbridge.tvm.relax import saving
from qdqbridge.tvm.relax.emit.broadcasting import INDEXED_EXTENT
from qdqbridge.tvm.relax.emit.compositions.elementwise import DROPPED
from qdqbridge.tvm.relax.emit.compositions.rotary_embedding import ROTARY_ROWS
from qdqbridge.tvm.relax.emit.module import ModuleEmitter
from qdqbridge.tvm.relax.files import (
    PLAIN,
    Compiler,
    aligned,
    link_command,
    to_array,
    to_tensor,
    without_lines,
)
from qdqbridge.tvm.relax.kernels.codegen.passes import pipeline
from qdqbridge.tvm.relax.kernels.codegen.processors import HOST, cpu_of, host_threads, target_of
from qdqbridge.tvm.relax.kernels.plan import WORK, emit_plan, plan
from qdqbridge.tvm.relax.lowering import lowered
from qdqbridge.tvm.relax.read import from_relax
from qdqbridge.tvm.relax.read.module import is_region
from qdqbridge.tvm.relax.saving import features_of, missing_features, need_features
from qdqbridge.tvm.relax.threads import BUILDING, Caller, cores, raise_interrupt

# ---- Building with TVM: the kernels of a module in parts, several at once ------------------------
# LLVM takes most of the time that compiling takes, and works on one module with one processor.
# Kernels call nothing of the module that calls them, so they may be libraries of their own, which
# it finds by name. TVM lets other threads of Python run meanwhile.


_LEAST = 8
"""Kernels of a part: of fewer, what every library takes is more than what is won."""
_MOST = 4
"""Parts: more have to wait for the largest kernel, and each takes memory of its own."""
_LIBRARIES = "external_mods"
"""TVM's attribute of a module: what is linked to it."""


def built(module: ir.IRModule, target: Any, *, runs_here: bool) -> Any:
    """Returns a module as TVM compiles it.

    Args:
        module: What is compiled, see :func:`~.lowering.lowered`.
        target: A TVM target.
        runs_here: True where it is for this machine: its code is made ready to run, too.
    """
    kernels = {
        variable: function
        for variable, function in module.functions.items()
        if isinstance(function, tirx.PrimFunc) and WORK in (function.attrs or {})
    }
    count = min(len(cores()), len(kernels) // _LEAST, _MOST)
    if count < 2:
        return compiled(module, target)
    del kernels[next(iter(kernels))]  # a module without any would be C, which has to be compiled
    named = [(_symbol(variable), function) for variable, function in kernels.items()]
    context = tvm.transform.PassContext.current()

    def part(number: int) -> Any:
        with context:  # every thread has its own
            return _library(named[number::count], target, runs_here=runs_here)

    with ThreadPoolExecutor(count) as pool:
        libraries = list(pool.map(part, range(count)))
    calling = _CallingByName(module, kernels).module()
    before = list((module.attrs or {}).get(_LIBRARIES, []))
    return compiled(calling.with_attr(_LIBRARIES, [*before, *libraries]), target)


def compiled(module: ir.IRModule, target: Any) -> Any:
    """Returns what TVM makes of a module, whatever other threads do."""
    with BUILDING:
        return tvm.compile(module, target, tir_pipeline=pipeline())


def _library(named: Sequence[tuple[str, Any]], target: Any, *, runs_here: bool) -> Any:
    """Returns a library of some kernels."""
    functions = {name: kernel.with_attr("global_symbol", name) for name, kernel in named}
    library: Any = tvm.tirx.build(tvm.IRModule(functions), target, pipeline())
    if runs_here:
        library.get_function(named[0][0])  # makes the code of all
    return library


def _symbol(kernel: Any) -> str:
    """Returns a kernel's name in its library, which no function has that TVM adds to the rest.

    TVM looks a name up in all of them: what it makes of an operator may be called as a kernel is.
    """
    return f"{kernel.name_hint}_of_part"


@mutator
class _CallingByName(PyExprMutator):
    """Replaces calls of kernels by calls of what another library has under their names."""

    def __init__(self, module: ir.IRModule, kernels: Mapping[Any, Any]) -> None:
        super().__init__(module)
        self._whole, self._kernels = module, kernels

    def module(self) -> ir.IRModule:
        """Returns the module without the kernels."""
        for variable, function in self._whole.functions.items():
            if isinstance(function, relax.Function):
                changed: Any = self.visit_expr(function)
                self.builder_.update_func(variable, changed)
        made = self.builder_.get()
        rest = {v: f for v, f in made.functions.items() if v not in self._kernels}
        return ir.IRModule(rest, attrs=made.attrs)

    def visit_call_(self, op: ir.Call) -> relax.Expr:
        if op.op != _CALL_TIR or op.args[0] not in self._kernels:
            return op
        kernel, operands = op.args
        return relax.op.call_dps_packed(_symbol(kernel), operands, _kernel_result_types(op))


def _kernel_result_types(call: ir.Call) -> list[Any]:
    """Returns the types of the tensors that a kernel writes; of several it has one, a tuple's."""
    (own,) = call.ty_args
    return list(own.fields) if isinstance(own, ir.TupleType) else [own]


_CALL_TIR = ir.Op.get("relax.call_tir")


# ---- A compiled graph that runs under the model's own input and output names ---------------------


KERNELS = ("fast", "reference")


class Executable:
    """Compiled machine code with the interface of the model.

    Several threads may call :meth:`run` of one executable, which they then do in turn, or each of
    its own executable at the same time.

    Attributes:
        graph: The graph it was compiled from; of one that was loaded, the interface alone.
        module: The Relax module before lowering; None of one that was loaded.
        library: TVM's compiled module.
        threads: How many threads run it.
        target: The TVM target; None of one that was loaded.
        source: The file that it was loaded from, also by a cache; None of one that was compiled.
        regions: The symbols that code generators make.
    """

    def __init__(
        self, graph: Graph, module: Any, library: Any, threads: int = 1, target: Any = None,
        source: Path | None = None, regions: Sequence[str] = (),
    ) -> None:  # fmt: skip
        self.source, self.regions = source, tuple(regions)
        self.graph, self.module, self.library = graph, module, library
        self.threads, self.target, self._caller = threads, target, Caller(threads)
        self._device: Any = tvm.cpu()
        self._takes = _plain_inputs(graph)
        outputs = zip(graph.output_names, graph.outputs, strict=True)
        self._gives = [(name, value.type.dtype) for name, value in outputs]
        # what was loaded has been looked at
        self._features = [] if target is None else features_of(target)
        self._main: Any = None
        if not missing_features(self._features):
            with without_lines(b"Warning: Scope Loaded"):
                self._main = relax.VirtualMachine(library, self._device)["main"]

    def __reduce__(self) -> str:
        """Refuses to be pickled or copied.

        Raises:
            InputDataError: Always.
        """
        raise InputDataError(
            "an executable cannot be pickled or copied",
            why="it holds machine code",
            fix="save it, and load it with load_executable",
        )

    @property
    def input_names(self) -> list[str]:
        """The model's input names, in order."""
        return [value.name for value in self.graph.inputs]

    @property
    def output_names(self) -> list[str]:
        """The model's output names, in order."""
        return list(self.graph.output_names)

    def save(self, path: str | PathLike[str], cc: Compiler | None = None) -> None:
        """Writes it as a library that :func:`qdqbridge.load_executable` loads, with its interface.

        One that was loaded is copied.

        Args:
            path: The file, which ends in ``.so``; an existing one is replaced.
            cc: The compiler that links it, a command. By default that of this machine; for another
                architecture ``TRIPLE-gcc``, ``clang`` or the package ``ziglang``.

        Raises:
            InputDataError: The name does not end so, it was not compiled for one target, ``cc`` is
                no command, or a region is a function of this process.
            ModelFileError: What it was loaded from is not there any more, or damaged.
            OutputFileError: The operating system or the linker refuses, or there is none for the
                target's architecture.
        """
        if self.source is not None:
            saving.copy(self.source, path_of(path))
            return
        if self.target is None:
            raise InputDataError(
                "cannot save the executable",
                why="TVM did not compile it for one target",
                fix="compile it with qdqbridge.compile",
            )
        for symbol in self.regions:
            if tvm.get_global_func(symbol, allow_missing=True) is not None:
                raise InputDataError(
                    "cannot save the executable",
                    why=f"the region '{symbol}' is a registered function of this process, which no "
                    "library holds",
                    fix="have its code generator return runtime modules, such as C source",
                )
        held = {id(v.constant): v.constant.nbytes for v in self.graph.values() if v.constant}
        code = len(self.graph.nodes) << 16  # rather more than less
        interface = saving.interface_of(self.graph, self.target, self.threads)
        file = path_of(path)
        saving.need_suffix(file)
        command = link_command(self.target, cc, file)
        saving.write(self.library, file, sum(held.values()) + code, interface, command)

    def buffers(self) -> dict[str, NDArray[Any]]:
        """Returns an array for each input of known extents, to fill in and run without a copy."""
        made: dict[str, NDArray[Any]] = {}
        for value in self.graph.inputs:
            shape = static_shape(value.type.shape)
            if shape is not None:
                made[value.name] = aligned(shape, value.type.dtype.numpy)
        return made

    def run(self, inputs: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
        """Runs the model.

        Args:
            inputs: One array per input; quantized inputs take stored integers. An array is copied
                unless it is contiguous, writable and begins at a multiple of 64 bytes, as those of
                :meth:`buffers` do.

        Returns:
            One array per output name; quantized outputs are stored integers.

        Raises:
            InputDataError: An input is missing, unknown, of the wrong dtype or shape, or outside
                its range, or open extents do not fit each other, or tables of rotation have no row
                for a place.
            UnsupportedTargetError: It was compiled for a CPU with instructions that this one has
                not, or TVM computes a shape that its own code does not take.
        """
        # Inputs that fit at first sight are not looked at twice: small models take less time than
        # the check.
        arrays = _as_they_are(self._takes, inputs) or check_inputs(self.graph.inputs, inputs)
        # A library for another processor is loaded without its code, so that the error can say what
        # it needs.
        if self._main is None:
            need_features(self._features)
        try:
            return self._caller.call(self._compute, arrays)
        except InputDataError:
            raise
        except Exception as error:  # TVM raises what it likes
            raise_interrupt(error)
            # TVM's errors are texts. These extents are ones that only an error of the data can
            # have.
            for extent, error_of in _EXTENT_ERRORS.items():
                if extent in str(error):
                    raise error_of(error) from error
            if self._in_a_region(error):
                raise _region_fails(error, self.regions) from error
            if not symbolic_extents(self.graph):
                raise _cannot_run(error) from error
            raise _unfit(error, arrays) from error

    def _in_a_region(self, error: Exception) -> bool:
        """True where a function of this process computes a region, and raised the error."""
        frames = traceback.extract_tb(error.__traceback__)  # those of C++ name its sources
        registered = (tvm.get_global_func(name, allow_missing=True) for name in self.regions)
        return frames[-1].filename.endswith(".py") and any(registered)

    def _compute(self, arrays: Sequence[NDArray[Any]]) -> dict[str, NDArray[Any]]:
        """Returns the results; what TVM allocates for them is freed when it returns."""
        result: Any = self._main(*(to_tensor(array, self._device) for array in arrays))
        results = [result] if isinstance(result, tvm.runtime.Tensor) else list(result)
        return {
            name: _copy_output_tensor(name, tensor, dtype)
            for (name, dtype), tensor in zip(self._gives, results, strict=True)
        }


PlainInput = tuple[str, "np.dtype[Any]", tuple[Dim, ...]]
"""Name, element type and extents of an input of known rank that may hold whatever its type can."""


def _plain_inputs(graph: Graph) -> tuple[PlainInput, ...]:
    """Returns the inputs of a graph; nothing where more than these are to be looked at."""
    found: list[PlainInput] = []
    for value in graph.inputs:
        narrow = value.quant is not None and not value.quant.params.full_range
        if isinstance(value.type, NestedType) or value.type.shape is None or narrow:
            return ()
        found.append((value.name, value.type.dtype.numpy, value.type.shape))
    return tuple(found)


def _as_they_are(
    wanted: Sequence[PlainInput], inputs: Mapping[str, NDArray[Any]]
) -> list[NDArray[Any]] | None:
    """Returns inputs that fit; None for all others, of which :func:`check_inputs` says why.

    A small model runs as long as that takes.
    """
    if not isinstance(inputs, dict) or len(inputs) != len(wanted):
        return None
    bound: dict[str, int] = {}
    found: list[NDArray[Any]] = []  # to call list[...] takes microseconds
    for name, dtype, shape in wanted:
        array = inputs.get(name)
        if type(array) is not np.ndarray or array.dtype != dtype or array.ndim != len(shape):
            return None
        for extent, want in zip(array.shape, shape, strict=True):
            if extent != (bound.setdefault(want, extent) if isinstance(want, str) else want):
                return None
        found.append(array)
    return found


def _copy_output_tensor(name: str, tensor: Any, dtype: DType) -> NDArray[Any]:
    """Returns a copy of a result in the element type that it stands for."""
    _check_extents(name, tensor)
    if dtype in PLAIN:
        array = np.from_dlpack(tensor)
        if array.dtype == dtype.numpy:
            return array.copy()
    return from_tvm_array(to_array(tensor), dtype)


def _check_extents(name: str, tensor: Any) -> None:
    """Refuses a result of a negative extent, which TVM computes of sizes that are negative.

    Raises:
        InputDataError: It has one.
    """
    if min(tensor.shape, default=0) < 0:
        raise InputDataError(
            "the model cannot run on these inputs",
            where=name,
            why=f"the result would have the shape {[int(extent) for extent in tensor.shape]}",
            fix="feed sizes and repeats that are not negative, and windows that fit",
        )


def _cannot_run(error: Exception) -> UnsupportedTargetError:
    """Returns the error of shapes that the data decide, where TVM's code has others in mind."""
    return UnsupportedTargetError(
        "TVM cannot run the model on these inputs",
        why=reason(error),
        fix="run the graph with the interpreter, and report the module (to_relax)",
    )


def _region_fails(error: Exception, regions: Sequence[str]) -> UnsupportedTargetError:
    """Returns the error of a function that computes a region, with the line that raised it."""
    last = traceback.extract_tb(error.__traceback__)[-1]
    return UnsupportedTargetError(
        "a region's function fails on these inputs",
        where=f"{last.name}, {last.filename}:{last.lineno}",
        why=f"{type(error).__name__}: {error}",
        fix=f"mend what computes {', '.join(regions)}; runnable(module) runs without it",
    )


def _beyond_tables(error: Exception) -> InputDataError:
    """Returns the error of a place that tables of rotation do not have."""
    found = re.search(r"\(-?\d+ vs\. (\d+)\)", str(error))
    rows = "" if found is None else f", which have {found[1]} rows"
    return InputDataError(
        "the model cannot run on these inputs",
        why=f"a place is beyond its tables of rotation{rows}",
        fix="feed places that they have, and no more tokens than the model is made for",
    )


def _dropping(error: Exception) -> InputDataError:
    """Returns the error of a Dropout that is told to drop something."""
    del error
    return InputDataError(
        "the model cannot run on these inputs",
        why="a Dropout is to drop elements, and ONNX leaves to chance which",
        fix="feed it a ratio of 0, or a mode that is not training",
    )


def _beyond_data(error: Exception) -> InputDataError:
    """Returns the error of an index that its data do not have."""
    found = re.search(r"\((-?\d+) vs\. (\d+)\)", str(error))
    extent = "" if found is None else f", which have {found[2]} elements along that axis"
    return InputDataError(
        "the model cannot run on these inputs",
        why=f"an index is beyond its data{extent}",
        fix="feed indices that the data have (tokens of the vocabulary, say)",
    )


_EXTENT_ERRORS: Mapping[str, Callable[[Exception], InputDataError]] = {
    ROTARY_ROWS: _beyond_tables,
    INDEXED_EXTENT: _beyond_data,
    DROPPED: _dropping,
}
"""What a run's error means that names one of these extents."""


def _unfit(error: Exception, arrays: Sequence[NDArray[Any]]) -> InputDataError:
    """Returns the error of inputs whose open extents do not fit each other."""
    found = re.search(r"\((-?\d+) vs\. (-?\d+)\)", str(error))
    why = reason(error) if found is None else f"an extent is {found[1]} where {found[2]} is needed"
    fed = ", ".join(str(array.shape) for array in arrays)
    return InputDataError(
        "the model cannot run on inputs of these shapes",
        why=f"{why}; the inputs are {fed}",
        fix="feed extents that agree where the model's operators meet",
    )


def compile_relax(
    graph: Graph, target: Any = HOST, *, kernels: str = "fast", threads: int | None = None
) -> Executable:
    """Compiles a graph with TVM.

    Args:
        graph: A canonical graph.
        target: A TVM target, its string or dictionary form, or ``host``: this machine's CPU.
        kernels: ``fast``, or ``reference``: the plain legalization, which computes the same.
        threads: How many threads run it; by default as many as TVM takes (TVM_NUM_THREADS, or half
            of the machine's).

    Raises:
        InputDataError: ``threads`` is no positive number.
        UnsupportedTargetError: TVM cannot run a node or an element type of the graph, or the
            target does not exist. Or there are no such kernels.
    """
    if kernels not in KERNELS:
        raise UnsupportedTargetError(
            f"there are no kernels {kernels!r}", fix=f"use one of {', '.join(KERNELS)}"
        )
    resolved, count = target_of(target), thread_count(threads)
    graph = agreed(graph)
    if kernels == "fast":
        module = emit_plan(plan(graph, cpu_of(resolved), count))
    else:
        module = ModuleEmitter(checked=True).module(graph)
    return _executable(graph, module, resolved, count, kernels)


def compile_divided(
    module: Any, target: Any = HOST, *, kernels: str = "fast", threads: int | None = None
) -> Executable:
    """Compiles a module, some of whose functions code generators make.

    What these leave has the kernels that it has in the whole.

    Args:
        module: A Relax module with regions, as :func:`qdqbridge.tvm.byoc.partition` returns it.
        target: As for :func:`compile_relax`.
        kernels: As for :func:`compile_relax`.
        threads: As for :func:`compile_relax`.

    Raises:
        UnsupportedTargetError: As :func:`compile_relax`; or there is no such code generator, or it
            fails.
    """
    resolved, count = target_of(target), thread_count(threads)
    graph = from_relax(module, regions=True)
    verify(canonicalize(graph))
    graph = agreed(graph)
    regions = {
        variable.name_hint: function
        for variable, function in module.functions.items()
        if isinstance(function, relax.Function) and is_region(function)
    }
    if kernels == "fast":
        module = emit_plan(plan(graph, cpu_of(resolved), count), regions)
    generators = {str(function.attrs["Codegen"]) for function in regions.values()}
    for name in sorted(generators):
        if tvm.get_global_func(f"relax.ext.{name}", allow_missing=True) is None:
            raise UnsupportedTargetError(
                f"there is no code generator '{name}'",
                why=f"no function 'relax.ext.{name}' is registered",
                fix="register a function of that name, which makes code of regions "
                "(qdqbridge/tvm/byoc/README.md has one), or compile runnable(module)",
            )
    try:
        made = relax.transform.RunCodegen()(module)
    except Exception as error:  # whatever a code generator raises
        raise_interrupt(error)
        raise UnsupportedTargetError(
            f"code generator {', '.join(sorted(generators))} fails", why=reason(error),
            fix="have its table refuse what it cannot make",
        ) from error  # fmt: skip
    symbols = [str(function.attrs["global_symbol"]) for function in regions.values()]
    return _executable(graph, made, resolved, count, kernels, symbols)


def _executable(
    graph: Graph, module: Any, resolved: Any, count: int, kernels: str, regions: Sequence[str] = ()
) -> Executable:
    try:
        here = not missing_features(features_of(resolved))
        library = built(lowered(module), resolved, runs_here=here)
        return Executable(graph, module, library, count, resolved, regions=regions)
    except Exception as error:  # whatever a pass or LLVM raises
        raise_interrupt(error)
        raise UnsupportedTargetError(
            "TVM cannot build the module",
            why=reason(error),
            fix=f"{_OTHERWISE[kernels]}, and report the module (to_relax)",
        ) from error


_OTHERWISE = {
    "fast": "compile it with kernels='reference', or with numbers for open extents (extents=)",
    "reference": "run the graph with the interpreter",
}
"""What may do where TVM cannot build a module, by the kernels in it."""


_MOST_THREADS = 4096


def thread_count(threads: Any) -> int:
    """Returns how many threads run what is compiled for so many; None stands for the default.

    Raises:
        InputDataError: It is not a whole number from 1 on.
    """
    if threads is None:
        return host_threads()
    if not isinstance(threads, (int, np.integer)) or not 1 <= threads <= _MOST_THREADS:
        fix = f"give a whole number from 1 to {_MOST_THREADS}"
        raise InputDataError(f"threads is {threads!r}", fix=fix)
    return int(threads)


def load_executable(path: Path) -> Executable:
    """Returns what :meth:`Executable.save` wrote.

    Raises:
        ModelFileError: The file cannot be read, is not such a library, or is damaged.
        UnsupportedTargetError: This CPU has not the instructions that it was compiled for.
    """
    graph, library, threads = saving.read(path)
    return Executable(graph, None, library, threads, source=path.absolute())


# ---- Compiled models on disk: what was compiled once is loaded the next time ---------------------
# An entry is the library that ``Executable.save`` writes, under a name that is a hash of everything
# its code follows from: the graph with its weights and names, the target, the kernels, the threads,
# and the versions of what compiles. Entries are written beside their place and moved there: readers
# see them whole or not at all, and writers may be several. The library knows its own checksum; one
# that is damaged, or of another CPU, is compiled anew.


_LOGGER = logging.getLogger(__name__)


def cached(
    folder: Path, graph: Graph, target: Any, *, kernels: str = "fast", threads: int | None = None
) -> Executable:
    """Returns an executable from ``folder``, else one that is compiled and kept there.

    Args:
        folder: Made where there is none. What lies in it is run: nobody else should write there.
        graph: As for ``build``.
        target: A TVM target, its string or dictionary form, or ``host``.
        kernels: As for ``build``.
        threads: As for ``build``.

    Raises:
        OutputFileError: There is no such folder, and it cannot be made.
        QdqBridgeError: As ``build``.
    """
    threads = thread_count(threads)
    path = folder / f"{key_of(graph, target, kernels, threads)}.so"
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OutputFileError(
            "cannot make the folder of the cache",
            where=str(folder),
            why=error.strerror or str(error),
            fix="give another folder",
        ) from error
    if path.exists():
        try:
            return load_executable(path)
        except QdqBridgeError as error:
            _LOGGER.warning("the cache's %s is compiled anew: %s", path.name, error.what)
    made = compile_relax(graph, target, kernels=kernels, threads=threads)
    try:
        made.save(path)
    except QdqBridgeError as error:  # a full disk, or another architecture: it runs all the same
        _LOGGER.warning("what was compiled is not kept: %s", error.what)
    return made


def key_of(graph: Graph, target: Any, kernels: str, threads: int) -> str:
    """Returns a name for what is compiled of ``graph`` by these versions on this machine."""
    resolved = target_of(target)
    facts = [
        graph.digest, str(resolved), ",".join(sorted(features_of(resolved))), kernels, str(threads),
        *(f"{value.name}:{value.type}" for value in graph.inputs),
        *graph.output_names,
        *versions(),
    ]  # fmt: skip
    return hashlib.sha256("\0".join(facts).encode()).hexdigest()[:40]


@cache
def versions() -> tuple[str, ...]:
    """Returns what says which code compiles: TVM's version, and this package's files."""
    root = Path(qdqbridge.__file__).parent
    files = hashlib.sha256()
    for folder, names, found in os.walk(root):
        names.sort()
        for name in sorted(found):
            if name.endswith(".py"):
                state = (Path(folder) / name).stat()
                files.update(f"{folder}/{name}:{state.st_size}:{state.st_mtime_ns}\n".encode())
    return (
        str(tvm.__version__), str(tvm.support.libinfo().get("LLVM_VERSION")), files.hexdigest(),
    )  # fmt: skip
