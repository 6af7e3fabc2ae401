"""Which operators a file may use: ONNX's own as its schemas say, and any of every other domain."""

from __future__ import annotations

from typing import Any

import onnx

from qdqbridge.core.graph.patterns import operand_counts
from qdqbridge.errors import InvalidModelError, UnsupportedModelError, UnsupportedQuantization
from qdqbridge.onnx_io.codecs.schema import schema_of
from qdqbridge.onnx_io.domains import ONNX_DOMAINS, plain_domain
from qdqbridge.onnx_io.inference.guarded import check_inferable
from qdqbridge.onnx_io.lowering.context import file_operator
from qdqbridge.onnx_io.lowering.refusals import Refusal, refusal
from qdqbridge.onnx_io.lowering.rules import encoding_of, is_microsoft
from qdqbridge.onnx_io.reading.model_file import default_opset
from qdqbridge.onnx_io.reading.structure import all_nodes, describe

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
