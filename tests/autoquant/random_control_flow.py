"""Small random float networks with If, Loop and Scan in one another."""

import numpy as np
from onnx import TensorProto, helper, numpy_helper

WIDTH = 6


def _info(name, shape, elem_type=TensorProto.FLOAT):
    return helper.make_tensor_value_info(name, elem_type, shape)


class Drawn:
    """Draws the nodes of one network; every tensor of it is ``[n, WIDTH]``."""

    def __init__(self, seed):
        self.random, self.count = np.random.default_rng(seed), 0
        self.constants = []

    def name(self, hint):
        self.count += 1
        return f"{hint}{self.count}"

    def chance(self, share):
        return self.random.random() < share

    def constant(self, shape, held, scale=1.0):
        """Returns a constant, held in a body or captured from the main graph."""
        array = (scale * self.random.standard_normal(shape)).astype(np.float32)
        name = self.name("c")
        place = held if self.chance(0.5) else self.constants
        place.append(numpy_helper.from_array(array, name))
        return name

    def node(self, op, inputs, **attributes):
        out = self.name("v")
        named = self.name(f"{op}_") if self.chance(0.8) else ""
        return out, helper.make_node(op, inputs, [out], named, **attributes)

    def plain(self, x, others, held, nodes):
        """Adds one operator without bodies; returns its result."""
        kind = int(self.random.integers(0, 9))
        match kind:
            case 0 | 1:
                weight = self.constant((WIDTH, WIDTH), held, 0.5)
                out, node = self.node("MatMul", [x, weight])
            case 2:
                weight, bias = (self.constant((WIDTH, WIDTH), held, 0.5),
                                self.constant((WIDTH,), held))  # fmt: skip
                out, node = self.node("Gemm", [x, weight, bias], transB=int(self.chance(0.5)))
            case 3:
                out, node = self.node("Add", [x, self.random.choice(others)])
            case 4:
                out, node = self.node("Mul", [x, self.constant((WIDTH,), held)])
            case 5:
                out, node = self.node(self.random.choice(["Relu", "Tanh", "Sigmoid"]), [x])
            case 6:
                out, node = self.node("Softmax", [x], axis=-1)
            case 7:
                middle, first = self.node("Transpose", [x], perm=[1, 0])
                nodes.append(first)
                out, node = self.node("Transpose", [middle], perm=[1, 0])
            case _:
                out, node = self.node("Identity", [x])
        nodes.append(node)
        return out

    def body(self, x, depth, outer):
        """Returns nodes, initializers and the result of a body that may read ``outer``."""
        nodes, held, known = [], [], [x, *outer]
        for _ in range(self.random.integers(0, 4)):
            if depth and self.chance(0.35):
                x = self.control(x, depth - 1, known, nodes)
            else:
                x = self.plain(x, known, held, nodes)
            known.append(x)
        return nodes, held, x

    def control(self, x, depth, outer, nodes):
        """Adds an If, Loop or Scan that reads ``x``; returns its result."""
        return getattr(self, self.random.choice(["branch", "loop", "scan"]))(x, depth, outer, nodes)

    def branch(self, x, depth, outer, nodes):
        mean, first = self.node("ReduceMean", [x], keepdims=0)
        condition, second = self.node("Greater", [mean, "limit"])
        nodes += [first, second]
        graphs = []
        for name in ("then", "else"):
            inner, held, result = self.body(x, depth, outer)
            out, last = self.node("Identity", [result])
            graphs.append(
                helper.make_graph([*inner, last], self.name(name), [], [_info(out, None)], held)
            )
        out, node = self.node("If", [condition], then_branch=graphs[0], else_branch=graphs[1])
        nodes.append(node)
        return out

    def loop(self, x, depth, outer, nodes):
        step, more, state = self.name("i"), self.name("more"), self.name("h")
        inner, held, result = self.body(state, depth, outer)
        kept, first = self.node("Identity", [more])
        out, second = self.node("Tanh", [result])
        shown, third = self.node("Identity", [out])
        graph = helper.make_graph(
            [*inner, first, second, third],
            self.name("step"),
            [_info(step, [], TensorProto.INT64), _info(more, [], TensorProto.BOOL),
             _info(state, None)],
            [_info(kept, [], TensorProto.BOOL), _info(out, None), _info(shown, None)],
            held,
        )  # fmt: skip
        last, all_ = self.name("v"), self.name("v")
        count = "" if self.chance(0.0) else "three"
        condition = "" if self.chance(0.3) else "true"
        nodes.append(
            helper.make_node("Loop", [count, condition, x], [last, all_], self.name("Loop_"),
                             body=graph)
        )  # fmt: skip
        if self.chance(0.5):
            return last
        out, node = self.node("ReduceMean", [all_], axes=[0], keepdims=0)
        nodes.append(node)
        return out

    def scan(self, x, depth, outer, nodes):
        state, row = self.name("h"), self.name("row")
        inner, held, result = self.body(state, depth, outer)
        mixed, first = self.node("Add", [result, row])
        shown, second = self.node("Tanh", [mixed])
        graph = helper.make_graph(
            [*inner, first, second],
            self.name("step"),
            [_info(state, [None, WIDTH]), _info(row, [WIDTH])],
            [_info(mixed, [None, WIDTH]), _info(shown, [None, WIDTH])],
            held,
        )
        last, all_ = self.name("v"), self.name("v")
        nodes.append(
            helper.make_node("Scan", [x, "rows"], [last, all_], self.name("Scan_"), body=graph,
                             num_scan_inputs=1, scan_input_directions=[int(self.chance(0.5))])
        )  # fmt: skip
        return last


def random_network(seed):
    """Returns a network with at least one node that has bodies."""
    draw = Drawn(seed)
    nodes, held, known, x = [], draw.constants, ["x"], "x"
    for index in range(draw.random.integers(2, 6)):
        if index == 1 or draw.chance(0.3):
            x = draw.control(x, 1, known, nodes)
        else:
            x = draw.plain(x, known, held, nodes)
        known.append(x)
    outputs = [x] if draw.chance(0.6) else [x, known[int(draw.random.integers(1, len(known)))]]
    constants = [
        numpy_helper.from_array(np.array(3, np.int64), "three"),
        numpy_helper.from_array(np.array(True), "true"),
        numpy_helper.from_array(np.array(draw.random.normal() / 4, np.float32), "limit"),
        numpy_helper.from_array(draw.random.standard_normal((2, WIDTH)).astype(np.float32), "rows"),
    ]
    first = "n" if draw.chance(0.5) else 4
    graph = helper.make_graph(
        nodes,
        "random",
        [_info("x", [first, WIDTH])],
        [_info(name, None) for name in dict.fromkeys(outputs)],
        [*constants, *held],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=10)
