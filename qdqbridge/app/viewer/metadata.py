"""What a page says of nodes as ``metadata_props`` of an ONNX file, which Netron shows.

Netron lists a node's ``metadata_props`` under *Metadata* when the node is selected (``onnx.Node``
in its ``source/onnx.js``); nothing else reads them, and they are no part of a graph's text or
digest.
"""

from __future__ import annotations

from dataclasses import replace

from qdqbridge.app.viewer.document import Document
from qdqbridge.app.viewer.paint import painted
from qdqbridge.core.graph.copying import copied
from qdqbridge.core.graph.graph import Graph

PREFIX = "qdqbridge."


def with_metadata(graph: Graph, document: Document) -> Graph:
    """Returns a copy whose nodes carry what a page of the graph says of them.

    Args:
        graph: The graph.
        document: What is shown of it.
    """
    copy, shown = copied(graph), document.graphs[0]
    values = shown["values"]
    for index, (node, said) in enumerate(zip(graph.nodes, shown["nodes"], strict=True)):
        rows = {f"{PREFIX}{paint['name']}": painted(paint, index) for paint in shown["paints"]}
        for number, value in enumerate(said["outs"]):
            keys = ("type", "shape", "scale", "zero", "range")
            parts = [f"{key} {values[value][key]}" for key in keys if values[value].get(key)]
            rows[f"{PREFIX}result{number or ''}"] = ", ".join(parts)
        rows |= {f"{PREFIX}note{i or ''}": note for i, note in enumerate(said["notes"])}
        other = copy.nodes[node]
        kept = tuple(row for row in other.origin.metadata if not row[0].startswith(PREFIX))
        stated = tuple((key, text) for key, text in rows.items() if text)
        other.origin = replace(other.origin, metadata=kept + stated)
    return copy.graph
