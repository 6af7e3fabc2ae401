"""Operators of language models, whose defaults are their records'."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import MISSING, fields
from typing import Any

from qdqbridge.core.graph.attribute_codecs import attribute_codecs_of
from qdqbridge.core.graph.dtypes import DType
from qdqbridge.core.graph.operator import Attributes, Operator
from qdqbridge.core.ops.attention import (
    ATTENTION,
    MERGED_ATTENTION,
    MULTI_HEAD_ATTENTION,
    RESULTS,
    ROTARY_EMBEDDING,
    AttentionAttrs,
    RotaryEmbeddingAttrs,
)
from qdqbridge.core.ops.convolution import CAUSAL_CONV
from qdqbridge.core.ops.experts import ACTIVATIONS as EXPERT_ACTIVATIONS
from qdqbridge.core.ops.experts import EXPERTS, GATED, STORED_EXPERTS
from qdqbridge.core.ops.group_query_attention import GROUP_QUERY_ATTENTION, SPARSE_ATTENTION
from qdqbridge.errors import UnsupportedTargetError
from qdqbridge.onnx_io.codecs.codec import (
    OLDEST,
    Codec,
    Decoded,
    Encoded,
    Operands,
    decoded,
)
from qdqbridge.onnx_io.codecs.view import NodeView, NoRow

MICROSOFT = "com.microsoft"
_OWN = 23
"""The opset since which Attention and RotaryEmbedding are ONNX's own."""
_CACHE_OUTSIDE, _WINDOWS = 24, 25
"""Since when Attention can be told how much of a cache is held, and has windows."""
_SOFTMAX_TYPES = {1: DType.FLOAT32, 10: DType.FLOAT16, 11: DType.FLOAT64, 16: DType.BFLOAT16}


def _contrib(
    row: Operator, most: int, results: int, *more: str, refuse: Callable[[NodeView], str],
    name: str = "", least: int = 1, past: int = 0, **defaults: Any,
) -> Codec:  # fmt: skip
    """Returns the codec of an operator of com.microsoft.

    Args:
        most: Operands that the row has.
        results: Results that it has, which are asked for from the first on.
        *more: Attributes that it takes and that the row does not have.
        refuse: Returns why the row is not what a node means; empty where it is.
        name: Its name there, where the row has another.
        least: How many of the results onnxruntime asks for.
        past: The operand that says what came before, where it has one: onnxruntime reads that from
            the results that keep it, so all of them are asked for with it.
        **defaults: Of attributes whose default is not the record's.
    """

    def read(node: NodeView) -> Decoded:
        named = list(map(bool, node.proto.output))
        if len(named) > results or not all(named):
            raise NoRow("other results are asked for than the row has")
        if any(value is not None for value in node.operands[most:]):
            raise NoRow("it has operands that the row has not")
        why = refuse(node)
        if why:
            raise NoRow(why)
        found = {**defaults, **_fields(node, row.attributes)}
        return decoded(row.name, row.attributes(**found), node.operands)

    def write(attributes: Attributes, operands: Operands, opset: int) -> Encoded:
        del opset
        kept = past and len(operands) > past and operands[past] is not None
        stated, asked = _stated(attributes), results if kept else least
        return Encoded(name or row.name, MICROSOFT, stated, list(operands), least=asked)

    known = (*(codec.onnx for codec in attribute_codecs_of(row.attributes).values()), *more)
    return Codec(
        onnx_name=name or row.name, domain=MICROSOFT, row=row.name, read=read, write=write,
        known=known,
    )  # fmt: skip


def _fields(node: NodeView, record: type[Attributes]) -> dict[str, Any]:
    """Returns the fields that a node states, by the record's names and kinds."""
    found: dict[str, Any] = {}
    defaults = {each.name: each.default for each in fields(record)}
    for name, codec in attribute_codecs_of(record).items():
        if not node.has(codec.onnx):
            if defaults[name] is MISSING:
                raise node.fault(f"attribute '{codec.onnx}' is missing")
        elif codec.kind is bool:
            found[name] = node.int_(codec.onnx, 0) > 0  # onnxruntime's -1 is nothing that is said
        elif codec.kind is int:
            found[name] = node.int_(codec.onnx, 0)
        elif codec.kind is float:
            found[name] = node.float_(codec.onnx, 0.0)
        elif codec.kind is not str:
            found[name] = node.ints(codec.onnx, ())
        else:
            found[name] = node.string(codec.onnx, "")
    return found


def _stated(attributes: Attributes) -> dict[str, Any]:
    """Returns a record as a node states it: what is not the default."""
    shown, stated = attribute_codecs_of(type(attributes)), dict[str, Any]()
    for each in fields(attributes):
        value = getattr(attributes, each.name)
        if value != each.default:
            whole = isinstance(value, bool)
            stated[shown[each.name].onnx] = int(value) if whole else _listed(value)
    return stated


def _listed(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType]


# ---- what rows do not mean ----------------------------------------------------------------------


def _not_grouped(node: NodeView) -> str:
    if node.int_("qk_output", 0):
        return "it gives its products"
    if node.int_("smooth_softmax", 0) not in (-1, 0, 1):
        return "its softmax is of an unknown kind"
    return ""


def _not_multi_head(node: NodeView) -> str:
    ranks = [None if (shape := node.shape(index)) is None else len(shape) for index in range(3)]
    if ranks[0] != 3 or ranks[1] != ranks[2] or ranks[1] not in (3, 4):
        return f"its queries, keys and values are of ranks {ranks}"
    mask = node.optional(4)
    if mask is not None and mask.rank is None:
        return "the rank of its mask is unknown"
    if (
        mask is not None
        and mask.rank == 1
        and (node.shape(4) or ())[:1] != (node.shape(0) or ())[:1]
    ):
        return "its mask tells where sequences begin and end"
    return ""


def _not_merged(node: NodeView) -> str:
    if node.flag("do_rotary") or node.flag("past_present_share_buffer"):
        return "it turns its queries, or shares a buffer"
    if len(node.proto.output) > 1 and len(set(node.ints("qkv_hidden_sizes", ())[1:])) > 1:
        return "it gives keys and values of other widths as one result"
    mask = node.optional(3)
    shape = () if mask is None else node.shape(3)
    if shape is None or len(shape) > 3:
        return "its mask has an unknown form"
    if len(shape) == 1 and shape != (node.shape(0) or ())[:1]:
        return "its mask tells where sequences begin and end"
    return ""


def _not_experts(node: NodeView) -> str:
    """What only other processors have, and other ways to store weights."""
    if node.int_("use_sparse_mixer", 0) or node.int_("swiglu_limit_after_activation", 0):
        return "it mixes sparsely, or bends behind its activation"
    if node.has("swiglu_limit") and not node.float_("swiglu_limit", 0.0) > 0:
        return "it bounds its activation by no positive number"
    if node.string("quant_type", "int") != "int" or node.int_("weights_prepacked", 0) == 1:
        return "its weights are stored in another form"
    bits = node.int_("expert_weight_bits", 4)
    own = [node.int_(f"fc{i}_expert_weight_bits", bits) for i in (1, 2, 3)]
    if node.op_type == "QMoE" and (set(own) != {bits} or bits not in (2, 4, 8)):
        return f"its weights have {own} bits"
    kind = node.string("activation_type", "relu")
    if kind not in EXPERT_ACTIVATIONS or (kind in GATED and not node.int_("swiglu_fusion", 0)):
        return "its activation has no meaning here, or its gate is a product of its own"
    return ""


def _not_causal(node: NodeView) -> str:
    if node.int_("ndim", 1) != 1 or node.rank() != 3:
        return "it slides along several axes"
    if any(node.int_(name, 0) for name in ("state_window", "channels_last", *_CUDA)):
        return "it keeps several states, or lies channels-last"
    return ""


_CUDA = ("state_update_capacity", "state_length", "input_channel_offset", "input_channels")

# ---- RotaryEmbedding ----------------------------------------------------------------------------


def _read_microsoft(node: NodeView) -> Decoded:
    """Brings the operands into ONNX's order: data, two tables, places."""
    if node.int_("is_packed_batching", 0):
        raise NoRow("its batch is ragged")
    if node.float_("scale", 1.0) != 1.0:
        raise NoRow("it has a scale, which no two runtimes take alike")
    x, places, cosine, sine = (node.operand(index) for index in range(4))
    found = RotaryEmbeddingAttrs(**_fields(node, RotaryEmbeddingAttrs))
    if node.rank() == 3 and not found.num_heads:
        width = 2 * node.known_extent(1, 2)
        heads = node.known_extent(2) // width
        found = RotaryEmbeddingAttrs(heads, found.rotary_embedding_dim, found.interleaved)
    return decoded("RotaryEmbedding", _drop_implied_heads(node, found), [x, cosine, sine, places])


def _read_own(node: NodeView) -> Decoded:
    found = RotaryEmbeddingAttrs(**_fields(node, RotaryEmbeddingAttrs))
    return decoded("RotaryEmbedding", _drop_implied_heads(node, found), node.operands)


def _drop_implied_heads(node: NodeView, found: RotaryEmbeddingAttrs) -> RotaryEmbeddingAttrs:
    """Returns a record that names no heads where the operand shows them.

    With ``rotary_embedding_dim`` onnxruntime wants to be told of an axis whose extent is open, too.
    """
    if node.rank() == 3 or (found.rotary_embedding_dim and node.extent(1) is None):
        return found
    return RotaryEmbeddingAttrs(0, found.rotary_embedding_dim, found.interleaved)


def _write_rotary(attributes: RotaryEmbeddingAttrs, operands: Operands, opset: int) -> Encoded:
    places = operands[3] if len(operands) > 3 else None
    if opset >= _OWN and (places is None or places.rank == 2):
        return Encoded("RotaryEmbedding", "", _stated(attributes), list(operands))
    x, cosine, sine = operands[:3]
    stated = _stated(attributes)
    shape = None if x is None else x.type.shape
    if attributes.rotary_embedding_dim and shape is not None and isinstance(shape[1], int):
        stated.setdefault("num_heads", shape[1])  # onnxruntime asks for it, heads apart or not
    return Encoded("RotaryEmbedding", MICROSOFT, stated, [x, places, cosine, sine])


def _rotary_codecs() -> Sequence[Codec]:
    known = ("num_heads", "rotary_embedding_dim", "interleaved")
    return (
        Codec(
            onnx_name="RotaryEmbedding", row=ROTARY_EMBEDDING.name, read=_read_own,
            write=_write_rotary, introduced=OLDEST,
        ),
        Codec(
            onnx_name="RotaryEmbedding", domain=MICROSOFT, row=ROTARY_EMBEDDING.name,
            read=_read_microsoft, known=(*known, "is_packed_batching", "scale"),
        ),
    )  # fmt: skip


def _read_attention(node: NodeView) -> Decoded:
    given = tuple(place for place, name in enumerate(node.proto.output) if name)
    if given not in RESULTS:
        raise NoRow(f"it gives results {list(given)}")
    ranks = [None if (shape := node.shape(index)) is None else len(shape) for index in range(3)]
    if ranks[0] not in (3, 4) or len(set(ranks)) > 1:
        raise NoRow(f"its queries, keys and values are of ranks {ranks}")
    found = _fields(node, AttentionAttrs)
    if any(found.get(name, 1.0) < 0 for name in ("scale", "softcap")) or found.get("scale") == 0:
        raise NoRow("its products are multiplied or bent by no positive number")
    # Then heads are an axis, and what the attributes say of them is not looked at.
    if ranks[0] == 4:
        found |= {"q_num_heads": 0, "kv_num_heads": 0}
    asked = found.get("softmax_precision", 0)
    # To ask for the own type is to ask for nothing: one form for both.
    if _SOFTMAX_TYPES.get(asked) is node.operand(0).type.dtype:
        found["softmax_precision"] = 0
    elif _SOFTMAX_TYPES.get(asked) in (DType.FLOAT16, DType.BFLOAT16):
        raise NoRow("its softmax is rounded to half floats, which no two runtimes do alike")
    return decoded(ATTENTION.name, AttentionAttrs(**found, results=given), node.operands)


def _write_attention(attributes: AttentionAttrs, operands: Operands, opset: int) -> Encoded:
    if len(operands) > 6 and opset < _CACHE_OUTSIDE:
        raise UnsupportedTargetError(
            f"Attention cannot be written for opset {opset}",
            why=f"its operand 'nonpad_kv_seqlen' needs opset {_CACHE_OUTSIDE}",
            fix=f"write for opset {_CACHE_OUTSIDE} or later",
        )
    stated = _stated(attributes)
    stated.pop("results", None)
    return Encoded("Attention", "", stated, list(operands), attributes.results)


def _attention_needs(attributes: AttentionAttrs) -> int:
    windows = attributes.left_window_size, attributes.right_window_size
    return _OWN if windows == (-1, -1) else _WINDOWS


CODECS = (
    Codec(
        onnx_name="Attention", row=ATTENTION.name, read=_read_attention, write=_write_attention,
        introduced=_OWN, needs=_attention_needs,
    ),
    _contrib(
        GROUP_QUERY_ATTENTION, 14, 3,
        "qk_output", "qk_norm_epsilon", "q_norm_epsilon", "k_norm_epsilon",
        refuse=_not_grouped, past=3,
    ),
    _contrib(SPARSE_ATTENTION, 11, 3, refuse=lambda node: "", least=3),
    _contrib(MULTI_HEAD_ATTENTION, 8, 3, refuse=_not_multi_head, past=6),
    _contrib(
        MERGED_ATTENTION, 6, 2, "do_rotary", "past_present_share_buffer", "rotary_embedding_dim",
        refuse=_not_merged, name="Attention", past=4,
    ),
    _contrib(
        EXPERTS, 8, 1, "use_sparse_mixer", "swiglu_limit_after_activation", refuse=_not_experts
    ),
    _contrib(
        STORED_EXPERTS, 14, 1, "use_sparse_mixer", "swiglu_limit_after_activation", "quant_type",
        "weights_prepacked", *(f"fc{i}_expert_weight_bits" for i in (1, 2, 3)),
        refuse=_not_experts, expert_weight_bits=4,
    ),
    _contrib(
        CAUSAL_CONV, 4, 2, "ndim", "state_window", "channels_last", "state_channels_last", *_CUDA,
        refuse=_not_causal, least=2,
    ),
    *_rotary_codecs(),
)  # fmt: skip
