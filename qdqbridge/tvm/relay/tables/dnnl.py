"""oneDNN (DNNL), for x86: products with uint8 results, and the addition behind one.

Its patterns match what ``legalize_qnn_for_dnnl`` makes of TVM's MXNet and PyTorch imports. That
pass puts 0 to 255 for whatever range was there, also where the result is int8, so it is applied
only where this is the range; ``--rewrite`` gives uint8 results.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import tvm
from tvm import relay
from tvm.relay import dataflow_pattern as dfp
from tvm.relay.op.contrib import dnnl

from qdqbridge.tvm.relay.tables.adapter import (
    Adapter,
    MatchedExpression,
    dtype,
    number,
    row,
    symmetric_weight,
    types,
    weights,
)


def _dnnl_pattern_table() -> Sequence[Any]:
    return dnnl.pattern_table()


def _clamped(found: MatchedExpression) -> Iterator[str]:
    clips = [call for call in found.outer if str(call.op.name) == "clip"]
    bounds = [(int(call.attrs.a_min), int(call.attrs.a_max)) for call in clips]
    narrow = [bound for bound in bounds if bound != (0, 255)]
    if narrow and dtype(found.root) == "uint8":
        yield f"the result is clamped to {narrow[0][0]}..{narrow[0][1]}, 0..255 is taken"


def _scalar_data(found: MatchedExpression) -> Iterator[str]:
    zero = number(found.call.args[2])
    if zero is None or zero.size != 1:
        yield "the data has a zero point for each channel"


def _constant_weight(found: MatchedExpression) -> Iterator[str]:
    if number(found.call.args[1]) is None:
        yield "the weight is not constant"


_SOURCE = row(
    ("qnn.conv2d", "qnn.dense"), types("uint8", "int8", result=("uint8",)), weights("int8"),
    symmetric_weight, _constant_weight, _clamped, _scalar_data,
)  # fmt: skip


_Upstream: Any = dnnl.LegalizeQnnOpForDnnl


class _Legalize(_Upstream):
    """TVM's rewrite, where it means what stands there."""

    def __init__(self) -> None:
        super().__init__()
        self.require_type = True

    def callback(self, pre: Any, post: Any, node_map: Any) -> Any:
        """Returns the rewritten expression, or the same."""
        return post if _SOURCE.refusals(pre) else super().callback(pre, post, node_map)


def _prepare(module: Any) -> Any:
    module = relay.transform.InferType()(module)
    changed = tvm.IRModule(dict(module.functions.items()), module.type_definitions)
    changed["main"] = dfp.rewrite(_Legalize(), module["main"])
    passes = [relay.transform.InferType(), relay.transform.FoldConstant()]
    with tvm.transform.PassContext(opt_level=3):
        return relay.transform.InferType()(tvm.transform.Sequential(passes)(changed))


def _also() -> Sequence[Any]:
    """What the pass starts from, so that it has words for what it leaves."""

    def refuses(expr: Any) -> bool:
        del expr
        return False

    return [("dnnl.legalize", _Legalize().pattern, refuses)]


DNNL = Adapter(
    name="dnnl",
    variant="dnnl",
    table=_dnnl_pattern_table,
    rewrites=("uint8",),
    prepare=_prepare,
    also=_also,
    reasons={"legalize": _SOURCE},
)
