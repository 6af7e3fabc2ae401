"""Which operators a file may use: ONNX's own as its schemas say, and any of every other domain."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import NodeProto, helper, numpy_helper

from qdqbridge.core.graph.patterns import operand_counts
from qdqbridge.errors import InvalidModelError, UnsupportedModelError, UnsupportedQuantization
from qdqbridge.onnx_io.codecs.codec import changed, schema_of
from qdqbridge.onnx_io.control_flow.subgraph_names import bodies
from qdqbridge.onnx_io.inference.shapes import check_inferable
from qdqbridge.onnx_io.lowering.context import file_operator
from qdqbridge.onnx_io.lowering.rules import Refusal, encoding_of, is_microsoft, refusal
from qdqbridge.onnx_io.reading.model_file import default_opset
from qdqbridge.onnx_io.reading.structure import ONNX_DOMAINS, all_nodes, describe, plain_domain

_CONTRIB = {
    ("com.microsoft", "QuantizeLinear"),
    ("com.microsoft", "DequantizeLinear"),
    ("com.microsoft", "Gelu"),
    ("com.microsoft", "QuickGelu"),
}

_RUNTIME = {"SimplifiedLayerNormalization": (2, 2), "LayerNormalization": (2, 3)}
"""What onnxruntime has in ONNX's own domain at opsets that do not: how many operands it takes."""
_OPTIONAL = onnx.defs.OpSchema.FormalParameterOption.Optional
_VARIADIC = onnx.defs.OpSchema.FormalParameterOption.Variadic
_FLAGS = frozenset((
    "align_corners", "allowzero", "antialias", "broadcast", "ceil_mode", "center_point_box",
    "count_include_pad", "detect_negative", "detect_positive", "exclude_outside", "exclusive",
    "fmod", "input_forget", "interleaved", "inverse", "is_case_sensitive", "is_causal", "keepdims",
    "largest", "linear_before_reset", "new_axis", "noop_with_empty_axes", "onesided", "periodic",
    "reverse", "saturate", "select_last_index", "sorted", "storage_order", "training_mode",
    "transA", "transB", "upper",
))  # fmt: skip
"""Integers that ONNX defines for 0 and 1 alone; elsewhere runtimes, and ONNX's own shape inference,
disagree: ``keepdims=2`` keeps nothing in onnxruntime, and ``saturate=2`` leaves a Cast's result
unwritten there."""
_STANDARD = "export with standard ONNX operators, or convert the model to a newer opset"


def check_known(model: onnx.ModelProto, file: str) -> None:
    """Checks that every node's operator exists and has a valid number of operands.

    What ONNX does not define is an opaque node, whatever its domain; of what it does, nobody but
    the onnx package says what is valid.

    Raises:
        UnsupportedModelError: ONNX's own domain has no such operators; lists all of them at once.
        InvalidModelError: A node breaks its operator's schema.
    """
    opsets = {e.domain: e.version for e in model.opset_import}
    opset = default_opset(model)
    unknown: dict[str, list[str]] = {}
    for node in all_nodes(model.graph.node):
        if not any(node.output):
            raise InvalidModelError(
                f"{node.op_type or 'a node without an operator'} has no result",
                where=f"{file}, {describe(node)}",
                fix="export the model again",
            )
        rule = encoding_of(file_operator(node))
        if node.domain not in ONNX_DOMAINS and node.domain not in opsets and rule is None:
            raise InvalidModelError(
                f"the domain '{node.domain}' is used but not imported",
                where=f"{file}, {describe(node)}",
                why=f"opset_import lists {sorted(opsets) or 'nothing'}",
                fix="add an opset_import entry for the domain",
            )
        # Q and DQ of com.microsoft have no schema in the onnx package.
        if (node.domain, node.op_type) in _CONTRIB:
            _check_arity(node, *((2, 3) if "Linear" in node.op_type else (1, 1)), file)
            continue
        version = opset if node.domain in ONNX_DOMAINS else opsets.get(node.domain, 1)
        domain = plain_domain(node.domain)
        schema = schema_of(node.op_type, domain, version)
        if schema is None and rule is not None:
            if rule.pattern is not None:  # another rule counts its operands itself
                least, most, optional = operand_counts(rule.pattern)
                _check_arity(node, least, most, file, optional)
            continue
        if schema is None and not domain and node.op_type in _RUNTIME:
            _check_arity(node, *_RUNTIME[node.op_type], file)
            continue
        if schema is None:
            if not domain:
                unknown.setdefault(node.op_type, []).append(node.name or node.output[0])
            continue
        optional = tuple(i for i, each in enumerate(schema.inputs) if each.option == _OPTIONAL)
        _check_arity(node, schema.min_input, schema.max_input, file, optional)
        _check_variadic(node, schema, file)
        _check_results(node, schema, file)
        _check_attributes(node, schema, file)
        check_inferable(node, file)
    if unknown:
        raise _unknown(unknown, opset, file)


def _unknown(unknown: dict[str, list[str]], opset: int, file: str) -> UnsupportedModelError:
    listed: list[str] = []
    fixes: dict[str, None] = {}
    refused = 0
    for op_type, names in unknown.items():
        known = refusal("ai.onnx", op_type)
        refused += known is not None
        if known is None and is_microsoft(op_type):
            known = Refusal(
                "an operator of the domain com.microsoft",
                f"set the domain of {op_type} to com.microsoft, as onnxruntime requires",
            )
        fixes[_STANDARD if known is None else known.fix] = None
        nodes = f"{len(names)}: {', '.join(names[:3])}{' …' if len(names) > 3 else ''}"
        what = "" if known is None else f": {known.what}"
        listed.append(f"ai.onnx::{op_type} ({nodes}){what}")
    kind = UnsupportedQuantization if refused == len(unknown) else UnsupportedModelError
    return kind(
        f"the model uses {len(unknown)} operator(s) unknown at opset {opset}",
        where=file,
        why="; ".join(listed),
        fix="; ".join(fixes),
    )


def _check_arity(
    node: onnx.NodeProto, least: int, most: int, file: str, optional: tuple[int, ...] = ()
) -> None:
    if not least <= len(node.input) <= most:
        raise InvalidModelError(
            f"{node.op_type} has {len(node.input)} inputs",
            where=f"{file}, {describe(node)}",
            why=f"it takes {least} to {most}",
            fix="export the model again",
        )
    missing = [i for i in range(least) if not node.input[i] and i not in optional]
    if missing:
        raise _lacking(
            node, missing[0], file, "the input's name is empty, and the operator needs it"
        )


def _check_variadic(node: onnx.NodeProto, schema: onnx.defs.OpSchema, file: str) -> None:
    """Refuses an empty name among operands that may be any number: none of them can be left out."""
    last = len(schema.inputs) - 1
    if last >= 0 and schema.inputs[last].option == _VARIADIC:
        for index in range(last, len(node.input)):
            if not node.input[index]:
                raise _lacking(node, index, file, "none of these operands can be left out")


def _lacking(node: onnx.NodeProto, index: int, file: str, why: str) -> InvalidModelError:
    return InvalidModelError(
        f"{node.op_type} lacks input {index}",
        where=f"{file}, {describe(node)}",
        why=why,
        fix="export the model again",
    )


def _check_results(node: onnx.NodeProto, schema: onnx.defs.OpSchema, file: str) -> None:
    if len(node.output) > schema.max_output:
        raise InvalidModelError(
            f"{node.op_type} has {len(node.output)} results",
            where=f"{file}, {describe(node)}",
            why=f"it gives {schema.max_output} at most",
            fix="export the model again",
        )


def _check_attributes(node: onnx.NodeProto, schema: onnx.defs.OpSchema, file: str) -> None:
    given = {attribute.name for attribute in node.attribute}
    for name, attribute in schema.attributes.items():
        if attribute.required and name not in given:
            raise InvalidModelError(
                f"{node.op_type} lacks its attribute '{name}'",
                where=f"{file}, {describe(node)}",
                fix="export the model again",
            )
    for own in node.attribute:
        _check_kind(node, own, schema, file)
        _check_flag(node, own, file)
    if node.op_type in ("QuantizeLinear", "DequantizeLinear"):
        unknown = sorted(given - set(schema.attributes))
        if unknown:
            raise InvalidModelError(
                f"{node.op_type} has no attribute '{unknown[0]}' at this opset",
                where=f"{file}, {describe(node)}",
                why=f"it knows {sorted(schema.attributes) or 'none'}; axis came with opset 13, "
                "output_dtype and block_size with 21",
                fix="declare the opset that the exporter meant",
            )


def _check_kind(
    node: onnx.NodeProto, given: onnx.AttributeProto, schema: onnx.defs.OpSchema, file: str
) -> None:
    attribute = schema.attributes.get(given.name)
    wanted: Any = None if attribute is None else attribute.type  # the stubs know no enum here
    if wanted is not None and given.type != int(wanted.value):
        raise InvalidModelError(
            f"attribute '{given.name}' of {node.op_type} has the wrong type",
            where=f"{file}, {describe(node)}",
            why=f"it is {onnx.AttributeProto.AttributeType.Name(given.type)}, and {node.op_type} "
            f"takes {wanted.name}",
            fix="export the model again",
        )


def _check_flag(node: onnx.NodeProto, given: onnx.AttributeProto, file: str) -> None:
    referred = bool(given.ref_attr_name)
    if given.name in _FLAGS and not referred and given.i not in (0, 1):
        raise InvalidModelError(
            f"attribute '{given.name}' of {node.op_type} is {given.i}",
            where=f"{file}, {describe(node)}",
            why="ONNX says what 0 and 1 mean, and runtimes take other numbers for either",
            fix="set it to 0 or 1, whichever the exporter meant",
        )


# ---- What a node means in one opset, in another one ----------------------------------------------


REDUCTIONS = frozenset(
    ("ReduceL1", "ReduceL2", "ReduceLogSum", "ReduceLogSumExp", "ReduceMax", "ReduceMean",
     "ReduceMin", "ReduceProd", "ReduceSumSquare")
)  # fmt: skip
"""Reductions whose axes became an operand with opset 18."""
AXES_OPERAND = 18
_GRID_MODES = {"bilinear": "linear", "bicubic": "cubic"}
"""What GridSample calls its modes before opset 20, and from then on."""
_MODES_RENAMED = 20
_MORE = {"Mod"}
"""Operators whose later meaning is of what earlier versions refuse: Mod of floats, without fmod."""


def carries_over(op_type: str, version: int, opset: int) -> bool:
    """Returns whether a node of one opset means in another, as it is, what it meant.

    Args:
        op_type: An operator of ONNX's own domain.
        version: The opset it was written for.
        opset: The other one.
    """
    own, other = (schema_of(op_type, "", v) for v in (version, opset))
    if own is None or other is None:
        return opset == version
    if other.deprecated and not own.deprecated:
        return False
    # A later opset whose newest version of the operator is this one changes nothing.
    if own.since_version >= other.since_version:
        return bool(own.since_version == other.since_version)
    return (op_type in _MORE or not changed(own, other)) and _grown(own, other)


def _grown(own: Any, other: Any) -> bool:
    """True where a later version only has more: element types, optional inputs, attributes."""
    for before, after in zip(own.inputs, other.inputs, strict=False):
        if not set(before.types) <= set(after.types):
            return False
        if after.option not in (before.option, _OPTIONAL):
            return False
    if any(each.option != _OPTIONAL for each in other.inputs[len(own.inputs) :]):
        return False
    if len(other.inputs) < len(own.inputs) or len(other.outputs) < len(own.outputs):
        return False
    for name, before in own.attributes.items():
        after = other.attributes.get(name)
        if after is None or after.type != before.type or _default(after) != _default(before):
            return False
    added = set(other.attributes) - set(own.attributes)
    return not any(other.attributes[name].required for name in added)


def _default(attribute: Any) -> bytes:
    return attribute.default_value.SerializeToString()


def can_be_moved(op_type: str, version: int, opset: int) -> bool:
    """Returns whether :func:`moved` gives a node of one opset the form of a later one."""
    if carries_over(op_type, version, opset):
        return True
    if op_type == "GridSample":
        return version < _MODES_RENAMED <= opset
    return version < AXES_OPERAND <= opset and (op_type in REDUCTIONS or op_type == "Split")


def moved(
    node: NodeProto, version: int, opset: int, constant: Callable[[NDArray[Any]], str]
) -> NodeProto:
    """Brings a node of an opset from 13 on, and those in its bodies, into the form of a later one.

    Args:
        node: The node; it is changed.
        version: The opset that it is in.
        opset: A later one, in which it can be said (:func:`can_be_moved`).
        constant: Enters an initializer beside the node; returns its name.
    """
    for attribute in node.attribute:
        for body in bodies(attribute):
            # An initializer of a body may not have the name of a result in it.
            taken = {name for inner in body.node for name in inner.output}

            def enter(array: NDArray[Any], body: Any = body, taken: set[str] = taken) -> str:
                name = f"{body.name}.constant_{len(body.initializer)}"
                while name in taken:
                    name += "_"
                body.initializer.append(numpy_helper.from_array(array, name))
                return name

            for inner in body.node:
                moved(inner, version, opset, enter)
    own = node.domain in ONNX_DOMAINS
    if own and not carries_over(node.op_type, version, opset):
        if node.op_type in REDUCTIONS:
            _with_axes_operand(node, constant)
        elif node.op_type == "Split" and len(node.input) < 2:
            node.attribute.append(helper.make_attribute("num_outputs", len(node.output)))
        elif node.op_type == "GridSample":
            for attribute in node.attribute:
                if attribute.name == "mode":
                    mode = attribute.s.decode()
                    attribute.s = _GRID_MODES.get(mode, mode).encode()
    return node


def with_older_mode(node: NodeProto, rank: int | None) -> NodeProto | None:
    """Returns a GridSample of opset 20 or later as one of opset 16; None where that has none.

    Args:
        node: The operator.
        rank: Of what it samples; before opset 20 these are images.
    """
    if rank != 4:
        return None
    older = NodeProto()
    older.CopyFrom(node)
    mode = next((a for a in older.attribute if a.name == "mode"), None)
    if mode is None:
        mode = older.attribute.add(name="mode", type=onnx.AttributeProto.STRING, s=b"linear")
    modes = {new: old for old, new in _GRID_MODES.items()}
    mode.s = modes.get(mode.s.decode(), mode.s.decode()).encode()
    return older


def _with_axes_operand(node: NodeProto, constant: Callable[[NDArray[Any]], str]) -> None:
    axes = next((a for a in node.attribute if a.name == "axes"), None)
    if axes is not None:
        node.input.append(constant(np.array(axes.ints, np.int64)))
        node.attribute.remove(axes)


def with_axes_attribute(node: NodeProto, axes: NDArray[Any] | None) -> NodeProto | None:
    """Returns a reduction of opset 18 or later as one of opset 13; None where that has none.

    Args:
        node: The reduction.
        axes: The constant that is its second operand; None where it has none.
    """
    given = {a.name: a.i for a in node.attribute}
    if given.get("noop_with_empty_axes") and (axes is None or not axes.size):
        return None
    older = NodeProto()
    older.CopyFrom(node)
    del older.input[1:], older.attribute[:]
    older.attribute.extend(a for a in node.attribute if a.name == "keepdims")
    if axes is not None and axes.size:
        numbers = [int(axis) for axis in axes.reshape(-1)]
        older.attribute.append(helper.make_attribute("axes", numbers))
    return older
