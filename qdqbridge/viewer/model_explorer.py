"""Graphs for Google's Model Explorer: its JSON of nodes, and data painted on them.

Source: the formats "graph JSON" and "node data" of https://github.com/google-ai-edge/model-explorer.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from qdqbridge.viewer.document import Document


def model_explorer_text(document: Document) -> str:
    """Returns the JSON text of a graph collection that Model Explorer opens.

    Args:
        document: What is shown; each paint is an attribute of the nodes.
    """
    graphs = [_graph(graph) for graph in document.graphs]
    return json.dumps({"label": document.title, "graphs": graphs}, allow_nan=False)


def _graph(graph: Mapping[str, Any]) -> dict[str, Any]:
    values, nodes = graph["values"], graph["nodes"]
    shown = [_node(index, node, graph) for index, node in enumerate(nodes)]
    free = sorted({v for node in nodes for v in node["ins"] if v >= 0 and values[v]["by"] < 0})
    return {"id": graph["name"], "nodes": [*(_source(v, values[v]) for v in free), *shown]}


def _source(number: int, value: Mapping[str, Any]) -> dict[str, Any]:
    kind = "constant" if value.get("constant") else "input"
    return {
        "id": f"v{number}", "label": kind, "namespace": "",
        "attrs": [{"key": "name", "value": value["name"]}],
        "outputsMetadata": [_metadata(0, value)],
    }  # fmt: skip


def _node(index: int, node: Mapping[str, Any], graph: Mapping[str, Any]) -> dict[str, Any]:
    values, nodes = graph["values"], graph["nodes"]
    edges: list[dict[str, str]] = []
    for place, number in enumerate(node["ins"]):
        if number < 0:
            continue
        by = values[number]["by"]
        output = nodes[by]["outs"].index(number) if by >= 0 else 0
        edges.append({
            "sourceNodeId": f"n{by}" if by >= 0 else f"v{number}",
            "sourceNodeOutputId": str(output), "targetNodeInputId": str(place),
        })  # fmt: skip
    said = [("name", node["name"]), ("attributes", node["attributes"])]
    said += [("note", note) for note in node["notes"]]
    said += [(paint["title"], _painted(paint, index)) for paint in graph["paints"]]
    return {
        "id": f"n{index}", "label": node["op"], "namespace": "/".join(node["scope"]),
        "attrs": [{"key": key, "value": value} for key, value in said if value],
        "incomingEdges": edges,
        "outputsMetadata": [_metadata(i, values[v]) for i, v in enumerate(node["outs"])],
    }  # fmt: skip


def _painted(paint: Mapping[str, Any], index: int) -> str:
    value = paint["of"][index]
    if value is None:
        return ""
    said = paint["classes"][value] if "classes" in paint else f"{value:.4g} {paint['unit']}".strip()
    more = paint.get("words", {index: ""})[index]
    return f"{said}: {more}" if more else said


def _metadata(number: int, value: Mapping[str, Any]) -> dict[str, Any]:
    keys = ("name", "type", "shape", "scale", "zero", "range")
    said = [{"key": key, "value": str(value[key])} for key in keys if value.get(key)]
    return {"id": str(number), "attrs": said}
