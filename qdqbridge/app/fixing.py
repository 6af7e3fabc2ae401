"""One model made right for one runtime: checked, rewritten, written, and compared on the engine."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Mapping
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
    from qdqbridge.targets.comparison.difference import TensorDifference
    from qdqbridge.targets.engines.kinds import EngineKind, EngineVerdict
    from qdqbridge.targets.profiles import Finding
    from qdqbridge.targets.profiles.export import ExportChange

File: TypeAlias = "str | PathLike[str]"
TFLITE_TARGETS = ("tflite", "ethos-u", "tosa")
_SAMPLES = 4
_STEPS, _DECIBELS = 2, 1.0
"""What an engine's rounding, otherwise than the contract's, may make of a value, and an output."""
_WORDS = 300
"""Letters of an engine's own words that are shown."""


def profile_of(target: FixTarget) -> AnyProfileName:
    """Returns the name of the profile that files for a target are written by."""
    return "ort" if target in ("onnxruntime", "onnxruntime-web") else target


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
    fed = examples(real) if data is None else _as_reals(graph, data)
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
class OnEngine:
    """What an engine makes of a file.

    Attributes:
        verdict: What it takes; None where the file was not run.
        results: Its results against the model that was read; None where the file was not run.
        without: Why the file was not run.
    """

    verdict: EngineVerdict | None
    results: Comparison | None
    without: str = ""


@dataclass(frozen=True, slots=True)
class FixedModel:
    """What became of a model.

    Attributes:
        target: The runtime, by the name of its profile.
        path: The file that was written.
        as_it_was: The file that was read is kept: its engine computes it closer to the model than
            what would be written or, where that says nothing, it breaks no more rules.
        closer: The engine has decided that.
        again: It was quantized again, since the target cannot say how it was quantized.
        symmetric: What became of zero points that the target does not have; empty for nothing.
        extents: The numbers that symbolic extents got.
        before: Where the file that was read breaks rules of the target; None for other formats
            than ONNX.
        after: The same of the file that was written; None for TFLite, which an engine judges.
        changes: What was written otherwise, and where it has other numbers.
        meaning: The written file against the model that was read, both computed by the contract.
        engine: The engine that the target runs on here; empty where there is none.
        there: What that engine makes of the written file; with ``io`` against what was written.
        other: What it makes of the other one: the file that was read or, where that is kept, the
            rewritten one. None where the engine does not read it.
        data: Which data was compared.
    """

    target: FixTarget
    path: Path
    as_it_was: bool
    closer: bool
    again: bool
    symmetric: str
    extents: Mapping[str, int]
    before: tuple[Finding, ...] | None
    after: tuple[Finding, ...] | None
    changes: tuple[ExportChange, ...]
    meaning: Comparison
    engine: str
    there: OnEngine
    other: OnEngine | None
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
    as the runtime's profile says. The result is compared with the model that was read, by the
    numeric contract and, if the runtime's engine is installed, on that engine. The file that was
    read is kept where that engine runs it alone, finds the model's classes more often, or has an
    operator in the other file that is off by more than rounding (with numbers for its extents where
    the runtime needs them); or, where that says nothing, if the other one breaks no fewer rules. It
    is not where ``io`` is given.

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
    from qdqbridge.app.judging import reads
    from qdqbridge.onnx_io.reading.model_file import has_files_beside

    source, written = path_of(model), path_of(path)
    kind, name = engine_of(target), profile_of(target)
    profile = None if target in TFLITE_TARGETS else pipeline.export_profile(name)
    graph, numbers = _with_extents(
        load_model(source), extents or {},
        needed=profile is None or profile.fixed or (kind is not None and kind.fixed),
    )  # fmt: skip
    again, how = _for_its_types(graph, name, data)
    with pipeline.stored_as(again or graph, io, written, overwrite=overwrite) as own:
        if is_tosa(written):
            pipeline.save_tosa(own, written, overwrite=overwrite)
        elif profile is None:
            pipeline.save_tflite(
                own, written, npu=target == "ethos-u", tosa=target == "tosa", overwrite=overwrite
            )
        else:
            pipeline.save(own, written, name, overwrite=overwrite)
    before = after = None
    if profile is not None:
        after = pipeline.check(written, name)
        before = pipeline.check(source, name) if is_onnx(source) else None
    # real numbers are compared: the same codes mean others where parameters were chosen again
    real = pipeline.with_io(graph, "float")
    fed = examples(real) if data is None else _as_reals(graph, data)
    file = None if is_tosa(written) else written  # the engine reads TFLite, and makes TOSA of it
    there, other = _on_engine(kind, file, graph if io is None else own, fed, target), None
    if io is None and kind is not None and reads(kind, source):
        other = _on_engine(kind, source, graph, fed, target)
    closer = closer_there(there, other, lambda: rounds_only(kind, written, fed) if kind else False)
    # Rules decide only between files that say the same graph, and where the engine does not.
    if closer is not None or io is not None or numbers or again or before is None or after is None:
        as_it_was = closer is not None and closer is other
    else:
        as_it_was = len(_broken(before)) <= len(_broken(after)) and not has_files_beside(source)
    changes: list[ExportChange] = []
    if as_it_was:
        _keep(source, written, graph, numbers)
        again, how = None, ""
        there, other, after = other or there, there if other else None, before
    elif profile is not None:
        changes = [] if before is None else pipeline.changes(source, written, name)
        changes += pipeline.export_costs(own, name, written)
    made = own if is_tosa(written) else pipeline.load(written)
    # Only with the user's data: what saturates is counted on it, and on random numbers would say
    # nothing.
    if profile is not None and data is not None:
        after = pipeline.check(written, name, _as_stored(made, fed))
    meaning = pipeline.compare(pipeline.with_io(made, "float"), real, fed)
    return FixedModel(
        target=target,
        path=written,
        as_it_was=as_it_was,
        closer=closer is not None,
        again=again is not None and not how,
        symmetric=how,
        extents=numbers,
        before=None if before is None else tuple(before),
        after=None if after is None else tuple(after),
        changes=tuple(changes),
        meaning=meaning,
        engine="" if kind is None else kind.label,
        there=there,
        other=other,
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


def engine_of(target: str) -> EngineKind | None:
    """Returns the engine that a target's files run on; None where there is none."""
    from qdqbridge.targets.engines.kinds import ENGINES

    if target == "onnxruntime":  # as users run it
        return ENGINES["onnxruntime-optimized"]
    if target in ENGINES:
        return ENGINES[target]
    profile = "ort" if target == "qoperator" else target  # its operators are onnxruntime's
    return next((kind for kind in ENGINES.values() if kind.profile == profile), None)


def _with_extents(
    graph: Graph, given: Mapping[str, int], *, needed: bool
) -> tuple[Graph, Mapping[str, int]]:
    numbers = dict(given)
    if needed:
        # A number for an extent that the graph has not stays in, for `with_numbers` to refuse it by
        # name.
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


def examples(graph: Graph) -> dict[str, NDArray[Any]]:
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
    # An input of integers is fed its codes; one of real numbers, what they stand for.
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
) -> OnEngine:
    """Returns what the engine takes and computes, or why it was not asked."""
    from qdqbridge.app.judging import opened

    if kind is None:
        why = f"no engine runs files for {target} here: its rules are advice"
        return OnEngine(None, None, why)
    try:
        with opened(kind.name, path, graph) as judge:
            found = pipeline.compare(graph, judge, _as_stored(graph, data))
            return OnEngine(judge.taken(), found)
    except QdqBridgeError as error:
        # That error says already that the target is what refuses.
        lead = "" if isinstance(error, UnsupportedTargetError) else "it does not run there: "
        why = f" ({' '.join(error.why.split())[:_WORDS]})" if error.why else ""
        return OnEngine(None, None, f"{lead}{error.what}{why}{error.fix and f': {error.fix}'}")


def closer_there(
    new: OnEngine, old: OnEngine | None, rounds_only: Callable[[], bool]
) -> OnEngine | None:
    """Returns which of two files an engine computes closer to the model; None where it is one.

    Args:
        new: The rewritten one.
        old: The one that was read; None where there is none.
        rounds_only: Returns whether what the rewritten one is off comes from rounding.
    """
    if old is None or (new.results is None and old.results is None):
        return None
    if new.results is None or old.results is None:
        return old if new.results is None else new
    if has_other_classes(new.results, old.results):
        return old
    if is_further_off(new.results, old.results) and not rounds_only():
        return old
    # The rewritten file first: it has to be worse by more than rounding, while that one wins by any
    # class.
    others = has_other_classes(old.results, new.results)
    return new if others or is_further_off(old.results, new.results) else None


def has_other_classes(found: Comparison, beside: Comparison) -> bool:
    """Returns whether an output has the classes of the reference less often than elsewhere."""
    pairs = _outputs_of_both(found, beside)
    return any(a.top1 is not None and b.top1 is not None and a.top1 < b.top1 for a, b in pairs)


def is_further_off(found: Comparison, beside: Comparison) -> bool:
    """Returns whether an output is further off than elsewhere, by more than it rounds."""
    return any(
        a.sqnr_db < b.sqnr_db - _DECIBELS
        and (a.max_lsb is None or a.max_lsb - (b.max_lsb or 0) > _STEPS)
        for a, b in _outputs_of_both(found, beside)
    )


def _outputs_of_both(
    found: Comparison, beside: Comparison
) -> Iterator[tuple[TensorDifference, TensorDifference]]:
    others = {each.name: each for each in beside.outputs}
    return ((each, others[each.name]) for each in found.outputs if each.name in others)


def rounds_only(kind: EngineKind, path: Path, data: Mapping[str, NDArray[Any]] | None) -> bool:
    """Returns whether operators of a file, on their own operands, are off by rounding at most.

    Args:
        kind: The engine.
        path: The file, with numbers for what the engine needs.
        data: Real numbers for its inputs; random ones where it is None.
    """
    from qdqbridge.app.judging import open_engine

    with open_engine(kind, path) as judge:
        fed = examples(judge.graph) if data is None else _as_stored(judge.graph, data)
        found = pipeline.compare(judge.graph, judge, fed, local=True)
    return found.max_lsb <= _STEPS or not found.unexplained


def _keep(source: Path, written: Path, graph: Graph, numbers: Mapping[str, int]) -> None:
    """Puts the file that was read where another was written; with numbers for its extents."""
    from qdqbridge.onnx_io.reading.model_file import has_files_beside
    from qdqbridge.onnx_io.runtime.session import PreparedModel

    data = source.read_bytes()
    if is_onnx(source) and (numbers or has_files_beside(source)):
        shapes = {value.name: value.type.shape or () for value in graph.inputs}
        # Weights that lie beside the file would be missing beside its copy: they go into it.
        data = PreparedModel(source, shapes).showing(())
    with placed(written) as scratch:
        scratch.write_bytes(data)
