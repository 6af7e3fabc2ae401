"""Random nodes of the attention operators, and what onnxruntime makes of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import onnxruntime as ort
from numpy.typing import NDArray
from onnx import ModelProto, helper, numpy_helper

from qdqbridge.core.graph.operator import Attributes
from qdqbridge.core.ops.attention import (
    DOUBLE,
    AttentionAttrs,
    MergedAttentionAttrs,
    MultiHeadAttentionAttrs,
    RotaryEmbeddingAttrs,
    heads_last,
)
from qdqbridge.core.ops.convolution import CausalConvAttrs
from qdqbridge.core.ops.experts import ExpertsAttrs
from qdqbridge.core.ops.group_query_attention import GroupQueryAttentionAttrs, SparseAttentionAttrs

Array = NDArray[Any]
_OWN = ("Attention", "RotaryEmbedding")
"""Operators of ONNX's own domain."""
_NAMES = {"MergedAttention": "Attention"}
_WEIGHTS = {
    "MoE": range(2, 20), "QMoE": range(2, 20), "CausalConvWithState": (1,), "MergedAttention": (1,),
}  # fmt: skip
"""Operands whose extents are numbers in every file."""
_FIXED = {"QMoE": range(2, 20), "SparseAttention": (5, 6)}
"""Operands that are initializers: onnxruntime multiplies with others otherwise."""
_IN_PLACE = {"SparseAttention": {"out_1": "in_3", "out_2": "in_4"}}
"""Results that onnxruntime writes into an operand."""
_MASK = 4
"""Where a MultiHeadAttention has a mask: one of a single axis is known by its batch."""


@dataclass(frozen=True)
class AttentionCase:
    """A node and its operands.

    Attributes:
        op: The row.
        attributes: Its record.
        operands: None where left out.
        valid: Per result and sequence, what of it is specified.
        opset: That of ONNX's own domain.
    """

    op: str
    attributes: Attributes
    operands: Sequence[Array | None]
    valid: list[list[Any]]
    opset: int = 23

    def model(self, *, open_axes: bool = False) -> ModelProto:
        """A model of the node alone; with ``open_axes`` no extent but the innermost is a number."""
        weights, fixed = _WEIGHTS.get(self.op, ()), _FIXED.get(self.op, ())
        given = [(i, x) for i, x in enumerate(self.operands) if x is not None]
        results = [f"out_{i}" for i in range(len(self.valid))]
        defaults = {each.name: each.default for each in fields(self.attributes)}
        stated = {name: getattr(self.attributes, name) for name in defaults}
        told: dict[str, Any] = {
            k: int(v) if isinstance(v, bool) else v for k, v in stated.items() if v != defaults[k]
        }
        own, name = self.op in _OWN, _NAMES.get(self.op, self.op)
        given_results = told.pop("results", range(len(results)))
        asked = ["" for _ in range(max(given_results) + 1)]
        for place, result in zip(given_results, results, strict=True):
            asked[place] = result
        inputs = [
            helper.make_tensor_value_info(
                f"in_{i}",
                helper.np_dtype_to_tensor_dtype(x.dtype),
                _shape(i, x, open_axes and i not in weights),
            )
            for i, x in given
            if i not in fixed
        ]  # fmt: skip
        present = {i for i, _ in given}
        names = [f"in_{i}" if i in present else "" for i in range(given[-1][0] + 1)]
        node = helper.make_node(
            name, names, asked, "node", domain="" if own else "com.microsoft", **told
        )
        constants = [numpy_helper.from_array(x, f"in_{i}") for i, x in given if i in fixed]
        outputs = [helper.make_empty_tensor_value_info(name) for name in results]
        graph = helper.make_graph([node], "g", inputs, outputs, constants)
        opsets = [helper.make_opsetid("", self.opset), helper.make_opsetid("com.microsoft", 1)]
        return helper.make_model(graph, opset_imports=opsets, ir_version=10)

    def feeds(self) -> dict[str, Array]:
        """The operands by their names in the model, but for initializers."""
        fixed = _FIXED.get(self.op, ())
        given = {i: x for i, x in enumerate(self.operands) if x is not None and i not in fixed}
        return {f"in_{i}": x for i, x in given.items()}

    def quantized(self, asked: Sequence[int]) -> ModelProto:
        """A model of which only some results are read, the first one by a Q and a DQ."""
        model = self.model()
        graph, (first, *_) = model.graph, model.graph.output
        scale = [
            numpy_helper.from_array(np.asarray(2**-6, np.float32), "s"),
            numpy_helper.from_array(np.asarray(128, np.uint8), "z"),
        ]
        graph.initializer.extend(scale)
        steps = ("Identity", "copy"), ("QuantizeLinear", "q"), ("DequantizeLinear", "dq")
        source = first.name
        for op_type, result in steps:
            names = [source] if op_type == "Identity" else [source, "s", "z"]
            graph.node.append(helper.make_node(op_type, names, [result]))
            source = result
        kept = [graph.output[place] for place in asked]
        first.name = source
        del graph.output[:]
        graph.output.extend(kept)
        return model

    def reference(self, model: ModelProto | None = None) -> list[Array]:
        """What onnxruntime computes of the node alone, or of another model of these inputs."""
        options = ort.SessionOptions()
        options.log_severity_level = 4
        options.intra_op_num_threads = 1
        model = self.model() if model is None else model
        session = ort.InferenceSession(model.SerializeToString(), options)
        binding, shared = session.io_binding(), _IN_PLACE.get(self.op, {})
        given = {n: ort.OrtValue.ortvalue_from_numpy(x.copy()) for n, x in self.feeds().items()}
        for name, value in given.items():
            binding.bind_ortvalue_input(name, value)
        for each in session.get_outputs():
            if each.name in shared:
                binding.bind_ortvalue_output(each.name, given[shared[each.name]])
            else:
                binding.bind_output(each.name)
        session.run_with_iobinding(binding)
        return [np.array(each.numpy()) for each in binding.get_outputs()]

    def distance(self, results: Sequence[Array], reference: Sequence[Array]) -> float:
        """The largest difference in what is specified of any result."""
        worst = 0.0
        for result, wanted, valid in zip(results, reference, self.valid, strict=True):
            assert np.asarray(result).shape == wanted.shape
            for sequence, part in enumerate(valid):
                a, b = (x[sequence][part].astype(np.float64) for x in (result, wanted))
                worst = max(worst, float(np.abs(a - b).max(initial=0)))
        return worst


def _shape(index: int, x: Array, open_axes: bool) -> list[int | str]:
    inner = x.ndim - 1 if x.ndim > 1 else x.ndim
    if not open_axes or x.ndim < 2:
        return ["d0_0"] if open_axes and index == _MASK and x.ndim else list(x.shape)
    open_ = {axis for axis in range(inner) if x.ndim != 4 or axis != 1}
    return [f"d{index}_{a}" if a in open_ else extent for a, extent in enumerate(x.shape)]


def _floats(rng: np.random.Generator, *shape: int) -> Array:
    return rng.standard_normal(shape).astype(np.float32)


def _tables(rng: np.random.Generator, half: int, rows: int = 64) -> list[Array]:
    angles = np.outer(np.arange(rows), 1 / 100 ** (np.arange(half) / half))
    return [np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)]


@dataclass(frozen=True)
class _Lengths:
    """How long a GroupQueryAttention's operands are: new tokens, past, ends of the sequences."""

    length: int
    past: int
    ends: Array

    @property
    def batch(self) -> int:
        return len(self.ends)


def _lengths(rng: np.random.Generator) -> _Lengths:
    """A first prompt, a step, a chunk, or a step in a shared buffer."""
    batch, length = int(rng.integers(1, 4)), int(rng.integers(2, 9))
    kind = rng.choice(["prompt", "step", "chunk", "buffer"])
    if kind == "prompt":
        ends = np.full(batch, length)
        if batch > 1 and rng.random() < 0.5:
            ends[1:] = rng.integers(1, length + 1, batch - 1)
        return _Lengths(length, 0, ends)
    if kind == "step":
        past = int(rng.integers(1, 12))
        ends = rng.integers(2, past + 2, batch)
        ends[0] = past + 1
        return _Lengths(1, past, ends)
    if kind == "chunk":
        past = int(rng.integers(1, 9))
        return _Lengths(length, past, np.array([past + length]))
    length = 1 if rng.random() < 0.5 else length
    return _Lengths(length, 24, rng.integers(length + 1, 20, batch if length == 1 else 1))


def grouped(seed: int) -> AttentionCase:
    """A GroupQueryAttention of any lengths, with tables, a bias, a sink, a window."""
    rng = np.random.default_rng(seed)
    shared, group = int(rng.integers(1, 4)), int(rng.integers(1, 4))
    heads, size = shared * group, int(rng.choice([8, 16, 32]))
    at = _lengths(rng)
    batch, length, ends = at.batch, at.length, at.ends
    total = int(ends.max())
    cache = [_floats(rng, batch, shared, at.past, size) for _ in range(2)]
    widths = (heads * size, shared * size, shared * size)
    given: list[Array | None] = [_floats(rng, batch, length, width) for width in widths]
    if rng.random() < 0.3:
        given = [_floats(rng, batch, length, sum(widths)), None, None]
    said: dict[str, Any] = {}
    rest: list[Array | None] = [None] * 5
    if rng.random() < 0.6 and size >= 16:
        rest[:2] = _tables(rng, size // 2 if rng.random() < 0.6 or size < 32 else size // 4)
        said |= {"do_rotary": True, "rotary_interleaved": bool(rng.random() < 0.4)}
        if rng.random() < 0.3 and batch == 1:
            begin = int(ends[0]) - length + int(rng.integers(0, 9))
            rest[2] = np.arange(begin, begin + length, dtype=np.int64)[None]
    if rng.random() < 0.3:
        said["scale"] = float(np.float32(rng.uniform(0.05, 0.5)))
    if rng.random() < 0.3:
        said["softcap"] = float(np.float32(rng.uniform(1, 30)))
    if rng.random() < 0.4:
        said["local_window_size"] = int(rng.integers(1, 10))
    if rng.random() < 0.25:
        shape = (int(rng.choice([1, batch])), int(rng.choice([1, heads])), length, total)
        rest[3] = _floats(rng, *shape)
    if rng.random() < 0.2:
        rest[4] = _floats(rng, heads)
    elif rng.random() < 0.15:
        said["smooth_softmax"] = True
    if rng.random() < 0.2 and "local_window_size" not in said:
        said["causal"] = False
    tokens = [slice(None)] * batch
    if "local_window_size" in said and length == total:  # kernels differ in a prompt's padding
        tokens = [slice(0, min(length, int(end))) for end in ends]
    rows = [(slice(None), slice(0, int(end))) for end in ends]
    return AttentionCase(
        "GroupQueryAttention",
        GroupQueryAttentionAttrs(heads, shared, **said),
        [*given, *cache, (ends - 1).astype(np.int32), np.array(total, np.int32), *rest],
        [tokens, rows, rows],
    )


def sparse(seed: int) -> AttentionCase:
    """A SparseAttention with one layout of blocks, or several.

    All sequences are of one length: of others onnxruntime 1.32 gives the shorter ones other numbers
    than alone. It turns prompts of one token by places that it did not set, but the first.
    """
    rng = np.random.default_rng(seed)
    shared, group, block = int(rng.integers(1, 3)), int(rng.choice([1, 2])), 16
    heads, size, capacity = (
        shared * group,
        int(rng.choice([8, 16, 32])),
        16 * int(rng.choice([4, 6])),
    )
    layouts = int(rng.choice([each for each in (1, 2, 4) if heads % each == 0]))
    count = capacity // block
    first = rng.random() < 0.4
    batch, length = int(rng.integers(1, 4)), int(rng.choice([1, 7, 33]))
    batch = 1 if first and length == 1 else batch
    ends = np.full(batch, length if first else int(rng.integers(length + 1, capacity + 1)))
    if length > 1 and not first:  # a chunk behind a cache, of which onnxruntime takes one sequence
        batch, ends = 1, ends[:1]
    seen = np.tril(rng.random((layouts, count, count)) < 0.5) | np.eye(count, dtype=np.bool_)
    found = [np.concatenate([np.flatnonzero(row) for row in each]) for each in seen]
    columns = np.full((layouts, max(map(len, found))), -1, np.int32)
    for layout, each in enumerate(found):
        columns[layout, : len(each)] = each
    rows = np.zeros((layouts, count + 1), np.int32)
    rows[:, 1:] = np.cumsum(seen.sum(axis=2), axis=1)
    widths = (heads * size, shared * size, shared * size)
    given: list[Array | None] = [_floats(rng, batch, length, width) for width in widths]
    if rng.random() < 0.4:
        given = [_floats(rng, batch, length, sum(widths)), None, None]
    said: dict[str, Any] = {}
    tables: list[Array] = []
    if rng.random() < 0.6 and size >= 16:
        tables = _tables(rng, size // 2, 96)
        said = {"do_rotary": True, "rotary_interleaved": bool(rng.random() < 0.4)}
    if rng.random() < 0.4:
        said["scale"] = float(np.float32(rng.uniform(0.05, 0.5)))
    cache = [_floats(rng, batch, shared, capacity, size) for _ in range(2)]
    total, lengths = np.array([int(ends.max())], np.int32), ends.astype(np.int32)
    everything = [slice(None)] * batch
    return AttentionCase(
        "SparseAttention",
        SparseAttentionAttrs(heads, shared, block, **said),
        [*given, *cache, rows, columns, total, lengths, *tables],
        [everything] * 3,
    )


def windowed(seed: int) -> AttentionCase:
    """A GroupQueryAttention whose cache holds a window."""
    rng = np.random.default_rng(seed)
    window = int(rng.integers(2, 6))
    capacity, length = window + int(rng.integers(0, 4)), int(rng.choice([1, 1, 3, 7]))
    batch = 1 if length > 1 else int(rng.integers(1, 3))
    ends = rng.integers(length, 20, batch)
    if rng.random() < 0.2:
        ends[:] = length
    total = int(ends.max())
    bias = _floats(rng, 1, 4, length, total) if rng.random() < 0.3 else None
    widths = (32, 16, 16)
    step = capacity - window + 1
    kept = [int(end - step * -(-max(end - capacity, 0) // step)) for end in ends]
    rows = [(slice(None), slice(0, count)) for count in kept]
    return AttentionCase(
        "GroupQueryAttention",
        GroupQueryAttentionAttrs(4, 2, local_window_size=window, sliding_window_cache=True),
        [
            *(_floats(rng, batch, length, width) for width in widths),
            *(_floats(rng, batch, 2, capacity, 8) for _ in range(2)),
            (ends - 1).astype(np.int32), np.array(total, np.int32), None, None, None, bias,
        ],
        [[slice(None)] * batch, rows, rows],
    )  # fmt: skip


def stored(seed: int) -> AttentionCase:
    """A GroupQueryAttention whose cache is quantized."""
    rng = np.random.default_rng(seed)
    bits, kind = int(rng.choice([8, 4])), str(rng.choice(["PER_TENSOR", "PER_CHANNEL"]))
    length, past = int(rng.choice([1, 4])), 0 if rng.random() < 0.4 else int(rng.integers(1, 9))
    batch = 1 if length > 1 and past else 2
    shape = (batch, 2, past, 16 if bits == 8 else 8)
    low, high, dtype = (-127, 128, np.int8) if bits == 8 else (0, 256, np.uint8)
    cache = [rng.integers(low, high, shape).astype(dtype) for _ in range(2)]
    wide = (1,) if kind == "PER_TENSOR" else (1, 2, 1, 16)
    factor = 1 if bits == 8 else 15
    scales = [(rng.uniform(0.01, 0.05, wide) * factor).astype(np.float32) for _ in range(2)]
    total = past + length
    return AttentionCase(
        "GroupQueryAttention",
        GroupQueryAttentionAttrs(
            4, 2, k_quant_type=kind, v_quant_type=kind, kv_cache_bit_width=bits
        ),
        [
            *(_floats(rng, batch, length, width) for width in (64, 32, 32)), *cache,
            np.full(batch, total - 1, np.int32), np.array(total, np.int32), *[None] * 5, *scales,
        ],
        [[slice(None)] * batch] * 3,
    )  # fmt: skip


def multi_head(seed: int) -> AttentionCase:
    """A MultiHeadAttention: of itself, of others, with a past, masks and biases."""
    rng = np.random.default_rng(seed)
    heads, size, batch = int(rng.integers(1, 5)), int(rng.choice([8, 16])), int(rng.integers(1, 4))
    width, length = heads * size, int(rng.integers(1, 8))
    kind = rng.choice(["self", "cross", "past", "past", "heads"])  # it has no packed kernels
    keys = length if kind in ("self", "past") else int(rng.integers(1, 8))
    past = int(rng.integers(1, 6)) if kind == "past" else 0
    q: Array = _floats(rng, batch, length, width)
    k: Array | None = _floats(rng, batch, keys, width)
    v: Array | None = _floats(rng, batch, keys, width)
    if kind == "heads":
        k, v = (_floats(rng, batch, heads, keys, size) for _ in range(2))
    operands: list[Array | None] = [q, k, v, *[None] * 5]
    if kind in ("self", "cross", "past") and rng.random() < 0.4:
        operands[3] = _floats(rng, 3 * width)
    total = past + keys
    if rng.random() < 0.4 and kind != "heads":
        shape = [(batch,), (batch, total), (batch, length, total)][int(rng.integers(0, 3))]
        shape = (batch, total) if past and len(shape) == 1 else shape
        mask = rng.integers(0, 2, shape) if len(shape) > 1 else rng.integers(1, keys + 1, shape)
        if len(shape) > 1:
            mask[..., 0] = 1
        operands[4] = mask.astype(np.int32)
    if rng.random() < 0.3:
        shape = (int(rng.choice([1, batch])), int(rng.choice([1, heads])), length, total)
        operands[5] = _floats(rng, *shape)
    if past:
        operands[6:8] = (_floats(rng, batch, heads, past, size) for _ in range(2))
    said: dict[str, Any] = {}
    if rng.random() < 0.3:
        said["scale"] = float(np.float32(rng.uniform(0.05, 0.5)))
    if rng.random() < 0.3 and kind in ("self", "past"):
        said["unidirectional"] = True
    asked = rng.random() < 0.7  # onnxruntime 1.32 reads memory of others where there is a past
    results = 3 if past or (kind == "self" and asked) else 1  # and nobody asks for the new one
    return AttentionCase(
        "MultiHeadAttention", MultiHeadAttentionAttrs(heads, **said), operands,
        [[slice(None)] * batch] * results,
    )  # fmt: skip


def crossed(seed: int) -> AttentionCase:
    """A MultiHeadAttention whose keys are of another sequence, with biases, one way too."""
    rng = np.random.default_rng(seed)
    heads, size, batch = int(rng.integers(1, 4)), int(rng.choice([4, 8])), int(rng.integers(1, 3))
    width, (length, keys) = heads * size, (int(n) for n in rng.integers(1, 7, 2))
    shape = (batch, heads, keys, size) if rng.random() < 0.5 else (batch, keys, width)
    operands: list[Array | None] = [
        _floats(rng, batch, length, width), _floats(rng, *shape), _floats(rng, *shape),
        _floats(rng, 3 * width) if rng.random() < 0.5 else None, None, None,
    ]  # fmt: skip
    if rng.random() < 0.3:
        operands[5] = _floats(rng, 1, heads, length, keys)
    said = MultiHeadAttentionAttrs(heads, unidirectional=bool(rng.random() < 0.6))
    return AttentionCase("MultiHeadAttention", said, operands, [[slice(None)] * batch])


def own(seed: int) -> AttentionCase:
    """An Attention of ONNX's own, of opsets 23 to 25."""
    rng = np.random.default_rng(seed)
    opset, batch, shared = int(rng.integers(23, 26)), *(int(n) for n in rng.integers(1, 4, 2))
    heads, size = shared * int(rng.choice([1, 1, 2, 3])), int(rng.choice([4, 8, 16]))
    length, wide = int(rng.integers(1, 6)), int(rng.choice([size, size, 8]))
    keys = length if rng.random() < 0.6 else int(rng.integers(1, 7))
    past = int(rng.integers(1, 5)) if rng.random() < 0.4 else 0
    keys = 1 if past and length == 1 else keys  # see the row for what onnxruntime does
    given: list[Array | None] = [
        _floats(rng, batch, heads, length, size), _floats(rng, batch, shared, keys, size),
        _floats(rng, batch, shared, keys, wide), *[None] * 4,
    ]  # fmt: skip
    said: dict[str, Any] = {}
    if rng.random() < 0.5:
        given[:3] = (heads_last(x) for x in given[:3] if x is not None)
        said |= {"q_num_heads": heads, "kv_num_heads": shared}
    if past:
        given[4:6] = (
            _floats(rng, batch, shared, past, size),
            _floats(rng, batch, shared, past, wide),
        )
    elif opset > 23 and rng.random() < 0.4:
        given[6] = rng.integers(1, keys + 1, batch).astype(np.int64)
    said |= _said_of_own(rng, opset)
    total = past + keys
    if rng.random() < 0.5:
        extents = [(1, batch), (1, heads), (length,), (total,)]
        shape = [int(rng.choice(each)) for each in extents][int(rng.choice([0, 0, 1, 2])) :]
        given[3] = rng.random(shape) < 0.7 if rng.random() < 0.5 else _floats(rng, *shape)
    results = (0, 1, 2) if past or (given[6] is None and rng.random() < 0.3) else (0,)
    if rng.random() < 0.5:
        results = (*results, 3)
        # Where a mask hides a key onnxruntime shows its lowest number, not minus infinity.
        said["qk_matmul_output_mode"] = int(rng.choice([0, 1, 3]))
    return AttentionCase(
        "Attention", AttentionAttrs(**said, results=results), given,
        [[slice(None)] * batch] * len(results), opset,
    )  # fmt: skip


def _said_of_own(rng: np.random.Generator, opset: int) -> dict[str, Any]:
    said: dict[str, Any] = {}
    if rng.random() < 0.4:
        said["is_causal"] = True
    if rng.random() < 0.3:
        said["scale"] = float(np.float32(rng.uniform(0.05, 0.5)))
    if rng.random() < 0.3:
        said["softcap"] = float(np.float32(rng.uniform(0.5, 5)))
    if rng.random() < 0.1:
        said["softmax_precision"] = DOUBLE
    if opset > 24 and rng.random() < 0.4:
        said["left_window_size"] = int(rng.integers(0, 4))
    if opset > 24 and rng.random() < 0.4:
        said["right_window_size"] = int(rng.integers(0, 4))
    return said


def rotary(seed: int) -> AttentionCase:
    """A RotaryEmbedding."""
    rng = np.random.default_rng(seed)
    heads, size, batch = int(rng.integers(1, 4)), int(rng.choice([8, 16])), int(rng.integers(1, 4))
    length, part = int(rng.integers(1, 7)), rng.random() < 0.3
    half = size // 4 if part else size // 2
    flat = rng.random() < 0.5
    x = _floats(rng, batch, length, heads * size)
    x = x if flat else _floats(rng, batch, heads, length, size)
    tables, places = _tables(rng, half), rng.integers(0, 64, (batch, length)).astype(np.int64)
    operands: list[Array | None] = [x, *tables, places]
    if rng.random() < 0.3:
        operands = [x, *(table[places] for table in tables)]
    record = RotaryEmbeddingAttrs(
        heads if flat else 0, 2 * half if part else 0, bool(rng.random() < 0.5)
    )
    return AttentionCase("RotaryEmbedding", record, operands, [[slice(None)] * batch])


def merged(seed: int) -> AttentionCase:
    """An Attention that makes its queries, keys and values."""
    rng = np.random.default_rng(seed)
    heads, size, batch = int(rng.integers(1, 5)), int(rng.choice([8, 16])), int(rng.integers(1, 4))
    length, hidden, width = int(rng.integers(1, 8)), int(rng.choice([8, 24])), heads * size
    past = int(rng.integers(1, 6)) if rng.random() < 0.4 else 0
    total = past + length
    operands: list[Array | None] = [
        _floats(rng, batch, length, hidden), _floats(rng, hidden, 3 * width) * np.float32(0.3),
        _floats(rng, 3 * width), None, None, None,
    ]  # fmt: skip
    if rng.random() < 0.4:
        mask = rng.integers(0, 2, (batch, total)).astype(np.int32)
        mask[..., 0] = 1
        operands[3] = mask
    if past:
        operands[4] = _floats(rng, 2, batch, heads, past, size)
    if rng.random() < 0.3 and not past:
        operands[5] = _floats(rng, 1, heads, length, total)
    if rng.random() < 0.2 and operands[3] is None:
        operands[3] = rng.integers(0, 2, (batch, 1)).astype(np.int32)
    ahead = rng.random() >= 0.4
    asked = 2 if past or rng.random() < 0.3 else 1
    valid: list[list[Any]] = [[slice(None)] * batch, [slice(None)] * 2]
    record = MergedAttentionAttrs(heads, unidirectional=not ahead)
    return AttentionCase("MergedAttention", record, operands, valid[:asked])


def mixture(seed: int) -> AttentionCase:
    """A MoE, or a QMoE."""
    rng = np.random.default_rng(seed)
    experts, hidden = int(rng.integers(2, 6)), 32 if seed % 5 else 48
    inner, tokens = int(rng.choice([32, 64])), int(rng.integers(1, 9))
    kind = str(rng.choice(["relu", "gelu", "silu", "swiglu", "swiglu", "identity"]))
    said: dict[str, Any] = {"k": int(rng.integers(1, experts + 1)), "activation_type": kind}
    said["normalize_routing_weights"] = bool(rng.random() < 0.5)
    rows = inner
    if kind == "swiglu":
        rows, said["swiglu_fusion"] = 2 * inner, 1
        if rng.random() < 0.5:
            limit = float(rng.choice([7.0, 0.5]))
            alpha = float(np.float32(1.702))
            said |= {"activation_alpha": alpha, "activation_beta": 1.0, "swiglu_limit": limit}
    shape = (1, tokens, hidden) if rng.random() < 0.5 else (tokens, hidden)
    small = np.float32(0.3)
    x, logits = _floats(rng, *shape) * small, _floats(rng, tokens, experts) * 2
    if seed % 4 == 0:  # some are equal
        logits = np.rint(logits)
    biases: list[Array | None] = [None, None]
    if rng.random() < 0.5:
        biases = [_floats(rng, experts, n) * small for n in (rows, hidden)]
    sizes = ((rows, hidden), (hidden, inner))
    if rng.random() < 0.5:
        w1, w2 = (_floats(rng, experts, *size) * small for size in sizes)
        operands = [x, logits, w1, biases[0], w2, biases[1]]
        return AttentionCase("MoE", ExpertsAttrs(**said), operands, [[slice(None)] * shape[0]])
    bits, block = int(rng.choice([4, 8])), int(rng.choice([0, 16, 32]))
    said |= {"expert_weight_bits": bits, "block_size": block}
    if block and seed % 3 == 0:
        said["accuracy_level"] = 4
    with_points, parts = rng.random() < 0.4, list[list[Array | None]]()
    for n, k in sizes:
        codes = rng.integers(0, 256, (experts, n, k * bits // 8)).astype(np.uint8)
        wide = (experts, n, -(-k // block)) if block else (experts, n)
        scales = rng.uniform(0.01, 0.05, wide) * (1 if bits == 4 else 0.08)
        held = (experts, n, -(-wide[-1] * bits // 8)) if block else (experts, n * bits // 8)
        points = rng.integers(0, 256, held).astype(np.uint8) if with_points else None
        parts.append([codes, scales.astype(np.float32), points])
    (c1, s1, z1), (c2, s2, z2) = parts
    operands = [x, logits, c1, s1, biases[0], c2, s2, biases[1], None, None, None, z1, z2]
    return AttentionCase("QMoE", ExpertsAttrs(**said), operands, [[slice(None)] * shape[0]])


def causal(seed: int) -> AttentionCase:
    """A CausalConvWithState."""
    rng = np.random.default_rng(seed)
    batch, channels = int(rng.integers(1, 4)), int(rng.choice([4, 16]))
    length, taps = int(rng.integers(1, 8)), int(rng.integers(2, 5))
    dilation = int(rng.choice([1, 1, 2]))
    bias = _floats(rng, channels) if rng.random() < 0.5 else None
    state = (batch, channels, (taps - 1) * dilation)
    past = _floats(rng, *state) if rng.random() < 0.7 else None
    said = CausalConvAttrs(str(rng.choice(["none", "silu", "swish"])), dilation)
    operands = [_floats(rng, batch, channels, length), _floats(rng, channels, 1, taps), bias, past]
    return AttentionCase("CausalConvWithState", said, operands, [[slice(None)] * batch] * 2)


FAMILIES = {
    "grouped": grouped, "sparse": sparse, "windowed": windowed, "stored": stored,
    "multi_head": multi_head, "crossed": crossed,
    "own": own, "rotary": rotary, "merged": merged, "mixture": mixture, "causal": causal,
}  # fmt: skip
