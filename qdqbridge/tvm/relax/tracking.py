"""Following a Relax module through passes, so that its tensors stay known."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import tvm
from tvm import ir, relax

from qdqbridge.core.graph.graph import Graph, Value
from qdqbridge.core.graph.printer import tensor_id
from qdqbridge.tvm.relax.links import Links, emit_linked, links_of

_T = relax.transform
_LEGALIZED = (_T.FoldConstant, _T.DecomposeOpsForInference, _T.LegalizeOps)
_FUSED = (*_LEGALIZED, _T.AnnotateTIROpPattern, _T.FoldConstant, _T.FuseOps)


def _channels_last() -> Any:
    return _T.ConvertLayout({"relax.nn.conv2d": ["NHWC", "OHWI"]})


def _half() -> Any:
    return _T.ToMixedPrecision("float16")


STAGES: dict[str, tuple[Callable[[], Any], ...]] = {
    "emitted": (),
    "folded": (_T.FoldConstant,),
    "channels-last": (_T.FoldConstant, _channels_last),
    "mixed": (_T.FoldConstant, _half),
    "legalized": _LEGALIZED,
    "fused": _FUSED,
    "fused-tir": (*_FUSED, _T.FuseTIR),
}
"""Stages of TVM's standard pipeline by name, and the passes that lead there from emission."""


@tvm.instrument.pass_instrument
class Tracker:
    """A pass instrument: after every pass it says what the module's expressions are.

    Use it for one module: ``with tvm.transform.PassContext(instruments=[tracker]): …``.

    Attributes:
        links: What is known after the last pass that left a Relax module.
        passes: The names of the passes, each with the calls that are linked and all calls.
    """

    def __init__(self, links: Links) -> None:
        """Takes what is known of the module before the first pass."""
        self.links = links
        self.passes: list[tuple[str, tuple[int, int]]] = []

    def run_after_pass(self, module: ir.IRModule, info: Any) -> None:
        """Follows the module; TVM calls this."""
        if not self._is_ours(module):
            return
        self.links = links_of(module, self.links)
        self.passes.append((str(info.name), self.links.share))

    def _is_ours(self, module: ir.IRModule) -> bool:
        """False for the small modules of kernels that some passes compile meanwhile."""
        names = {v.name_hint for v, f in module.functions.items() if isinstance(f, relax.Function)}
        return bool(names & self.links.entries)


def tracked(
    graph: Graph,
    passes: Iterable[Callable[[], Any]],
    ids: Callable[[Value], str | None] = tensor_id,
) -> tuple[ir.IRModule, Tracker]:
    """Returns a graph as a Relax module after passes, and what followed it there.

    Args:
        graph: A canonical graph.
        passes: What makes each pass, for example an entry of :data:`STAGES`.
        ids: The id of a tensor, as for :func:`qdqbridge.tvm.relax.links.emit_linked`.

    Raises:
        UnsupportedTargetError: TVM cannot express the graph.
    """
    module, links = emit_linked(graph, ids)
    tracker = Tracker(links)
    with tvm.transform.PassContext(opt_level=3, instruments=[tracker]):
        for make in passes:
            module = make()(module)
    return module, tracker
