"""Writes what runtimes do wrong, ready to be reported.

``python -m scripts.generators.conformance_faults FOLDER [--engine E]`` runs the smallest case of
each fault below on the engine that has it. For each one that is still there it writes a folder with
the file, its inputs, what the text wants, ONNX's own runner for it, and ``REPORT.md``. Of Arm's
converter to TOSA it writes TFLite files, with LiteRT's results.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from qdqbridge import parse
from qdqbridge.app.conforming import ConformanceResult, conform, engine_version
from qdqbridge.errors import QdqBridgeError
from qdqbridge.targets.conformance.case import ConformanceCase
from qdqbridge.targets.conformance.folders import write_cases
from qdqbridge.targets.conformance.situations import cases
from qdqbridge.targets.engines.workers.tosa import TosaWorker
from qdqbridge.tflite_io.litert import Kernels, LiteRTSession
from qdqbridge.tflite_io.writer import converted


@dataclass(frozen=True)
class EngineFault:
    """A fault of an engine whose cause is known.

    Attributes:
        project: Where it is reported.
        engine: Which engine has it.
        case: The smallest case that shows it.
        title: Of the report.
        cause: What the engine does.
        known: The address of a report that there is; empty where none was found.
        near: The closest that was found instead, and what of it is another matter.
    """

    project: str
    engine: str
    case: str
    title: str
    cause: str
    known: str = ""
    near: str = ""


@dataclass(frozen=True)
class ConverterFault:
    """A fault of Arm's converter of TFLite files.

    Attributes:
        name: Of its folder.
        graph: What the file computes.
        inputs: Numbers for its one input.
        title: Of the report.
        cause: What the converter makes of it.
        near: The closest that is known of it.
    """

    name: str
    graph: str
    inputs: Sequence[float]
    title: str
    cause: str
    near: str = ""


_ONNX, _ORT, _OPENVINO = "onnx/onnx", "microsoft/onnxruntime", "openvinotoolkit/openvino"
_ISSUES = "https://github.com/{}/issues/{}".format
FAULTS = (
    EngineFault(
        _ONNX, "onnx.reference", "quantize_far_uint8",
        "Reference QuantizeLinear wraps where it has to saturate",
        "The quotient becomes int32 before it is clipped: from 2^31 on it is the least int32.",
        near="onnx/onnx issue 7835, mended by 7868, is that of QLinearMatMul.",
    ),
    EngineFault(
        _ONNX, "onnx.reference", "quantize_infinity_uint8",
        "Reference QuantizeLinear of infinity gives the lowest value",
        "Infinity is cast to int32 before it is clipped.",
    ),
    EngineFault(
        _ONNX, "onnx.reference", "quantize_mixed_types_uint8_float32_by_float16",
        "Reference QuantizeLinear-23 does not divide in the type of y_scale",
        "Without the attribute precision NumPy promotes float32 by float16 to float32.",
        near="onnx/onnx pull request 8182 registers the implementations of opsets 23 and 25.",
    ),
    EngineFault(
        _ONNX, "onnx.reference", "qlinearmatmul_two_axes_uint8_int8",
        "Reference QLinearMatMul rounds after it adds the zero point",
        "A tie plus an odd zero point goes to the other even number.",
        near="onnx/onnx issue 3093 asks for the formula, 7835 is about saturation.",
    ),
    EngineFault(
        _ONNX, "onnx.reference", "matmulinteger_two_axes_uint8_int8_rows_and_columns",
        "Reference MatMulInteger cannot have a zero point per row",
        "a_zero_point of shape [M] is subtracted from [M, K] without a new axis.",
        near="microsoft/onnxruntime issue 27897 is the same in onnxruntime.",
    ),
    EngineFault(
        _ONNX, "onnx.reference", "dequantize_shapes_uint8_scalar",
        "No reference implementation of DequantizeLinear-13",
        "The oldest one is that of opset 19, and models of older opsets do not run.",
        near="onnx/onnx pull request 8182 is about newer opsets.",
    ),
    EngineFault(
        _ONNX, "onnx.reference", "body_uint8_loop",
        "Reference Loop without a condition runs no iteration",
        "An input cond that is left out counts as false, where the text runs M iterations.",
    ),
    EngineFault(
        _ORT, "onnxruntime-basic", "fake_quantize_uint8_two_pairs",
        "DoubleQDQPairsRemover changes results",
        "Of Q, DQ, Q, DQ with two sets of parameters one pair is left, with parameters of its own; "
        "values are rounded once, to another grid.",
        known=_ISSUES("microsoft/onnxruntime", 25259),
    ),
    EngineFault(
        _ORT, "onnxruntime-optimized", "arithmetic_between_int8_add",
        "QLinearAdd, made of DQ, Add, Q, rounds after it adds the zero point",
        "Ties beside an odd zero point go to the other number; so does QLinearMul.",
        _ISSUES("microsoft/onnxruntime", 32132),
    ),
    EngineFault(
        _ORT, "onnxruntime", "matmulinteger_two_axes_uint8_int8_rows_and_columns",
        "MatMulInteger: per-row a_zero_point",
        "The kernel wants a scalar.", _ISSUES("microsoft/onnxruntime", 27897),
    ),
    EngineFault(
        _ORT, "onnxruntime", "quantize_int32_uint8_2_0",
        "QuantizeLinear of int32 is not implemented",
        "The text has int32 data since opset 10; there is no kernel.",
        near="microsoft/onnxruntime issue 32719 is about types of scales.",
    ),
    EngineFault(
        _ORT, "onnxruntime", "quantize_bfloat16_scale_uint8",
        "QuantizeLinear and DequantizeLinear of bfloat16 are not implemented",
        "The text has bfloat16 since opset 19; the CPU has no kernel.",
        _ISSUES("microsoft/onnxruntime", 32719),
    ),
    EngineFault(
        "iree-org/iree", "iree", "matmulinteger_two_axes_uint8_uint8_none",
        "MatMulInteger of uint8 by uint8 multiplies the codes as signed",
        "Both factors are sign-extended: 255 counts as -1.",
        near="iree-org/iree issue 24583 sees wrong products, and blames zero points.",
    ),
    EngineFault(
        "apache/tvm", "tvm-importer", "quantize_mixed_types_uint8_float32_by_float16",
        "ONNX importer: QuantizeLinear-23 does not divide in the type of y_scale",
        "Without the attribute precision x and y_scale are divided in float32.",
        near="apache/tvm pull request 19993 brought opset 23.",
    ),
    EngineFault(
        _OPENVINO, "openvino", "quantize_rounds_before_zero_point_uint8_low",
        "QuantizeLinear rounds after it adds the zero point",
        "A FakeQuantize stands for it, which rounds the distance to the end of the range: ties "
        "beside an odd zero point go to the other number.",
        _ISSUES("microsoft/onnxruntime", 25045),
    ),
    EngineFault(
        _OPENVINO, "openvino", "quantize_division_uint8_0_1",
        "QuantizeLinear does not divide by y_scale",
        "The range is divided by its levels and the reciprocal multiplied: quotients beside a tie "
        "are rounded to the other side.",
        near="intel/onnxruntime issue 707 has the formula, and is about ties.",
    ),
    EngineFault(
        _OPENVINO, "openvino", "quantize_saturates_after_zero_point_low_uint16",
        "QuantizeLinear to uint16 wraps where it has to saturate",
        "With scale 1 and zero point 0 no FakeQuantize is left, and the conversion alone wraps.",
        near="openvinotoolkit/openvino pull request 21278 brought uint16.",
    ),
    EngineFault(
        _OPENVINO, "openvino", "quantize_halves_int16_1_0",
        "QuantizeLinear to int16 with scale 1 drops fractions, and wraps",
        "No FakeQuantize is left where its ranges are equal, and the conversion does not round.",
        near="openvinotoolkit/openvino pull request 21278 brought int16.",
    ),
    EngineFault(
        _OPENVINO, "openvino", "clamp_between_int8_off_the_grid_same_grid",
        "The ends of a Clip between DequantizeLinear and QuantizeLinear lose their fractions",
        "Where both have one scale and zero point the pair is taken out, and the ends of the "
        "clamp, as codes, are converted to int8 without rounding.",
    ),
    EngineFault(
        _OPENVINO, "openvino", "dynamic_quantize_whole_range",
        "DynamicQuantizeLinear does not divide",
        "x · 255 is multiplied by the reciprocal of the range, and the range by 1/255: quotients "
        "that are ties are none any more.",
        near="intel/onnxruntime issue 707 is about QuantizeLinear.",
    ),
    EngineFault(
        _OPENVINO, "openvino", "dequantize_float_types_uint4_bfloat16",
        "DequantizeLinear with a bfloat16 scale multiplies in float32",
        "The product is not rounded to bfloat16.",
        near="openvinotoolkit/openvino pull request 30687, open, adds float16 and bfloat16.",
    ),
    EngineFault(
        _OPENVINO, "openvino", "quantize_blocked_uint8_2x5_axis1_by2",
        "Blocked QuantizeLinear refuses a last block that is shorter",
        "The extent has to be a multiple of block_size, where the text takes ceil(Di / B) blocks.",
        near="openvinotoolkit/openvino pull request 31104 brought blocks.",
    ),
)  # fmt: skip
"""Those that were seen with the versions of docs/conformance.md."""
_ARM = "arm/tosa-converter-for-tflite"
_F8 = "float32[1,8]"
CONVERTER_FAULTS = (
    ConverterFault(
        "quantize_wraps",
        f"input %x: {_F8}\n%y = quantize(%x): quant<int8, 0.25, 100>[1,8]\noutput %y",
        (-1e6, -300, -40, 0.25, 0.5, 6, 40, 1e6),
        "QUANTIZE wraps where it has to saturate",
        "The float becomes int32, the zero point is added there, and tosa.cast to int8 wraps. "
        "Without a zero point the cast is from float and saturates.",
        "tensorflow/tensorflow pull request 62110 made it so, for the rounding.",
    ),
    ConverterFault(
        "round_halves",
        f"input %x: {_F8}\n%y = Round(%x): {_F8}\noutput %y",
        (-2.5, -1.5, -0.5, 0.5, 1.5, 2.5, 3.5, 4.5),
        "ROUND rounds halves up",
        "It becomes floor(x + 0.5); TFLite rounds halves to even.",
    ),
    ConverterFault(
        "pow_negative",
        f"input %x: {_F8}\n%y = Pow(%x, const float32[] [2]): {_F8}\noutput %y",
        (-2, -1.5, -1, -0.5, 0.5, 1, 1.5, 2),
        "POW of negative numbers becomes tosa.pow, which leaves them undefined",
        "The reference model ends with REQUIRE(x >= 0). A power of 2 or 3 can be a product.",
    ),
    ConverterFault(
        "gelu",
        f'input %x: {_F8}\n%y = Gelu(%x) {{approximate="none"}}: {_F8}\noutput %y',
        (-2, -1.5, -1, -0.5, 0.5, 1, 1.5, 2),
        "GELU ignores 'approximate' and has tosa.pow of negative numbers",
        "Both forms become tanh of a cubic, whose cube is a tosa.pow; TOSA has an erf.",
        "tensorflow/tensorflow pull request 62149 added both forms.",
    ),
    ConverterFault(
        "int16_matmul_of_four_axes",
        "input %x: quant<int16, 0.01, 0>[1,2,2,2]\n"
        "%y = MatMul(%x, %x): quant<int16, 0.02, 0>[1,2,2,2]\noutput %y",
        (-300, -200, -100, 0, 100, 200, 300, 400),
        "BATCH_MATMUL of int16 with four axes gives an illegal tosa.reshape of i48",
        "The result of tosa.matmul is reshaped before it is rescaled; no profile has a reshape of "
        "i48, and tosa-opt's validation refuses the module. Rescaling first would do.",
    ),
    ConverterFault(
        "quantize_per_axis",
        f"input %x: {_F8}\n%y = quantize(%x): quant<int8, [0.5 0.25 0.5 0.25 0.5 0.25 0.5 "
        "0.25], 0, axis=1>[1,8]\noutput %y",
        (-2, -1.5, -1, -0.5, 0.5, 1, 1.5, 2),
        "QUANTIZE with a scale per axis is left as tfl.quantize",
        "A product with a constant of the axis, and a cast, would do.",
    ),
)  # fmt: skip
"""Those of tosa-converter-for-tflite 2026.2, which our files go around: docs/tosa.md."""


def report(
    fault: EngineFault, case: ConformanceCase, found: ConformanceResult, version: str
) -> str:
    """Returns the text of a report."""
    situation = case.situation
    seen = f"`qdqbridge conformance --engine {fault.engine} --only {case.name}`"
    if fault.engine.startswith("onnx"):
        seen = f"`python run.py {fault.engine.partition('-')[0]}` here (needs onnx and the runtime)"
    known = f"\nReported already: {fault.known}\n" if fault.known else ""
    known += f"\nNear to it: {fault.near}\n" if fault.near else ""
    return f"""\
# {fault.title}

For {fault.project}. {version}.
{known}
[{situation.section}](https://onnx.ai/onnx/operators/) says: {situation.says}

The file `strict/test_{case.name}/model.onnx` has the inputs and the exact outputs beside it; every
output was computed in integers and fractions. {fault.engine}: {found.outcome}: {found.cause}

{fault.cause}

To see it: {seen}.
"""


def written(folder: Path, only: str = "") -> list[str]:
    """Writes the faults that are still there; returns a line for each one that is not.

    Args:
        folder: What holds a folder for each.
        only: The engine; all of them where empty.
    """
    by_name, gone = {case.name: case for case in cases()}, list[str]()
    for fault in FAULTS:
        if only not in ("", fault.engine):
            continue
        case = by_name[fault.case]
        try:
            results = {each.name: each for each in conform(fault.engine, case.name)}
            found = results[case.name]
            version = engine_version(fault.engine)
        except QdqBridgeError as error:
            gone.append(f"{fault.engine} {fault.case}: not run: {error.why}")
            continue
        if found.outcome not in ("wrong", "refused", "crashed"):
            gone.append(f"{fault.engine} {fault.case}: right in {version}")
            continue
        own = folder / f"{fault.project.partition('/')[2]}-{fault.engine}-{case.name}"
        write_cases(own, (case,))
        (own / "REPORT.md").write_text(report(fault, case, found, version), "utf-8")
    return gone


def converter_report(fault: ConverterFault, version: str, meant: str, found: str) -> str:
    """Returns the text of a report."""
    near = f"\n{fault.near}\n" if fault.near else ""
    return f"""\
# {fault.title}

For {_ARM}. {version}.
{near}
`model.tflite` with `input.npy`: LiteRT's kernels give `expected.npy`,
{meant}.
Of the module that the converter writes, TOSA's reference model gives
{found}.

{fault.cause}

To see it: tosa-converter-for-tflite --text model.tflite -o model.mlir
"""


def converter_faults(folder: Path) -> list[str]:
    """Writes the faults of Arm's converter that are still there; returns a line for each other."""
    worker, gone = TosaWorker(), list[str]()
    for fault in CONVERTER_FAULTS:
        made = converted(parse(f"qnn-raw 1\n{fault.graph}\n")).model
        tensor, data = made.tensors[made.inputs[0]], made.tobytes()
        kind = np.int16 if tensor.type == "INT16" else np.float32
        fed = {made.inputs[0]: np.array(fault.inputs, kind).reshape(tensor.shape)}
        meant = LiteRTSession(data, Kernels.BUILTIN).run(fed, made.outputs)[made.outputs[0]]
        try:
            got = worker.record(data, "", fed, made.outputs)[made.outputs[0]]
        except RuntimeError as error:
            found = f"nothing: {' '.join(str(error).split())[:300]}"
        else:
            found = str(got.ravel().tolist())
            if np.array_equal(got, meant):
                gone.append(f"{_ARM} {fault.name}: right in {worker.version()}")
                continue
        own = folder / f"{_ARM.partition('/')[2]}-{fault.name}"
        own.mkdir(parents=True)
        (own / "model.tflite").write_bytes(data)
        np.save(own / "input.npy", fed[made.inputs[0]])
        np.save(own / "expected.npy", meant)
        text = converter_report(fault, worker.version(), str(meant.ravel().tolist()), found)
        (own / "REPORT.md").write_text(text, "utf-8")
    return gone


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, help="an empty folder, or one that is made")
    parser.add_argument("--engine", default="", help="only the faults of this engine")
    given = parser.parse_args()
    if given.folder.is_dir() and any(given.folder.iterdir()):
        parser.error(f"{given.folder} is not empty: give a new folder")
    gone = written(given.folder, given.engine)
    if given.engine in ("", "tosa"):
        gone += converter_faults(given.folder)
    print(*gone, sep="\n")


if __name__ == "__main__":
    main()
