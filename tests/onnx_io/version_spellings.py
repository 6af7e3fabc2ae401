"""ONNX's own tests of one node each, as models of every opset in which the node means the same.

What changed its spelling between two versions is written here anew, from ONNX's changelog; it is
no use of what reads older opsets.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from functools import cache
from itertools import chain
from typing import Any

import numpy as np
import onnx
from onnx import NodeProto, TensorProto, defs, helper, numpy_helper

from tests.onnx_models import Array

_OLDEST, _NEWEST = 7, 26
_QUANTIZED = 10
"""The opset that brought QuantizeLinear."""
_IR_VERSIONS = {_OLDEST: 8, 19: 9, 21: 10}
"""Of files, from an opset on."""
_AXES = ("axes",)
_OPERANDS = {
    "Squeeze": (13, _AXES), "Unsqueeze": (13, _AXES), "ReduceSum": (13, _AXES),
    "ReduceL1": (18, _AXES), "ReduceL2": (18, _AXES), "ReduceLogSum": (18, _AXES),
    "ReduceLogSumExp": (18, _AXES), "ReduceMax": (18, _AXES), "ReduceMean": (18, _AXES),
    "ReduceMin": (18, _AXES), "ReduceProd": (18, _AXES), "ReduceSumSquare": (18, _AXES),
    "Split": (13, ("split",)), "Clip": (11, ("min", "max")), "Pad": (11, ("pads", "value")),
    "Slice": (10, ("starts", "ends", "axes", "steps")), "TopK": (10, ("k",)),
    "Dropout": (12, ("ratio",)), "Upsample": (9, ("scales",)),
}  # fmt: skip
"""Operands that were attributes before an opset."""
_GRID_MODES = {"linear": "bilinear", "cubic": "bicubic"}
_LAST_AXIS = ("Softmax", "LogSoftmax", "Hardmax")


@cache
def single_nodes() -> dict[str, list[Any]]:
    """Returns ONNX's test cases of one node each, with tensors alone, by operator."""
    from onnx.backend.test.case.node import collect_testcases

    found: dict[str, list[Any]] = {}
    with warnings.catch_warnings():  # making the inputs of some divides by zero
        warnings.simplefilter("ignore")
        cases = collect_testcases(None)
    for case in cases:
        if case.model is None or case.data_sets is None or len(case.model.graph.node) != 1:
            continue
        (node,) = case.model.graph.node
        if not node.domain and not any(isinstance(x, (list, type(None))) for x in _given(case)):
            found.setdefault(node.op_type, []).append(case)
    return found


def _given(case: Any) -> Any:
    return case.data_sets[0][0]


def models(case: Any, form: int) -> Iterator[tuple[int, onnx.ModelProto]]:
    """Yields a case in each version that ONNX's checker takes, the newest first.

    Args:
        case: One of :func:`single_nodes`.
        form: 0: only the first operand is an input; 1: so, between Q and DQ where there are floats;
            2: all floats are inputs.
    """
    op_type, newest = case.model.graph.node[0].op_type, case.model.opset_import[0].version
    history = defs.get_all_schemas_with_history()
    since = [s.since_version for s in history if s.name == op_type and not s.domain]
    for opset in sorted({*(max(each, _OLDEST) for each in since), newest, _NEWEST}, reverse=True):
        if opset < max(min(since), _OLDEST) or (form == 1 and opset < _QUANTIZED):
            continue
        made = _model(case, opset, newest, form)
        if made is None:
            continue
        try:
            onnx.checker.check_model(made, full_check=True)
        except (onnx.checker.ValidationError, onnx.shape_inference.InferenceError):
            continue  # its types, or an attribute, are newer
        yield opset, made


def _model(case: Any, opset: int, newest: int, form: int) -> onnx.ModelProto | None:
    infos = {info.name: info for info in case.model.graph.input}
    data = {
        name: numpy_helper.to_array(x) if isinstance(x, TensorProto) else np.asarray(x)
        for name, x in zip(infos, _given(case), strict=True)
    }
    node = _spelled(case.model.graph.node[0], data, opset, newest)
    if node is None:
        return None
    made = onnx.ModelProto()
    made.CopyFrom(case.model)
    graph = made.graph
    del graph.input[:], graph.node[:], made.opset_import[:]
    for index, name in enumerate(dict.fromkeys(name for name in node.input if name)):
        floats = infos[name].type.tensor_type.elem_type == TensorProto.FLOAT
        if index == 0 or (form == 2 and floats):
            graph.input.append(infos[name])
        else:
            graph.initializer.append(numpy_helper.from_array(data[name], name))
    graph.node.append(node)
    if form == 1:
        _round(graph)
    made.ir_version = max(version for since, version in _IR_VERSIONS.items() if opset >= since)
    made.opset_import.append(helper.make_opsetid("", opset))
    return made


def _round(graph: onnx.GraphProto) -> None:
    """Puts Q and DQ behind its float inputs, and before its float results."""
    (node,) = graph.node
    node = NodeProto.FromString(node.SerializeToString())
    held = {"scale_": np.float32(0.05), "zero_": np.uint8(128)}
    graph.initializer.extend(numpy_helper.from_array(np.asarray(x), n) for n, x in held.items())

    def pair(read: str, result: str) -> list[NodeProto]:
        return [
            helper.make_node("QuantizeLinear", [read, *held], [f"{read}_codes"]),
            helper.make_node("DequantizeLinear", [f"{read}_codes", *held], [result]),
        ]

    floats = {v.name for v in (*graph.input, *graph.output)
              if v.type.tensor_type.elem_type == TensorProto.FLOAT}  # fmt: skip
    before = [pair(v.name, f"{v.name}_real") for v in graph.input if v.name in floats]
    after = [pair(f"{v.name}_real", v.name) for v in graph.output if v.name in floats]
    for names in (node.input, node.output):
        names[:] = [f"{name}_real" if name in floats else name for name in names]
    del graph.node[:]
    graph.node.extend([*chain(*before), node, *chain(*after)])


def _spelled(
    node: NodeProto, data: Mapping[str, Array], opset: int, newest: int
) -> NodeProto | None:
    """Returns a node of an opset in the form of another; None where that has another meaning."""
    said = {a.name: helper.get_attribute_value(a) for a in node.attribute}
    read, op_type = list(node.input), node.op_type
    since, names = _OPERANDS.get(op_type, (0, ()))
    if opset < since:
        for name, operand in zip(names, read[1:], strict=False):
            if operand and data[operand].size:
                one = data[operand].ndim == 0 or op_type == "TopK"
                said[name] = data[operand].item() if one else data[operand].tolist()
        read = read[:1]
    if op_type in _LAST_AXIS and opset < 13:
        rank = data[read[0]].ndim
        if said.setdefault("axis", -1 if newest >= 13 else 1) not in (-1, rank - 1):
            return None
    if op_type == "GridSample" and opset < 20:
        grid = said.get("mode", b"linear").decode()
        if data[read[0]].ndim != 4:
            return None
        said["mode"] = _GRID_MODES.get(grid, grid)
    if op_type == "RoiAlign" and opset < 16:
        mode = said.pop("coordinate_transformation_mode", b"half_pixel")
        if mode != b"output_half_pixel":
            return None
    if op_type == "DFT" and (opset < 20) != (newest < 20):
        return None  # its axis became an operand, counted otherwise
    if op_type == "Split" and newest < 18 <= opset and len(read) < 2:
        said["num_outputs"] = len(node.output)
    if op_type == "Mod" and opset < 28 and not said.get("fmod") and data[read[0]].dtype.kind == "f":
        return None
    older, own = (defs.get_schema(op_type, each, "") for each in (opset, newest))
    for name in list(said):
        if name not in older.attributes and name in own.attributes:
            assumed = own.attributes[name].default_value
            if assumed.name and said[name] == helper.get_attribute_value(assumed):
                del said[name]
    spelled = helper.make_node(op_type, read, list(node.output), node.name)
    for name, given in said.items():
        spelled.attribute.append(helper.make_attribute(name, given))
    return spelled
