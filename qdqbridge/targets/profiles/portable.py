"""What every reader of QDQ files can be expected to understand."""

from __future__ import annotations

from qdqbridge.onnx_io.reading.qdq import SINCE
from qdqbridge.targets.profiles.file_view import FileNode, FileView
from qdqbridge.targets.profiles.finding import Effect, Reason, TargetRule
from qdqbridge.targets.profiles.predicates import OWN, Predicate, when
from qdqbridge.targets.profiles.shared_rules import (
    constant_positive_scale,
    encoding_of,
    explicit_zero_point,
    onnx_domain,
    stored_tensor,
)


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
