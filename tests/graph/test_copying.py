import qdqbridge as qb
from qdqbridge.canonical import canonicalize
from qdqbridge.graph.copying import copied
from qdqbridge.graph.edit import Editor
from qdqbridge.graph.verify import verify
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


def test_a_raw_copy_can_be_made_canonical():
    path = MODELS / "digits_attention_u8s8_per_channel.onnx"
    raw = qb.load(path, canonical=False)
    assert canonicalize(copied(raw).graph).digest == qb.load(path).digest
