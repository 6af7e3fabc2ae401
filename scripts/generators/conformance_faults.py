"""Writes what runtimes do wrong, ready to be reported.

``python -m scripts.generators.conformance_faults FOLDER [--engine E]`` runs the smallest case of
each fault below on the engine that has it. For each one that is still there it writes a folder with
the file, its inputs, what the text wants, ONNX's own runner for it, and ``REPORT.md``.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path

from qdqbridge.app.conforming import ConformanceResult, conform, engine_version
from qdqbridge.errors import QdqBridgeError
from qdqbridge.targets.conformance.case import ConformanceCase
from qdqbridge.targets.conformance.folders import write_cases
from qdqbridge.targets.conformance.situations import cases


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
    """

    project: str
    engine: str
    case: str
    title: str
    cause: str
    known: str = ""


_ONNX, _ORT, _OPENVINO = "onnx/onnx", "microsoft/onnxruntime", "openvinotoolkit/openvino"
_ISSUES = "https://github.com/{}/issues/{}".format
FAULTS = (
    EngineFault(
        _ONNX, "onnx.reference", "quantize_far_uint8",
        "Reference QuantizeLinear wraps where it has to saturate",
        "The quotient becomes int32 before it is clipped: from 2^31 on it is the least int32.",
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
    ),
    EngineFault(
        _ONNX, "onnx.reference", "qlinearmatmul_two_axes_uint8_int8",
        "Reference QLinearMatMul rounds after it adds the zero point",
        "A tie plus an odd zero point goes to the other even number.",
    ),
    EngineFault(
        _ONNX, "onnx.reference", "matmulinteger_two_axes_uint8_int8_rows_and_columns",
        "Reference MatMulInteger cannot have a zero point per row",
        "a_zero_point of shape [M] is subtracted from [M, K] without a new axis.",
    ),
    EngineFault(
        _ONNX, "onnx.reference", "dequantize_shapes_uint8_scalar",
        "No reference implementation of DequantizeLinear-13",
        "The oldest one is that of opset 19, and models of older opsets do not run.",
    ),
    EngineFault(
        _ORT, "onnxruntime-basic", "fake_quantize_uint8_two_pairs",
        "DoubleQDQPairsRemover changes results",
        "Of Q, DQ, Q, DQ with two sets of parameters one pair is left, with parameters of its own; "
        "values are rounded once, to another grid.",
    ),
    EngineFault(
        _ORT, "onnxruntime-optimized", "arithmetic_between_int8_add",
        "QLinearAdd, made of DQ, Add, Q, rounds ties to another number",
        "The fused kernel multiplies by ratios of scales, whose sum is no tie any more.",
        _ISSUES("microsoft/onnxruntime", 25512),
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
    ),
    EngineFault(
        _ORT, "onnxruntime", "quantize_bfloat16_scale_uint8",
        "QuantizeLinear and DequantizeLinear of bfloat16 are not implemented",
        "The text has bfloat16 since opset 19; the CPU has no kernel.",
        _ISSUES("microsoft/onnxruntime", 32719),
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
    ),
    EngineFault(
        _OPENVINO, "openvino", "quantize_saturates_after_zero_point_low_uint16",
        "QuantizeLinear to uint16 wraps where it has to saturate",
        "Numbers below the range become large ones.",
    ),
    EngineFault(
        _OPENVINO, "openvino", "quantize_blocked_uint8_2x5_axis1_by2",
        "Blocked QuantizeLinear refuses a last block that is shorter",
        "The extent has to be a multiple of block_size, where the text takes ceil(Di / B) blocks.",
    ),
)  # fmt: skip
"""Those that were seen with the versions of docs/conformance.md."""


def report(
    fault: EngineFault, case: ConformanceCase, found: ConformanceResult, version: str
) -> str:
    """Returns the text of a report."""
    situation = case.situation
    seen = f"`qdqbridge conformance --engine {fault.engine} --only {case.name}`"
    if fault.engine.startswith("onnx"):
        seen = f"`python run.py {fault.engine.partition('-')[0]}` here (needs onnx and the runtime)"
    known = f"\nReported already: {fault.known}\n" if fault.known else ""
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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, help="an empty folder, or one that is made")
    parser.add_argument("--engine", default="", help="only the faults of this engine")
    given = parser.parse_args()
    if given.folder.is_dir() and any(given.folder.iterdir()):
        parser.error(f"{given.folder} is not empty: give a new folder")
    print(*written(given.folder, given.engine), sep="\n")


if __name__ == "__main__":
    main()
