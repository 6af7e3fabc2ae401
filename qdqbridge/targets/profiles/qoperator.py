"""What the QOperator form requires: a QLinear operator wherever there is one."""

from __future__ import annotations

from qdqbridge.core.graph.dtypes import DType
from qdqbridge.targets.profiles.file_view import FileNode, FileView
from qdqbridge.targets.profiles.finding import Effect, Reason, TargetRule
from qdqbridge.targets.profiles.float_regions import COMPUTED, float_regions_of
from qdqbridge.targets.profiles.ort.fusion import REDUNDANT
from qdqbridge.targets.profiles.predicates import op, when

OPERATORS = frozenset(
    {
        "Conv", "MatMul", "Gemm", "Add", "Mul", "Concat", "GlobalAveragePool", "Sigmoid",
        "LeakyRelu", "Where",
    }
)  # fmt: skip
"""Operators with a QLinear form in ONNX or com.microsoft that computes what they do."""

_EIGHT = (DType.INT8, DType.UINT8)


def _form(view: FileView, node: FileNode) -> Reason | None:
    if node not in float_regions_of(view) or node.op not in OPERATORS:
        return None
    operands = node.inputs[1:] if node.op == "Where" else node.inputs
    found = [view.dequantized(name) for name in operands if name]
    behind = view.quantized(node.output)
    known = [e for e in (*found, *behind) if e is not None]
    wide = [e for e in known if e.dtype not in (*_EIGHT, DType.INT32)]
    if wide:
        tensor = wide[0].node.input(0)
        return Reason(f"'{tensor}' is {wide[0].dtype}; QLinear operators take 8 bits", (tensor,))
    if any(e is None for e in found) or not behind:
        return Reason("an operand or the result is float, so there is no QLinear form of it")
    return Reason(f"it stands between DQ and Q; there is a QLinear form of {node.op}")


RULES: tuple[TargetRule, ...] = (
    TargetRule("qlinear-form", "operators with a QLinear form", _form,
         "ONNX QLinearConv, QLinearMatMul; onnxruntime ContribOperators.md", Effect.FLOAT,
         "export with --profile qoperator"),
    TargetRule("integer-kernel", "float compute between DQ and Q",
         when(COMPUTED & ~op(*OPERATORS) & ~(op("Relu", "Clip") & REDUNDANT),
             "there is no exact QLinear form of {node.op}", "output"),
         "onnxruntime ContribOperators.md", Effect.NO_KERNEL, "accept one float operator"),
)  # fmt: skip
