"""Pools of ceil_mode as ONNX computes them, for an inference that counts a window too many.

A window that would start in the padding behind the data is dropped (ONNX's text for MaxPool and
AveragePool, and onnxruntime, LpPool's too), and SAME has its own number of windows, whatever
ceil_mode says. ONNX's shape inference (1.23) counts one more.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import onnx
from onnx import helper

from qdqbridge.core.ops.windows import covered, extents, span, window_count
from qdqbridge.onnx_io.domains import ONNX_DOMAINS

_POOLS = ("MaxPool", "AveragePool", "LpPool")


def without_dropped(model: onnx.ModelProto) -> onnx.ModelProto | None:
    """Returns a copy whose pools state their windows without ceil_mode, None where none drops any.

    What the file declares behind such a pool is left out: it may come from the same inference.

    Args:
        model: A model after inference. Only axes of known extents are looked at.
    """
    graph = model.graph
    ends = _ends(graph.node, (*graph.input, *graph.value_info, *graph.output))
    if not ends:
        return None
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    for index, pads in ends.items():
        _restate(copy.graph.node[index], pads)
    _forget(copy.graph, _behind(copy.graph, ends))
    return copy


def without_dropped_windows(node: onnx.NodeProto, sizes: list[int]) -> onnx.NodeProto:
    """Returns a node that states its windows without ceil_mode, where it is a pool that drops any.

    Args:
        node: Any node; it is changed where it is such a pool.
        sizes: The spatial extents of its operand, 0 for unknown ones.
    """
    pads = _pads(node, sizes)
    if pads is not None:
        _restate(node, pads)
    return node


def leave_open(model: onnx.ModelProto) -> None:
    """Takes extents out of a model that ONNX's inference would contradict: it refuses such files.

    Args:
        model: A model to be written; what it declares behind pools that drop a window is changed.
    """
    graph = model.graph
    ends = _ends(graph.node, (*graph.input, *graph.value_info, *graph.output))
    if ends:
        _forget(graph, _behind(graph, ends))


def _ends(
    protos: Iterable[onnx.NodeProto], values: Iterable[onnx.ValueInfoProto]
) -> dict[int, list[int]]:
    """Returns the pads that stand for the ceil_mode of pools that drop a window, by index."""
    nodes = [(i, node) for i, node in enumerate(protos) if node.op_type in _POOLS and node.input]
    if not nodes:
        return {}
    known = {
        value.name: [extent.dim_value for extent in value.type.tensor_type.shape.dim]
        for value in values
    }
    found = ((index, _pads(node, known.get(node.input[0], [])[2:])) for index, node in nodes)
    return {index: pads for index, pads in found if pads is not None}


def _behind(graph: onnx.GraphProto, pools: Mapping[int, object]) -> set[str]:
    """Returns the tensors whose extents follow from pools, through ONNX's own operators."""
    behind: set[str] = set()
    for index, node in enumerate(graph.node):
        if index in pools or (node.domain in ONNX_DOMAINS and behind & set(node.input)):
            behind.update(node.output)
    return behind


def _pads(node: onnx.NodeProto, sizes: list[int]) -> list[int] | None:
    """Returns pads that make a pool's windows without ceil_mode; None where none is dropped.

    None of them where ``auto_pad`` says them.
    """
    if node.op_type not in _POOLS or node.domain not in ONNX_DOMAINS:
        return None
    given = {a.name: helper.get_attribute_value(a) for a in node.attribute}
    kernel = list(given.get("kernel_shape", ()))
    rank = len(kernel)
    padding = given.get("auto_pad", b"NOTSET")
    if padding == b"VALID" or not given.get("ceil_mode"):
        return None
    strides, dilations = (list(given.get(n, [1] * rank)) for n in ("strides", "dilations"))
    if padding != b"NOTSET":
        return [] if any(s > k for s, k in zip(strides, kernel, strict=False)) else None
    pads = list(given.get("pads", [0] * (2 * rank)))
    fits = len(sizes) == len(strides) == len(dilations) == rank and len(pads) == 2 * rank
    if not fits or min([*strides, *dilations, *kernel], default=0) <= 0:
        return None
    counts = extents(sizes, kernel, strides, dilations, pads, ceil_mode=True)
    dropped = False
    for i, count in enumerate(counts):
        if sizes[i] <= 0:  # unknown, and so is its number of windows
            continue
        data, wide = sizes[i] + pads[i], span(kernel[i], dilations[i])
        whole = window_count(data + pads[rank + i] - wide + strides[i] - 1, strides[i])
        dropped |= whole > count
        pads[rank + i] = max(0, covered(count, strides[i], kernel[i], dilations[i]) - data)
    return pads if dropped else None


def _restate(node: onnx.NodeProto, pads: list[int]) -> None:
    kept = [a for a in node.attribute if a.name not in ("pads", "ceil_mode")]
    del node.attribute[:]
    node.attribute.extend([*kept, *([helper.make_attribute("pads", pads)] if pads else [])])


def _forget(graph: onnx.GraphProto, names: set[str]) -> None:
    """Removes the declared extents of tensors; outputs keep their rank and first extent."""
    kept = [value for value in graph.value_info if value.name not in names]
    del graph.value_info[:]
    graph.value_info.extend(kept)
    for value in graph.output:
        if value.name in names:
            for extent in value.type.tensor_type.shape.dim[1:]:
                extent.Clear()
