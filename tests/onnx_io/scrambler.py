"""Rewrites of a QDQ model into equivalent idioms, each a function ``(model, random) -> None``.

A rewrite changes how a model is written and nothing that it means, so the digest of the canonical
graph must not change. Some rewrites may not apply to a model; they then do nothing.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from qdqbridge.onnx_io.reading.structure import captured_names
from tests.onnx_io.model_views import (
    DQ,
    Model,
    Q,
    add,
    array,
    attribute,
    axis_of,
    conversions,
    copy_of,
    fresh,
    insert,
    opset,
    parameters,
    producer,
    readers,
    set_attribute,
    weights,
)
from tests.onnx_io.variant_rewrites import (
    flatten_as_reshape,
    identities,
    initializers,
    no_shapes,
    other_signedness,
    quantized_twice,
    raised_opset,
    reshape_targets,
    swapped_operands,
)
from tests.onnx_io.weight_rewrites import (
    float_weights,
    gemm_as_matmul,
    trans_b,
    transpose_behind,
    unsigned_weights,
)

Rewrite = Callable[[Model, random.Random], None]

_SOME = 0.5


# ---- names and order --------------------------------------------------------------------------


def rename(model: Model, rng: random.Random) -> None:
    kept = {v.name for v in (*model.graph.input, *model.graph.output)}
    kept |= {name for node in model.graph.node for name in captured_names(node)}
    names: dict[str, str] = {"": ""}

    def new(name: str) -> str:
        if name in kept:
            return name
        return names.setdefault(name, f"t{rng.randrange(10**9)}/{len(names)}")

    for tensor in model.graph.initializer:
        tensor.name = new(tensor.name)
    for node in model.graph.node:
        node.name = rng.choice(["", f"n{rng.randrange(10**6)}"])
        node.input[:] = [new(name) for name in node.input]
        node.output[:] = [new(name) for name in node.output]
    model.graph.name = f"g{rng.randrange(100)}"
    del model.graph.value_info[:]


def shuffle(model: Model, rng: random.Random) -> None:
    nodes, initializers = list(model.graph.node), list(model.graph.initializer)
    rng.shuffle(nodes)
    rng.shuffle(initializers)
    del model.graph.node[:], model.graph.initializer[:]
    model.graph.node.extend(nodes)
    model.graph.initializer.extend(initializers)


def unused(model: Model, rng: random.Random) -> None:
    source = rng.choice([o for n in model.graph.node for o in n.output])
    add(model, np.ones(3, np.float32), "unused")
    insert(model, helper.make_node("Identity", [source], [fresh("unused")]))


def annotate(model: Model, rng: random.Random) -> None:
    model.doc_string = f"doc {rng.random()}"
    model.producer_name = rng.choice(["onnx.quantize", "pytorch", ""])
    for node in model.graph.node:
        if rng.random() < _SOME:
            node.doc_string = "generated"
            node.metadata_props.add(key="k", value=str(rng.random()))


# ---- constants --------------------------------------------------------------------------------


def constant_nodes(model: Model, rng: random.Random) -> None:
    inputs = {v.name for v in model.graph.input}
    for tensor in list(model.graph.initializer):
        if rng.random() < _SOME and tensor.name not in inputs:
            model.graph.initializer.remove(tensor)
            node = helper.make_node("Constant", [], [tensor.name])
            value = TensorProto()
            value.CopyFrom(tensor)
            value.name = rng.choice(["", "value"])
            node.attribute.append(helper.make_attribute("value", value))
            insert(model, node)


def inputs_too(model: Model, rng: random.Random) -> None:
    for tensor in model.graph.initializer:
        if rng.random() < _SOME and tensor.name not in {v.name for v in model.graph.input}:
            model.graph.input.append(
                helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims)
            )


def typed_fields(model: Model, rng: random.Random) -> None:
    """Writes small tensors into float_data and int32_data instead of raw_data."""
    for tensor in model.graph.initializer:
        data = numpy_helper.to_array(tensor)
        if rng.random() < _SOME and str(data.dtype) in ("float32", "int8", "uint8", "int32"):
            made = helper.make_tensor(tensor.name, tensor.data_type, data.shape, data.ravel())
            tensor.CopyFrom(made)


def cones(model: Model, rng: random.Random) -> None:
    """Puts Identity and Cast nodes between parameters and the nodes that read them."""
    for node in conversions(model):
        for index in range(1, len(node.input)):
            data = array(model, node.input[index])
            if data is None or rng.random() < _SOME:
                continue
            if rng.random() < _SOME:
                made = helper.make_node("Identity", [node.input[index]], [fresh("id")])
            else:
                wide = data.astype(np.float64 if data.dtype.kind == "f" else np.int64)
                to = helper.np_dtype_to_tensor_dtype(data.dtype)
                made = helper.make_node("Cast", [add(model, wide)], [fresh("cast")], to=to)
            node.input[index] = insert(model, made)


def unshare(model: Model, rng: random.Random) -> None:
    for node in conversions(model):
        for index in range(1, len(node.input)):
            data = array(model, node.input[index])
            if data is not None and rng.random() < _SOME:
                node.input[index] = add(model, data)


# ---- parameters -------------------------------------------------------------------------------


def ranks(model: Model, rng: random.Random) -> None:
    """Scalars become ``[1]`` or of higher rank, and back."""
    for node in conversions(model):
        for index in range(1, len(node.input)):
            data = array(model, node.input[index])
            if data is not None and data.size == 1 and rng.random() < _SOME:
                shape = rng.choice([(), (1,), (1, 1)])
                node.input[index] = add(model, data.reshape(shape))


def axes(model: Model, rng: random.Random) -> None:
    """Negative axes, and any axis for scalars."""
    if opset(model) < 13:
        return
    for node in conversions(model):
        scale, _ = parameters(model, node)
        stored = array(model, node.input[0])
        if scale is None or rng.random() < _SOME:
            continue
        if scale.size == 1:
            set_attribute(node, "axis", rng.choice([None, 0, 1, -1]))
        elif stored is not None:
            set_attribute(node, "axis", axis_of(node, stored.ndim) - stored.ndim)


def omit_zero(model: Model, rng: random.Random) -> None:
    for node in conversions(model):
        _, zero_point = parameters(model, node)
        if zero_point is None or zero_point.any() or rng.random() < _SOME:
            continue
        if node.op_type == Q and zero_point.dtype != np.uint8:
            continue
        del node.input[2:]
        if rng.random() < _SOME:
            node.input.append("")


def spread(model: Model, rng: random.Random) -> None:
    """Per-tensor weights become per-channel ones with equal entries."""
    if opset(model) < 13:
        return
    for node, stored in weights(model):
        scale, zero_point = parameters(model, node)
        if scale is None or scale.size != 1 or rng.random() < _SOME:
            continue
        if len(node.input) > 2 and node.input[2] and zero_point is None:
            continue
        axis = rng.randrange(stored.ndim)
        node.input[1] = add(model, np.full(stored.shape[axis], scale.reshape(())))
        if zero_point is not None:
            node.input[2] = add(model, np.full(stored.shape[axis], zero_point.reshape(())))
        set_attribute(node, "axis", axis)


def domain(model: Model, rng: random.Random) -> None:
    for node in conversions(model):
        if rng.random() < _SOME and not node.domain:
            node.domain = "com.microsoft"
    if "com.microsoft" not in {e.domain for e in model.opset_import}:
        model.opset_import.append(helper.make_opsetid("com.microsoft", 1))


def newer_opset(model: Model, rng: random.Random) -> None:
    """A later opset in which the nodes of the base models have not changed their form."""
    if opset(model) < 13:
        return
    for entry in model.opset_import:
        if entry.domain == "":
            entry.version = rng.choice([v for v in (13, 14, 15, 16, 17, 18, 19, 20, 21)
                                        if v >= entry.version])  # fmt: skip


# ---- conversions ------------------------------------------------------------------------------


def duplicate_dq(model: Model, rng: random.Random) -> None:
    """One DQ per reader."""
    outputs = {v.name for v in model.graph.output}
    for node in list(model.graph.node):
        if node.op_type != DQ or node.output[0] in outputs or rng.random() < _SOME:
            continue
        for reader in readers(model, node.output[0])[1:]:
            twin = onnx.NodeProto()
            twin.CopyFrom(node)
            twin.output[0] = fresh("dq")
            twin.name = ""
            insert(model, twin)
            reader.input[:] = [
                twin.output[0] if name == node.output[0] else name for name in reader.input
            ]


def duplicate_q(model: Model, rng: random.Random) -> None:
    """A Q of its own for one of the DQs that read a Q (dedicated pairs)."""
    for node in list(model.graph.node):
        found = readers(model, node.output[0])
        if node.op_type != Q or rng.random() < _SOME or len(found) < 2:
            continue
        twin = onnx.NodeProto()
        twin.CopyFrom(node)
        twin.output[0] = fresh("q")
        insert(model, twin)
        reader = rng.choice(found)
        reader.input[:] = [
            twin.output[0] if name == node.output[0] else name for name in reader.input
        ]


def cast_between(model: Model, rng: random.Random) -> None:
    """``Q -> Cast to the same type -> DQ``."""
    for node in list(model.graph.node):
        if node.op_type != Q or rng.random() < _SOME:
            continue
        if node.output[0] in {v.name for v in model.graph.output}:
            continue
        zero = array(model, node.input[2]) if len(node.input) > 2 and node.input[2] else None
        computed = len(node.input) > 2 and node.input[2] and zero is None
        if computed:
            continue
        to = TensorProto.UINT8 if zero is None else helper.np_dtype_to_tensor_dtype(zero.dtype)
        result = fresh("cast")
        for reader in readers(model, node.output[0]):
            reader.input[:] = [result if n == node.output[0] else n for n in reader.input]
        insert(model, helper.make_node("Cast", [node.output[0]], [result], to=to))


# ---- activations ------------------------------------------------------------------------------


def relu_as_clip(model: Model, rng: random.Random) -> None:
    for node in model.graph.node:
        if node.op_type == "Relu" and rng.random() < _SOME:
            node.op_type = "Clip"
            node.input.append(add(model, np.float32(0)))


def move_reshape(model: Model, rng: random.Random) -> None:
    """Between ``DQ -> movement -> Q`` of one scale and the mover on stored integers."""
    for node in list(model.graph.node):
        if node.op_type not in ("Reshape", "Transpose", "Flatten", "MaxPool"):
            continue
        before = producer(model, node.input[0])
        after = readers(model, node.output[0])
        if before is None or before.op_type != DQ or len(after) != 1 or after[0].op_type != Q:
            continue
        if node.op_type == "MaxPool" and opset(model) < 12:
            continue
        # x -> Q -> DQ -> mover -> Q -> DQ becomes x -> Q -> mover -> DQ
        same = [
            _same(model, a, b) for a, b in zip(before.input[1:], after[0].input[1:], strict=False)
        ]
        if not all(same) or len(before.input) != len(after[0].input) or rng.random() < _SOME:
            continue
        if attribute(before, "axis", 1) != attribute(after[0], "axis", 1):
            continue
        node.input[0] = before.input[0]
        result = after[0].output[0]
        model.graph.node.remove(after[0])
        node.output[0] = result


def _same(model: Model, a: str, b: str) -> bool:
    x, y = array(model, a), array(model, b)
    if x is None or y is None:
        return a == b
    return x.dtype == y.dtype and x.size == y.size == 1 and x.reshape(()) == y.reshape(())


REWRITES: dict[str, Rewrite] = {
    f.__name__: f
    for f in (
        rename, shuffle, unused, annotate, constant_nodes, inputs_too, typed_fields, cones,
        unshare, ranks, axes, omit_zero, spread, domain, newer_opset, duplicate_dq, duplicate_q,
        cast_between, float_weights, unsigned_weights, trans_b, transpose_behind, gemm_as_matmul,
        relu_as_clip, move_reshape, swapped_operands, identities, reshape_targets,
        other_signedness, quantized_twice,
    )
}  # fmt: skip

_OF_BASES = ("newer_opset", "relu_as_clip")
"""Rewrites that only hold for the models of the tests: no attribute or input of theirs changes."""
ANYWHERE: dict[str, Rewrite] = {
    **{name: rewrite for name, rewrite in REWRITES.items() if name not in _OF_BASES},
    **{f.__name__: f for f in (raised_opset, initializers, no_shapes, flatten_as_reshape)},
}
"""Rewrites of any producer's file."""


def scrambled(
    model: Model, seed: int, rewrites: Mapping[str, Rewrite] = REWRITES
) -> tuple[Model, list[str]]:
    """Returns the model after some rewrites in random order, and their names."""
    rng = random.Random(seed)
    result, names = copy_of(model), list(rewrites)
    rng.shuffle(names)
    names = names[: rng.randint(1, len(names))]
    for name in names:
        rewrites[name](result, rng)
    return result, names
