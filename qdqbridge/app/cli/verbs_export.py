"""The verbs that write models and look at files: ``export``, ``diff``, ``to-tvm``."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from qdqbridge.app import fixing, hosting, pipeline
from qdqbridge.app.cli import output, render
from qdqbridge.app.cli.files import (
    AS_IT_IS,
    EXACTLY,
    FOR_TVM,
    LIBRARY,
    RELAY,
    Reading,
    Rewriting,
    check_extents,
    check_suffix,
    read_inputs,
    write_for_tvm,
)
from qdqbridge.app.cli.parameters import (
    MORE,
    Extents,
    Force,
    Json,
    MaybeOut,
    Model,
    Out,
    Target,
    Variant,
    extents_of,
)
from qdqbridge.app.judging import opened
from qdqbridge.app.sources import is_onnx, is_tflite, is_tosa, load_model
from qdqbridge.core.graph.copying import symbolic_extents, with_numbers
from qdqbridge.core.graph.graph import Graph, Note
from qdqbridge.errors import InputDataError, UnsupportedTargetError
from qdqbridge.options import AnyProfileName, EncodingsFormat, EngineName, IoType, TFLiteLayout

if TYPE_CHECKING:
    from qdqbridge.core.canonical.interface import Interface
    from qdqbridge.targets.profiles import Finding
    from qdqbridge.targets.profiles.export import ExportChange

TFLITE = "tflite"
"""The profile, and the suffix, of TFLite files."""
LITERT = "litert"
"""The engine that reads TFLite files."""
ETHOS_U = "ethos-u"
"""The profile of TFLite files for Ethos-U; Vela checks them."""
TOSA = "tosa"
"""The profile of TOSA, and the engine that checks it."""
LEAST_SHARE = 0.95
"""The part of the multiplications on the NPU below which a check is not met."""
Check = Annotated[
    bool,
    Parameter(
        negative=(),
        help="Say where and why the file (the written one, if any) would not run on integers.",
    ),
]


def export(
    model: Model,
    /,
    *,
    output_: MaybeOut = None,
    profile: Annotated[AnyProfileName, Parameter(help="The runtime that the file is for.")] = "ort",
    recenter: Annotated[
        bool,
        Parameter(
            group=MORE,
            negative=(),
            help="Write int8 activations as uint8, which runs faster on x86; results are equal.",
        ),
    ] = False,
    symmetric: Annotated[
        bool,
        Parameter(
            group=MORE,
            negative=(),
            help="Write 8-bit values as int8 around zero (TensorRT has no zero points), exactly or "
            "in larger steps; what that costs is printed.",
        ),
    ] = False,
    io: Annotated[
        IoType | None,
        Parameter(
            help="How inputs and outputs are stored: as real numbers, as the integers that the "
            "model computes with, or as these in 8 bits. Their parameters are printed and written "
            "beside the file, to NAME.io.json."
        ),
    ] = None,
    float_: Annotated[
        bool,
        Parameter(
            group=MORE,
            name="--float",
            negative=(),
            help="Write the float model: weights as their integers stand for, nothing rounded.",
        ),
    ] = False,
    encodings_to: Annotated[
        Path | None,
        Parameter(
            group=MORE,
            help="Write the float model, and how it is quantized to this file beside it.",
        ),
    ] = None,
    encodings_format: Annotated[
        EncodingsFormat,
        Parameter(group=MORE, help="The format of that file."),
    ] = "aimet-2.0.0",
    layout: Annotated[
        TFLiteLayout,
        Parameter(
            group=MORE,
            help="Layout of the inputs and outputs of a TFLite file: the model's, or NHWC.",
        ),
    ] = "model",
    accelerator: Annotated[
        str, Parameter(group=MORE, help="With --check --profile ethos-u: the NPU, by Vela's name.")
    ] = "ethos-u55-128",
    extent: Extents = (),
    data: Annotated[
        Path | None,
        Parameter(
            help="An .npz file with examples, from which dynamically quantized activations get "
            "fixed parameters; with --check also what pairs that saturate cost."
        ),
    ] = None,
    opset: Annotated[
        int | None,
        Parameter(
            group=MORE, help="The opset to write; by default one that the profile's runtime reads."
        ),
    ] = None,
    check: Check = False,
    engine: Annotated[
        EngineName | None, Parameter(help="With --check: also ask this engine what it takes.")
    ] = None,
    force: Force = False,
    reading: Reading = AS_IT_IS,
    json: Json = False,
) -> int:
    """Write a model in canonical form, and say what that changed.

    An --output that ends in .tflite (or --profile tflite) is written as TFLite: the same integers,
    channels-last. One that ends in .tosa, .mlir or .mlirbc goes on through Arm's converter to TOSA;
    what its inputs and outputs mean is in a .json beside it.

    --check says where the runtime would not run the file on integers; with --engine the engine
    itself is asked. With --profile ethos-u, Vela says what runs on the NPU and why the rest does
    not; with --profile tosa, which operators TOSA has; for other TFLite files use --engine litert.

    Exits with 1 for findings other than of other numbers on some processors; for
    Ethos-U, if less than 95 % of the multiplications run on the NPU.
    """
    from qdqbridge.app.cli.failures import DONE, NOT_MET, usage

    tflite = profile in (TFLITE, ETHOS_U, TOSA) or engine in (LITERT, TOSA)
    changing = {
        "--opset": opset, "--recenter": recenter, "--symmetric": symmetric, "--io": io,
        "--float": float_,
        "--encodings-to": encodings_to,
    }  # fmt: skip
    given = [name for name, value in changing.items() if value not in (None, False)]
    wrong = _wrong_usage(output_, given, engine, check=check)
    if wrong:
        return usage(wrong)
    if output_ is not None and encodings_to is not None:
        return _export_encodings(
            model, output_, encodings_to, encodings_format, extent=extent, data=data, opset=opset,
            force=force, reading=reading, json=json,
        )  # fmt: skip
    if tflite or (output_ is not None and (is_tflite(output_) or is_tosa(output_))):
        if opset is not None:
            return usage("--opset is for ONNX files")
        return _export_tflite(
            model, output_, profile, recenter=recenter, symmetric=symmetric, io=io, float_=float_,
            layout=layout, extent=extent, data=data, check=check, engine=engine,
            accelerator=accelerator, force=force, reading=reading, json=json,
        )  # fmt: skip
    if layout != "model":
        return usage("--layout is for TFLite files: give an --output that ends in .tflite")
    path = None
    if output_ is not None:
        path = output.free(output_, force=force, model=model, data=reading.params, suffix=".onnx")
    found: dict[str, Any] = {}
    file = reading.file(model)
    # Only looked at: then the file itself is checked, as its producer wrote it, and not what would
    # be written.
    as_it_is = path is None and file is not None and is_onnx(file) and not extent
    source: Graph | Path = model
    fixed, cost = list[str](), ""
    if not as_it_is or engine is not None or data is not None:
        read = with_numbers(reading.read(model), extents_of(extent))
        # A file that is checked as it is keeps its dynamic quantization: data are for the check
        # alone.
        given_data = None if as_it_is else data
        source, fixed, cost = _prepared(read, given_data, float_=float_, symmetric=symmetric)
    if path is not None and isinstance(source, Graph):
        with pipeline.stored_as(source, io, path, overwrite=force) as source:
            pipeline.save(source, path, profile, recenter=recenter, overwrite=force, opset=opset)
        changed = [] if file is None or not is_onnx(file) else pipeline.changes(file, path, profile)
        changed += [*map(_now_fixed, fixed), *pipeline.export_costs(source, profile, path)]
        found = {"output": str(path), "profile": profile, "digest": source.digest}
        found |= {"changes": render.changes_json(changed)}
        found |= _interface(source, io, json=json) | ({"symmetric": cost} if cost else {})
        if not json:
            output.show_text("\n".join(filter(None, (str(path), cost))))
            output.tell(*render.changes_parts(changed))
            _say_what_is_open(source, profile)
    looked_at = path or (model if as_it_is else source)
    fed = (
        read_inputs(data, source.inputs)
        if check and data is not None and isinstance(source, Graph)
        else None
    )
    findings = pipeline.check(looked_at, profile, fed) if check else []
    verdict = None
    if engine is not None and isinstance(source, Graph):
        with (
            output.status("asking the engine"),
            opened(engine, path or (file if as_it_is else None), source) as judge,
        ):
            verdict = judge.taken()
    if json:
        asked = {} if verdict is None else {"engine": render.verdict_json(verdict)}
        own = _checked_json(profile, findings) if check else {}
        output.show_json({**found, **own, **asked})
    elif check:
        output.show(*render.findings_parts(pipeline.export_profile(profile), findings))
        output.show(*(render.verdict_parts(verdict) if verdict is not None else ()))
    broken = any(finding.effect.value not in render.KEPT for finding in findings)
    return NOT_MET if broken or (verdict is not None and not verdict.takes_all) else DONE


def _wrong_usage(
    path: Path | None, given: Sequence[str], engine: str | None, *, check: bool
) -> str:
    """Returns what is wrong with options that were given together; nothing if all is right.

    Args:
        path: The file to write.
        given: Options that change what is written.
        engine: Who checks the file.
        check: Whether it is checked.
    """
    if engine is not None and not check:
        return "--engine names who checks the file: give --check as well"
    if path is None and given:
        return f"{given[0]} changes what is written: give --output as well"
    if path is None and not check:
        return "give --output to write the model, or --check to look at it"
    stored = sorted({"--io", "--recenter", "--symmetric"} & set(given))
    if "--float" in given and stored:
        return f"a float model stores no integers: leave {' and '.join(stored)} out"
    if {"--recenter", "--symmetric"} <= set(given):
        return "--recenter writes uint8 and --symmetric int8: give one of them"
    # A profile's rules look for what would not run on integers: of a float model nothing does.
    others = [*["--check"] * check, *stored, *(["--float"] if "--float" in given else [])]
    if "--encodings-to" in given and others:
        return f"--encodings-to writes a float model: leave {', '.join(others)} out"
    return ""


def _export_encodings(
    model: Path,
    path: Path,
    encodings: Path,
    chosen: EncodingsFormat,
    *,
    extent: Sequence[str],
    data: Path | None,
    opset: int | None,
    force: bool,
    reading: Reading,
    json: bool,
) -> int:
    """Writes a float model and a file of encodings, and tells what the two do not say."""
    from qdqbridge.app.cli.failures import DONE

    out = output.free(path, force=force, model=model, data=reading.params, suffix=".onnx")
    beside = output.free(encodings, force=force, model=model, data=path)
    read = with_numbers(reading.read(model), extents_of(extent))
    graph, _, _ = _prepared(read, data, float_=False)
    otherwise = pipeline.save_encodings(
        graph, out, beside, format=chosen, opset=opset, overwrite=force
    )
    if json:
        output.show_json(
            {
                "output": str(out), "encodings": str(beside), "format": chosen,
                "digest": graph.digest, "otherwise": list(otherwise),
            }
        )  # fmt: skip
        return DONE
    output.show_text(f"{out}\n{beside}")
    for text in otherwise:
        output.say(f"read back, it is not the same: {text}")
    return DONE


def _interface(graph: Graph, io: Interface | None, *, json: bool) -> dict[str, Any]:
    """Returns how inputs and outputs are stored, if that was asked for; shows it unless in JSON."""
    if io is None:
        return {}
    from qdqbridge.core.canonical.interface import interface_record

    record = interface_record(graph)
    for what in () if json else ("inputs", "outputs"):
        for each in record[what]:
            scale, zero_point = each.get("scale"), each.get("zero_point")
            numbers = "" if scale is None else f", scale {scale}, zero point {zero_point}"
            output.say(f"{what[:-1]} '{each['name']}': {each['dtype']}{numbers}")
    return {"interface": record}


def _prepared(
    graph: Graph, data: Path | None, *, float_: bool, symmetric: bool = False
) -> tuple[Graph, list[str], str]:
    """Returns a graph as options want it.

    Returns:
        The float form, or fixed parameters from data, or values around zero; what those parameters
        cost; and what zero points cost.
    """
    if float_:
        return pipeline.unquantize(graph), [], ""
    fed, fixed = None if data is None else read_inputs(data, graph.inputs), list[str]()
    if fed is not None:
        with output.status("computing ranges"):
            found = pipeline.fixed_ranges(graph, fed)
        if not found.ranges and not symmetric:
            output.say("the model has no dynamic quantization: --data changes nothing")
        graph, fixed = found.graph, [f"'{each.node}': {each.text}" for each in found.ranges]
    if not symmetric:
        return graph, fixed, ""
    made = fixing.symmetric(graph, fed)
    return made.graph, fixed, f"{made.text}: {made.cost}"


def _now_fixed(text: str) -> ExportChange:
    from qdqbridge.targets.profiles.export import ExportChange

    node, _, cost = text.partition(": ")
    return ExportChange(f"numbers of {node}", "quantized while it runs", cost, "--data")


def _say_what_is_open(graph: Graph, profile: AnyProfileName) -> None:
    names, chosen = symbolic_extents(graph), pipeline.export_profile(profile)
    if chosen.fixed and names:
        numbers = " ".join(f"--extent {name}=1" for name in names)
        output.say(f"{chosen.runtime} takes fixed shapes only, for example: {numbers}")


def _export_tflite(
    model: Path,
    path: Path | None,
    profile: AnyProfileName,
    *,
    recenter: bool,
    symmetric: bool,
    io: Interface | None,
    float_: bool,
    layout: TFLiteLayout,
    extent: Sequence[str],
    data: Path | None,
    check: bool,
    engine: str | None,
    accelerator: str,
    force: bool,
    reading: Reading,
    json: bool,
) -> int:
    """Writes a TFLite or TOSA file, and tells its digest and where it computes otherwise."""
    from qdqbridge.app.cli.failures import DONE, NOT_MET, usage

    if recenter or profile not in (TFLITE, ETHOS_U, TOSA, "ort"):
        return usage("a TFLite or TOSA file takes no --recenter, and no profile of ONNX files")
    if engine not in (None, LITERT, TOSA):
        return usage(f"{engine} reads no TFLite files: give --engine {LITERT}")
    # Nothing but Arm's converter knows which operators TOSA has.
    if check and engine is None and (profile == TOSA or (path is not None and is_tosa(path))):
        engine = TOSA
    if check and profile != ETHOS_U and engine is None:
        return usage(
            "nothing but an engine checks TFLite files",
            fix=f"give --engine {LITERT}, or --profile {ETHOS_U} to ask Vela",
        )
    tosa = path is not None and not is_tflite(path) and (is_tosa(path) or profile == TOSA)
    out = None
    if path is not None:
        suffix = "" if is_tosa(path) else f".{TOSA if tosa else TFLITE}"
        out = output.free(path, force=force, model=model, data=reading.params, suffix=suffix)
    read = with_numbers(reading.read(model), extents_of(extent))
    graph, fixed, cost = _prepared(read, data, float_=float_, symmetric=symmetric)
    fixed += [cost] * symmetric
    found: dict[str, Any] = {
        "profile": TOSA if tosa else profile if profile in (ETHOS_U, TOSA) else TFLITE
    }
    if out is not None:
        with pipeline.stored_as(graph, io, out, overwrite=force) as graph:
            digest, notes, requires = _written(graph, out, profile, layout, tosa=tosa, force=force)
        listed = [{"rule": n.rule, "node": n.node, "reason": n.reason} for n in notes]
        found |= {"output": str(out), "fixed": fixed, "digest": digest, "notes": listed}
        found |= {"requires": requires} if tosa else {}
        found |= _interface(graph, io, json=json)
        if not json:
            output.show_text(str(out))
            output.say(f"digest {digest}")
            for text in (f"TOSA 1.0: {', '.join(requires)}",) if tosa else ():
                output.say(text)
            for text in fixed:
                output.say(text)
            for note in notes:
                output.say(f"{note.rule} '{note.node}': {note.reason}")
    report = verdict = None
    if check and profile == ETHOS_U:
        with output.status("asking Vela"):
            report = pipeline.vela(graph, accelerator, layout=layout)
        if not json:
            output.show(*render.report_parts(report))
        found |= render.report_json(report)
    if engine is not None:
        with (
            output.status("asking the engine"),
            opened(
                engine, _judged_file(out, None if data else reading.file(model)), graph
            ) as judge,
        ):
            verdict = judge.taken()
        if not json:
            output.show(*render.verdict_parts(verdict))
        found["engine"] = render.verdict_json(verdict)
    if json:
        output.show_json(found)
    short = report is not None and report.share < LEAST_SHARE
    return NOT_MET if short or (verdict is not None and not verdict.takes_all) else DONE


def _judged_file(written: Path | None, read: Path | None) -> Path | None:
    """Returns what an engine of TFLite files is asked about; None for a graph that is in none."""
    return written if written is not None and is_tflite(written) else None if written else read


def _written(
    graph: Graph,
    path: Path,
    profile: AnyProfileName,
    layout: TFLiteLayout,
    *,
    tosa: bool,
    force: bool,
) -> tuple[str, Sequence[Note], list[str]]:  # fmt: skip
    """Writes a file; returns the digest of its TFLite form, notes, and what it requires of TOSA."""
    if tosa:
        with output.status("asking Arm's converter"):
            made = pipeline.save_tosa(graph, path, layout=layout, overwrite=force)
        return made.made.digest, made.notes, list(made.requires)
    lite = pipeline.save_tflite(
        graph, path, layout=layout, npu=profile == ETHOS_U, tosa=profile == TOSA, overwrite=force
    )
    return lite.digest, lite.notes, []


def _checked_json(profile: AnyProfileName, findings: Sequence[Finding]) -> dict[str, Any]:
    return render.findings_json(pipeline.export_profile(profile), findings)


def diff(
    a: Model,
    b: Model,
    /,
    *,
    reading: Reading = AS_IT_IS,
    json: Json = False,
) -> int:
    """List the differences between the canonical forms of two models.

    Exits with 1 if there are any.
    """
    from qdqbridge.app.cli.failures import DONE, NOT_MET

    found = pipeline.diff(reading.read_any(a), reading.read_any(b))
    if json:
        output.show_json(render.differences_json(found))
    else:
        output.show(*render.differences_parts(found))
    return NOT_MET if found else DONE


def to_tvm(
    model: Model,
    /,
    *,
    output_: Out,
    params: Annotated[
        Path | None,
        Parameter(help="Put constants of 64 KiB or more into this .npz file (.json and .py only)."),
    ] = None,
    target: Target = "host",
    cc: Annotated[
        str | None,
        Parameter(help="The compiler that links a .so for another machine, if not one is found."),
    ] = None,
    variant: Variant = "canonical",
    extent: Extents = (),
    force: Force = False,
    rewriting: Rewriting = EXACTLY,
    json: Json = False,
) -> None:
    """Write a model for TVM: .json (Relax module), .py (TVMScript), .so (compiled) or .relay.

    A .relay file holds a Relay module and its parameters; writing it needs TVM 0.19 or older.
    With --target c, or c/cortex-m4 for example, a folder of C99 sources is written.
    """
    if hosting.is_for_c(target):
        _write_c(
            model, output_, target, extent, params, force=force, rewriting=rewriting, json=json
        )
        return
    path = output.free(output_, force=force, model=model)
    constants = None if params is None else output.free(params, force=force, model=model)
    _check_suffix(path, constants)
    graph = load_model(model, options=rewriting)
    check_extents(path, graph, extent)
    with output.status("compiling"):
        number = write_for_tvm(
            graph,
            path,
            target=target,
            params=constants,
            variant=variant,
            extents=extent,
            cc=cc,
        )
    if constants is not None and not number:
        output.say(f"no constant reaches 64 KiB, so {constants} was not written")
        constants = None
    if json:
        names = {"output": str(path), "params": None if constants is None else str(constants)}
        output.show_json({**names, "digest": graph.digest})
    else:
        output.show_text(str(path))


def _write_c(
    model: Path, folder: Path, target: str, extent: Sequence[str], params: Path | None, *,
    force: bool, rewriting: Rewriting, json: bool,
) -> None:  # fmt: skip
    if params is not None:
        raise UnsupportedTargetError("C holds its constants itself", fix="leave --params out")
    graph = load_model(model, options=rewriting)
    with output.status("writing C"):
        sizes = hosting.export_c(graph, folder, target, overwrite=force, extents=extents_of(extent))
    if json:
        output.show_json({"output": str(folder), **sizes, "digest": graph.digest})
        return
    output.show_text(str(folder))
    output.say(f"arena {sizes['arena']} bytes, weights {sizes['weights']} bytes")


def _check_suffix(path: Path, params: Path | None) -> None:
    check_suffix(path, FOR_TVM)
    if params is not None and (params.suffix != ".npz" or params.resolve() == path.resolve()):
        raise InputDataError(
            "--params needs a file of its own that ends in .npz", why=f"it is '{params}'"
        )
    if path.suffix in (LIBRARY, RELAY) and params is not None:
        raise UnsupportedTargetError(
            "such a file holds its constants itself", fix="leave --params out"
        )
