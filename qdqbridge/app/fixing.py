"""One model made right for one runtime: checked, rewritten, written, and compared on the engine."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from qdqbridge.app import pipeline
from qdqbridge.app.sources import is_onnx, is_tosa, load_model
from qdqbridge.core.arguments import checked, path_of
from qdqbridge.core.graph.atomic_write import placed
from qdqbridge.core.graph.copying import symbolic_extents, with_numbers
from qdqbridge.core.graph.graph import Graph, Value
from qdqbridge.core.graph.numerics import dequantize, quantize
from qdqbridge.core.graph.types import Dim
from qdqbridge.core.ops.conversion import DEQUANTIZE, QUANTIZE
from qdqbridge.errors import QdqBridgeError, UnsupportedTargetError
from qdqbridge.options import AnyProfileName, FixTarget, IoType

if TYPE_CHECKING:
    from qdqbridge.targets.comparison.compare import Comparison
    from qdqbridge.targets.engines.kinds import EngineKind, EngineVerdict
    from qdqbridge.targets.profiles import Finding
    from qdqbridge.targets.profiles.export import ExportChange

File: TypeAlias = "str | PathLike[str]"
TFLITE_TARGETS = ("tflite", "ethos-u", "tosa")
_SAMPLES = 4


def profile_of(target: FixTarget) -> AnyProfileName:
    """Returns the name of the profile that files for a target are written by."""
    return "ort" if target == "onnxruntime-web" else target


@dataclass(frozen=True, slots=True)
class SymmetricForm:
    """A model without zero points, and what that cost.

    Attributes:
        graph: A canonical graph: activations and weights of 8 bits are int8 around zero.
        text: What was done.
        meaning: The graph against the model on some data, both computed by the contract.
        lsb: The largest difference of each output in the steps that it had; of quantized ones.
        data: Which data.
    """

    graph: Graph
    text: str
    meaning: Comparison
    lsb: Mapping[str, float]
    data: str

    @property
    def cost(self) -> str:
        """What the outputs lost, in words."""
        worst = min(self.meaning.outputs, key=lambda each: each.sqnr_db, default=None)
        if worst is None or self.meaning.equal:
            return f"every output is equal ({self.data})"
        steps = self.lsb.get(worst.name)
        off = "" if steps is None else f", at most {steps:.1f} LSB off"
        return f"'{worst.name}' has {worst.sqnr_db:.1f} dB SQNR{off} ({self.data})"


def symmetric(graph: Graph, data: Mapping[str, NDArray[Any]] | None = None) -> SymmetricForm:
    """Returns a graph whose 8-bit values lie around zero, and what that cost.

    Where a range does, the numbers stay what they were; another one gets larger steps.

    Args:
        graph: A canonical graph; it is not changed.
        data: Inputs to compare with, as the graph stores them; by default random numbers from the
            range of each quantized input.
    """
    from qdqbridge.targets.profiles.symmetric import around_zero

    made, real = around_zero(graph), pipeline.with_io(graph, "float")
    fed = _examples(real) if data is None else _as_reals(graph, data)
    meaning = pipeline.compare(pipeline.with_io(made.graph, "float"), real, fed)
    steps = dict(zip(graph.output_names, map(_step, graph.outputs), strict=True))
    lsb = {o.name: o.max_abs / step for o in meaning.outputs if (step := steps.get(o.name))}
    return SymmetricForm(made.graph, made.text, meaning, lsb, _data_in_words(data))


def _step(output: Value) -> float | None:
    """Returns the step of a quantized output, also of one that leaves as real numbers."""
    node, quant = output.producer, output.quant
    if quant is None and node is not None and node.op is DEQUANTIZE:
        quant = node.operand(0).quant
    per_tensor = quant is not None and quant.params.per_tensor
    return float(quant.params.scale) if quant is not None and per_tensor else None


def _data_in_words(data: object) -> str:
    return f"{_SAMPLES} random samples" if data is None else "the given data"


@dataclass(frozen=True, slots=True)
class FixedModel:
    """What became of a model.

    Attributes:
        target: The runtime, by the name of its profile.
        path: The file that was written.
        as_it_was: The file that was read is kept byte for byte: it breaks no more rules of the
            target than what would be written.
        again: It was quantized again, since the target cannot say how it was quantized.
        symmetric: What became of zero points that the target does not have; empty for nothing.
        extents: The numbers that symbolic extents got.
        before: Where the file that was read breaks rules of the target; None for other formats
            than ONNX.
        after: The same of the file that was written; None for TFLite, which an engine judges.
        changes: What was written otherwise, and where it has other numbers.
        meaning: The written file against the model that was read, both computed by the contract.
        engine: The engine that the target runs on here; empty where there is none.
        without_engine: Why the file was not run there.
        verdict: What the engine takes.
        there: The engine's results against the model that was read; with ``io``, against what was
            written.
        data: Which data was compared.
    """

    target: FixTarget
    path: Path
    as_it_was: bool
    again: bool
    symmetric: str
    extents: Mapping[str, int]
    before: tuple[Finding, ...] | None
    after: tuple[Finding, ...] | None
    changes: tuple[ExportChange, ...]
    meaning: Comparison
    engine: str
    without_engine: str
    verdict: EngineVerdict | None
    there: Comparison | None
    data: str


@checked
def fix(
    model: File,
    target: FixTarget,
    path: File,
    data: Mapping[str, NDArray[Any]] | None = None,
    *,
    extents: Mapping[str, int] | None = None,
    io: IoType | None = None,
    overwrite: bool = False,
) -> FixedModel:
    """Writes a model so that a runtime computes it right, and says what that changed and cost.

    The model is read, open extents become numbers where the runtime needs them, and it is written
    as the runtime's profile says. If that breaks no fewer rules than the file that was read has
    broken, that file is kept as it is (unless it has external data, or extents or ``io`` change
    it). The result is compared with the model that was read, by the numeric contract and, if the
    runtime's engine is installed, on that engine.

    Args:
        model: The model's file, of any kind.
        target: The name of a profile, or ``onnxruntime-web``.
        path: The file to write; ``.tflite`` for ``tflite``, ``ethos-u`` and ``tosa``, which may
            also be ``.tosa``, ``.mlir`` or ``.mlirbc``.
        data: Inputs to compare with, one array per input; by default random numbers from the
            range of each quantized input. A model that the target cannot take as it is quantized
            (TensorRT: uint8, other zero points than 0) is made symmetric, or quantized again with
            the data if that comes closer to it.
        extents: Numbers for symbolic extents; 1 for those that are needed and not given.
        io: How inputs and outputs are stored, as for :func:`qdqbridge.save`.
        overwrite: Replace an existing file.

    Raises:
        UnsupportedTargetError: There is no such target, or it cannot run the model; the error
            lists why.
        QdqBridgeError: The file cannot be read, or the other one not be written.
    """
    from qdqbridge.onnx_io.reading.model_file import has_files_beside

    source, written = path_of(model), path_of(path)
    kind, name = _engine_of(target), profile_of(target)
    profile = None if target in TFLITE_TARGETS else pipeline.export_profile(name)
    graph, numbers = _with_extents(
        load_model(source), extents or {},
        needed=profile is None or profile.fixed or (kind is not None and kind.fixed),
    )  # fmt: skip
    again, how = _for_its_types(graph, name, data)
    before = after = None
    changes: list[ExportChange] = []
    as_it_was = False
    with pipeline.stored_as(again or graph, io, written, overwrite=overwrite) as own:
        if is_tosa(written):
            pipeline.save_tosa(own, written, overwrite=overwrite)
        elif profile is None:
            pipeline.save_tflite(
                own, written, npu=target == "ethos-u", tosa=target == "tosa", overwrite=overwrite
            )
        else:
            pipeline.save(own, written, name, overwrite=overwrite)
    if profile is not None:
        after = pipeline.check(written, name)
        if is_onnx(source):
            before = pipeline.check(source, name)
            asked = bool(numbers) or io is not None or again is not None
            as_it_was = not asked and len(_broken(before)) <= len(_broken(after))
    if as_it_was and before is not None and not has_files_beside(source):
        with placed(written) as scratch:
            scratch.write_bytes(source.read_bytes())
        after = before
    elif profile is not None:
        as_it_was = False
        changes = [] if before is None else pipeline.changes(source, written, name)
        changes += pipeline.export_costs(own, name, written)
    # real numbers are compared: the same codes mean others where parameters were chosen again
    real = pipeline.with_io(graph, "float")
    fed = _examples(real) if data is None else _as_reals(graph, data)
    made = own if is_tosa(written) else pipeline.load(written)
    if profile is not None and data is not None:
        after = pipeline.check(written, name, _as_stored(made, fed))
    meaning = pipeline.compare(pipeline.with_io(made, "float"), real, fed)
    file = None if is_tosa(written) else written  # the engine reads TFLite, and makes TOSA of it
    verdict, there, why = _on_engine(kind, file, graph if io is None else own, fed, target)
    return FixedModel(
        target=target,
        path=written,
        as_it_was=as_it_was,
        again=again is not None and not how,
        symmetric=how,
        extents=numbers,
        before=None if before is None else tuple(before),
        after=None if after is None else tuple(after),
        changes=tuple(changes),
        meaning=meaning,
        engine="" if kind is None else kind.label,
        without_engine=why,
        verdict=verdict,
        there=there,
        data=_data_in_words(data),
    )


def _for_its_types(
    graph: Graph, target: AnyProfileName, data: Mapping[str, NDArray[Any]] | None
) -> tuple[Graph | None, str]:
    """Returns the graph in types that the target has, and how; None where it has those it was in.

    It is made symmetric or, with data, quantized again where that is closer to it.
    """
    if target in TFLITE_TARGETS:
        return None, ""
    from qdqbridge.app import quantizing
    from qdqbridge.autoquant.planning.targets import TARGETS
    from qdqbridge.targets.profiles.symmetric import around_zero

    refused = _refusal(graph, target)
    if refused is None:
        return None, ""
    row = next((row for row in TARGETS.values() if row.profile == target), None)
    made = around_zero(graph)
    fits = _refusal(made.graph, target) is None
    if data is None or row is None:
        if fits:
            return made.graph, made.text
        if row is None:
            raise refused
        raise UnsupportedTargetError(
            refused.what, where=refused.where, why=refused.why,
            fix=f"{refused.fix}; or give data (--data), and it is quantized again for {target}",
        ) from refused  # fmt: skip
    again = quantizing.quantize(pipeline.unquantize(graph), _as_reals(graph, data), target=row)
    return (
        (made.graph, made.text) if fits and _closer(made.graph, again, graph, data) else (again, "")
    )


def _refusal(graph: Graph, target: AnyProfileName) -> UnsupportedTargetError | None:
    """Returns why a graph cannot be written for a target."""
    try:
        with tempfile.TemporaryDirectory() as folder:
            pipeline.save(graph, Path(folder) / "model.onnx", target)
    except UnsupportedTargetError as error:
        return error
    return None


def _closer(graph: Graph, other: Graph, original: Graph, data: Mapping[str, NDArray[Any]]) -> bool:
    """Returns whether a graph is closer to the original on some data than the other one."""
    real, fed = pipeline.with_io(original, "float"), _as_reals(original, data)
    found = [
        min(o.sqnr_db for o in pipeline.compare(pipeline.with_io(g, "float"), real, fed).outputs)
        for g in (graph, other)
    ]
    return found[0] >= found[1]


def _broken(findings: list[Finding]) -> list[Finding]:
    from qdqbridge.targets.profiles import Effect

    return [each for each in findings if each.effect is not Effect.PROCESSOR]


def _engine_of(target: str) -> EngineKind | None:
    from qdqbridge.targets.engines.kinds import ENGINES

    if target in ENGINES:
        return ENGINES[target]
    return next((kind for kind in ENGINES.values() if kind.profile == target), None)


def _with_extents(
    graph: Graph, given: Mapping[str, int], *, needed: bool
) -> tuple[Graph, Mapping[str, int]]:
    numbers = dict(given)
    if needed:
        numbers = {name: given.get(name, 1) for name in symbolic_extents(graph)} | numbers
    return with_numbers(graph, numbers), numbers


def _as_reals(graph: Graph, data: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
    """Returns inputs as the real numbers that their integers stand for."""
    types = {value.name: value.quant for value in graph.inputs}
    return {
        name: dequantize(array, quant.params) if (quant := types.get(name)) else array
        for name, array in data.items()
    }


def _as_stored(graph: Graph, data: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
    """Returns real inputs as a graph stores them."""
    types = {value.name: value.quant for value in graph.inputs}
    return {
        name: quantize(array, quant.params) if (quant := types.get(name)) else array
        for name, array in data.items()
    }


def _examples(graph: Graph) -> dict[str, NDArray[Any]]:
    """Returns random numbers from the range of each quantized input, and zeros for the others."""
    rng = np.random.default_rng(0)
    return {value.name: _example(value, rng) for value in graph.inputs}


def _example(value: Value, rng: np.random.Generator) -> NDArray[Any]:
    first = _SAMPLES
    shape = [
        _extent(dim, first if axis == 0 else 1) for axis, dim in enumerate(value.type.shape or ())
    ]
    types = [value.quant, *(n.output.quant for n, _ in value.users if n.op is QUANTIZE)]
    params = next((each.params for each in types if each is not None), None)
    dtype = value.type.dtype.numpy
    if params is None or not params.storage_dtype.is_integer:
        fractions = rng.random(shape)
        return fractions.astype(dtype) if value.type.dtype.is_float else np.zeros(shape, dtype)
    codes = rng.integers(params.qmin, params.qmax + 1, shape)
    if value.quant is not None:
        return codes.astype(dtype)
    scale, zero_point = float(params.scale.flat[0]), int(params.zero_point.flat[0])
    return ((codes - zero_point) * scale).astype(dtype)


def _extent(dim: Dim, otherwise: int) -> int:
    return dim if isinstance(dim, int) else otherwise


def _on_engine(
    kind: EngineKind | None,
    path: Path | None,
    graph: Graph,
    data: Mapping[str, NDArray[Any]],
    target: str,
) -> tuple[EngineVerdict | None, Comparison | None, str]:
    """Returns what the engine takes and computes, or why it was not asked."""
    from qdqbridge.app.judging import opened

    if kind is None:
        return None, None, f"no engine runs files for {target} here: its rules are advice"
    try:
        with opened(kind.name, path, graph) as judge:
            return judge.taken(), pipeline.compare(graph, judge, _as_stored(graph, data)), ""
    except UnsupportedTargetError as error:
        return None, None, f"{error.what}: {error.fix}" if error.fix else error.what
    except QdqBridgeError as error:
        return None, None, f"it does not run there: {error.what}"
