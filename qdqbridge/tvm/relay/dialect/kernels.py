"""The one operator that computes: a TE function as an opaque Relay operator.

``qnn.kernel`` takes one tuple of tensors. Its attribute ``key`` names the TE function in a table
of this process, so a module that holds such calls (one after canonicalization) cannot be loaded
elsewhere; modules are saved before.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from tvm import ir, relay, te
from tvm.ir import Op
from tvm.ir import _ffi_api as ir_api
from tvm.relay.op.op import OpStrategy
from tvm.target import get_native_generic_func

from qdqbridge.errors import GraphError
from qdqbridge.tvm.relay.dialect.attributes import dict_attrs

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
