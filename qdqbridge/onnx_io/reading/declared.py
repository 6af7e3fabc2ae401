"""What a file declares about its tensors, against what its operators make of them."""

from __future__ import annotations

from collections.abc import Sequence

import onnx

from qdqbridge.core.graph.dtypes import DType
from qdqbridge.core.graph.graph import Value
from qdqbridge.core.graph.operator import Flow, Operator
from qdqbridge.errors import InvalidModelError
from qdqbridge.onnx_io.codecs.schema import schema_of, schema_type
from qdqbridge.onnx_io.domains import ONNX_DOMAINS, plain_domain


def check_moved(
    op: Operator, operands: Sequence[Value | None], results: Sequence[Value], where: str
) -> None:
    """Checks that a data-movement operator has one element type.

    Args:
        op: Any operator.
        operands: Its operands.
        results: Its results, typed as the file declares them.
        where: File and node, for messages.

    Raises:
        InvalidModelError: A result is declared to be of another type than what is moved.
    """
    first = next((v for i, v in enumerate(operands) if v is not None and op.is_data(i)), None)
    if first is None or op.flow is not Flow.MOVE:
        return
    for result in results:
        if result.type.dtype is not first.type.dtype:
            raise InvalidModelError(
                f"{op.name} would change an element type",
                where=where,
                why=f"'{first.name}' is {first.type.dtype}, and '{result.name}' is declared "
                f"{result.type.dtype}",
                fix="correct the declared type, or remove it from the file",
            )


def check_quantizes(domain: str, storage: DType, where: str) -> None:
    """Checks that ONNX's QuantizeLinear has the storage type; int32 is for stored biases only.

    Raises:
        InvalidModelError: The zero point, or ``output_dtype``, says int32 (idiom L7).
    """
    if storage is DType.INT32 and domain in ONNX_DOMAINS:
        raise InvalidModelError(
            "QuantizeLinear to int32 does not exist",
            where=where,
            why="its zero point is int32",
            fix="give the zero point an integer type of 16 bits or fewer",
        )


def check_operand_types(
    proto: onnx.NodeProto, opset: int, operands: Sequence[Value | None], where: str
) -> None:
    """Checks the graph inputs and constants that a node without a row reads, by ONNX's schema.

    What other nodes make is left out: its declared type may be a guess.

    Raises:
        InvalidModelError: The operator does not take an operand's element type, or wants operands
            of one type that have two.
    """
    schema = schema_of(proto.op_type, plain_domain(proto.domain), opset)
    bound: dict[str, str] = {}
    for value, formal in zip(operands, schema.inputs if schema is not None else (), strict=False):
        if value is None or value.producer is not None:
            continue
        type_ = schema_type(value.type)
        if type_ not in formal.types or bound.setdefault(formal.type_str, type_) != type_:
            raise InvalidModelError(
                f"{proto.op_type} does not take these element types",
                where=where,
                why=f"input '{value.name}' ({formal.name}) is {type_}; it may be "
                f"{bound.get(formal.type_str) or ', '.join(sorted(formal.types))}",
                fix="cast the operand, or correct its declared type",
            )
