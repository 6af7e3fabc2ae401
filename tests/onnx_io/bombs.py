"""Small files that ask for much: constants, functions and branches that multiply, in every way.

Each is a few hundred bytes or kilobytes that stand for gigabytes, for years, or for a depth that no
stack has.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from random import Random
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

_FLOAT = TensorProto.FLOAT
Node = onnx.NodeProto
Parts = tuple[list[Node], dict[str, Any], str]
"""Nodes, constants by name, and the name of what they make."""
_RAISE = ("Neg", "Identity", "Abs", "Relu", "Exp", "Floor")


def bombs(seed: int) -> Iterator[tuple[str, onnx.ModelProto]]:
    """Yields one model of every kind: its name and itself; another seed gives other numbers."""
    rng = Random(seed)
    for name, make in MAKERS.items():
        nodes, constants, made = make(rng)
        for between in range(rng.randrange(3)):
            nodes.append(helper.make_node(rng.choice(_RAISE), [made], [f"between_{between}"]))
            made = f"between_{between}"
        yield name, _model(nodes, constants, made, rng)
    for name, make_model in MODELS.items():
        yield name, make_model(rng)


def _model(nodes: list[Node], constants: dict[str, Any], made: str, rng: Random) -> onnx.ModelProto:
    """Uses what is made as a scale, a weight, an operand or a result; its shape may be a lie."""
    constants = {"s": np.float32(0.1), "z": np.uint8(3), **constants}
    q = [helper.make_node("QuantizeLinear", ["x", "s", "z"], ["q"]),
         helper.make_node("DequantizeLinear", ["q", "s", "z"], ["d"])]  # fmt: skip
    match rng.randrange(4):
        case 0:  # a scale
            nodes = [*nodes, helper.make_node("ReduceMax", [made], ["scale"], keepdims=0)]
            q = [helper.make_node("QuantizeLinear", ["x", "scale", "z"], ["q"]),
                 helper.make_node("DequantizeLinear", ["q", "scale", "z"], ["y"])]  # fmt: skip
        case 1:  # an operand
            q.append(helper.make_node("Add", ["d", made], ["y"]))
        case 2:  # stored
            nodes = [*nodes, helper.make_node("QuantizeLinear", [made, "s", "z"], ["mq"]),
                     helper.make_node("DequantizeLinear", ["mq", "s", "z"], ["md"])]  # fmt: skip
            q.append(helper.make_node("Mul", ["d", "md"], ["y"]))
        case _:  # a bound
            q.append(helper.make_node("Clip", ["d", made], ["y"]))
    infos = []
    if rng.random() < 0.5:
        lie = [4] if rng.random() < 0.5 else [1, 4]
        names = [name for node in nodes for name in node.output if name != "scale"]
        infos = [helper.make_tensor_value_info(name, _FLOAT, lie) for name in names]
    return _whole([*nodes, *q], constants, infos)


def _whole(
    nodes: Sequence[Node],
    constants: dict[str, Any],
    infos: Sequence[onnx.ValueInfoProto] = (),
    functions: Sequence[onnx.FunctionProto] = (),
) -> onnx.ModelProto:
    graph = helper.make_graph(
        list(nodes),
        "bomb",
        [helper.make_tensor_value_info("x", _FLOAT, [1, 4]),
         helper.make_tensor_value_info("c", TensorProto.BOOL, [])],
        [helper.make_tensor_value_info("y", _FLOAT, None)],
        [numpy_helper.from_array(np.asarray(data), name) for name, data in constants.items()],
        value_info=list(infos),
    )  # fmt: skip
    imports = [helper.make_opsetid("", 17), helper.make_opsetid("l", 1)]
    return helper.make_model(graph, opset_imports=imports, ir_version=9, functions=list(functions))


# ---- constants ---------------------------------------------------------------------------------


def _huge(rng: Random) -> int:
    return rng.choice((1 << 27, 1 << 31, (1 << 33) + 1, 1 << 40, (1 << 62) - 1))


def _one(op: str, inputs: Sequence[str], constants: dict[str, Any], **attributes: Any) -> Parts:
    return [helper.make_node(op, inputs, ["made"], **attributes)], constants, "made"


def _ints(*numbers: int) -> Any:
    return np.array(numbers, np.int64)


def _ones(*shape: int) -> Any:
    return np.ones(shape, np.float32)


def _pool(op: str, rng: Random) -> Parts:
    wide, few = rng.choice(((1 << 15, 2), (1 << 31, 2), (3, 1 << 15))), rng.randint(1, 2)
    return _one(op, ["a"], {"a": _ones(1, 1, 4, 4)}, kernel_shape=[wide[1]] * 2,
                pads=[wide[0]] * 4, strides=[few, few])  # fmt: skip


def _resize(rng: Random) -> Parts:
    mode = rng.choice(("nearest", "linear", "cubic"))
    if rng.random() < 0.5:
        sizes = {"a": _ones(1, 1, 4, 4), "n": _ints(1, 1, 60_000, 60_000)}
        return _one("Resize", ["a", "", "", "n"], sizes, mode=mode)
    scales = np.array([1, 1, 30_000, rng.choice((30_000, 1e30))], np.float32)
    return _one("Resize", ["a", "", "n"], {"a": _ones(1, 1, 4, 4), "n": scales}, mode=mode)


def _chain(op: str, rng: Random) -> Parts:
    """Every node makes a little more of what the one before it has made."""
    count, nodes = rng.randint(20, 60), list[Node]()
    constants: dict[str, Any] = {"k0": _ones(rng.choice((1, 200, 1000))), "two": _ints(2)}
    for i in range(count):
        inputs = [f"k{i}", "two"] if op == "Tile" else [f"k{i}"] * rng.randint(2, 3)
        attributes: dict[str, Any] = {"axis": 0} if op == "Concat" else {}
        nodes.append(helper.make_node(op, inputs, [f"k{i + 1}"], **attributes))
    return nodes, constants, f"k{count}"


def _loop(rng: Random) -> Parts:
    trips = rng.choice((1 << 31, 1 << 62))
    scalar = [("i", TensorProto.INT64), ("go", TensorProto.BOOL), ("v", _FLOAT)]
    body = helper.make_graph(
        [helper.make_node("Identity", ["go"], ["again"]), helper.make_node("Sqrt", ["v"], ["w"])],
        "body",
        [helper.make_tensor_value_info(name, kind, []) for name, kind in scalar],
        [helper.make_tensor_value_info("again", TensorProto.BOOL, []),
         helper.make_tensor_value_info("w", _FLOAT, [])],
    )  # fmt: skip
    constants = {"n": np.int64(trips), "t": np.array(True), "v0": np.float32(0.1)}
    return [helper.make_node("Loop", ["n", "t", "v0"], ["made"], body=body)], constants, "made"


def _computed(op: str, rng: Random) -> Parts:
    """The count is made of two numbers that are not large."""
    nodes = [helper.make_node("Mul", ["p", "p"], ["n"])]
    constants = {"a": _ones(1), "p": _ints(rng.choice((1 << 14, 1 << 16, 1 << 31)))}
    inputs = ["n"] if op == "ConstantOfShape" else ["a", "n"]
    return [*nodes, helper.make_node(op, inputs, ["made"])], constants, "made"


def _made_of_made(rng: Random) -> Parts:
    """Of the data of a constant that is made, another one is made."""
    first = rng.choice((1 << 9, 1 << 14))
    nodes = [helper.make_node("Tile", ["a", "n"], ["many"]),
             helper.make_node("ReduceSum", ["many"], ["sum"], keepdims=1),
             helper.make_node("Cast", ["sum"], ["count"], to=TensorProto.INT64),
             helper.make_node("Mul", ["count", "count"], ["more"]),
             helper.make_node("Expand", ["a", "more"], ["made"])]  # fmt: skip
    return nodes, {"a": _ones(1), "n": _ints(first)}, "made"


_Maker = Callable[[Random], Parts]
MAKERS: dict[str, _Maker] = {
    "Expand": lambda r: _one("Expand", ["a", "n"], {"a": _ones(1), "n": _ints(_huge(r))}),
    "Expand of many axes": lambda r: _one(
        "Expand", ["a", "n"], {"a": _ones(1), "n": _ints(*[r.randint(2, 4)] * r.randint(30, 60))}
    ),
    "Tile": lambda r: _one("Tile", ["a", "n"], {"a": _ones(1), "n": _ints(_huge(r))}),
    "Pad": lambda r: _one("Pad", ["a", "n"], {"a": _ones(1), "n": _ints(0, _huge(r))}),
    "Pad by edges": lambda r: _one(
        "Pad", ["a", "n"], {"a": _ones(2), "n": _ints(_huge(r), 0)},
        mode=r.choice(("edge", "reflect")),
    ),
    "Range": lambda r: _one(
        "Range", ["a", "b", "c"],
        {"a": np.float32(0), "b": np.float32(_huge(r)), "c": np.float32(1)},
    ),
    "ConstantOfShape": lambda r: _one("ConstantOfShape", ["n"], {"n": _ints(_huge(r), 2)}),
    "OneHot": lambda r: _one(
        "OneHot", ["i", "n", "v"],
        {"i": _ints(0), "n": np.int64(_huge(r)), "v": np.array([0, 1], np.float32)},
    ),
    "EyeLike": lambda r: _one("EyeLike", ["a"], {"a": _ones(1, 1)}, k=_huge(r)),
    "outer product": lambda r: _one(
        r.choice(("Add", "Mul", "Max")), ["a", "b"],
        {"a": _ones(1, 60_000), "b": _ones(60_000, 1)},
    ),
    "MatMul": lambda r: _one(
        "MatMul", ["a", "b"], {"a": _ones(60_000, 1), "b": _ones(1, r.choice((60_000, 40_000)))}
    ),
    "Gemm": lambda r: _one(
        "Gemm", ["a", "b"], {"a": _ones(1, 60_000), "b": _ones(1, 60_000)}, transA=1
    ),
    "Einsum": lambda r: _one(
        "Einsum", ["a", "b"], {"a": _ones(60_000), "b": _ones(60_000)},
        equation=r.choice(("i,j->ij", "i,j->")),
    ),
    "ConvTranspose": lambda r: _one(
        "ConvTranspose", ["a", "b"], {"a": _ones(1, 1, 3), "b": _ones(1, 1, 1)},
        strides=[r.choice((1 << 29, (1 << 31) - 1))],
    ),
    "Conv": lambda r: _one(
        "Conv", ["a", "b"], {"a": _ones(1, 1, 3), "b": _ones(1, 1, 1)},
        pads=[r.choice((1 << 31, 1 << 40)), 0],
    ),
    "AveragePool": lambda r: _pool("AveragePool", r),
    "MaxPool": lambda r: _pool("MaxPool", r),
    "Resize": _resize,
    "Upsample": lambda r: _one(
        "Resize", ["a", "", "n"],
        {"a": _ones(1, 1, 2, 2), "n": np.array([1, 1, 1, _huge(r)], np.float32)},
    ),
    "Gather": lambda r: _one(
        "Gather", ["a", "i"], {"a": _ones(1, 30_000), "i": np.zeros((20_000,), np.int64)}
    ),
    "MaxUnpool": lambda r: _one(
        "MaxUnpool", ["a", "i", "n"],
        {"a": _ones(1, 1, 1, 1), "i": np.zeros((1, 1, 1, 1), np.int64),
         "n": _ints(1, 1, 1, _huge(r))}, kernel_shape=[1, 1],
    ),
    "RandomNormal": lambda r: _one("RandomNormal", [], {}, shape=[_huge(r)]),
    "RandomUniformLike": lambda r: _one("RandomUniformLike", ["a"], {"a": _ones(4)}),
    "Loop": _loop,
    "Concats": lambda r: _chain("Concat", r),
    "Tiles": lambda r: _chain("Tile", r),
    "Sums": lambda r: _chain("Sum", r),
    "a computed Expand": lambda r: _computed("Expand", r),
    "a computed Tile": lambda r: _computed("Tile", r),
    "a computed ConstantOfShape": lambda r: _computed("ConstantOfShape", r),
    "a count of what is made": _made_of_made,
}  # fmt: skip


# ---- functions and bodies ----------------------------------------------------------------------


def _functions(calls: Sequence[int], rng: Random) -> onnx.ModelProto:
    """Function i calls the one before it ``calls[i]`` times, one after the other."""
    imports = [helper.make_opsetid("", 17), helper.make_opsetid("l", 1)]
    functions: list[onnx.FunctionProto] = []
    for i, count in enumerate(calls):
        op, domain = (f"f{i - 1}", "l") if i else ("Relu", "")
        names = ["a", *(f"t{j}" for j in range(count - 1)), "b"]
        nodes = [helper.make_node(op, [a], [b], domain=domain)
                 for a, b in pairwise(names)]  # fmt: skip
        functions.append(helper.make_function("l", f"f{i}", ["a"], ["b"], nodes, imports))
    rng.shuffle(functions)
    return _whole(
        [helper.make_node(f"f{len(calls) - 1}", ["x"], ["y"], domain="l")], {}, (), functions
    )


def _recursive(rng: Random) -> onnx.ModelProto:
    count = rng.randint(1, 5)
    imports = [helper.make_opsetid("l", 1)]
    functions = [
        helper.make_function(
            "l", f"f{i}", ["a"], ["b"],
            [helper.make_node(f"f{(i + 1) % count}", ["a"], ["b"], domain="l")], imports,
        )
        for i in range(count)
    ]  # fmt: skip
    return _whole([helper.make_node("f0", ["x"], ["y"], domain="l")], {}, (), functions)


def _branch(nodes: Sequence[Node], name: str) -> onnx.GraphProto:
    return helper.make_graph(
        list(nodes), name, [], [helper.make_tensor_value_info(name, _FLOAT, [1, 4])]
    )


def _tree(depth: int, name: str, leaves: Sequence[str], rng: Random) -> list[Node]:
    """Returns an If whose branches are Ifs, down to leaves of one operator or of several."""
    if depth == 0:
        return [helper.make_node(rng.choice(leaves), ["x"], [name])]
    then, other = (
        _branch(_tree(depth - 1, name + side, leaves, rng), name + side) for side in "te"
    )
    return [helper.make_node("If", ["c"], [name], then_branch=then, else_branch=other)]


def _deep(depth: int, rng: Random) -> onnx.ModelProto:
    nodes = [helper.make_node("Relu", ["x"], ["o0"])]
    for i in range(1, depth):
        other = _branch([helper.make_node("Neg", ["x"], [f"e{i}"])], f"e{i}")
        inner = _branch(nodes, f"o{i - 1}")
        branches = [inner, other] if rng.random() < 0.5 else [other, inner]
        nodes = [helper.make_node("If", ["c"], [f"o{i}"], then_branch=branches[0],
                                  else_branch=branches[1])]  # fmt: skip
    return _whole([*nodes, helper.make_node("Identity", [f"o{depth - 1}"], ["y"])], {})


def _bodies_in_functions(rng: Random) -> onnx.ModelProto:
    """Every function has Ifs in each other, and calls the next one in the innermost."""
    imports = [helper.make_opsetid("", 17), helper.make_opsetid("l", 1)]
    functions: list[onnx.FunctionProto] = []
    count = rng.randint(5, 40)
    for i in range(count):
        inner = [helper.make_node(f"f{i - 1}", ["a", "c"], ["o0"], domain="l") if i
                 else helper.make_node("Relu", ["a"], ["o0"])]  # fmt: skip
        for j in range(1, 8):
            other = _branch([helper.make_node("Neg", ["a"], [f"e{j}"])], f"e{j}")
            then = _branch(inner, f"o{j - 1}")
            inner = [helper.make_node("If", ["c"], [f"o{j}"], then_branch=then, else_branch=other)]
        inner.append(helper.make_node("Identity", ["o7"], ["b"]))
        functions.append(helper.make_function("l", f"f{i}", ["a", "c"], ["b"], inner, imports))
    call = helper.make_node(f"f{count - 1}", ["x", "c"], ["y"], domain="l")
    return _whole([call], {}, (), functions)


def _many_weights(rng: Random) -> onnx.ModelProto:
    """One weight, quantized in a hundred ways."""
    constants: dict[str, Any] = {"w": _ones(1000, 1000), "z": np.uint8(rng.choice((3, 128)))}
    constants |= {f"s{i}": np.float32(0.01 * (i + 1)) for i in range(100)}
    nodes = [helper.make_node("Concat", ["x"] * 250, ["m0"], axis=1)]
    for i in range(100):
        nodes += [helper.make_node("QuantizeLinear", ["w", f"s{i}", "z"], [f"q{i}"]),
                  helper.make_node("DequantizeLinear", [f"q{i}", f"s{i}", "z"], [f"d{i}"]),
                  helper.make_node("MatMul", [f"m{i}", f"d{i}"], [f"m{i + 1}"])]  # fmt: skip
    return _whole([*nodes, helper.make_node("Identity", ["m100"], ["y"])], constants)


def _wide(rng: Random) -> onnx.ModelProto:
    """A Concat of many constants, or of one many times."""
    names = ["a"] * 20_000 if rng.random() < 0.5 else [f"a{i}" for i in range(10_000)]
    constants = {name: _ones(1, 4) for name in names}
    return _whole([helper.make_node("Concat", ["x", *names], ["y"], axis=0)], constants)


def _parts(rng: Random) -> onnx.ModelProto:
    """A Split into many parts, each with a reader of its own."""
    names = [f"p{i}" for i in range(rng.randint(5_000, 6_000))]
    nodes = [helper.make_node("Expand", ["x", "n"], ["many"]),
             helper.make_node("Split", ["many"], names, axis=0),
             *(helper.make_node("Identity", [p], [f"{p}i"]) for p in names),
             helper.make_node("Concat", [f"{p}i" for p in names[:100]], ["y"], axis=0)]  # fmt: skip
    return _whole(nodes, {"n": _ints(len(names), 4)})


MODELS: dict[str, Callable[[Random], onnx.ModelProto]] = {
    "a weight quantized in many ways": _many_weights,
    "a Concat of many": _wide,
    "a Split into many": _parts,
    "functions that double": lambda r: _functions([1, *[2] * r.randint(20, 60)], r),
    "functions that multiply": lambda r: _functions([1, *[r.randint(3, 9)] * r.randint(8, 40)], r),
    "functions in each other": lambda r: _functions([1] * r.randint(66, 1500), r),
    "functions in a ring": _recursive,
    "a tree of equal Ifs": lambda r: _whole(_tree(r.randint(5, 7), "y", ["Relu"], r), {}),
    "a tree of Ifs": lambda r: _whole(_tree(r.randint(5, 7), "y", ["Relu", "Neg"], r), {}),
    "Ifs in each other": lambda r: _deep(r.randint(10, 31), r),
    "Ifs in functions in each other": _bodies_in_functions,
}
