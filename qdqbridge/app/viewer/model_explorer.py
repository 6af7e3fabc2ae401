"""Graphs for Google's Model Explorer: its JSON of nodes, and data painted on them.

Source: the formats "graph JSON" and "node data" of https://github.com/google-ai-edge/model-explorer.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from qdqbridge.app.viewer.document import Document
from qdqbridge.app.viewer.paint import HEATS, TONES, painted
from qdqbridge.control_characters import all_visible


def model_explorer_text(document: Document) -> str:
    """Returns the JSON text of a graph collection that Model Explorer opens.

    Args:
        document: What is shown; each paint is an attribute of the nodes.
    """
    graphs = [_graph(graph) for graph in document.graphs]
    return _shown({"label": document.title, "graphs": graphs})


def node_data_texts(document: Document) -> dict[str, str]:
    """Returns node data for Model Explorer: by the name of each paint, its colours of all graphs.

    Args:
        document: What is shown.
    """
    found: dict[str, dict[str, Any]] = {}
    for graph in document.graphs:
        for paint in graph["paints"]:
            found.setdefault(paint["name"], {})[graph["name"]] = _node_data(paint)
    return {name: _shown(data) for name, data in found.items()}


def _shown(value: dict[str, Any]) -> str:
    """Returns the JSON text of what Model Explorer shows as it is: names by escapes too."""
    return json.dumps(all_visible(value), allow_nan=False)


def _node_data(paint: Mapping[str, Any]) -> dict[str, Any]:
    known = {f"n{i}": value for i, value in enumerate(paint["of"]) if value is not None}
    if "classes" not in paint:
        ends = HEATS[::-1] if paint["higher"] else HEATS
        stops = [{"stop": i / (len(ends) - 1), "bgColor": c} for i, c in enumerate(ends)]
        numbers = {node: {"value": value} for node, value in known.items()}
        return {"name": paint["title"], "results": numbers, "gradient": stops}
    classes = paint["classes"]
    tones = paint.get("tones", range(len(classes)))
    results: dict[str, Any] = {
        node: {"value": classes[value], "bgColor": TONES[tones[value] % len(TONES)]}
        for node, value in known.items()
    }
    return {"name": paint["title"], "results": results}


def _graph(graph: Mapping[str, Any]) -> dict[str, Any]:
    values, nodes = graph["values"], graph["nodes"]
    shown = [_node(index, node, graph) for index, node in enumerate(nodes)]
    free = sorted({v for node in nodes for v in node["ins"] if v >= 0 and values[v]["by"] < 0})
    return {"id": graph["name"], "nodes": [*(_source(v, graph) for v in free), *shown]}


def _source(number: int, graph: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a node for an input, or for a constant: that is where it is read."""
    value = graph["values"][number]
    constant = bool(value.get("constant"))
    readers: list[str] = []
    if constant and value["users"]:
        readers = graph["nodes"][value["users"][0]]["scope"]
    return {
        "id": f"v{number}", "label": "constant" if constant else "input",
        "namespace": "/".join(readers),
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
    said += [(paint["title"], painted(paint, index)) for paint in graph["paints"]]
    return {
        "id": f"n{index}", "label": node["op"], "namespace": "/".join(node["scope"]),
        "attrs": [{"key": key, "value": value} for key, value in said if value],
        "incomingEdges": edges,
        "outputsMetadata": [_metadata(i, values[v]) for i, v in enumerate(node["outs"])],
    }  # fmt: skip


def _metadata(number: int, value: Mapping[str, Any]) -> dict[str, Any]:
    keys = ("name", "type", "shape", "scale", "zero", "range")
    said = [{"key": key, "value": str(value[key])} for key in keys if value.get(key)]
    return {"id": str(number), "attrs": said}
