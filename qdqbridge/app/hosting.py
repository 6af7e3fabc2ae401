"""The steps that need TVM: a graph into Relax or Relay, back, compiled, partitioned."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from qdqbridge.core.arguments import (
    ReadingOptions,
    checked,
    need_module,
    need_relay,
    need_tvm,
    path_of,
)
from qdqbridge.core.graph.graph import Graph, Value
from qdqbridge.errors import InputDataError
from qdqbridge.options import Kernels, RelaxVariant, RelayVariant

if TYPE_CHECKING:
    from numpy.typing import NDArray

    IRModule: TypeAlias = Any
    from qdqbridge.tvm.byoc.model import Dialect, Partitioned
    from qdqbridge.tvm.byoc.table import Table
    from qdqbridge.tvm.relax.executable import Executable

File: TypeAlias = "str | PathLike[str]"


@checked
def to_relax(
    graph: Graph, *, keep_params: bool = False, variant: RelaxVariant = "qnn"
) -> tuple[Any, dict[str, NDArray[Any]]]:
    """Returns a Relax ``IRModule`` and its parameters by name.

    Args:
        graph: A canonical graph.
        keep_params: Make constants of 64 KiB or more parameters of ``main``.
        variant: ``qnn``: operators ``qnn.*`` on integers, exactly what :func:`evaluate` computes.
            ``qdq``: float operators between ``R.quantize`` and ``R.dequantize``, for TVM's own
            pattern tables.

    Raises:
        InputDataError: ``graph`` is not a graph, but a path for example.
        UnsupportedTargetError: TVM is not installed, or cannot express the graph.
    """
    need_tvm()
    from qdqbridge.tvm.relax.emit import emit

    return emit(graph, keep_params=keep_params, variant=variant)


@checked
def from_relax(
    module: Any,
    params: Mapping[str, Any] | None = None,
    *,
    function: str = "",
    canonical: bool = True,
    fuse: bool = False,
) -> Graph:
    """Reads a Relax ``IRModule`` made by TVM's frontends or by :func:`to_relax`.

    Float operators, ``R.quantize`` and ``R.dequantize`` and the operators ``qnn.*`` may be mixed.
    Passes that keep operators may have been applied; called functions (composites, partitioned
    regions) are inlined. Modules that are lowered to kernels are refused.

    Args:
        params: Its parameters by name, if they are stored separately, or the result of
            ``relax.frontend.detach_params``.
        function: The function to read; by default ``main``, or the only one
            (``nn.Module.export_tvm`` names functions after methods, for example ``forward``).
        canonical: Rewrite the graph to the canonical form.
        fuse: As for :func:`load`.

    Raises:
        InvalidModelError: The module is inconsistent.
        UnsupportedModelError: Some calls are not supported; the error lists all of them.
        UnsupportedTargetError: TVM is not installed.
        InputDataError: ``module`` is not a module with that function, or ``params`` do not fit.
    """
    need_tvm()
    from qdqbridge.tvm.relax.read import entry_name

    # What is no module is refused by the next line, in words, so it must not fail here.
    name = function or (entry_name(module) if hasattr(module, "functions") else "") or "main"
    need_module(module, "from_relax", name)
    from qdqbridge.core.canonical import canonicalize
    from qdqbridge.core.graph.edit import verify
    from qdqbridge.tvm.relax.read import channels_last
    from qdqbridge.tvm.relax.read import from_relax as read_relax

    graph = read_relax(module, params, function=name)
    # Modules are not trusted: what a file or a pass made of one may break the rules of its
    # operators.
    verify(graph)
    if canonical:
        options = ReadingOptions(fuse=fuse)
        verify(canonicalize(graph, options, channels_first=channels_last(module)))
    return graph


@checked
def compile(
    graph: Graph | IRModule,
    target: Any = "host",
    *,
    kernels: Kernels = "fast",
    threads: int | None = None,
    expose: Sequence[Value] = (),
    extents: Mapping[str, int] | None = None,
    cache: File | None = None,
) -> Executable:
    """Builds ``graph`` with TVM.

    Args:
        graph: A canonical graph, or a Relax module with regions that a code generator takes, as
            ``qdqbridge.tvm.byoc.partition`` returns it: the rest has the kernels of the whole.
        target: ``host``, this machine's CPU; another machine and its CPU by LLVM's names, such as
            ``aarch64-linux-gnu/neoverse-n1``; or a TVM target such as ``llvm`` (any CPU of this
            architecture) or ``{"kind": "llvm", "mcpu": "haswell"}``, as a dictionary or JSON. Code
            that this CPU cannot run can still be saved.
        kernels: ``fast``, kernels for the target's instructions, or ``reference``, generic loops;
            quantized results have the same bits with both.
        threads: How many threads run it; by default TVM's choice: the environment variable
            TVM_NUM_THREADS, or half of the machine's threads.
        expose: Intermediate values that ``run`` also returns, by name.
        extents: Values for symbolic dimensions, by name. Kernels are fast if at most the leading
            dimension, say the batch, stays symbolic; with more, only float and dynamically
            quantized products are.
        cache: A folder of compiled models. The same graph, for the same target and versions, is
            loaded from there (its ``graph`` has only inputs and outputs), else compiled and stored.
            Several processes may share it; a damaged entry is compiled again. Modules have no
            ``expose``, ``extents`` and ``cache``.

    Raises:
        OutputFileError: The cache folder cannot be created.
        InputDataError: ``graph`` is not a graph (but a path, for example), ``threads`` is not a
            positive number, ``extents`` do not fit, or a module is given what it has not.
        UnsupportedTargetError: TVM is not installed, or cannot express the graph; or there are no
            such kernels.
    """
    need_tvm()
    from qdqbridge.core.graph.copying import with_numbers, with_outputs
    from qdqbridge.tvm.relax.executable import compile_divided, compile_relax

    if not isinstance(graph, Graph):
        need_module(graph, "compile")
        if expose or extents or cache is not None:
            raise InputDataError(
                "a module is compiled without expose, extents and cache",
                fix="give numbers to the graph before it is partitioned (export --extent on the "
                "command line), or compile the graph",
            )
        return compile_divided(graph, target, kernels=kernels, threads=threads)
    # Outputs first: values to expose belong to this graph, and numbers make a copy.
    whole = with_numbers(with_outputs(graph, expose) if expose else graph, extents or {})
    if cache is not None:
        from qdqbridge.tvm.relax.executable import cached

        return cached(path_of(cache), whole, target, kernels=kernels, threads=threads)
    return compile_relax(whole, target, kernels=kernels, threads=threads)


@checked
def load_executable(path: File) -> Executable:
    """Loads an executable that ``Executable.save`` wrote; its graph has only inputs and outputs.

    Raises:
        ModelFileError: The file cannot be read, is not such a library, or is damaged.
        UnsupportedTargetError: TVM is not installed, or this CPU lacks instructions that the
            library was compiled for.
    """
    need_tvm()
    from qdqbridge.tvm.relax.executable import load_executable as load_library

    return load_library(path_of(path))


@checked
def processors() -> list[dict[str, Any]]:
    """Returns the classes of processors that have kernels, the best ones first.

    Each has a ``name``, ``about`` (its processors and dot product), ``architecture``, LLVM's
    ``features``, and ``host``: True for the one of this machine.
    """
    need_tvm()
    from qdqbridge.tvm.relax.kernels.codegen.processors import PROCESSORS, cpu_of, host_target

    host = cpu_of(host_target())
    return [
        {
            "name": cpu.name, "about": cpu.about, "architecture": cpu.architecture,
            "features": list(cpu.features), "host": cpu == host,
        }
        for cpu in PROCESSORS
    ]  # fmt: skip


@checked
def library_needs(path: File) -> dict[str, list[str]]:
    """Returns which features a saved library needs, and those that this CPU is ``missing``.

    Raises:
        ModelFileError: The file cannot be read, is not such a library, or is damaged.
    """
    need_tvm()
    from qdqbridge.tvm.relax.saving import features_in, missing_features

    features = features_in(path_of(path))
    return {"features": features, "missing": missing_features(features)}


@checked
def export_tvm(
    graph: Graph, path: File, target: str = "host", *, params: File | None = None,
    cc: str | None = None,
) -> int:  # fmt: skip
    """Writes ``graph`` for TVM, replacing existing files.

    Args:
        graph: A canonical graph.
        path: ``.json`` (a Relax module), ``.py`` (TVMScript, to read) or ``.so`` (compiled),
            which :func:`load_executable` and TVM itself load.
        target: The TVM target of a ``.so``.
        params: An ``.npz`` file for the constants of a module that take 64 KiB or more; not
            written where there are none.
        cc: The compiler that links a ``.so``; see ``Executable.save``.

    Returns:
        The number of constants in ``params``.

    Raises:
        OutputFileError: The file cannot be written, or linked for the target.
        UnsupportedTargetError: TVM is not installed, or cannot express the graph.
    """
    file = Path(path)
    if file.suffix == ".so":
        compile(graph, target).save(file, cc)
        return 0
    module, arrays = to_relax(graph, keep_params=params is not None)
    from qdqbridge.tvm.relax.files import write_module

    write_module(module, file)
    if params is not None and arrays:
        from qdqbridge.core.graph.atomic_write import write_arrays

        write_arrays(Path(params), arrays)
    return len(arrays)


def is_for_c(target: Any) -> bool:
    """True of ``c``, ``c/PROCESSOR`` and dictionaries of TVM, or JSON, whose kind is that."""
    # TVM takes a target as a dictionary, or as the JSON of one.
    if isinstance(target, str) and target.lstrip().startswith("{"):
        try:
            target = json.loads(target)
        except json.JSONDecodeError:
            return False
    if isinstance(target, Mapping):
        return dict[Any, Any](target).get("kind") == "c"  # pyright: ignore[reportUnknownArgumentType]
    return isinstance(target, str) and target.partition("/")[0] == "c"


@checked
def export_c(
    graph: Graph, folder: File, target: Any = "c", *, overwrite: bool = False,
    extents: Mapping[str, int] | None = None,
) -> dict[str, int]:  # fmt: skip
    """Writes ``graph`` as C99 sources for processors without an operating system.

    Args:
        graph: A canonical graph.
        folder: Where to; files and functions are named after it. It is made if there is none.
        target: ``c`` for any processor, or one such as ``c/cortex-m4``.
        overwrite: Replace files of these names.
        extents: Numbers for symbolic extents, by name.

    Returns:
        ``arena``, the bytes of intermediate results, and ``weights``, those of constants.

    Raises:
        OutputExistsError: A file exists and ``overwrite`` is not given.
        OutputFileError: The operating system refuses.
        UnsupportedTargetError: TVM is not installed, there is no such processor, or something in
            the graph has no C; the error lists all of it.
    """
    need_tvm()
    from qdqbridge.core.graph.copying import with_numbers
    from qdqbridge.tvm.relax.c_source.project import c_project, c_target, identifier, write_project

    path = path_of(folder)
    whole = with_numbers(graph, extents or {})
    project = c_project(whole, c_target(target), identifier(path.resolve().name))
    write_project(project, path, overwrite=overwrite)
    return {"arena": project.arena_bytes, "weights": project.weight_bytes}


@checked
def export_relay(
    graph: Graph,
    path: File,
    *,
    variant: RelayVariant = "canonical",
    extents: Mapping[str, int] | None = None,
) -> None:
    """Writes ``graph`` as a Relay module that ``qdqbridge.tvm.relay.load`` reads, replacing a file.

    Args:
        graph: A canonical graph.
        path: The file to write.
        variant: ``canonical``, ``tflite``, ``dnnl`` or ``fq2i``; see ``qdqbridge.tvm.relay.emit``.
        extents: Numbers for symbolic extents, by name.

    Raises:
        InputDataError: ``graph`` is not a graph, or the file cannot be written.
        UnsupportedTargetError: This TVM is without Relay, or Relay cannot express the graph.
    """
    need_relay()
    from qdqbridge.tvm.relay.emit import emit
    from qdqbridge.tvm.relay.files import save as save_relay

    module, params = emit(graph, variant, extents=extents)
    save_relay(module, params, path_of(path))


@checked
def partition(
    graph: Graph,
    table: str | Table = "canonical",
    *,
    dialect: Dialect = "relax",
    rewrite: bool = False,
    extents: Mapping[str, int] | None = None,
) -> Partitioned:
    """Says what a backend's pattern table takes of a graph, what it leaves, and why.

    Args:
        graph: A canonical graph.
        table: A table, the name of one, or ``FILE.py:NAME``: a variable of a Python file, which
            is run.
        dialect: ``relax``, or ``relay`` in an environment with TVM up to 0.19.
        rewrite: Make the graph eligible first, by rewrites that are exact or say their error.
        extents: Numbers for symbolic extents, by name.

    Raises:
        InputDataError: ``graph`` is not a graph, but a path for example; or the file of a table
            cannot be run, or has none of that name.
        UnsupportedTargetError: There is no such table or dialect here.
    """
    from qdqbridge.tvm.byoc.model import partition_model

    return partition_model(graph, table, dialect=dialect, rewrite=rewrite, extents=extents)
