"""What a page shows, without a browser."""

from __future__ import annotations

import hashlib
import json
import re
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import qdqbridge as qb
from qdqbridge.app.viewer import model_explorer_text, page
from qdqbridge.app.viewer.document import BINS, scope
from qdqbridge.app.viewer.paint import HEATS, TONES
from qdqbridge.app.viewing import coverage_paint, record
from qdqbridge.core.graph.graph import Node, Origin
from qdqbridge.core.graph.operator import NO_ATTRIBUTES
from qdqbridge.core.ops.unary import RELU
from qdqbridge.errors import QdqBridgeError
from qdqbridge.tvm.byoc.coverage import Coverage, Left
from tests.places import MODELS, ROOT

VIEWER = ROOT / "qdqbridge" / "app" / "viewer"
INT8 = MODELS / "digits_cnn_u8s8_per_channel.onnx"


def test_the_bundle_is_made_from_the_sources() -> None:
    sources = [*sorted((VIEWER / "web" / "src").iterdir()), VIEWER / "web" / "package.json"]
    made = hashlib.sha256(b"".join(path.read_bytes() for path in sources)).hexdigest()
    stated = (VIEWER / "assets" / "page.js").read_text("utf-8").split(maxsplit=2)[1]
    assert stated == made, "run npm ci && npm run build in qdqbridge/app/viewer/web"


def test_licences_of_bundled_libraries_are_kept() -> None:
    kept = (VIEWER / "assets" / "LICENSES.txt").read_text("utf-8")
    wanted = json.loads((VIEWER / "web" / "package.json").read_text("utf-8"))["dependencies"]
    for name, version in wanted.items():
        assert f"{name} {version} (" in kept
    assert len(re.findall("Permission (is hereby granted|to use)", kept)) >= len(wanted)


def test_the_same_model_gives_the_same_page() -> None:
    assert page(qb.view(INT8)) == page(qb.view(INT8))


def shown_of(path: Path, **options: Any) -> dict[str, Any]:
    return qb.view(path, **options).json()["graphs"][0]


def test_what_a_value_holds() -> None:
    data = {"input": np.load(MODELS / "digits_test.npz")["x"][:16]}
    graph = qb.load(INT8)
    shown = shown_of(INT8, data=data)
    recorded = record(graph, data)
    for value, said in zip(graph.values(), shown["values"], strict=True):
        assert said["name"] == value.name
        if value.constant is None and value.producer is not None:
            assert sum(said["histogram"]["counts"]) == recorded[value].size
        elif value.constant is not None and value.constant.size > 1:
            assert sum(said["histogram"]["counts"]) == value.constant.size
            assert len(said["histogram"]["counts"]) == BINS
        if value.quant is not None and value.quant.params.per_tensor:
            assert float(said["scale"]) == pytest.approx(
                float(value.quant.params.scale), rel=1e-8
            )  # nine digits are written
            assert said["zero"] == str(int(value.quant.params.zero_point))


def test_edges_are_those_of_the_graph() -> None:
    graph, shown = qb.load(INT8), shown_of(INT8)
    numbers = {value: i for i, value in enumerate(graph.values())}
    for node, said in zip(graph.nodes, shown["nodes"], strict=True):
        assert said["ins"] == [-1 if v is None else numbers[v] for v in node.inputs]
        assert [shown["values"][v]["by"] for v in said["outs"]] == [graph.nodes.index(node)]


@pytest.mark.parametrize(
    ("name", "metadata", "wanted"),
    [
        ("/layer1/layer1.0/conv1/Conv", (), ("layer1", "0", "conv1")),
        ("Conv_12", (), ()),
        (
            "node_3",
            (("namespace", ": nets.A2/b.0: nets.Block/b.0.wq: Linear/x: op"),),
            ("b.0", "wq"),
        ),
        ("", (), ()),
    ],
)
def test_scopes(name: str, metadata: tuple[tuple[str, str], ...], wanted: tuple[str, ...]) -> None:
    assert scope(Node(RELU, NO_ATTRIBUTES, [], [], Origin((name,), metadata))) == wanted


def test_the_graph_for_model_explorer_has_every_edge() -> None:
    document = qb.view(INT8)
    (graph,) = json.loads(model_explorer_text(document))["graphs"]
    nodes = {node["id"]: node for node in graph["nodes"]}
    shown = document.graphs[0]
    for index, node in enumerate(shown["nodes"]):
        edges = nodes[f"n{index}"]["incomingEdges"]
        assert len(edges) == sum(v >= 0 for v in node["ins"])
        for edge in edges:
            outputs = nodes[edge["sourceNodeId"]]["outputsMetadata"]
            assert edge["sourceNodeOutputId"] in [each["id"] for each in outputs]


def test_two_models_in_pairs() -> None:
    document = qb.view(INT8, MODELS / "digits_cnn_s8s8_per_tensor.onnx")
    assert len(document.pairs) == 13
    assert not qb.view(INT8, INT8).differences
    classes = document.graphs[0]["paints"][0]
    assert classes["name"] == "difference"
    assert set(classes["of"]) <= {0, 1, 2}


def test_a_page_is_linear_in_the_nodes(tmp_path: Path) -> None:
    from tests.app.viewer.test_page import chain

    def seconds(length: int) -> float:
        graph = qb.load(chain(tmp_path / f"{length}.onnx", length))
        taken: list[float] = []
        for _ in range(3):
            begin = time.perf_counter()
            page(qb.view(graph))
            taken.append(time.perf_counter() - begin)
        return min(taken)

    short, long = seconds(1000), seconds(8000)
    assert long < 8 * short * 3  # linear, and three for noise; quadratic is 64


def test_nothing_is_left_of_a_page_that_cannot_be_written(tmp_path: Path) -> None:
    with pytest.raises(QdqBridgeError):
        qb.view(INT8, path=tmp_path / "no" / "page.html")
    assert not list(tmp_path.iterdir())


def test_what_a_table_leaves_is_said_at_its_node() -> None:
    graph = qb.load(INT8)
    node = next(each for each in graph.nodes if each.op.name == "Conv")
    left = Left("qnn.conv2d", node.output.name, "refused", ("its stride is 3",), "uint8")
    paint = coverage_paint(graph, Coverage("mine", (), (left,), ()))
    place = graph.nodes.index(node)
    kind = paint.of[place]
    assert kind is not None and paint.classes[int(kind)] == "refused"
    assert paint.words[place] == "qnn.conv2d: its stride is 3"
    assert paint.of.count(kind) == 1


def test_colours_for_others_are_those_of_the_page() -> None:
    style = (VIEWER / "assets" / "page.css").read_text("utf-8").partition("@media")[0]
    for letter, colours in (("p", TONES), ("h", HEATS)):
        assert re.findall(rf"--{letter}\d: (#\w+);", style) == list(colours)
