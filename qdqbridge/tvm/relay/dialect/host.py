"""Relay as a host of the QNN dialect."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import tvm
from numpy.typing import NDArray
from tvm import ir, relay, runtime, te, tir
from tvm.ir import Op
from tvm.ir import _ffi_api as ir_api
from tvm.relay.op.op import OpStrategy
from tvm.target import get_native_generic_func

from qdqbridge.errors import GraphError
from qdqbridge.tvm.qnn.dialect.context import CallContext

# ---- Attributes of calls as ``DictAttrs``, without loss ------------------------------------------


def dict_attrs(attrs: Mapping[str, Any]) -> Any:
    """Returns plain Python values as TVM's ``DictAttrs``; floats keep all their digits."""
    return tvm.ir.make_node("DictAttrs", **{name: _node(value) for name, value in attrs.items()})


def names_of(attrs: Any) -> frozenset[str]:
    """Returns the names of attributes; a call or function may have no record of them at all."""
    return frozenset() if attrs is None else frozenset(str(name) for name in attrs.keys())  # noqa: SIM118


def values_of(attrs: Any) -> dict[str, Any]:
    """Returns TVM's values of attributes by name."""
    return {name: attrs[name] for name in sorted(names_of(attrs))}


def _node(value: Any) -> Any:
    if isinstance(value, bool):
        return tir.IntImm("bool", value)
    if isinstance(value, int):
        return tir.IntImm("int32" if -(1 << 31) <= value < 1 << 31 else "int64", value)
    if isinstance(value, float):
        return tir.FloatImm("float64", value)
    if isinstance(value, tuple | list):
        return tvm.runtime.convert([_node(item) for item in value])
    return value


# ---- The one operator that computes: a TE function as an opaque Relay operator -------------------
# ``qnn.kernel`` takes one tuple of tensors. Its attribute ``key`` names the TE function in a table
# of this process, so a module that holds such calls (one after canonicalization) cannot be loaded
# elsewhere; modules are saved before.


NAME = "qnn.kernel"
OPAQUE = 8
"""``kOpaque`` of TVM: never fused."""


@dataclass(frozen=True, slots=True)
class TeKernel:
    """A TE function for operands of known types.

    Attributes:
        function: Makes a TE tensor of TE tensors.
        inner: How its reductions are scheduled; see ``Host.call_te``.
        blocks: Names of its stages that reduce.
        type_: Of its result.
    """

    function: Callable[..., Any]
    inner: int
    blocks: tuple[str, ...]
    type_: relay.TensorType


_KERNELS: dict[str, TeKernel] = {}
"""By content key. Operators of Relay have no place of their own for a Python function."""


def call_kernel(
    key: str,
    name: str,
    function: Callable[..., Any],
    args: Sequence[Any],
    inner: int,
    blocks: Sequence[str],
) -> relay.Call:
    """Returns a call of a TE function.

    Args:
        key: Equal for equal functions of operands of equal types.
        name: Of the kernel, for people.
        function: Makes a TE tensor of as many TE tensors as there are ``args``.
        args: Expressions whose types are known.
        inner: See ``Host.call_te``.
        blocks: See ``Host.call_te``.
    """
    if key not in _KERNELS:
        types = [arg.checked_type for arg in args]
        result: Any = function(*(te.placeholder(type_.shape, type_.dtype) for type_ in types))
        type_ = relay.TensorType(result.shape, str(result.dtype))
        _KERNELS[key] = TeKernel(function, inner, tuple(blocks), type_)
    attrs = dict_attrs({"key": key, "name": name})
    return relay.Call(Op.get(NAME), [relay.Tuple(list(args))], attrs)


def _compute(attrs: Any, inputs: Sequence[Any], out_type: Any) -> list[Any]:
    del out_type
    return [_find_te_kernel(attrs).function(*inputs)]


def _find_te_kernel(attrs: Any) -> TeKernel:
    key = str(attrs["key"])
    if key not in _KERNELS:
        raise GraphError(
            f"the kernel {attrs['name']} is not known in this process",
            why="a canonicalized module was saved by another one",
            fix="save the module before it is canonicalized (qdqbridge.tvm.relay.save)",
        )
    return _KERNELS[key]


def _schedule(attrs: Any, outs: Sequence[Any], target: Any) -> Any:
    del target
    kernel = _find_te_kernel(attrs)
    schedule: Any = te.create_schedule([out.op for out in outs])
    for stage in schedule.stages:
        if stage.op.name in kernel.blocks:
            _reorder(stage, kernel.inner)
    return schedule


def _reorder(stage: Any, inner: int) -> None:
    """Puts the last ``inner`` data loops, fused, inside the loops of the reduction."""
    data = list(stage.op.axis)
    if not inner or len(data) < inner:
        return
    fused = stage.fuse(*data[-inner:]) if inner > 1 else data[-1]
    stage.reorder(*data[:-inner], *stage.op.reduce_axis, fused)


def _strategy(attrs: Any, inputs: Any, out_type: Any, target: Any) -> OpStrategy:
    del attrs, inputs, out_type, target
    strategy = OpStrategy()
    strategy.add_implementation(_compute, _schedule, name=NAME)
    return strategy


def _infer_kernel_call(types: Sequence[Any], attrs: Any) -> relay.TensorType:
    del types
    return _find_te_kernel(attrs).type_


def register_kernel() -> None:
    """Registers ``qnn.kernel``; doing it again changes nothing."""
    if NAME in Op.list_op_names():
        return
    ir_api.RegisterOp(NAME, "a TE function of the QNN dialect")
    operator = Op.get(NAME)
    operator.set_num_inputs(1)
    operator.add_argument("data", "Tuple", "operands")
    operator.set_attrs_type_key("DictAttrs")
    operator.set_support_level(11)
    operator.add_type_rel("QnnKernel", _infer_kernel_call)
    generic = get_native_generic_func("qnn_kernel_strategy")
    generic.set_default(_strategy, allow_override=True)
    ir.register_op_attr(NAME, "FTVMStrategy", generic)
    ir.register_op_attr(NAME, "TOpPattern", OPAQUE)
    ir.register_op_attr(NAME, "TOpIsStateful", value=False)


# ---- Relay as a host of the QNN dialect ----------------------------------------------------------


class RelayHost:
    """See ``qdqbridge.tvm.qnn.dialect.context.DialectHost``."""

    bind_hint = "relay.build_module.bind_params_by_name, then FoldConstant"

    def tensor(self, type_: Any) -> tuple[Sequence[Any], str] | None:
        """Returns extents and element type of a tensor type."""
        if not isinstance(type_, ir.TensorType):
            return None
        return list(type_.shape), str(type_.dtype)

    def field_types(self, type_: Any) -> list[Any] | None:
        """Returns the member types of a tuple type."""
        return list(type_.fields) if isinstance(type_, ir.TupleType) else None

    def fields(self, expr: Any) -> list[Any] | None:
        """Returns the members of an expression that is a tuple, or has a tuple type."""
        if isinstance(expr, relay.Tuple):
            return list(expr.fields)
        types = self.field_types(typed(expr).checked_type)
        if types is None:
            return None
        return [relay.TupleGetItem(expr, i) for i in range(len(types))]

    def array(self, expr: Any) -> NDArray[Any] | None:
        """Returns the elements of a constant."""
        return expr.data.numpy() if isinstance(expr, relay.Constant) else None

    def constant(self, array: NDArray[Any]) -> relay.Constant:
        """Returns a constant expression."""
        return relay.Constant(runtime.ndarray.array(array))

    def bind(self, expr: Any) -> Any:
        """Returns the expression itself, with its type known."""
        return typed(expr)

    def call_te(
        self,
        context: CallContext,
        name: str,
        function: Callable[..., Any],
        args: Sequence[Any],
        inner: int,
        blocks: Sequence[str],
    ) -> Any:
        """Returns a call of one opaque operator that computes ``function``."""
        operands = [typed(arg) for arg in args]
        return call_kernel(_key(context, name, operands), name, function, operands, inner, blocks)


def typed(expr: Any) -> Any:
    """Returns an expression after inferring its type, from the types of what it is made of."""
    try:
        expr.checked_type  # noqa: B018
    except ValueError:
        relay.transform.InferTypeLocal(expr)
    return expr


def _key(context: CallContext, name: str, operands: Sequence[Any]) -> str:
    """Returns a digest of all that a TE function of ``context`` can depend on.

    That is its attributes, the types of its operands, and the constants that it is not given as
    operands.
    """
    parts = [context.name, name, *(str(operand.checked_type) for operand in operands)]
    parts += [f"{key}={context.attr(key)!r}" for key in context.attrs]
    digest = hashlib.sha256("\n".join(parts).encode())
    for arg, type_ in zip(context.args, context.types, strict=True):
        digest.update(str(type_).encode())
        members = arg.fields if isinstance(arg, relay.Tuple) else [arg]
        for member in members:
            given = any(member.same_as(operand) for operand in operands)
            if isinstance(member, relay.Constant) and not given:
                digest.update(member.data.numpy().tobytes())
    return digest.hexdigest()


def is_known(type_: Any) -> bool:
    """True for a type without parts that inference has still to find."""
    if isinstance(type_, ir.TupleType):
        return all(is_known(field) for field in type_.fields)
    return isinstance(type_, ir.TensorType)


def tensor_type(shape: Sequence[Any], dtype: str) -> ir.TensorType:
    """Returns a Relay tensor type; an extent that is not a number is ``relay.Any()``."""
    extents = [e if isinstance(e, int | tir.IntImm) else relay.Any() for e in shape]
    return relay.TensorType(extents, dtype)
