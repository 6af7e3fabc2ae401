"""The verb ``fix``: a model made right for one runtime."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter
from rich.table import Table
from rich.text import Text

from qdqbridge.app import pipeline
from qdqbridge.app.cli import output, render
from qdqbridge.app.cli.files import read_inputs
from qdqbridge.app.cli.parameters import Extents, Force, Json, Model, Out, extents_of
from qdqbridge.app.fixing import TFLITE_TARGETS, profile_of
from qdqbridge.app.fixing import fix as fix_model
from qdqbridge.app.sources import is_tosa, load_model
from qdqbridge.options import FixTarget, IoType

if TYPE_CHECKING:
    from qdqbridge.app.fixing import FixedModel, OnEngine
    from qdqbridge.targets.comparison.compare import Comparison
    from qdqbridge.targets.profiles import Finding


def fix(
    model: Model,
    /,
    *,
    target: Annotated[
        FixTarget,
        Parameter(name="--for", help="The runtime that shall compute it."),
    ],
    output_: Out,
    data: Annotated[
        Path | None,
        Parameter(help="An .npz file with inputs to compare with; by default random numbers."),
    ] = None,
    io: Annotated[
        IoType | None,
        Parameter(help="How inputs and outputs are stored, as for export."),
    ] = None,
    extent: Extents = (),
    force: Force = False,
    json: Json = False,
) -> int:
    """Write a model so that a runtime computes it right, and say what that changed and cost.

    Symbolic dimensions become numbers where the runtime needs them (1, unless --extent says
    another). The written file is compared with the model, by the numeric contract and, where its
    engine is installed, on the runtime itself. A file that the engine computes closer to the model,
    or that would break no fewer of the runtime's rules afterwards, is kept as it is.

    Exits with 1 if the written file still breaks a rule of the runtime, or its engine leaves nodes.
    """
    from qdqbridge.app.cli.failures import DONE, NOT_MET

    suffix = ".tflite" if target in TFLITE_TARGETS else ".onnx"
    if target == "tosa" and is_tosa(output_):
        suffix = ""
    path = output.free(output_, force=force, model=model, data=data, suffix=suffix)
    fed = None if data is None else read_inputs(data, load_model(model).inputs)
    with output.status("fixing"):
        made = fix_model(
            model, target, path, fed, extents=extents_of(extent), io=io, overwrite=force
        )
    if json:
        output.show_json(_json(made))
    else:
        _show(made)
    open_rules = [each for each in made.after or () if each.effect.value not in render.KEPT]
    verdict = made.there.verdict
    leaves = verdict is not None and not verdict.takes_all
    return NOT_MET if open_rules or leaves else DONE


def _show(made: FixedModel) -> None:
    output.show_text(str(made.path))
    table = Table(show_header=False, box=None)
    table.add_row("for", Text(made.target))
    if made.as_it_was:
        table.add_row("file", Text(f"kept as it was: {_why_kept(made)}"))
    if made.again:
        table.add_row("file", Text("quantized again: the runtime cannot say its parameters"))
    if made.symmetric:
        table.add_row("file", Text(made.symmetric))
    if made.extents:
        numbers = ", ".join(f"{name}={number}" for name, number in made.extents.items())
        table.add_row("extents", Text(numbers))
    if made.after is not None:
        before = "" if made.before is None else f"{_counted(made.before)} before, "
        table.add_row("rules broken", Text(f"{before}{_counted(made.after)} now"))
    table.add_row("file", Text(_outputs(made.meaning, f"against the model on {made.data}")))
    table.add_row("engine", Text(_there(made.there, made.engine)))
    if made.other is not None:
        which = "a rewritten one" if made.as_it_was else "before"
        table.add_row("engine", Text(_there(made.other, f"{made.engine}, {which}")))
    output.show(table)
    if made.changes:
        output.show(*render.changes_parts(made.changes))
    if made.after:
        profile = pipeline.export_profile(profile_of(made.target))
        output.show(*render.findings_parts(profile, made.after))
    if made.there.verdict is not None:
        output.show(*render.verdict_parts(made.there.verdict))


def _why_kept(made: FixedModel) -> str:
    if made.closer:
        return f"{made.engine} computes it closer to the model than a rewritten one"
    return "it breaks no more rules than a rewritten one"


def _there(found: OnEngine, where: str) -> str:
    if found.results is None:
        return f"{found.without} ({where})" if where else found.without
    return _outputs(found.results, where)


def _counted(findings: tuple[Finding, ...]) -> int:
    return sum(each.effect.value not in render.KEPT for each in findings)


def _outputs(found: Comparison, where: str) -> str:
    """Returns how far the outputs are off, the worst one, in one sentence."""
    if not found.outputs:
        return f"no output could be compared ({where})"
    if all(each.equal for each in found.outputs):
        return f"every output is equal ({where})"
    worst = min(found.outputs, key=lambda each: each.sqnr_db)
    steps = "" if worst.max_lsb is None else f", at most {worst.max_lsb} LSB off"
    top1 = "" if worst.top1 is None else f", top-1 agreement {100 * worst.top1:.1f} %"
    return f"'{worst.name}' has {worst.sqnr_db:.1f} dB SQNR{steps}{top1} ({where})"


def _json(made: FixedModel) -> dict[str, Any]:
    def outputs(found: Comparison | None) -> Any:
        if found is None:
            return None
        return [
            {
                "name": each.name, "equal": each.equal, "max_lsb": each.max_lsb,
                "max_abs": each.max_abs, "sqnr_db": each.sqnr_db, "top1": each.top1,
            }
            for each in found.outputs
        ]  # fmt: skip

    def listed(found: tuple[Finding, ...] | None) -> Any:
        if found is None:
            return None
        profile = pipeline.export_profile(profile_of(made.target))
        return render.findings_json(profile, found)["findings"]

    verdict = made.there.verdict
    return {
        "output": str(made.path),
        "target": made.target,
        "as_it_was": made.as_it_was,
        "closer": made.closer,
        "again": made.again,
        "symmetric": made.symmetric or None,
        "extents": dict(made.extents),
        "before": listed(made.before),
        "after": listed(made.after),
        "changes": render.changes_json(made.changes),
        "data": made.data,
        "meaning": outputs(made.meaning),
        "engine": made.engine,
        "without_engine": made.there.without,
        "there": outputs(made.there.results),
        "other": outputs(None if made.other is None else made.other.results),
        "verdict": verdict and render.verdict_json(verdict),
    }
