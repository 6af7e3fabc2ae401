"""The plan: how values are carried, and which kernel computes which nodes.

Codes are carried as uint8 and images channels-last, from one end of the graph to the other; nodes
without a kernel are computed by the plain legalization in that form.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass

from qdqbridge.graph.dtypes import DType
from qdqbridge.graph.graph import Graph, Node, Value
from qdqbridge.graph.recenter import recentered
from qdqbridge.ops.product_steps import expanded
from qdqbridge.qnn.emit.norms import OVER_CHANNELS
from qdqbridge.qnn.layout import ConvertedGraph, apply_layout
from qdqbridge.qnn.layout import plan as plan_layout
from qdqbridge.relax.kernels.cpu import Cpu
from qdqbridge.relax.kernels.dynamic import with_codes
from qdqbridge.relax.kernels.families import kernel_of
from qdqbridge.relax.kernels.kernel import Kernel, KernelPlace
from qdqbridge.relax.kernels.shapes import with_extents


@dataclass(frozen=True, slots=True)
class KernelPlan:
    """A graph as it is computed.

    Attributes:
        converted: The graph with the conversions of layouts in it.
        kernels: The kernels, by the node whose result they write.
        needed: The nodes whose results somebody reads; what kernels compute on the way to theirs,
            and the transposes that they read through, are not among them.
    """

    converted: ConvertedGraph
    kernels: Mapping[Node, Kernel]
    needed: frozenset[Node]

    @property
    def graph(self) -> Graph:
        """The graph whose nodes are computed; its interface is the model's."""
        return self.converted.graph


def plan(graph: Graph, cpu: Cpu, threads: int = 1) -> KernelPlan:
    """Returns the plan of a graph.

    Args:
        graph: A canonical graph; it is not changed.
        cpu: The CPU.
        threads: How many threads it has.
    """
    known = with_codes(with_extents(expanded(graph)), KernelPlace(cpu, False, threads))
    bytes_up = recentered(known, DType.INT8, lambda value: not value.is_constant)
    ours = apply_layout(bytes_up, plan_layout(bytes_up, fixed=OVER_CHANNELS))
    outputs = frozenset(ours.graph.outputs)
    kernels: dict[Node, Kernel] = {}
    inside: set[Node] = set()
    for node in ours.graph.nodes:
        if node in inside:
            continue
        kernel = kernel_of(node, KernelPlace(cpu, node in ours.channels_last, threads))
        if kernel is not None:
            root, grown = _grown(node, kernel, outputs, inside)
            kernels[root] = grown
    return KernelPlan(ours, kernels, _needed(ours.graph.nodes, outputs, kernels))


def _grown(
    node: Node, kernel: Kernel, outputs: Set[Value], inside: set[Node]
) -> tuple[Node, Kernel]:
    """Lets a kernel take the nodes behind it; returns the last one, and the kernel."""
    while kernel.extend is not None and len(node.output.users) == 1:
        ((reader, _),) = node.output.users
        larger = None
        if reader not in inside and node.output not in outputs:
            larger = kernel.extend(kernel, reader)
        if larger is None:
            break
        inside.add(reader)
        node, kernel = reader, larger
    return node, kernel


def _needed(
    nodes: Sequence[Node], outputs: Set[Value], kernels: Mapping[Node, Kernel]
) -> frozenset[Node]:
    wanted, found = set(outputs), set[Node]()
    for node in reversed(nodes):
        if wanted.isdisjoint(node.outputs):
            continue
        found.add(node)
        kernel = kernels.get(node)
        wanted.update(v for v in (node.inputs if kernel is None else kernel.inputs) if v)
    return frozenset(found)
