"""The results of a file's nodes: typed by what the nodes compute, never by what the file declares.

People change the batch of an input and leave the rest of a file as it is, so what a file declares
about results decides nothing: where the operators do not tell the rank either, it is kept beside
the type, for hosts that check it when they run. What contradicts the operators is said in a note.
Extents that follow from nothing get names of their own.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import TypeAlias

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TypeProto

from qdqbridge.core.graph.constant import Constant
from qdqbridge.core.graph.dtypes import DType
from qdqbridge.core.graph.graph import Node, Note, Value
from qdqbridge.core.graph.operator import Attributes, Flow, Operator
from qdqbridge.core.graph.symbols import product
from qdqbridge.core.graph.types import Dim, NestedType, Shape, TensorType, ValueType, static_shape
from qdqbridge.core.ops.attributes import (
    ConvAttrs,
    ConvTransposeAttrs,
    ExpandAttrs,
    PoolAttrs,
    ReshapeAttrs,
    ResizeAttrs,
    ShapeAttrs,
    SplitAttrs,
)
from qdqbridge.core.ops.bodies import step_shape
from qdqbridge.core.ops.shape_values import (
    MOST,
    Extents,
    computed_extents,
    counted_extent,
    shape_extents,
    sliced_shape,
)
from qdqbridge.core.ops.shapes import result_shape, windows_shape
from qdqbridge.errors import InvalidModelError, QdqBridgeError
from qdqbridge.onnx_io.codecs.codec import schema_of, schema_type
from qdqbridge.onnx_io.inference.node_types import Extents as Open
from qdqbridge.onnx_io.inference.node_types import (
    Inferred,
    NodeTypes,
    nested_proto,
    nested_type,
    tensor_type,
)
from qdqbridge.onnx_io.inference.shapes import TypeAndShape
from qdqbridge.onnx_io.opaque.nodes import OpaqueAttrs
from qdqbridge.onnx_io.reading.constants import Folding
from qdqbridge.onnx_io.reading.structure import ONNX_DOMAINS, captured_names, describe, plain_domain
from qdqbridge.onnx_io.tensors import dtype_of, dtype_to_onnx, onnx_name

_NUMBERS = (DType.INT64, DType.INT32, DType.BOOL)
_FLOAT_DATA = ("Resize", "Upsample", "Range")
"""Operators whose shape depends on float operands."""
_Origin: TypeAlias = "tuple[Operator, Attributes, Sequence[Value | None], int]"
"""A node's operator, attributes and operands, and the index of a result."""
_LIKELY = (DType.FLOAT32, DType.INT64, DType.INT32, DType.BOOL, DType.UINT8, DType.INT8)
"""What an operator of an unknown domain is taken to make, the first that its readers take."""
_FOLDED = 4096
"""Elements of integers that are folded where a node reads them."""
_LISTED = 5
_COUNTED = ("Range", "ai.onnx::Slice")
"""Opaque operators whose extents follow from the numbers in their operands."""
_AXES = {"ai.onnx::Squeeze": -1, "ai.onnx::Unsqueeze": 1}
"""Opaque operators whose axes only the run knows: what each of them does to the rank."""
_OF_THE_RANK = frozenset(
    ("Pad", "CenterCropPad", "GroupNormalization", "MaxUnpool", "MeanVarianceNormalization")
)
"""Operators of which ONNX infers not even the rank where it does not know an operand."""


class Results:
    """Types results, and follows the numbers in what is computed from shapes.

    Args:
        nodes: The nodes that are read, in their order.
        declared: Element types and shapes that the file declares, by the tensor's name.
        outputs: The names of the file's outputs: what is declared of them is what callers get.
        file: Its name, for messages.
        opset: The version of ONNX's own domain.
        versions: That of every domain.
        ir_version: That of the file.
        folding: Computes what only constants determine.
    """

    def __init__(
        self,
        nodes: Sequence[onnx.NodeProto],
        declared: Mapping[str, TypeAndShape],
        outputs: Collection[str],
        file: str,
        *,
        opset: int,
        versions: Mapping[str, int],
        ir_version: int,
        folding: Folding,
    ) -> None:
        self.file, self.declared, self._nodes = file, declared, nodes
        self._outputs = frozenset(outputs)
        self.opset, self.versions, self._ir_version = opset, versions, ir_version
        self._taken: dict[str, frozenset[str]] | None = None
        self.folding = folding
        self._types: dict[int, NodeTypes] = {}
        self._protos: dict[tuple[DType, Shape], TypeProto] = {}
        self._no_tensors: dict[Value, TypeProto] = {}
        self._extents: dict[Value, Extents] = {}
        self._names: dict[tuple[object, ...], str] = {}

    # ---- types --------------------------------------------------------------------------------

    def of(
        self,
        proto: onnx.NodeProto,
        op: Operator,
        attributes: Attributes,
        operands: Sequence[Value | None],
        values: Mapping[str, Value],
        opset: int = 0,
    ) -> list[Value]:
        """Returns the results of a node, without those that are left out.

        Args:
            proto: The node.
            op: The operator it is read as.
            values: Every tensor that the node can read, by name.
            opset: The version of ONNX's own domain that it is written in; the file's if 0.

        Raises:
            InvalidModelError: The file declares another element type than the node computes.
        """
        given = [values[name] if name else None for name in proto.input]
        outside = {name: values[name] for name in captured_names(proto)}
        captured = {name: self._proto(value) for name, value in outside.items()}
        types = [None if value is None else self._proto(value) for value in given]
        opset = opset or self.opset
        # Nodes that rules have made may be written in another opset than the file.
        if opset not in self._types:
            self._types[opset] = NodeTypes(self.versions, opset, self._ir_version)
        # ONNX's inference is asked about what the graph has, which may be less than what the file
        # says.
        kept = _as_kept(proto, attributes, operands)
        known = {name: v.constant.numpy() for name, v in outside.items()
                 if v.constant is not None and v.constant.size <= MOST and not v.quant}  # fmt: skip
        data = self._data(proto, given)
        inferred = self._types[opset].results(kept, types, data, captured, known)
        # ONNX infers no extent that is computed from shapes, nor follows a name through arithmetic.
        more = self._open_shape(op, attributes, operands) if len(inferred) == 1 else None
        more = more or _ranked(proto, attributes, operands)
        results: list[Value] = []
        where = f"{self.file}, {describe(proto)}"
        for index, (name, known) in enumerate(zip(proto.output, inferred, strict=True)):
            if not name:
                continue
            nested = nested_type(known.proto, where)
            if nested is not None:
                results.append(Value(nested, name))
                continue
            own = self._windows(attributes, operands) or _numbers(op, attributes, operands)
            extents = _merged(own, _merged(known.shape, more))
            shape = self._shape(name, extents, (op, attributes, operands, index))
            dtype = self._dtype(where, name, known, operands)
            value = Value(TensorType(dtype, shape), name)
            # Nothing is decided by what is only declared; hosts that check shapes when they run
            # want it.
            if shape is None and name in self.declared:
                value.declared = self.declared[name][1]
            if known.proto.WhichOneof("value") not in (None, "tensor_type"):
                self._no_tensors[value] = known.proto  # a map
            results.append(value)
        return results

    def _proto(self, value: Value) -> TypeProto:
        if isinstance(value.type, NestedType):
            return nested_proto(value.type)
        if value in self._no_tensors:
            return self._no_tensors[value]
        key = (value.type.dtype, value.type.shape)
        if key not in self._protos:
            self._protos[key] = tensor_type(dtype_to_onnx(key[0]), key[1])
        return self._protos[key]

    def _data(
        self, proto: onnx.NodeProto, operands: Sequence[Value | None]
    ) -> dict[int, NDArray[np.generic]]:
        """Returns the operands that a shape may depend on and that are known, by index."""
        data: dict[int, NDArray[np.generic]] = {}
        for index, value in enumerate(operands):
            if value is None or value.quant or (value.rank or 0) > 1:
                continue
            # A float constant decides no shape elsewhere, and ONNX's inference would copy it.
            if value.type.dtype not in _NUMBERS and proto.op_type not in _FLOAT_DATA:
                continue
            constant = self.constant(value)
            if constant is not None and constant.size <= MOST:
                data[index] = constant.numpy()
        return data

    def _windows(self, attributes: Attributes, operands: Sequence[Value | None]) -> Open | None:
        """Returns the shape of what slides a window; ONNX's inference counts some otherwise.

        Of a Resize, it forgets the names of extents that are kept.
        """
        shapes = [None if value is None else value.type.shape for value in operands]
        data = shapes[0] if shapes else None
        if isinstance(attributes, ResizeAttrs) and data is not None and not attributes.roi:
            scales = attributes.scales or (0.0,) * len(data)
            return tuple(d if scale == 1 else None for d, scale in zip(data, scales, strict=True))
        if isinstance(attributes, PoolAttrs) and data is not None and len(data) > 1:
            return windows_shape(attributes, data, attributes.kernel_shape, data[1])
        if not isinstance(attributes, ConvAttrs | ConvTransposeAttrs) or shapes[1] is None:
            return None
        kernel = tuple(dim if isinstance(dim, int) else None for dim in shapes[1][2:])
        channels: Dim | None = shapes[1][0]
        if isinstance(attributes, ConvTransposeAttrs):
            channels = product([shapes[1][1], attributes.group])
        return windows_shape(attributes, data, kernel, channels)

    def _open_shape(
        self, op: Operator, attributes: Attributes, operands: Sequence[Value | None]
    ) -> Open | None:
        shapes = [None if value is None else value.type.shape for value in operands]
        target = None
        if isinstance(attributes, ReshapeAttrs | ExpandAttrs) and len(operands) > 1:
            target = self.numbers(operands[1])
        elif op.name == "ConstantOfShape":
            numbers = self.numbers(operands[0])
            return None if numbers is None else tuple(numbers)
        elif op.name.rpartition("::")[2] == "Flatten" and shapes[0] is None:
            return (None, None)  # a matrix, of whatever rank the operand is
        elif op.name in _COUNTED:
            return self._counted_shape(op.name, shapes[0], operands)
        elif op.name in _AXES and len(shapes) > 1:
            return _reranked(shapes[0], shapes[1], _AXES[op.name])
        if op.body is not None:
            return step_shape(op, attributes, shapes)
        return result_shape(op.name, attributes, shapes, target)

    def _counted_shape(
        self, name: str, shape: Shape, operands: Sequence[Value | None]
    ) -> Open | None:
        """Returns what a Range or a Slice makes whose bounds are computed from shapes."""
        if name != "Range":
            return sliced_shape(shape, [self.numbers(value) for value in operands[1:]])
        start, limit, step = (self.numbers(value) for value in operands)
        if start is None or limit is None or step != [1]:
            return None
        return (counted_extent(start[0], limit[0]),)

    def _shape(self, name: str, known: Open | None, origin: _Origin) -> Shape:
        """Returns a shape in which every open extent has a name."""
        if known is None:
            return None
        known = tuple(None if isinstance(dim, int) and dim < 0 else dim for dim in known)
        # Extents that are computed equally get one name: equal operators of one operand have one
        # shape.
        key = _origin(name, *origin) if None in known else ()
        return tuple(
            self._name((*key, axis)) if dim is None else dim for axis, dim in enumerate(known)
        )

    def _name(self, key: tuple[object, ...]) -> str:
        """Returns a name for an extent that nobody named; one for what is computed equally."""
        return self._names.setdefault(key, f"?r{len(self._names)}")

    def _dtype(
        self, where: str, name: str, known: Inferred, operands: Sequence[Value | None]
    ) -> DType:
        declared, _ = self.declared.get(name, (0, None))
        floats = {_real_dtype(value) for value in operands if value is not None} - {None}
        # What is declared inside is stale in what tools converted, TensorRT does not look at it and
        # operators decide, as of shapes; but of an output it is what callers were promised, and
        # operands of several types leave nothing to go by.
        if (
            known.element
            and declared
            and declared != known.element
            and (name in self._outputs or len(floats) > 1)
        ):
            made, said = (dtype_of(code, where) for code in (known.element, declared))
            mixed = f" of {' and '.join(sorted(map(str, floats)))}" if len(floats) > 1 else ""
            raise InvalidModelError(
                "a result is declared with another element type than it has",
                where=where,
                why=f"'{name}' is declared {said}, and the operator makes {made}{mixed}",
                fix="correct the declared type, or remove it from the file",
            )
        if known.element or declared:
            return dtype_of(known.element or declared, f"{self.file}, tensor '{name}'")
        first = next((v for v in operands if v is not None), None)
        guess = DType.FLOAT32 if first is None or first.quant else first.type.dtype
        # Only an operator that nobody knows comes here: what reads its result says what that may
        # be.
        taken = self._taken_types().get(name)
        if not taken or f"tensor({onnx_name(guess)})" in taken:
            return guess
        fitting = (dtype for dtype in _LIKELY if f"tensor({onnx_name(dtype)})" in taken)
        return next(fitting, guess)

    def _taken_types(self) -> Mapping[str, frozenset[str]]:
        """Returns the element types that all readers of a tensor take, by its name.

        Only they say what an operator makes that nobody knows.
        """
        if self._taken is None:
            self._taken = {}
            for node in self._nodes:
                domain = plain_domain(node.domain)
                version = self.versions.get(domain, 1) if domain else self.opset
                schema = schema_of(node.op_type, domain, version)
                formals = () if schema is None else schema.inputs
                for name, formal in zip(node.input, formals, strict=False):
                    types = frozenset(formal.types)
                    self._taken[name] = self._taken.get(name, types) & types
        return self._taken

    def _told(self, declared: TypeAndShape, made: ValueType) -> str:
        """Returns how a declared type is not the one that is made; empty where it is."""
        element, shape = declared
        if _contradicts(shape, made.shape):
            return f"{_format_shape(shape)}, and its operators make {_format_shape(made.shape)}"
        if type(made) is TensorType and element not in (0, dtype_to_onnx(made.dtype)):
            return f"{dtype_of(element, self.file)}, and its operators make {made.dtype}"
        return ""

    def contradictions(self, values: Mapping[str, Value]) -> list[Note]:
        """Returns a note of the declared types that are not those which the operators make."""
        stale = {
            name: self._told(declared, values[name].type)
            for name, declared in self.declared.items()
            if name in values and self._told(declared, values[name].type)
        }
        if not stale:
            return []
        first, told = next(iter(stale.items()))
        others = f", and so are {len(stale) - 1} more" if len(stale) > 1 else ""
        reason = f"'{first}' is declared {told}{others}; what they make counts"
        producer = values[first].producer
        node = first if producer is None else producer.name
        return [Note("stale-shape", node, reason, tuple(stale)[:_LISTED])]

    # ---- numbers ------------------------------------------------------------------------------

    def learn(self, node: Node) -> dict[Value, Value]:
        """Follows the numbers through a node.

        Returns:
            The constants to read in the place of its results, where extents determine these.
        """
        found = self._counted(node)
        for value, extents in zip(node.outputs, self._computed(node), strict=False):
            shape = value.type.shape
            if extents is None or shape is None or len(shape) > 1:
                continue
            # The inferred shape is another one: one of the two is wrong, and numbers would decide
            # shapes.
            if (static_shape(shape) or (1,)) != (len(extents),):
                continue
            if any(isinstance(dim, str) for dim in extents):
                self._extents[value] = extents
                continue
            array = np.array(extents, np.int64).astype(value.type.dtype.numpy)
            constant = Constant.of(array.reshape((len(extents),) if shape else ()))
            found[value] = Value(
                TensorType(value.type.dtype, constant.shape), value.name, constant=constant
            )
        return found

    def _counted(self, node: Node) -> dict[Value, Value]:
        """Returns results whose extents only the numbers of constants say, as constants."""
        found: dict[Value, Value] = {}
        if not isinstance(node.attributes, OpaqueAttrs) or node.attributes.domain:
            return found
        for value in node.outputs:
            nested = isinstance(value.type, NestedType)
            if nested or static_shape(value.type.shape) is not None or value.type.dtype.is_float:
                continue
            constant = self.constant(value)
            if constant is not None and constant.size <= _FOLDED:
                type_ = TensorType(value.type.dtype, constant.shape)
                found[value] = Value(type_, value.name, constant=constant)
        return found

    def _computed(self, node: Node) -> list[Extents | None]:
        if node.output.type.dtype not in _NUMBERS or node.output.quant is not None:
            return []
        attributes, name = node.attributes, node.op.name.rpartition("::")[2]
        if isinstance(attributes, OpaqueAttrs) and attributes.domain:
            return []
        if isinstance(attributes, ShapeAttrs):
            return [shape_extents(attributes, node.operand(0).type.shape)]
        if name == "Size":
            count = product(node.operand(0).type.shape or (None,))
            return [None if count is None else [count]]
        if (node.output.rank or 0) > 1:
            return []
        parts = [self.numbers(value) for value in node.inputs]
        if isinstance(attributes, SplitAttrs) and parts[0] is not None:
            ends = np.cumsum(attributes.sizes)
            rows = zip(ends, attributes.sizes, strict=True)
            return [parts[0][end - size : end] for end, size in rows]
        return [computed_extents(name, attributes, parts)]

    def numbers(self, value: Value | None) -> Extents | None:
        """Returns the elements of a small integer vector or scalar; extents may be names."""
        if value is None or value.quant or value.type.dtype not in _NUMBERS:
            return None
        if value in self._extents:
            return self._extents[value]
        if (value.rank or 0) > 1:
            return None
        constant = self.constant(value)
        if constant is None or constant.size > MOST:
            return None
        return [int(number) for number in constant.numpy().reshape(-1)]

    def folded(self, value: Value) -> Value:
        """Returns a constant in the place of integers that constants determine."""
        if value.producer is None or value.quant or value.type.dtype not in _NUMBERS:
            return value
        constant = self.constant(value)
        if constant is None or constant.size > _FOLDED:
            return value
        return Value(TensorType(constant.dtype, constant.shape), value.name, constant=constant)

    def constant(self, value: Value) -> Constant | None:
        """Returns the data of what only constants determine, None where it cannot be computed."""
        try:
            return self.folding.constant(value)
        except QdqBridgeError:  # whoever has to have the numbers says why there are none
            return None


def _ranked(
    proto: onnx.NodeProto, attributes: Attributes, operands: Sequence[Value | None]
) -> Open | None:
    """Returns what ONNX does not infer of an operator whose operands only the run knows."""
    shape = operands[0].type.shape if operands and operands[0] is not None else None
    if shape is None or not isinstance(attributes, OpaqueAttrs) or attributes.domain:
        return None
    given = {each.name: each.i for each in proto.attribute}
    if proto.op_type == "Split":
        axis = given.get("axis", 0) % max(len(shape), 1)
        return tuple(None if index == axis else dim for index, dim in enumerate(shape))
    if proto.op_type == "GatherND":  # of a scalar it says nothing
        index = operands[1].type.shape if operands[1] is not None else None
        if not index or not isinstance(index[-1], int):
            return None
        return (*index[:-1], *shape[given.get("batch_dims", 0) + index[-1] :])
    kept = proto.op_type.startswith("Reduce") and given.get("keepdims", 1)
    return (None,) * len(shape) if kept or proto.op_type in _OF_THE_RANK else None


def _origin(
    name: str,
    op: Operator,
    attributes: Attributes,
    operands: Sequence[Value | None],
    index: int,
) -> tuple[object, ...]:
    """Returns what an open extent is known by: how it is computed, or the name of its tensor."""
    run_time = isinstance(attributes, ReshapeAttrs | ExpandAttrs) and attributes.shape is None
    if (
        run_time
        or isinstance(attributes, OpaqueAttrs)
        or any(value is not None and value.type.shape is None for value in operands)
    ):
        return (name,)
    shapes = tuple(None if value is None else value.type.shape for value in operands)
    return (op.name, attributes, shapes, index)


def _merged(known: Open | None, more: Open | None) -> Open | None:
    if known is None:
        return more
    if more is None or len(known) != len(more):
        return known
    return tuple(b if a is None else a for a, b in zip(known, more, strict=True))


def _real_dtype(value: Value) -> DType | None:
    """Returns the float type of a value, None for one of integers."""
    dtype = value.type.dtype if value.quant is None else value.quant.params.expressed_dtype
    return dtype if dtype.is_float else None


def _numbers(op: Operator, attributes: Attributes, operands: Sequence[Value | None]) -> Open | None:
    """Returns the extents that are numbers of what broadcasts operands that may change places.

    ONNX's inference of an old opset gives the names that the first operand has.
    """
    shapes = [value.type.shape for value in operands if value is not None]
    if op.commuting < 2 or len(shapes) < 2 or None in shapes:
        return None
    found = step_shape(op, attributes, shapes)
    return found and tuple(dim if isinstance(dim, int) else None for dim in found)


def _as_kept(
    proto: onnx.NodeProto, attributes: Attributes, operands: Sequence[Value | None]
) -> onnx.NodeProto:
    """Returns a node without the extents of a kernel whose weight leaves them open.

    Its row keeps what the weight says: else no file that is written of it has the same shapes.
    """
    if not isinstance(attributes, ConvAttrs | ConvTransposeAttrs):
        return proto
    weight = operands[1].type.shape if len(operands) > 1 and operands[1] is not None else None
    if weight is not None and all(isinstance(dim, int) for dim in weight[2:]):
        return proto
    kept = onnx.NodeProto()
    kept.CopyFrom(proto)
    del kept.attribute[:]
    kept.attribute.extend(a for a in proto.attribute if a.name != "kernel_shape")
    return kept


def _reranked(shape: Shape, axes: Shape, sign: int) -> Open | None:
    """Returns open extents, as many as are left where each axis takes one away or adds one."""
    if shape is None or axes is None or len(axes) != 1 or not isinstance(axes[0], int):
        return None
    return (None,) * max(len(shape) + sign * axes[0], 0)


def _contradicts(declared: Shape, made: Shape) -> bool:
    """True where a declared extent is a number and not the one that is made, or the rank differs.

    A name of the reader's own is none that anything contradicts.
    """
    if declared is None or made is None:
        return False
    return len(declared) != len(made) or any(
        isinstance(a, int) and a != b and not (isinstance(b, str) and b.startswith("?"))
        for a, b in zip(declared, made, strict=True)
    )


def _format_shape(shape: Shape) -> str:
    dims = (
        "?" if isinstance(dim, str) and dim.startswith("?") else str(dim) for dim in shape or ()
    )
    return f"[{', '.join(dims)}]"


# ---- What a file declares about its tensors, against what its operators make of them -------------


def check_moved(
    op: Operator, operands: Sequence[Value | None], results: Sequence[Value], where: str
) -> None:
    """Checks that a data-movement operator has one element type.

    Args:
        op: Any operator.
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
