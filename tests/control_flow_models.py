"""Float networks with a Loop, an If and a Scan, and what trains them: no framework is needed."""

import numpy as np
from onnx import TensorProto, helper, numpy_helper

from tests.onnx_models import Builder

HIDDEN = 32
ROWS = 8
"""Rows of an image of the digits, which are the steps of a sequence."""


def digits(count=None, *, test=False):
    """Returns images of the bundled digits as sequences of rows, and their classes."""
    held = np.load("models/digits_test.npz")
    images, classes = held["x"].reshape(-1, ROWS, 8).astype(np.float32), held["labels"]
    half = len(images) // 2
    part = slice(half, None) if test else slice(0, half)
    return images[part][:count], classes[part][:count]


def recurrent_weights(seed=0):
    """Returns a recurrent network whose readout is fitted to the digits by least squares."""
    rng = np.random.default_rng(seed)
    w = (rng.standard_normal((8, HIDDEN)) / 2).astype(np.float32)
    u = np.linalg.qr(rng.standard_normal((HIDDEN, HIDDEN)))[0].astype(np.float32) * 0.9
    b = (rng.standard_normal(HIDDEN) / 4).astype(np.float32)
    images, classes = digits()
    h = np.zeros((len(images), HIDDEN), np.float32)
    for row in range(ROWS):
        h = np.tanh(images[:, row] @ w + h @ u + b)
    inputs = np.concatenate([h, np.ones((len(h), 1), np.float32)], axis=1)
    system = inputs.T @ inputs + 0.1 * np.eye(HIDDEN + 1)
    read = np.linalg.solve(system, inputs.T @ np.eye(10)[classes])
    return w, u, b, read[:-1].astype(np.float32), read[-1].astype(np.float32)


def _info(name, shape, elem_type=TensorProto.FLOAT):
    return helper.make_tensor_value_info(name, elem_type, shape)


def _init(array, name):
    return numpy_helper.from_array(np.asarray(array), name)


def cell(x, h, w, u, b, out):
    """Returns the nodes of one step: ``out = tanh(x W + h U + b)``."""
    return [
        helper.make_node("MatMul", [x, w], ["of_input"], "cell_input"),
        helper.make_node("MatMul", [h, u], ["of_state"], "cell_state"),
        helper.make_node("Add", ["of_input", "of_state"], ["both"], "cell_both"),
        helper.make_node("Add", ["both", b], ["biased"], "cell_bias"),
        helper.make_node("Tanh", ["biased"], [out], "cell_tanh"),
    ]


def _nothing(m, x):
    """Returns a first state of zeros for as many images as there are."""
    nothing = m.init(np.zeros((8, HIDDEN), np.float32))
    return m.op("MatMul", m.op("ReduceMean", x, axes=[1], keepdims=0), nothing)


def loop_network(seed=0, opset=17):
    """A recurrent network whose Loop gathers a row in each step: W captured, U held inside."""
    w, u, b, read, bias = recurrent_weights(seed)
    body = helper.make_graph(
        [
            helper.make_node("Gather", ["rows", "i"], ["row"], "pick", axis=0),
            *cell("row", "h", "w", "u", "b", "h_next"),
            helper.make_node("Identity", ["more"], ["more_next"]),
        ],
        "step",
        [_info("i", [], TensorProto.INT64), _info("more", [], TensorProto.BOOL),
         _info("h", None)],
        [_info("more_next", [], TensorProto.BOOL), _info("h_next", None)],
        [_init(u, "u"), _init(b, "b")],
    )  # fmt: skip
    m = Builder(opset)
    x = m.input("x", ["n", ROWS, 8])
    m.init(w, "w")
    m.nodes.append(helper.make_node("Transpose", [x], ["rows"], "turn", perm=[1, 0, 2]))
    start = _nothing(m, x)
    count, true = m.init(np.array(ROWS, np.int64)), m.init(np.array(True))
    m.nodes.append(
        helper.make_node("Loop", [count, true, start], ["last"], "recurrence", body=body)
    )
    m.output(m.op("Gemm", "last", m.init(read), m.init(bias)))
    return m.model()


def scan_network(seed=0, opset=17):
    """The same network with a Scan, which gives all states; their mean is read as well."""
    w, u, b, read, bias = recurrent_weights(seed)
    body = helper.make_graph(
        [
            *cell("row", "h", "w", "u", "b", "h_next"),
            helper.make_node("Identity", ["h_next"], ["shown"]),
        ],
        "step",
        [_info("h", [None, HIDDEN]), _info("row", [None, 8])],
        [_info("h_next", [None, HIDDEN]), _info("shown", [None, HIDDEN])],
        [_init(w, "w"), _init(u, "u"), _init(b, "b")],
    )
    m = Builder(opset)
    x = m.input("x", ["n", ROWS, 8])
    start = _nothing(m, x)
    m.nodes.append(
        helper.make_node(
            "Scan", [start, x], ["last", "states"], "encoder", body=body, num_scan_inputs=1,
            scan_input_axes=[1], scan_output_axes=[1],
        )
    )  # fmt: skip
    m.output(m.op("Gemm", "last", m.init(read), m.init(bias)))
    m.output(m.op("ReduceMean", "states", axes=[1], keepdims=0))
    return m.model()


def head(prefix, read, bias):
    return helper.make_graph(
        [
            helper.make_node("Gemm", ["features", f"{prefix}_w", f"{prefix}_b"],
                             [f"{prefix}_y"], f"{prefix}_gemm"),
        ],
        prefix,
        [],
        [_info(f"{prefix}_y", None)],
        [_init(read, f"{prefix}_w"), _init(bias, f"{prefix}_b")],
    )  # fmt: skip


def if_network(seed=0, opset=17, above=0.0):
    """A trunk and two heads: the mean of the image decides which one is read."""
    rng = np.random.default_rng(seed)
    w = (rng.standard_normal((64, HIDDEN)) / 4).astype(np.float32)
    images, classes = digits()
    flat = images.reshape(len(images), 64)
    inputs = np.concatenate([np.maximum(flat @ w, 0), np.ones((len(flat), 1))], axis=1)
    system = inputs.T @ inputs + 0.1 * np.eye(HIDDEN + 1)
    read = np.linalg.solve(system, inputs.T @ np.eye(10)[classes]).astype(np.float32)
    m = Builder(opset)
    x = m.input("x", [1, ROWS, 8])
    flat = m.op("Flatten", x)
    m.nodes.append(helper.make_node("Relu", [m.op("MatMul", flat, m.init(w))], ["features"]))
    mean = m.op("ReduceMean", x, axes=[0, 1, 2], keepdims=0)
    condition = m.op("Greater", mean, m.init(np.array(above, np.float32)))
    m.nodes.append(
        helper.make_node(
            "If", [condition], ["y"], "choice",
            then_branch=head("bright", read[:-1], read[-1]),
            else_branch=head("dark", 2 * read[:-1], 2 * read[-1]),
        )
    )  # fmt: skip
    m.output("y")
    return m.model()


def nested_network(seed=0, opset=17):
    """The recurrent network whose steps differ: bright rows have a cell of their own."""
    w, u, b, read, bias = recurrent_weights(seed)
    branches = [
        helper.make_graph(
            cell("row", "h", f"{name}_w", "u", f"{name}_b", f"{name}_next"),
            name,
            [],
            [_info(f"{name}_next", None)],
            [_init(factor * w, f"{name}_w"), _init(b, f"{name}_b")],
        )
        for name, factor in (("then", 1.0), ("else", np.float32(0.5)))
    ]
    choice = helper.make_node(
        "If", ["bright"], ["h_next"], "which", then_branch=branches[0], else_branch=branches[1]
    )
    body = helper.make_graph(
        [
            helper.make_node("Gather", ["rows", "i"], ["row"], "pick", axis=0),
            helper.make_node("ReduceMean", ["row"], ["mean"], "mean", keepdims=0),
            helper.make_node("Greater", ["mean", "limit"], ["bright"], "compare"),
            choice,
            helper.make_node("Identity", ["more"], ["more_next"]),
        ],
        "step",
        [_info("i", [], TensorProto.INT64), _info("more", [], TensorProto.BOOL), _info("h", None)],
        [_info("more_next", [], TensorProto.BOOL), _info("h_next", None)],
        [_init(u, "u"), _init(np.array(0.3, np.float32), "limit")],
    )
    m = Builder(opset)
    x = m.input("x", [1, ROWS, 8])
    m.nodes.append(helper.make_node("Transpose", [x], ["rows"], "turn", perm=[1, 0, 2]))
    start = m.init(np.zeros((1, HIDDEN), np.float32))
    count, true = m.init(np.array(ROWS, np.int64)), m.init(np.array(True))
    m.nodes.append(
        helper.make_node("Loop", [count, true, start], ["last"], "recurrence", body=body)
    )
    m.output(m.op("Gemm", "last", m.init(read), m.init(bias)))
    return m.model()
