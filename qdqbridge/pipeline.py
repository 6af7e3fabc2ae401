"""The whole flow on one page: every function is one step, every CLI verb is made of these steps.

Libraries are imported by the step that needs them, so ``import qdqbridge`` stays cheap.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from qdqbridge.arguments import (
    need_graph,
    need_module,
    need_relay,
    need_side,
    need_tvm,
    path_of,
)
from qdqbridge.errors import OutputExistsError
from qdqbridge.graph.graph import Graph, Note, Value

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from qdqbridge.byoc.model import Dialect, Partitioned
    from qdqbridge.graph.diff import Difference
    from qdqbridge.onnx_io.profiles import Finding, Profile
    from qdqbridge.onnx_io.session import Session
    from qdqbridge.relax.executable import Executable
    from qdqbridge.report.compare import Comparison
    from qdqbridge.report.engine import Engine
    from qdqbridge.report.inspection import Inspection

File: TypeAlias = "str | PathLike[str]"
Side: TypeAlias = "Graph | Executable | str | PathLike[str]"
"""What can be compared: a graph (interpreter), an executable (TVM), a model file (onnxruntime)."""


def load(
    path: File,
    *,
    canonical: bool = True,
    decomposed: bool = False,
    fold_affine: bool = False,
    reroll: bool = False,
) -> Graph:
    """Reads an ONNX model.

    Args:
        path: The ``.onnx`` file; external data must lie in its folder.
        canonical: Rewrite it to the canonical form; otherwise return it as it is written.
        decomposed: Read float arithmetic that fake-quantizes (Div, Round, Add, Clip, Sub, Mul) as
            QuantizeLinear and DequantizeLinear. Such a file does not say that it means that.
        fold_affine: Fold float Mul, Div, Add, Sub and BatchNormalization per channel behind an
            integer product into its scales and bias. This moves float32 roundings.
        reroll: Make one operator of each activation, norm and softmax that is spelled step by
            step (Gelu, HardSwish, LayerNormalization …). This moves float32 roundings.

    Raises:
        ModelFileError: The file cannot be read.
        InvalidModelError: The model breaks ONNX's rules.
        UnsupportedModelError: Something in it has no counterpart here; all of it is listed.
        InputDataError: ``path`` is no path.
    """
    from qdqbridge.canonical import canonicalize
    from qdqbridge.graph.verify import verify
    from qdqbridge.onnx_io.reader import read

    file = path_of(path)
    graph = read(file, canonicalize)
    verify(graph, str(file))
    if canonical:
        canonicalize(graph, decomposed=decomposed, fold_affine=fold_affine, reroll=reroll)
        verify(graph, str(file))
    return graph


def inspect(path: File, *, decomposed: bool = False, fold_affine: bool = False) -> Inspection:
    """Returns what a model file holds: operators, quantization, interface, digest, notes.

    Raises:
        QdqBridgeError: As :func:`load`.
    """
    from qdqbridge.canonical import canonicalize
    from qdqbridge.graph.verify import verify
    from qdqbridge.onnx_io.header import header
    from qdqbridge.report.inspection import inspection, operators

    graph = load(path, canonical=False)
    raw = operators(graph)  # before the graph is rewritten in place
    verify(canonicalize(graph, decomposed=decomposed, fold_affine=fold_affine), str(path))
    return inspection(header(Path(path)), raw, graph, explain(graph))


def explain(graph: Graph) -> list[Note]:
    """Returns why nodes stayed float, and what was assumed while reading.

    Raises:
        InputDataError: It is no graph, but a path for example.
    """
    need_graph(graph, "explain")
    from qdqbridge.canonical import explanation

    return explanation(graph)


def evaluate(
    graph: Graph, inputs: Mapping[str, NDArray[Any]], *, exact: bool = False
) -> dict[str, NDArray[Any]]:
    """Runs a graph in NumPy: the numeric contract itself, bit for bit.

    Args:
        graph: Any graph.
        inputs: One array per graph input, by name; quantized inputs take stored integers.
        exact: Compute the real-valued meaning in float64 instead, rounding only into quantized
            types.

    Raises:
        InputDataError: An input is missing, unknown, or of the wrong element type or shape; or
            ``graph`` is no graph.
    """
    need_graph(graph, "evaluate")
    from qdqbridge.graph.interpreter import evaluate as interpret

    return interpret(graph, inputs, exact=exact)[0]


def to_relax(
    graph: Graph, *, keep_params: bool = False, spelling: str = "qnn"
) -> tuple[Any, dict[str, NDArray[Any]]]:
    """Returns a Relax ``IRModule`` and its parameters by name.

    Args:
        graph: A canonical graph.
        keep_params: Make constants of 64 KiB or more parameters of ``main``, not constants in it.
        spelling: ``qnn``: operators ``qnn.*`` on integers, exactly what :func:`evaluate` computes.
            ``qdq``: float operators between ``R.quantize`` and ``R.dequantize``, for TVM's own
            pattern tables.

    Raises:
        InputDataError: ``graph`` is no graph, but a path for example.
        UnsupportedTargetError: TVM is not installed, or cannot express the graph.
    """
    need_graph(graph, "to_relax")
    need_tvm()
    from qdqbridge.relax.emit import emit

    return emit(graph, keep_params=keep_params, spelling=spelling)


def from_relax(
    module: Any,
    params: Mapping[str, Any] | None = None,
    *,
    canonical: bool = True,
    reroll: bool = False,
) -> Graph:
    """Reads a Relax ``IRModule``: of TVM's frontends, or as :func:`to_relax` writes it.

    Float operators, ``R.quantize`` and ``R.dequantize`` and the operators ``qnn.*`` may stand
    side by side. Passes that keep operators may have been applied; functions that ``main`` calls
    (composites, partitioned regions) are read through. What has been lowered to kernels is
    refused.

    Args:
        module: The module.
        params: Its parameters by name, where they are kept apart from it.
        canonical: Rewrite the graph to the canonical form.
        reroll: As for :func:`load`.

    Raises:
        UnsupportedModelError: Calls have no counterpart in a graph; all of them are listed.
        UnsupportedTargetError: TVM is not installed.
        InputDataError: It is no module with a function ``main``.
    """
    need_tvm()
    need_module(module, "from_relax")
    from qdqbridge.canonical import canonicalize
    from qdqbridge.graph.verify import verify
    from qdqbridge.relax.read import from_relax as read_relax

    graph = read_relax(module, params)
    verify(graph)
    if canonical:
        verify(canonicalize(graph, reroll=reroll))
    return graph


def compile(
    graph: Graph, target: str = "host", *, kernels: str = "fast", threads: int | None = None,
    expose: Sequence[Value] = (),
) -> Executable:
    """Builds ``graph`` with TVM.

    Args:
        graph: A canonical graph.
        target: ``host``, this machine's CPU, or a TVM target such as ``llvm`` (any CPU of this
            architecture) or ``{"kind": "llvm", "mcpu": "haswell"}``.
        kernels: ``fast``, kernels made for the target's instructions, or ``reference``, plain
            loops; both compute the same bits wherever results are quantized.
        threads: How many threads run it; by default as many as TVM takes: the environment variable
            TVM_NUM_THREADS, or half of the machine's.
        expose: Intermediate values that ``run`` shall return as well, under their names.

    Raises:
        InputDataError: ``graph`` is no graph, but a path for example; or ``threads`` is below 1.
        UnsupportedTargetError: TVM is not installed, or cannot express the graph; or there are no
            such kernels.
    """
    need_graph(graph, "compile")
    need_tvm()
    from qdqbridge.graph.expose import with_outputs
    from qdqbridge.relax.executable import build

    whole = with_outputs(graph, expose) if expose else graph
    return build(whole, target, kernels=kernels, threads=threads)


def load_executable(path: File) -> Executable:
    """Returns an executable that ``Executable.save`` wrote; its graph is the interface alone.

    Raises:
        ModelFileError: The file cannot be read, is no such library, or is damaged.
        UnsupportedTargetError: TVM is not installed, or this CPU has not the instructions that the
            library was compiled for.
    """
    need_tvm()
    from qdqbridge.relax.executable import load_executable as load_library

    return load_library(path_of(path))


def export_tvm(
    graph: Graph, path: File, target: str = "llvm", *, params: File | None = None
) -> int:
    """Writes ``graph`` for TVM, replacing existing files.

    Args:
        graph: A canonical graph.
        path: ``.json`` (a Relax module), ``.py`` (TVMScript, to read) or ``.so`` (compiled).
        target: The TVM target of a ``.so``.
        params: An ``.npz`` file for the constants of a module that take 64 KiB or more; not
            written where there are none.

    Returns:
        The number of constants in ``params``.

    Raises:
        UnsupportedTargetError: TVM is not installed, or cannot express the graph.
    """
    file = Path(path)
    if file.suffix == ".so":
        executable = compile(graph, target)
        from qdqbridge.relax.files import write_library

        held = {id(v.constant): v.constant.nbytes for v in graph.values() if v.constant}
        code = len(graph.nodes) << 16  # rather more than less
        write_library(executable.library, file, sum(held.values()) + code)
        return 0
    module, arrays = to_relax(graph, keep_params=params is not None)
    from qdqbridge.relax.files import write_module

    write_module(module, file)
    if params is not None and arrays:
        from qdqbridge.graph.archive import write_arrays

        write_arrays(Path(params), arrays)
    return len(arrays)


def export_relay(
    graph: Graph,
    path: File,
    *,
    spelling: str = "canonical",
    extents: Mapping[str, int] | None = None,
) -> None:
    """Writes ``graph`` as a Relay module that ``qdqbridge.relay.load`` reads, replacing a file.

    Args:
        graph: A canonical graph.
        path: The file to write.
        spelling: ``canonical``, ``tflite``, ``dnnl`` or ``fq2i``; see ``qdqbridge.relay.emit``.
        extents: Numbers for symbolic extents, by name.

    Raises:
        InputDataError: ``graph`` is no graph, or the file cannot be written.
        UnsupportedTargetError: This TVM is without Relay, or Relay cannot express the graph.
    """
    need_graph(graph, "export_relay")
    need_relay()
    from qdqbridge.relay.emit import emit
    from qdqbridge.relay.files import save as save_relay

    module, params = emit(graph, spelling, extents=extents)
    save_relay(module, params, path_of(path))


def partition(
    graph: Graph,
    table: str = "canonical",
    *,
    dialect: Dialect = "relax",
    rewrite: bool = False,
    extents: Mapping[str, int] | None = None,
) -> Partitioned:
    """Says what a backend's pattern table takes of a graph, what it leaves, and why.

    Args:
        graph: A canonical graph.
        table: The name of a table.
        dialect: ``relax``, or ``relay`` in an environment with TVM up to 0.19.
        rewrite: Make the graph eligible first, by rewrites that are exact or say their error.
        extents: Numbers for symbolic extents, by name.

    Raises:
        InputDataError: ``graph`` is no graph, but a path for example.
        UnsupportedTargetError: There is no such table or dialect here.
    """
    need_graph(graph, "partition")
    from qdqbridge.byoc.model import partition_model

    return partition_model(graph, table, dialect=dialect, rewrite=rewrite, extents=extents)


def session(path: File) -> Session:
    """Returns a model file in onnxruntime, graph optimizations disabled.

    Raises:
        ModelFileError: The file cannot be read.
    """
    from qdqbridge.onnx_io.session import Session

    return Session(path_of(path))


def save(
    graph: Graph,
    path: File,
    profile: str = "ort",
    *,
    recenter: bool = False,
    overwrite: bool = False,
) -> None:
    """Writes ``graph`` as a QDQ model.

    Args:
        graph: A canonical graph.
        path: The ``.onnx`` file to write.
        profile: Whose conventions to follow; ``ort`` is onnxruntime.
        recenter: Write int8 activations as uint8, zero points shifted by 128: the same results,
            several times faster in onnxruntime on x86. The file has a digest of its own.
        overwrite: Replace an existing file.

    Raises:
        InputDataError: ``graph`` is no graph, but a path for example.
        OutputExistsError: The file exists and ``overwrite`` is not given.
        UnsupportedTargetError: The profile cannot express the graph, or demands int8.
    """
    need_graph(graph, "save")
    from qdqbridge.onnx_io.writer import write

    try:
        write(graph, path_of(path), profile=profile, recenter=recenter, overwrite=overwrite)
    except OutputExistsError as error:
        fix = "choose another name, or overwrite=True (on the command line --force)"
        raise OutputExistsError(error.what, where=error.where, why=error.why, fix=fix) from error


def export_profile(name: str) -> Profile:
    """Returns an export profile: how it spells files, and the rules that its runtime demands.

    Raises:
        UnsupportedTargetError: There is none of that name.
    """
    from qdqbridge.onnx_io.profiles import profile_of

    return profile_of(name)


def check(source: Graph | File, profile: str = "ort") -> list[Finding]:
    """Returns where and why a model would not run on integers on a profile's runtime.

    Args:
        source: A model file in whatever form, or a graph (checked as the profile would write it).
        profile: The name of the profile.

    Raises:
        UnsupportedTargetError: The profile is not known.
        QdqBridgeError: The file cannot be read.
    """
    from qdqbridge.onnx_io.profiles import check as check_profile

    return check_profile(source if isinstance(source, Graph) else path_of(source), profile)


def diff(a: Graph, b: Graph) -> list[Difference]:
    """Returns where two graphs differ, in words; nothing where their digests are equal.

    Args:
        a: A canonical graph.
        b: Another one.

    Raises:
        InputDataError: One of them is no graph, but a path for example.
    """
    need_graph(a, "diff")
    need_graph(b, "diff")
    from qdqbridge.graph.diff import diff as diff_graphs

    return diff_graphs(a, b)


def compare(
    a: Side,
    b: Side,
    data: Mapping[str, NDArray[Any]],
    *,
    local: bool = False,
    batch_size: int | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Comparison:
    """Compares two engines value by value; values are matched by tensor name.

    A graph is run by the NumPy interpreter, an executable by TVM, and a path to an ONNX file by
    onnxruntime with graph optimizations disabled.

    Args:
        a: One side.
        b: The other side, the reference.
        data: One array per model input, by name.
        local: Run each node of ``a`` by the interpreter on the operands that ``b`` recorded, so
            that a difference is counted at the node that makes it, and say what causes it.
        batch_size: Examples to feed at once; by default what the model fixes, or all.
        progress: Called with the batches done and their number.

    Raises:
        InputDataError: The data does not fit the model.
        UnsupportedTargetError: An engine cannot run the model.
    """
    from qdqbridge.report.compare import compare_engines
    from qdqbridge.report.local import compare_locally

    graph, reference = _graph_of(a, canonical=local), _engine(b)
    if local:
        return compare_locally(graph, reference, data, size=batch_size, progress=progress)
    return compare_engines(_engine(a), reference, graph, data, size=batch_size, progress=progress)


def _graph_of(side: Side, *, canonical: bool) -> Graph:
    if isinstance(side, Graph):
        return side
    if isinstance(side, (str, PathLike)):
        return load(side, canonical=canonical)
    need_side(side)
    return side.graph


def _engine(side: Side) -> Engine:
    from qdqbridge.report.engine import Built, Interpreter

    if isinstance(side, Graph):
        return Interpreter(side)
    if isinstance(side, (str, PathLike)):
        return session(side)
    need_side(side)
    return Built(side)
