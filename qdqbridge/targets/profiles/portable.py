"""What every reader of QDQ files can be expected to understand, and the QOperator form."""

from __future__ import annotations

from qdqbridge.core.graph.dtypes import DType
from qdqbridge.onnx_io.reading.qdq import SINCE
from qdqbridge.targets.profiles.file_view import FileNode, FileView
from qdqbridge.targets.profiles.finding import Effect, Reason, TargetRule
from qdqbridge.targets.profiles.ort.fusion import REDUNDANT
from qdqbridge.targets.profiles.predicates import OWN, Predicate, op, when
from qdqbridge.targets.profiles.shared_rules import (
    COMPUTED,
    constant_positive_scale,
    encoding_of,
    explicit_zero_point,
    float_regions_of,
    onnx_domain,
    stored_tensor,
)

# ---- What every reader of QDQ files can be expected to understand --------------------------------


def _since(view: FileView, node: FileNode) -> Reason | None:
    found = encoding_of(view, node)
    if found is None or found.dtype is None:
        return None
    since = max(SINCE.get(found.dtype, 0), 21 if found.block_size else 0)
    if view.opset >= since:
        return None
    tensor = stored_tensor(node)
    form = f"{found.dtype}{' in blocks' if found.block_size else ''}"
    return Reason(f"'{tensor}' is {form}, which came with opset {since}", (tensor,))


_OF_RANK_0 = Predicate(lambda view, node: {view.rank(n) for n in node.inputs[1:3]} <= {0, None})
_IDIOMS = "measured on the exports of ten producers"

RULES: tuple[TargetRule, ...] = (
    TargetRule("onnx-domain", "Q and DQ", onnx_domain, "ONNX operator list", Effect.REFUSED,
         "use ONNX's own operators"),
    TargetRule("declared-opset", "Q and DQ", _since, "ONNX: versions of QuantizeLinear",
        Effect.REFUSED,
         "declare a newer opset"),
    TargetRule("constant-positive-scale", "Q and DQ", constant_positive_scale, _IDIOMS,
        Effect.REFUSED,
         "write scales as initializers"),
    TargetRule("explicit-zero-point", "Q and DQ", explicit_zero_point, "openvino#28562",
        Effect.REFUSED,
         "write the zero point"),
    TargetRule("rank-0-parameters", "per-tensor Q and DQ", when(OWN.per_tensor & ~_OF_RANK_0,
             "the one scale or zero point of '{own}' is not a scalar", "own"),
             "apache/tvm#13545; " + _IDIOMS,
         Effect.REFUSED, "reshape scale and zero point to rank 0"),
    TargetRule("positive-axis", "Q and DQ", when(OWN.has(lambda own: own.axis < 0),
         "axis is {own.axis}", "own"), _IDIOMS, Effect.REFUSED,
         "count the axis from the front"),
)  # fmt: skip


# ---- What the QOperator form requires: a QLinear operator wherever there is one ------------------


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


QOPERATOR_RULES: tuple[TargetRule, ...] = (
    TargetRule("qlinear-form", "operators with a QLinear form", _form,
         "ONNX QLinearConv, QLinearMatMul; onnxruntime ContribOperators.md", Effect.FLOAT,
         "export with --profile qoperator"),
    TargetRule("integer-kernel", "float compute between DQ and Q",
         when(COMPUTED & ~op(*OPERATORS) & ~(op("Relu", "Clip") & REDUNDANT),
             "there is no exact QLinear form of {node.op}", "output"),
         "onnxruntime ContribOperators.md", Effect.NO_KERNEL, "accept one float operator"),
)  # fmt: skip
