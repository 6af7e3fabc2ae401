import copy as copies
import pickle

import pytest

import qdqbridge as qb
from qdqbridge.core.canonical import canonicalize
from qdqbridge.core.graph.copying import copied
from qdqbridge.core.graph.edit import Editor, verify
from tests.autoquant.test_collect import MODELS


def test_a_copy_says_the_same_and_is_its_own():
    graph = qb.load(MODELS / "digits_cnn_u8s8_per_channel.onnx")
    text = graph.text()
    copy = copied(graph)
    assert copy.graph.text() == text and copy.graph.digest == graph.digest
    verify(copy.graph, "copy")
    assert not set(copy.graph.values()) & set(graph.values())
    for old, new in copy.values.items():
        assert old.constant is new.constant and len(old.users) == len(new.users)
    editor = Editor(copy.graph)
    last = copy.graph.nodes[-1]
    editor.replace_value(last.output, last.operand(0))
    editor.finish()
    assert graph.text() == text != copy.graph.text()


def test_pickling_says_how_to_send_a_graph_and_copies_are_graphs_of_their_own():
    graph = qb.load(MODELS / "digits_cnn_u8s8_per_channel.onnx")
    with pytest.raises(qb.QdqBridgeError, match=r"cannot be pickled(?s:.*)qdqbridge\.parse"):
        pickle.dumps(graph)
    sent = qb.parse(graph.text("inline"))
    for other in (sent, copies.copy(graph), copies.deepcopy(graph)):
        assert other.digest == graph.digest and not set(other.nodes) & set(graph.nodes)
        assert [v.name for v in other.inputs] == ["input"] and other.output_names == ["logits"]


def test_a_graph_prints_as_its_interface_and_values_as_their_types():
    graph = qb.load(MODELS / "digits_cnn_u8s8_per_channel.onnx")
    assert repr(graph) == (
        "Graph((input: float32[batch,1,8,8]) -> (logits: float32[batch,10]), 13 nodes)"
    )
    conv = graph.nodes[1]
    assert str(conv.output.type).startswith("uint8[batch,24,8,8] scale=0.0161")
    assert str(conv.operand(1).type) == "int8[24,1,3,3] 24 scales axis=0"


def test_a_raw_copy_can_be_made_canonical():
    path = MODELS / "digits_attention_u8s8_per_channel.onnx"
    raw = qb.load(path, canonical=False)
    assert canonicalize(copied(raw).graph).digest == qb.load(path).digest
