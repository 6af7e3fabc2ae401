"""The flow of a model file on one page: read, explain, interpret, write, check, compare.

What needs TVM is in :mod:`qdqbridge.app.hosting`; every CLI verb is made of these steps.

Libraries are imported by the step that needs them, so ``import qdqbridge`` stays cheap.
"""

from __future__ import annotations

import gc
import json
import tempfile
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias, cast

from qdqbridge.app.sources import is_onnx, is_tflite, is_tosa, load_model, read_file
from qdqbridge.core.arguments import ReadingOptions, checked, need_side, path_of
from qdqbridge.core.graph.graph import Graph, Note
from qdqbridge.errors import InputDataError, UnsupportedTargetError
from qdqbridge.options import (
    AnyProfileName,
    EncodingsFormat,
    IoType,
    Overflow,
    Requantize,
    TFLiteLayout,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from qdqbridge.autoquant.fixed_ranges import FixedRanges
    from qdqbridge.core.graph.diff import GraphDifference
    from qdqbridge.onnx_io.runtime.products import StoredWeights
    from qdqbridge.onnx_io.runtime.session import OnnxRuntimeSession
    from qdqbridge.targets.comparison.compare import Comparison, Engine
    from qdqbridge.targets.engines.kinds import Judge
    from qdqbridge.targets.engines.process import ProcessLimits
    from qdqbridge.targets.profiles import ExportProfile, Finding
    from qdqbridge.targets.profiles.export import ExportChange
    from qdqbridge.targets.tosa import TosaModel
    from qdqbridge.tflite_io.litert import LiteRTEngine
    from qdqbridge.tflite_io.vela import VelaReport
    from qdqbridge.tflite_io.writer import TFLiteModel
    from qdqbridge.tvm.relax.executable import Executable

File: TypeAlias = "str | PathLike[str]"
Side: TypeAlias = "Graph | Executable | Judge | LiteRTEngine | str | PathLike[str]"
"""What can be compared: a graph (interpreter), an executable (TVM), a model file (onnxruntime), or
a model that an engine has opened."""


@checked
def load(
    path: File,
    *,
    canonical: bool = True,
    decomposed: bool = False,
    fold_affine: bool = False,
    fuse: bool = False,
    adapter: File | None = None,
    optional_inputs: bool = False,
    encodings: File | None = None,
) -> Graph:
    """Reads an ONNX or TFLite model.

    Args:
        path: The ``.onnx`` file, whose external data must be in the same folder; or a ``.tflite``
            file, whose images are channels-last outside and channels-first inside.
        canonical: Rewrite the graph to the canonical form; otherwise return it as the file has it.
        decomposed: Read fake quantization that is written as float arithmetic (Div, Round, Add,
            Clip, Sub, Mul) as QuantizeLinear and DequantizeLinear. The file itself does not state
            that this is meant.
        fold_affine: Fold per-channel float Mul, Div, Add, Sub and BatchNormalization into the
            scales and bias of the integer product before them. This moves float32 roundings.
        fuse: Fuse each activation, norm and softmax that is written step by step (Gelu,
            HardSwish, LayerNormalization …) into one operator, and each product between
            DynamicQuantizeLinear and DequantizeLinear into an integer product. This moves float32
            roundings.
        adapter: An ``.onnx_adapter`` file of onnxruntime. Its arrays become constants in place of
            the inputs they are for. :func:`load_adapter` returns them as arrays instead, to be
            fed to a model that keeps these inputs.
        optional_inputs: Keep inputs that have initializers as inputs, which every run is then
            given (an adapter, or arrays of rank 0 for none); by default they are constants.
        encodings: A file that says how tensors of a float model are quantized: encodings of AIMET
            and QAIRT (0.6.1, 1.0.0, 2.0.0), onnxruntime's TensorQuantOverrides or calibration
            table as JSON, or TensorRT's calibration cache. Calibration files name no weights:
            those of products become int8 per channel, the largest 127.

    Raises:
        ModelFileError: A file cannot be read.
        InvalidModelError: The model breaks ONNX's rules.
        UnsupportedModelError: Something in it is not supported; the error lists all of it.
        InputDataError: ``path`` is not a path, or the adapter or the encodings do not fit the
            model.
    """
    own, beside = (None if each is None else path_of(each) for each in (adapter, encodings))
    source = read_file(path_of(path), own, optional_inputs=optional_inputs, encodings=beside)
    if not canonical:
        return source.graph
    graph = source.canonical(ReadingOptions(decomposed, fold_affine, fuse))
    # The graph as the file has it would stay in memory beside the canonical one.
    del source
    if sum(value.constant.nbytes for value in graph.values() if value.constant) > _MUCH:
        gc.collect()  # nodes and values of the graphs before refer to each other, and to weights
    return graph


_MUCH = 1 << 26
"""Bytes of constants for which it is worth looking for those that nobody needs."""


@checked
def load_adapter(path: File) -> dict[str, NDArray[Any]]:
    """Returns the arrays of a low-rank adapter, by the names of the inputs they are for.

    Args:
        path: An ``.onnx_adapter`` file, which onnxruntime and Olive write.

    Raises:
        ModelFileError: It cannot be read, or is no such file.
        InputDataError: ``path`` is not a path.
    """
    from qdqbridge.onnx_io.external_data import read_adapter

    return read_adapter(path_of(path))


@checked
def parse(text: str, weights: Mapping[str, NDArray[Any]] | None = None) -> Graph:
    """Reads a text form back into a graph, with the digest of the graph that wrote it.

    Args:
        text: A text that ``graph.text(weights="inline")`` wrote, or that was written by hand.
        weights: Long constants by hash, as ``graph.text(weights=mapping)`` put them into a
            mapping (stored as an ``.npz`` file, for example).

    Raises:
        ModelFileError: The text cannot be parsed; the error gives line and column.
        InvalidModelError: A node breaks the rules of its operator.
        InputDataError: Long constants are missing or do not match, or ``text`` is not a string.
        GraphError: The text claims to be canonical and is not.
    """
    from qdqbridge.core.text.parser import parse_text
    from qdqbridge.onnx_io.opaque.operators import OPAQUE_NODES

    return parse_text(text, weights, opaque=OPAQUE_NODES)


@checked
def explain(graph: Graph) -> list[Note]:
    """Returns why nodes stayed float, and what was assumed while reading.

    Raises:
        InputDataError: It is not a graph, but a path for example.
    """
    from qdqbridge.core.canonical import explanation
    from qdqbridge.onnx_io.control_flow.bodies import parts

    return explanation(graph, ((body.place, body.graph) for body in parts(graph)))


@checked
def evaluate(
    graph: Graph,
    inputs: Mapping[str, NDArray[Any]],
    *,
    exact: bool = False,
    accumulator_bits: int = 32,
    overflow: Overflow = "wraparound",
    pairs: bool = False,
    requantize: Requantize = "half-even",
) -> dict[str, NDArray[Any]]:
    """Runs a graph in NumPy: the numeric contract itself, bit for bit.

    The arguments after ``exact`` simulate hardware with other arithmetic for products;
    :func:`qdqbridge.autoquant.hardware.arithmetic.run` also counts the overflows.

    Where onnxruntime refuses to run because a kernel is larger than its padded input, the result
    is empty.

    Args:
        graph: Any graph.
        inputs: One array per graph input, by name; quantized inputs take stored integers.
        exact: Compute the real-valued meaning in float64 instead, rounding only into quantized
            types.
        accumulator_bits: Bits of the sums of integer products.
        overflow: What happens to a sum that does not fit: its low bits are kept, or every
            addition saturates.
        pairs: Products of 8 bits are first added in pairs that saturate at 16 bits
            (``vpmaddubsw``), channels before taps.
        requantize: How sums become stored results: ``half-even`` as in the contract,
            ``fixed-point`` as in TFLite, ``double-round`` as in TOSA, ``truncation`` drops the
            fraction, ``shift`` multiplies by powers of two.

    Raises:
        InputDataError: An input is missing, unknown, or of the wrong element type or shape; or
            ``graph`` is not a graph; or there is no such arithmetic.
    """
    from qdqbridge.autoquant.hardware.arithmetic import CONTRACT, arithmetic_of, run

    hardware = arithmetic_of(accumulator_bits, overflow, pairs=pairs, requantize=requantize)
    if hardware != CONTRACT:
        if exact:
            raise InputDataError(
                "an exact result has no arithmetic of hardware", fix="give one of both"
            )
        return dict(run(graph, inputs, hardware).outputs)
    from qdqbridge.core.graph.interpreter import evaluate as interpret

    return interpret(graph, inputs, exact=exact)[0]


@checked
def session(path: File) -> OnnxRuntimeSession:
    """Returns a model file in onnxruntime, graph optimizations disabled.

    Raises:
        ModelFileError: The file cannot be read.
    """
    from qdqbridge.onnx_io.runtime.session import OnnxRuntimeSession

    return OnnxRuntimeSession(path_of(path))


@checked
def save(
    graph: Graph,
    path: File,
    profile: AnyProfileName | ExportProfile = "ort",
    *,
    recenter: bool = False,
    symmetric: bool = False,
    overwrite: bool = False,
    opset: int | None = None,
    io: IoType | None = None,
    target: Any = None,
    extents: Mapping[str, int] | None = None,
) -> None:
    """Writes ``graph`` as a QDQ, TFLite or TOSA model, or as C99 sources.

    Args:
        graph: A canonical graph.
        path: The ``.onnx``, ``.tflite`` or TOSA file (``.tosa``, ``.mlir``, ``.mlirbc``) to write;
            the last two have profiles of their own.
        profile: The runtime that the file is for; ``ort`` is onnxruntime.
        recenter: Write int8 activations as uint8, with zero points shifted by 128. Results are
            equal, and onnxruntime on x86 is several times faster. The digest changes.
        symmetric: Write 8-bit values as int8 around zero, for runtimes without zero points: equal
            where the range allows it, else in larger steps
            (:func:`qdqbridge.app.fixing.symmetric` says what that costs).
        overwrite: Replace an existing file.
        opset: The opset to write. By default the source's if the profile's runtime reads it,
            else the newest that it reads.
        io: How inputs and outputs are stored, as for :func:`with_io`; by default as the graph has
            them. Their parameters are written beside the file as well, to ``<name>.io.json``.
        target: ``c`` to write a folder of C for any processor, or one such as ``c/cortex-m4``.
        extents: Numbers for symbolic extents, by name, which C wants.

    Raises:
        InputDataError: ``graph`` is not a graph, but a path for example; or there is no such io or
            profile.
        OutputExistsError: A file exists and ``overwrite`` is not given.
        UnsupportedTargetError: The profile, or the opset (given, or any that its runtime reads),
            cannot express the graph; or the profile requires int8.
    """
    from qdqbridge.core.graph.copying import with_numbers

    # Symmetric values and other inputs come after numbers: both look at shapes.
    numbered = with_numbers(graph, extents or {})
    if symmetric:
        from qdqbridge.targets.profiles.symmetric import around_zero

        numbered = around_zero(numbered).graph
    with stored_as(numbered, io, path_of(path), overwrite=overwrite) as own:
        if target is not None:
            _save_for(target, own, path, overwrite=overwrite)
            return
        if is_tflite(path_of(path)):
            save_tflite(own, path, tosa=profile == "tosa", overwrite=overwrite)
            return
        if is_tosa(path_of(path)):
            save_tosa(own, path, overwrite=overwrite)
            return
        from qdqbridge.targets.profiles.export import export

        export(
            own, path_of(path), profile=profile, recenter=recenter, overwrite=overwrite,
            opset=opset,
        )  # fmt: skip


def _save_for(target: Any, graph: Graph, path: File, *, overwrite: bool) -> None:
    from qdqbridge.app.hosting import export_c, is_for_c

    if not is_for_c(target):
        raise UnsupportedTargetError(
            f"save writes nothing for the target {target!r}",
            why="sources are written for 'c' and processors such as 'c/cortex-m4'",
            fix="compile the graph for it, and save the executable",
        )
    export_c(graph, path, target, overwrite=overwrite)


def interface_file(path: Path) -> Path:
    """Returns where the parameters of a model's inputs and outputs are, beside its file."""
    return path.with_suffix(".io.json")


@contextmanager
def stored_as(
    graph: Graph, io: IoType | None, path: Path, *, overwrite: bool
) -> Generator[Graph, None, None]:
    """Gives a graph with other inputs and outputs, as :func:`with_io`; itself where io is None.

    If what follows succeeds, their parameters are in a file beside ``path``; what it writes is
    there in the same turn.
    """
    from qdqbridge.core.canonical.interface import interface_record
    from qdqbridge.core.graph.atomic_write import placed

    if io is None:
        yield graph
        return
    own = with_io(graph, io)
    # Written now and placed when the model is: neither is there without the other.
    with placed(interface_file(path), overwrite=overwrite, inside=True) as scratch:
        scratch.write_text(json.dumps(interface_record(own), indent=2) + "\n", "utf-8")
        yield own


@checked
def with_io(graph: Graph, io: IoType) -> Graph:
    """Returns a graph whose inputs and outputs are stored otherwise; its results mean the same.

    Args:
        graph: A canonical graph; it is not changed.
        io: ``float``: real numbers; ``as-stored``: the integers that the graph computes with;
            ``int8`` or ``uint8``: these, shifted by 128 where they have the other signedness.
            What is not quantized stays as it is.

    Raises:
        InputDataError: ``graph`` is not a graph, or there is no such io.
        UnsupportedTargetError: 8 bits are asked for, and an input or output has another width.
    """
    from qdqbridge.core.canonical.interface import with_interface

    return with_interface(graph, io)


@checked
def unquantize(graph: Graph) -> Graph:
    """Returns the float model of a quantized one: its operators on real numbers, nothing rounded.

    Weights and biases are the numbers that their integers stand for. A result whose type begins
    at 0 gets a Relu, unless it cannot be negative: files leave it out where the type implies it.

    Args:
        graph: A canonical graph; it is not changed.

    Raises:
        InputDataError: ``graph`` is not a graph.
        UnsupportedTargetError: Operators look at stored integers as plain numbers, or bodies of
            If, Loop or Scan are quantized.
    """
    from qdqbridge.core.canonical.unquantized import unquantized

    _need_float_form(graph)
    return unquantized(graph)


def _need_float_form(graph: Graph) -> None:
    """Raises where bodies are quantized."""
    from qdqbridge.core.canonical.unquantized import is_quantized
    from qdqbridge.onnx_io.control_flow.bodies import parts

    inside = [part.place for part in parts(graph) if is_quantized(part.graph)]
    if inside:
        raise UnsupportedTargetError(
            "the model has no float form",
            where=inside[0],
            why="operators in this body are quantized, and bodies are written as they are",
        )


@checked
def save_encodings(
    graph: Graph,
    path: File,
    encodings: File,
    *,
    format: EncodingsFormat = "aimet-2.0.0",
    opset: int | None = None,
    overwrite: bool = False,
) -> tuple[str, ...]:
    """Writes a quantized graph as a float model, and a file that says how it is quantized.

    ``load(path, encodings=encodings)`` reads both again.

    Args:
        graph: A canonical graph.
        path: The ``.onnx`` file to write: the model that :func:`unquantize` describes.
        encodings: The file of encodings to write, by the names of the float model.
        format: ``aimet-0.6.1``, ``aimet-1.0.0``, ``aimet-2.0.0``, ``ort-overrides`` or
            ``tensorrt``.
        opset: The opset to write; by default the source's.
        overwrite: Replace existing files.

    Returns:
        In what the two files say another graph than the given one; nothing if in nothing.

    Raises:
        InputDataError: ``graph`` is not a graph, or both files have one name.
        OutputExistsError: A file exists and ``overwrite`` is not given.
        UnsupportedTargetError: The graph has no float form, or the format cannot say how tensors
            are quantized; all of them are listed.
    """
    from qdqbridge.core.graph.diff import diff as differences
    from qdqbridge.targets.encodings.application import write_encodings

    if not is_onnx(path_of(path)) or path_of(path) == path_of(encodings):
        raise InputDataError(
            "the float model is an ONNX file beside the encodings",
            why=f"the model would be '{path}', the encodings '{encodings}'",
            fix="give two names, for example out.onnx and out.json",
        )
    _need_float_form(graph)
    ends = (*graph.inputs, *graph.outputs)
    own = with_io(graph, "float") if any(v.quant is not None for v in ends) else graph

    def look(model: Path, beside: Path) -> list[str] | None:
        # Written, then read: only that says whether the two files mean the graph.
        again = load(model, encodings=beside)
        same = again.digest == graph.digest
        return None if same else [str(each) for each in differences(graph, again)]

    otherwise, found = write_encodings(
        own, path_of(path), path_of(encodings), format, look, opset=opset, overwrite=overwrite
    )
    if found is None:
        return ()
    return (*(f"'{name}' has other parameters for some readers, too" for name in otherwise), *found)


@checked
def save_tflite(
    graph: Graph, path: File, *, layout: TFLiteLayout = "model", npu: bool = False,
    tosa: bool = False, overwrite: bool = False,
) -> TFLiteModel:  # fmt: skip
    """Writes ``graph`` as a TFLite file that computes on the same integers.

    Args:
        graph: A canonical graph.
        path: The ``.tflite`` file to write.
        layout: ``model``: inputs and outputs as the graph has them; ``nhwc``: images enter and
            leave channels-last.
        npu: Write it for Ethos-U: weights in 8 bits, and float results of products in 16.
        tosa: Write it for Arm's converter to TOSA.
        overwrite: Replace an existing file.

    Returns:
        What was written: the graph after what TFLite requires, its digest, and notes that say
        where numbers are rounded once more or computed on floats.

    Raises:
        InputDataError: ``graph`` is not a graph, but a path for example.
        OutputExistsError: The file exists and ``overwrite`` is not given.
        UnsupportedTargetError: TFLite has no counterpart of some operators; all are listed.
    """
    from qdqbridge.tflite_io.writer import write

    return write(graph, path_of(path), layout=layout, npu=npu, tosa=tosa, overwrite=overwrite)


@checked
def save_tosa(
    graph: Graph, path: File, *, layout: TFLiteLayout = "model", overwrite: bool = False,
    limits: ProcessLimits | None = None,
) -> TosaModel:  # fmt: skip
    """Writes ``graph`` as TOSA on the same integers, and its interface as ``<path>.json``.

    Args:
        graph: A canonical graph with fixed extents.
        path: The file to write: ``.tosa`` (a flatbuffer), ``.mlir`` or ``.mlirbc``.
        layout: As for :func:`save_tflite`.
        overwrite: Replace existing files.
        limits: Limits on the time and memory of Arm's programs, in seconds and bytes.

    Returns:
        What was written: the profiles and extensions of TOSA that it requires, and notes.

    Raises:
        InputDataError: ``graph`` is not a graph, but a path for example.
        OutputExistsError: A file exists and ``overwrite`` is not given.
        UnsupportedTargetError: An extent is open; TFLite or TOSA has no counterpart of some
            operators, all of which are listed; or Arm's programs are not installed or fail.
    """
    from qdqbridge.targets.tosa import write_tosa

    return write_tosa(graph, path_of(path), layout=layout, overwrite=overwrite, limits=limits)


@checked
def fixed_ranges(graph: Graph, data: Mapping[str, NDArray[Any]]) -> FixedRanges:
    """Gives activations that are quantized while the model runs fixed parameters, from data.

    They are those that ONNX's ``DynamicQuantizeLinear`` has for all of the data at once.

    Args:
        graph: A canonical graph; it is not changed.
        data: One array per input, by name: examples of what the model will see.

    Returns:
        The new graph, and for each product its range and what it costs (dB).

    Raises:
        InputDataError: The data does not fit, or an activation is not finite.
        InvalidModelError: A node cannot be computed on the data.
    """
    from qdqbridge.autoquant.fixed_ranges import fixed_ranges as fix

    return fix(graph, data)


@checked
def litert(
    graph: Graph, *, layout: TFLiteLayout = "model", engine: str = "litert"
) -> tuple[Graph, LiteRTEngine]:
    """Returns a graph as its TFLite file says it, and an engine with every value of that file.

    For :func:`compare`: ``compare(*litert(graph), data, local=True)`` runs each node on the
    engine's own operands and tells which differences are its fixed-point arithmetic. The engine
    runs in a process of its own.

    Args:
        graph: A canonical graph.
        layout: As for :func:`save_tflite`.
        engine: ``litert``, or ``tosa``: what Arm's converter makes of the file, run by the
            reference model of TOSA.

    Raises:
        InputDataError: ``graph`` is not a graph.
        UnsupportedTargetError: TFLite has no counterpart of some operators, or the engine is not
            installed.
    """
    from qdqbridge.targets.engines.vendor import ChildRecorder
    from qdqbridge.tflite_io.litert import LiteRTEngine, TosaEngine
    from qdqbridge.tflite_io.writer import converted

    recorder, tosa = ChildRecorder(engine), engine == "tosa"
    made = converted(graph, layout=layout, tosa=tosa)
    by = TosaEngine(made, recorder) if tosa else LiteRTEngine(made, recorder=recorder)
    return made.graph, by


@checked
def vela(
    graph: Graph, accelerator: str = "ethos-u55-128", *, layout: TFLiteLayout = "model"
) -> VelaReport:
    """Returns what Vela makes of the TFLite file of ``graph``: NPU or CPU, MACs, SRAM, cycles.

    Args:
        graph: A canonical graph.
        accelerator: The NPU, as Vela names it.
        layout: As for :func:`save_tflite`.

    Raises:
        InputDataError: ``graph`` is not a graph.
        UnsupportedTargetError: TFLite or Vela cannot take it, or Vela is not installed.
    """
    from qdqbridge.tflite_io.vela import compiled
    from qdqbridge.tflite_io.writer import converted

    return compiled(converted(graph, layout=layout, npu=True).model, accelerator)


@checked
def export_profile(name: str | ExportProfile) -> ExportProfile:
    """Returns an export profile: how it writes files, and the rules that its runtime requires.

    Raises:
        UnsupportedTargetError: There is none of that name.
    """
    from qdqbridge.targets.profiles import profile_of

    return profile_of(name)


@checked
def check(
    source: Graph | File,
    profile: AnyProfileName | ExportProfile = "ort",
    data: Mapping[str, NDArray[Any]] | None = None,
) -> list[Finding]:
    """Returns where and why a model would not run on integers on a profile's runtime.

    Args:
        source: A model file in whatever form, or a graph (checked as the profile would write it).
        profile: The name of the profile.
        data: One array per input: where pairs of products saturate on some processors, the first
            finding of them says what they all cost.

    Raises:
        InputDataError: There is no such profile.
        QdqBridgeError: The file cannot be read.
        InputDataError: The data does not fit.
    """
    from qdqbridge.targets.profiles import Effect
    from qdqbridge.targets.profiles import check as check_profile

    file = source if isinstance(source, Graph) else path_of(source)
    found = check_profile(file, profile)
    # One cost for all of them: they are run together, so the first says it.
    paired = next((each for each in found if each.effect is Effect.PROCESSOR), None)
    if data is None or paired is None:
        return found
    costly = replace(paired, reason=f"{paired.reason}; {_pair_cost(file, data)}")
    return [costly if each is paired else each for each in found]


def saturating(source: Graph | Path) -> Mapping[str, StoredWeights]:
    """Returns what onnxruntime multiplies in pairs that saturate on x86 without VNNI.

    Args:
        source: An ONNX file, or a graph, of which the file counts that onnxruntime would be given.

    Raises:
        UnsupportedTargetError: onnxruntime cannot be given the graph.
    """
    from qdqbridge.onnx_io.runtime.products import saturating_products

    if not isinstance(source, Graph):
        return saturating_products(source)
    with tempfile.TemporaryDirectory() as folder:
        save(source, written := Path(folder) / "model.onnx")
        return saturating_products(written)


def _pair_cost(source: Graph | Path, data: Mapping[str, NDArray[Any]]) -> str:
    """Returns what x86 without VNNI makes of a model's outputs, where onnxruntime's pairs saturate.

    Raises:
        InputDataError: The data does not fit.
    """
    from qdqbridge.autoquant.attribution.simulation import GraphRuns, decibels, noise
    from qdqbridge.autoquant.hardware.arithmetic import outputs_in_pairs
    from qdqbridge.core.graph.numerics import dequantize

    graph = source if isinstance(source, Graph) else load_model(source)
    found = outputs_in_pairs(graph, data, saturating(source))
    runs = GraphRuns(graph, data)
    named = zip(graph.output_names, graph.outputs, strict=True)
    held = [(found[name], value) for name, value in named if name in found]
    real = [array if v.quant is None else dequantize(array, v.quant.params) for array, v in held]
    loss = decibels(noise([runs.real(value) for _, value in held], real))
    return (
        f"on this data the outputs there have {loss:.1f} dB of signal to noise against the others"
    )


@checked
def changes(
    source: File, written: File, profile: AnyProfileName | ExportProfile = "ort"
) -> list[ExportChange]:
    """Returns what ``save`` wrote otherwise than the file that was read, and why.

    Args:
        source: An ONNX file.
        written: What was written of it.
        profile: The profile it was written in.

    Raises:
        InputDataError: There is no such profile.
        QdqBridgeError: A file cannot be read.
    """
    from qdqbridge.targets.profiles.export import changes as changes_of

    return changes_of(path_of(source), path_of(written), export_profile(profile))


@checked
def export_costs(
    graph: Graph, profile: AnyProfileName | ExportProfile = "ort", written: File | None = None
) -> list[ExportChange]:
    """Returns where a file of a profile has other numbers than the graph, and how far off.

    Args:
        graph: What is written.
        written: The file, to be reported as well where onnxruntime computes something else from it.

    Raises:
        InputDataError: It is not a graph, but a path for example.
        InputDataError: There is no such profile.
    """
    from qdqbridge.targets.profiles.export import costs, run_otherwise

    chosen = export_profile(profile)
    otherwise = [] if written is None else run_otherwise(path_of(written), chosen)
    return costs(graph, chosen) + otherwise


@checked
def diff(a: Graph, b: Graph) -> list[GraphDifference]:
    """Returns where two graphs differ, in words; nothing where their digests are equal.

    Args:
        a: A canonical graph.
        b: Another one.

    Raises:
        InputDataError: One of them is not a graph, but a path for example.
    """
    from qdqbridge.core.graph.diff import diff as diff_graphs

    return diff_graphs(a, b)


@checked
def compare(
    a: Side,
    b: Side,
    data: Mapping[str, NDArray[Any]],
    *,
    local: bool = False,
    batch_size: int | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Comparison:
    """Compares two sides value by value; values are matched by tensor name.

    A graph is run by the NumPy interpreter, an executable by TVM, a path to an ONNX file by
    onnxruntime with graph optimizations disabled, and what an engine has opened
    (:func:`open_engine`) by that engine.

    Args:
        a: One side.
        b: The other side, the reference.
        data: One array per model input, by name.
        local: Run each node of ``a`` in the interpreter on the operands that ``b`` recorded, so
            that a difference is counted at the node that causes it, and name the cause.
        batch_size: Examples per run; by default the batch that the model fixes, or all.
        progress: Called with the batches done and their number.

    Raises:
        InputDataError: The data does not fit the model.
        UnsupportedTargetError: An engine cannot run the model.
    """
    from qdqbridge.targets.comparison.compare import compare_engines
    from qdqbridge.targets.comparison.local import compare_locally

    graph, reference = _graph_of(a, canonical=local), engine_of(b)
    if local:
        return compare_locally(graph, reference, data, size=batch_size, progress=progress)
    return compare_engines(engine_of(a), reference, graph, data, size=batch_size, progress=progress)


def _graph_of(side: Side, *, canonical: bool) -> Graph:
    if isinstance(side, Graph):
        return side
    if isinstance(side, (str, PathLike)):
        return load(side, canonical=canonical)
    need_side(side)
    return side.graph


def engine_of(side: Side) -> Engine:
    """Returns what runs a side of a comparison and shows what it computes."""
    from qdqbridge.targets.comparison.compare import Built, Interpreter, is_engine

    if isinstance(side, Graph):
        return Interpreter(side)
    if isinstance(side, (str, PathLike)):
        return session(side)
    need_side(side)
    return side if is_engine(side) else Built(cast("Executable", side))


@contextmanager
def as_onnx(path: File | None, graph: Graph) -> Generator[Path, None, None]:
    """Yields an ONNX file of a model: its own, or one that lasts as long as this.

    Args:
        path: The file that holds the model, of any kind; None if none does.
        graph: The model.
    """
    file = None if path is None else path_of(path)
    if file is not None and is_onnx(file):
        yield file
        return
    with tempfile.TemporaryDirectory() as folder:
        exported = Path(folder) / f"{'model' if file is None else file.stem}.onnx"
        save(graph, exported)
        yield exported
