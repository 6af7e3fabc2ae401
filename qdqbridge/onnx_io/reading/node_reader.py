"""The nodes of an ONNX file, one after another, as nodes of a raw graph.

QuantizeLinear and DequantizeLinear become ``quantize`` and ``dequantize`` nodes between plain and
quantized values. What has no row is an opaque node, in the terms of a newer opset where there
are some.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence, Set
from pathlib import Path

import onnx

from qdqbridge.control_characters import visible
from qdqbridge.core.graph.constant import Constant
from qdqbridge.core.graph.dtypes import DType
from qdqbridge.core.graph.graph import Node, Note, Origin, Value
from qdqbridge.core.graph.operator import NO_ATTRIBUTES, Flow, Operator
from qdqbridge.core.graph.types import QuantParams, QuantType, TensorType
from qdqbridge.core.ops.attributes import ClipAttrs, GemmAttrs, LinearAttrs, QuantizeAttrs
from qdqbridge.core.ops.conversion import DEQUANTIZE, QUANTIZE, REINTERPRET, REQUANTIZE
from qdqbridge.core.ops.data_movement import IDENTITY
from qdqbridge.core.ops.elementwise import CONCAT
from qdqbridge.core.ops.table import BY_NAME
from qdqbridge.core.rewrite import Growing, Reject, Replace
from qdqbridge.errors import InvalidModelError
from qdqbridge.onnx_io.codecs import decode
from qdqbridge.onnx_io.codecs.codec import check_nested, schema_of
from qdqbridge.onnx_io.codecs.view import NodeView
from qdqbridge.onnx_io.control_flow.body_form import with_plain_bodies
from qdqbridge.onnx_io.control_flow.branches import taken_branch
from qdqbridge.onnx_io.lowering.context import NoNewForm, file_node, file_operator
from qdqbridge.onnx_io.lowering.rules import ENCODINGS, refusal
from qdqbridge.onnx_io.opaque.operators import opaque_node
from qdqbridge.onnx_io.opaque.versions import with_older_reductions
from qdqbridge.onnx_io.reading.constants import constant_of_node, constant_value, is_constant
from qdqbridge.onnx_io.reading.older_operators import older_form, renew_bodies
from qdqbridge.onnx_io.reading.operators_known import (
    AXES_OPERAND,
    REDUCTIONS,
    with_axes_attribute,
    with_older_mode,
)
from qdqbridge.onnx_io.reading.qdq import encoding_of, params_of, remarks
from qdqbridge.onnx_io.reading.results import Results, check_moved, check_quantizes
from qdqbridge.onnx_io.reading.structure import (
    ONNX_DOMAINS,
    all_nodes,
    captured_names,
    describe,
    plain_domain,
)
from qdqbridge.onnx_io.runtime.operators import BEFORE, OWN_GELU
from qdqbridge.onnx_io.tensors import dtype_of, embed_external_data, onnx_name

log = logging.getLogger(__name__)
_ENCODINGS = Growing(ENCODINGS)
_LISTED = 5
_LAYER_NORM = 17
"""The opset since which LayerNormalization is ONNX's own."""
_MOD_OF_FLOATS = 28
"""The opset since which Mod without ``fmod`` takes floats."""
_Q_DOMAINS = (*ONNX_DOMAINS, "com.microsoft")
_MODE_BY_RESULTS = frozenset({"BatchNormalization"})
"""What has all of its results in training mode; before opset 14, to have them means that mode."""
_KEEPS = (
    ("", "Attention"), ("com.microsoft", "GroupQueryAttention"),
    ("com.microsoft", "MultiHeadAttention"),
)  # fmt: skip
"""What gives the keys and values for the next step as results 1 and 2: both of them, or none."""


class NodeReader:
    """Reads nodes in their order.

    Args:
        path: The file; external data lies in its folder.
        outputs: Names of the graph's outputs.
        values: The graph's inputs and constants by name; the results of nodes are entered.
        results: Types the results.
        unread: What nothing needs although nodes read it.

    Attributes:
        nodes: What was read.
        notes: What somebody should know about it.
        kept: The same of nodes that stay as they are though others of their kind are rewritten.
        optional: The results that are kept and may be left out where nothing reads them.
    """

    def __init__(
        self,
        path: Path,
        protos: Sequence[onnx.NodeProto],
        outputs: Iterable[str],
        values: dict[str, Value],
        results: Results,
        unread: Set[str] = frozenset(),
    ) -> None:
        self.path, self.file, self.protos = path, str(path), protos
        self.values, self.results = values, results
        self.variants: dict[str, str] = {}
        self.kept: list[Note] = []
        self.folding = results.folding
        self.opset, self.versions = results.opset, results.versions
        self.nodes: list[Node] = []
        self.notes: list[Note] = []
        self.noted: set[tuple[str, str]] = set()
        self.unknown: dict[tuple[str, str], list[str]] = {}
        self.quantized_constants: dict[tuple[Value, QuantParams], Value] = {}
        self.params: dict[tuple[object, ...], QuantParams] = {}
        self.taken: set[str] = set()
        self._names: set[str] = set()
        self.wanted = {name for node in protos for name in node.input}
        self.wanted |= {name for node in protos for name in captured_names(node)}
        self.wanted |= set(outputs)
        self.unread = unread
        self.wanted -= unread
        self.optional: set[str] = set()

    def unknown_operators(self) -> list[Note]:
        """Returns a note for each operator that ONNX does not define and that has no row here."""
        return [_opaque_note(*key, names) for key, names in self.unknown.items()]

    def read(self, proto: onnx.NodeProto, opset: int = 0) -> None:
        """Reads a node of any operator; ``opset`` is the file's unless it is given."""
        if not self._rewritten(proto):
            self._read(proto, opset)

    def _rewritten(self, proto: onnx.NodeProto) -> bool:
        """Reads what stands for a node of another encoding; False where nothing does."""
        name = file_operator(proto)
        if not _ENCODINGS.looks_at(name):
            return False
        named = list(proto.output)
        operands = [self._operand(each) for each in proto.input]
        if proto.domain in ONNX_DOMAINS and len(named) > 1:
            self._drop_unread(proto)
        if any(proto.output):
            view = self._view(proto, operands)
            if not self.unread.isdisjoint(named):
                self._type_unread(proto, named, operands, view)
            found = _ENCODINGS.proposal(file_node(proto, view.opset, operands, self))
            if isinstance(found, Reject):
                self.kept.append(Note("opaque-operator", view.name, found.reason, (view.name,)))
            if not isinstance(found, Replace):
                proto.output[:] = named
                return False
            self.values |= {old.name: new for old, new in found.values.items()}
        return True

    # ---- what rules make in the place of a node -----------------------------------------------

    def make(self, proto: onnx.NodeProto, opset: int, variant: str) -> list[Value]:
        """Reads a node that stands for one of the file and returns its results."""
        names = [name for name in proto.output if name]
        self.wanted.update(names)
        if variant:
            self.variants[names[0]] = variant
        self._read(proto, opset, made=True)
        return [self.values[name] for name in names]

    def enter(self, constant: Constant, name: str) -> Value:
        """Returns a new constant."""
        self.values[name] = constant_value(constant, name)
        return self.values[name]

    def named(self, value: Value) -> str:
        """Returns a name under which nodes read a value."""
        if self.values.get(value.name) is value:
            return value.name
        name = self.fresh(value.name)
        self.values[name] = value
        return name

    def known(self, value: Value) -> Constant | None:
        """Returns the data of what only constants determine."""
        return self.results.constant(value)

    def is_constant(self, value: Value) -> bool:
        """Returns whether only constants determine a value."""
        return self.folding.is_fixed(value)

    # ---- nodes ----------------------------------------------------------------------------------

    def _read(self, proto: onnx.NodeProto, opset: int = 0, *, made: bool = False) -> None:
        if is_constant(proto):
            self._constant(proto)
        elif proto.op_type == "QuantizeLinear" and proto.domain in _Q_DOMAINS:
            self._quantize(proto)
        elif proto.op_type == "DequantizeLinear" and proto.domain in _Q_DOMAINS:
            self._dequantize(proto)
        else:
            self._compute(proto, opset, made=made)

    def _constant(self, proto: onnx.NodeProto) -> None:
        """Reads what was not read with the initializers: a part of an operator's new form."""
        name = proto.output[0]
        if name not in self.values:
            where = f"{self.file}, {describe(proto)}"
            constant = constant_of_node(proto, self.path.parent, where)
            self.values[name] = constant_value(constant, name)

    def _view(
        self, proto: onnx.NodeProto, operands: Sequence[Value | None], opset: int = 0
    ) -> NodeView:
        if proto.domain in ONNX_DOMAINS:
            opset = opset or self.opset
        else:
            opset = self.versions.get(proto.domain, self.opset)
        view = NodeView(proto, opset, list(operands), self.file, self.folding)
        check_nested(view)
        return view

    def _take_branch(self, proto: onnx.NodeProto) -> bool:
        """Reads the branch of an If whose condition follows from constants and known extents."""
        if proto.op_type != "If" or proto.domain not in ONNX_DOMAINS:
            return False
        condition = self.results.folded(self.values[proto.input[0]]).constant
        if condition is None:
            return False
        if not self._names:
            self._names |= {name for node in self.protos for name in node.output}
            self._names |= set(self.values)
        nodes = taken_branch(proto, bool(condition.numpy().all()), self._names)
        for node in nodes:
            self.wanted |= {*node.input, *captured_names(node)}
        for node in nodes:
            self.read(node)
        return True

    def _compute(self, proto: onnx.NodeProto, opset: int = 0, *, made: bool = False) -> None:
        if self._take_branch(proto):
            return
        named = list(proto.output)
        if len(proto.output) > 1 and not made:
            self._drop_unread(proto)
            if not any(proto.output):
                return
        embed_external_data(proto, self.path.parent, f"{self.file}, {describe(proto)}")
        operands = self._stored_operands(proto, self._operands(proto))
        if operands is None:
            return
        view = self._view(proto, operands, opset)
        if not self.unread.isdisjoint(named):
            self._type_unread(proto, named, operands, view)
        decoded = decode(view)
        if decoded is None:
            if not view.domain and self._renewed(proto, view):
                return
            if view.domain:  # who has the operator may want all results to be there
                proto.output[:] = named
            operands = self._plain_operands(operands)
            proto, operands = self._older(proto, operands, view)
            proto = with_plain_bodies(proto, f"{self.file}, {describe(proto)}")
            names = captured_names(proto)
            captured = [self._plain(self.values[name]) for name in names]
            outer = dict(zip(names, captured, strict=True))
            older = with_older_reductions(proto, view.opset, operands, outer)
            if older is not None:
                proto, view.opset = older, AXES_OPERAND - 1
                captured = [outer[name] for name in captured_names(proto)]
            found = opaque_node(proto, view.opset, operands, captured, self.file)
            op, attributes, operands = found
            if view.domain and schema_of(view.op_type, view.domain, view.opset) is None:
                self.unknown.setdefault((view.domain, view.op_type), []).append(view.name)
        else:
            op, attributes = BY_NAME[decoded.op_name], decoded.attributes
            operands = list(decoded.operands)
        if op is IDENTITY and operands[0] is not None:
            if operands[0].declared is None:  # what is declared of its copy holds for it
                operands[0].declared = self.results.declared.get(proto.output[0], (0, None))[1]
            self.values[proto.output[0]] = operands[0]
            return
        opset = self.opset if view.domain else view.opset
        results = self.results.of(proto, op, attributes, operands, self.values, opset)
        check_moved(op, operands, results, f"{self.file}, {describe(proto)}")
        self._type_moved(op, operands, results)
        node = self._add(op, attributes, operands, results, proto)
        for value, constant in self.results.learn(node).items():
            self.values[value.name] = constant

    def _type_unread(
        self,
        proto: onnx.NodeProto,
        named: Sequence[str],
        operands: Sequence[Value | None],
        view: NodeView,
    ) -> None:
        """Enters results that are left out, which nodes that nothing needs read."""
        whole = onnx.NodeProto()
        whole.CopyFrom(proto)
        whole.output[:] = named
        operands = self._plain_operands(operands)
        captured = [self._plain(self.values[name]) for name in captured_names(proto)]
        op, attributes, operands = opaque_node(whole, view.opset, operands, captured, self.file)
        opset = self.opset if view.domain else view.opset
        made = self.results.of(whole, op, attributes, operands, self.values, opset)
        for value in made:
            if value.name in self.unread:
                self.values.setdefault(value.name, value)

    def _drop_unread(self, proto: onnx.NodeProto) -> None:
        """Forgets results that nobody reads and that may be left out, such as a Dropout's mask."""
        own = proto.domain in ONNX_DOMAINS
        if own and proto.op_type in _MODE_BY_RESULTS:
            return
        schema = schema_of(proto.op_type, "", self.opset) if own else None
        optional = onnx.defs.OpSchema.FormalParameterOption.Optional
        if own and proto.op_type == "Split":  # the number of its parts has a meaning
            for index, name in enumerate(proto.output):
                proto.output[index] = name or self.fresh("Split_unread", numbered=True)
        kept: list[str] = []
        if (plain_domain(proto.domain), proto.op_type) in _KEEPS:
            kept = [name for name in proto.output[1:3] if name]
            if self.wanted.isdisjoint(kept):
                kept = []
            else:
                proto.output.extend([""] * (3 - len(proto.output)))
                kept = [name or self.fresh("unread", numbered=True) for name in proto.output[1:3]]
                proto.output[1:3] = kept
        for index, name in enumerate(proto.output):
            # The number of a variadic operator's results (Split, Loop) has a meaning.
            left_out = schema is None or (
                index < len(schema.outputs) and schema.outputs[index].option == optional
            )
            if index and left_out and name:
                if name in self.wanted:
                    self.optional.add(name)
                elif name not in kept:
                    proto.output[index] = ""
        while len(proto.output) > 1 and not proto.output[-1]:
            proto.output.pop()

    def _operand(self, name: str) -> Value | None:
        return self.values[name] if name else None

    def _operands(self, proto: onnx.NodeProto) -> list[Value | None]:
        """Returns the operands of a node; integers that constants determine are constants."""
        operands = [self._operand(name) for name in proto.input]
        return [None if value is None else self.results.folded(value) for value in operands]

    def _older(
        self, proto: onnx.NodeProto, operands: list[Value | None], view: NodeView
    ) -> tuple[onnx.NodeProto, list[Value | None]]:
        """Returns an opaque node as an older opset has it, where later ones only say it otherwise.

        These are reductions by constant axes, GridSample, and Mod of integers or with ``fmod``.
        """
        if (view.domain, view.op_type) == ("", "Mod") and view.opset >= _MOD_OF_FLOATS:
            # Without fmod, Mod of floats is new in opset 28: all others mean what they meant
            # before.
            floats = view.operand(0).type.dtype.is_float and not view.int_("fmod", 0)
            view.opset = view.opset if floats else _MOD_OF_FLOATS - 1
            return proto, operands
        if (view.domain, view.op_type) == ("", "GridSample") and view.opset >= 20:
            older = with_older_mode(proto, view.operand(0).rank)
            view.opset = view.opset if older is None else 16
            return older or proto, operands
        if view.op_type not in REDUCTIONS or view.domain or view.opset < AXES_OPERAND:
            return proto, operands
        axes = view.optional(1)
        known = None if axes is None else self.folding.constant(axes)
        x = view.operand(0).type.dtype
        old = schema_of(view.op_type, "", 13)
        # A type that only the newer version has cannot be said in the older one.
        taken = old is not None and f"tensor({onnx_name(x)})" in old.inputs[0].types
        if (axes is not None and known is None) or not taken:
            return proto, operands
        older = with_axes_attribute(proto, None if known is None else known.numpy())
        if older is None:
            return proto, operands
        view.opset = 13
        return older, operands[:1]

    def _renewed(self, proto: onnx.NodeProto, view: NodeView) -> bool:
        """Reads what stands for a node of an older opset; False where it is right as it is."""
        try:
            new = renew_bodies(proto, view.opset, lambda hint: self.fresh(hint, numbered=True))
        except NoNewForm as reason:
            log.debug("%s is kept as it is: %s", visible(describe(proto)), visible(str(reason)))
            return False
        operands = [self._operand(name) for name in proto.input]
        found = older_form(proto, view.opset, operands, self, new)
        if isinstance(found, Replace):
            self.values |= {old.name: made for old, made in found.values.items()}
            return True
        if found is None:
            view.opset = new
        else:
            log.debug("%s is kept as it is: %s", *map(visible, (describe(proto), found.reason)))
        return False

    def fresh(self, hint: str, *, numbered: bool = False) -> str:
        """Returns a tensor name that nothing has: the hint, or with a number behind it."""
        if not self.taken:
            self.taken |= {name for node in all_nodes(self.protos) for name in node.output}
            self.taken |= set(self.values)
        name, number = f"{hint}.1" if numbered else hint, 1
        while name in self.taken:
            number += 1
            name = f"{hint}.{number}"
        self.taken.add(name)
        return name

    def _stored_operands(
        self, proto: onnx.NodeProto, operands: list[Value | None]
    ) -> list[Value | None] | None:
        """Operators that work on stored integers between a Q and a DQ (idioms A16, A19, G10)."""
        first = operands[0] if operands else None
        quants = [v.quant.params for v in operands if v is not None and v.quant]
        if not quants:
            return operands
        if first is not None and first.quant and proto.op_type in ("Clip", "Relu"):
            bounds = self._stored_bounds(proto, operands) if quants[0].per_tensor else None
            if bounds is None:
                return self._plain_operands(operands)
            self._stored_clip(proto, first, *bounds)
            return None
        if first is not None and first.quant and proto.op_type == "Cast":
            to = next(a.i for a in proto.attribute if a.name == "to")
            # A Cast to the type that it has changes nothing; other Casts turn stored integers into
            # numbers.
            if dtype_of(to, self.file) is first.type.dtype:
                self.values[proto.output[0]] = first
                return None
        row = BY_NAME.get(proto.op_type)
        moves = row is CONCAT or (row is not None and row.flow is Flow.MOVE)
        # Joined codes keep one meaning only if all of them have the same parameters.
        alike = row is not CONCAT or (len(quants) == len(operands) and len(set(quants)) == 1)
        if moves and alike and quants[0].per_tensor:
            return operands
        return self._plain_operands(operands)

    def _plain_operands(self, operands: Sequence[Value | None]) -> list[Value | None]:
        return [None if value is None else self._plain(value) for value in operands]

    def _stored_bounds(
        self, proto: onnx.NodeProto, operands: list[Value | None]
    ) -> tuple[int | None, int | None] | None:
        """Returns the bounds of a Clip or Relu; None where they are known at run time only."""
        if proto.op_type == "Relu":
            return 0, None
        clip = decode(self._view(proto, operands))
        if clip is None or not isinstance(clip.attributes, ClipAttrs):
            return None
        low, high = clip.attributes.low, clip.attributes.high
        return None if low is None else int(low), None if high is None else int(high)

    def _stored_clip(
        self, proto: onnx.NodeProto, first: Value, low: int | None, high: int | None
    ) -> None:
        params = first.type.params if isinstance(first.type, QuantType) else None
        assert params is not None
        low = params.qmin if low is None else low
        high = params.qmax if high is None else high
        narrow = params.with_range(max(low, params.qmin), min(high, params.qmax))
        result = Value(QuantType(narrow, first.type.shape), proto.output[0])
        self._add(REQUANTIZE, NO_ATTRIBUTES, [first], [result], proto)

    def _plain(self, value: Value) -> Value:
        if value.quant is None:
            return value
        plain = Value(TensorType(value.type.dtype, value.type.shape), value.name)
        self.nodes.append(Node(REINTERPRET, NO_ATTRIBUTES, [value], [plain]))
        return plain

    def _type_moved(
        self, op: Operator, operands: Sequence[Value | None], results: Sequence[Value]
    ) -> None:
        """Gives stored integers that are moved, or joined alike, the operand's type."""
        first = next((v for i, v in enumerate(operands) if v is not None and op.is_data(i)), None)
        if first is None or first.quant is None or op.flow is Flow.FLOAT:
            return
        for result in results:
            if result.type.dtype is first.type.dtype:
                result.type = QuantType(first.quant.params, result.type.shape)

    def _add(
        self,
        op: Operator,
        attributes: object,
        operands: Sequence[Value | None],
        results: Sequence[Value],
        proto: onnx.NodeProto,
    ) -> Node:
        origin = Origin(
            (proto.name or (proto.output[0] if proto.output else ""),),
            tuple((p.key, p.value) for p in proto.metadata_props),
            self.variants.get(proto.output[0]) or _variant(proto, attributes, self.opset),
        )
        node = Node(op, attributes, operands, results, origin)  # type: ignore[arg-type]
        self.nodes.append(node)
        for value in results:
            self.values[value.name] = value
        return node

    # ---- quantize and dequantize --------------------------------------------------------------

    def _quantize(self, proto: onnx.NodeProto) -> None:
        view = self._view(proto, [self._operand(name) for name in proto.input])
        data = view.operand(0)
        if data.quant is not None:
            data = self._plain(data)
        encoding = encoding_of(view, data, None)
        if encoding is None or encoding.needs_rank:
            self._carry(proto, view)
            return
        if not data.type.dtype.is_float and data.type.dtype is not DType.INT32:
            raise InvalidModelError(
                f"QuantizeLinear of {data.type.dtype} data",
                where=encoding.where,
                why="it takes float or int32 data",
                fix="cast the data to float32 first",
            )
        check_quantizes(proto.domain, encoding.storage, encoding.where)
        params = params_of(encoding, data, self.params)
        self._note(remarks(view, encoding, params, data))
        result = Value(QuantType(params, data.type.shape), proto.output[0])
        self._add(QUANTIZE, QuantizeAttrs(encoding.precision), [data], [result], proto)

    def _dequantize(self, proto: onnx.NodeProto) -> None:
        view = self._view(proto, [self._operand(name) for name in proto.input])
        data = view.operand(0)
        folded = None if data.producer is None or data.quant else view.folding.constant(data)
        if folded is not None:
            data = constant_value(folded, data.name)
        encoding = encoding_of(view, data, data.type.dtype)
        if encoding is None or encoding.needs_rank:
            self._carry(proto, view)
            return
        params = params_of(encoding, data, self.params)
        self._note(remarks(view, encoding, params, data))
        stored = self._typed(data, params)
        dtype = view.int_("output_dtype", 0)
        expressed = dtype_of(dtype, encoding.where) if dtype else encoding.expressed_dtype
        result = Value(TensorType(expressed, data.type.shape), proto.output[0])
        self._add(DEQUANTIZE, NO_ATTRIBUTES, [stored], [result], proto)

    def _note(self, notes: Iterable[Note]) -> None:
        """Enters notes about parameters, once for the Q and the DQ that share them."""
        for note in notes:
            if (note.rule, note.culprits[1]) not in self.noted:
                self.noted.add((note.rule, note.culprits[1]))
                self.notes.append(note)

    def _carry(self, proto: onnx.NodeProto, view: NodeView) -> None:
        """Keeps a Q or DQ as an operator of its own: only the run knows its parameters or rank."""
        view = self._view(proto, self._plain_operands(view.operands))
        decoded = decode(view)
        assert decoded is not None and isinstance(decoded.attributes, LinearAttrs)
        op, attributes = BY_NAME[decoded.op_name], decoded.attributes
        result = Value(TensorType(attributes.to, view.shape(0)), proto.output[0])
        self._add(op, attributes, decoded.operands, [result], proto)

    def _typed(self, data: Value, params: QuantParams) -> Value:
        """Returns ``data`` as a value of quantized type."""
        if data.constant is not None:
            key = (data, params)
            if key not in self.quantized_constants:
                typed = constant_value(data.constant, data.name)
                typed.type = QuantType(params, data.type.shape)
                self.quantized_constants[key] = typed
            return self.quantized_constants[key]
        if data.quant is not None and data.quant.params.same_mapping(params):
            return data
        typed = Value(QuantType(params, data.type.shape), data.name)
        self.nodes.append(Node(REINTERPRET, NO_ATTRIBUTES, [data], [typed]))
        return typed


def _opaque_note(domain: str, op_type: str, names: Sequence[str]) -> Note:
    """Returns the note about operators that ONNX does not define and that have no row here."""
    known = refusal(domain, op_type)
    others = f", and so are {len(names) - 1} more" if len(names) > 1 else ""
    what = "ONNX does not define it" if known is None else f"{known.what}; to read it: {known.fix}"
    reason = f"{domain}::{op_type} is kept as it is{others} ({what})"
    return Note("opaque-operator", names[0], reason, tuple(names[:_LISTED]))


def _variant(proto: onnx.NodeProto, attributes: object, opset: int) -> str:
    """Returns how the file writes the operator, where that decides the bits of float kernels."""
    if proto.op_type == "LayerNormalization" and opset < _LAYER_NORM:
        return BEFORE
    if isinstance(attributes, GemmAttrs) and not attributes.trans_b:
        return "Gemm(transB=0)"
    if proto.op_type == "Gelu" and proto.domain not in ONNX_DOMAINS:
        return OWN_GELU
    return proto.op_type
