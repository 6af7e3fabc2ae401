"""The Relax side of emission: the builder, and an expression for every value."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import tvm
from numpy.typing import NDArray
from tvm import ir, relax, tirx
from tvm.relax.expr_functor import PyExprMutator, mutator

from qdqbridge.core.graph.constant import Constant, fill
from qdqbridge.core.graph.dtypes import DType
from qdqbridge.core.graph.graph import Node
from qdqbridge.core.graph.symbols import is_computed, terms
from qdqbridge.core.graph.types import Shape
from qdqbridge.core.ops.attributes import ReshapeAttrs
from qdqbridge.errors import UnsupportedTargetError
from qdqbridge.tvm.qnn.emit.emitter import Expr, FunctionEmitter, as_bytes, tvm_dtype
from qdqbridge.tvm.relax.dialect import call
from qdqbridge.tvm.relax.emit.arithmetic import (
    Arithmetic,
    reshaped,
    run_time_broadcast,
    run_time_extent,
    run_time_reshape,
    shape_vector,
    simple,
)
from qdqbridge.tvm.relax.emit.broadcasting import (
    aligned,
    equal,
    fitted,
    joinable,
    larger_bound,
    need_indices,
    spread,
)


class RelaxEmitter(FunctionEmitter):
    """Emits into one Relax function.

    Args:
        builder: The block builder, inside the function's dataflow block.
        extents: TIR variables of the symbolic extents, by name.
        lift: Makes a parameter of a large constant; None embeds every constant.
    """

    op: Any = relax.op
    reduces_nothing = True
    raises_integers = True
    checked = False
    """True where the module is run, and indices beyond their data end that."""

    def __init__(
        self,
        builder: relax.BlockBuilder,
        extents: dict[str, tirx.Var],
        lift: Any = None,
    ) -> None:
        super().__init__()
        self.builder, self.symbols, self._lift = builder, extents, lift
        self._constants: dict[Constant, Expr] = {}
        self._bound: dict[str, tirx.Var] = {}
        self.arithmetic = Arithmetic(self)

    def constant(self, constant: Constant, name: str) -> Expr:
        """Returns a constant expression; one per Constant object, copied into TVM once.

        Many codes of less than a byte stay packed, and are unpacked by a call.
        """
        if constant not in self._constants:
            packed = constant.in_bytes() if constant.size >= PACKED else None
            expr = self._held(packed or constant, name)
            if packed is not None:
                attrs = {"bits": constant.dtype.bits, "signed": constant.dtype.is_signed}
                expr = self.qnn("unpack", [expr], attrs)
            self._constants[constant] = expr
        return self._constants[constant]

    def _held(self, constant: Constant, name: str) -> Expr:
        lifted = None if self._lift is None else self._lift(constant, name)
        return relax.const(to_tensor(constant)) if lifted is None else lifted

    def shape(self, shape: Shape) -> list[Any]:
        """Returns extents as Relax wants them.

        Raises:
            UnsupportedTargetError: The rank is unknown.
        """
        if shape is None:
            raise _unknown_rank()
        return [dim if isinstance(dim, int) else self._open(dim) for dim in shape]

    def _open(self, name: str) -> Any:
        """Returns a symbolic extent; a computed one by what it is computed from, where known."""
        if not is_computed(name):
            return self.extent(name)
        products = terms(name)
        # Of what no input tells the run does not know either: it is an extent of its own.
        if any(factor not in self.symbols for factors, _ in products for factor in factors):
            return self.extent(f"extent_{len(self.symbols)}")
        return sum(
            math.prod((self.symbols[factor] for factor in factors), start=number)
            for factors, number in products
        )

    def knows(self, shape: Shape) -> bool:
        """True where every extent is a number or follows from variables that there are."""
        return shape is not None and all(
            name in self.symbols
            for dim in shape
            if isinstance(dim, str)
            for names, _ in terms(dim)
            for name in names
        )

    def extent(self, name: str) -> tirx.Var:
        """Returns the TIR variable of a symbolic extent."""
        if name not in self.symbols:
            self.symbols[name] = tirx.Var(name, "int64")
        return self.symbols[name]

    def bound_extent(self, extent: Any) -> tirx.Var:
        """Returns a new variable that has the value of an expression of extents."""
        if isinstance(extent, tirx.Var):
            return extent
        key = str(extent)
        if key not in self._bound:
            name, count = "extent", len(self._bound)
            while name in self.symbols:
                count += 1
                name = f"extent_{count}"
            self._bound[key] = variable = self.extent(name)
            self._match_shape(extent, variable)
        return self._bound[key]

    def bound_vector(self, vector: Expr, count: int, label: str) -> list[Any]:
        """Returns the ``count`` elements of an int64 vector as extents: new variables."""
        names = (f"{label}_{i}" for i in itertools.count())
        free = (name for name in names if name not in {*self.symbols})
        extents: list[Any] = [self.extent(name) for name in itertools.islice(free, count)]
        shape = self.emit(relax.op.tensor_to_shape(vector))
        self.builder.match_cast(shape, relax.ShapeType(extents))
        return extents

    def need_indices(self, indices: Expr, data: Expr, axis: int) -> None:
        """Ends a run with an error where an index is beyond an axis, in programs that are run."""
        if self.checked:
            need_indices(self, indices, data, axis)

    def at_most(self, extents: Sequence[Any], count: int) -> None:
        """Ends a run with an error where open extents give more than ``count`` elements."""
        if not all(isinstance(extent, int) for extent in extents):
            total = math.prod(extents)
            self._match_shape(total, tirx.min(total, tirx.const(count, "int64")))

    def rest_of(self, extents: Sequence[Any], target: list[Any]) -> list[Any]:
        """Returns the target of a reshape of ``extents`` with what is left in the place of -1."""
        if all(isinstance(extent, int) for extent in (*extents, *target)):
            return target
        found = reshaped(list(extents), target, allow_zero=True)
        return target if found is None else [simple(extent) for extent in found]

    def reshape(self, expr: Expr, extents: Sequence[Any]) -> Expr:
        """Returns data in a shape; ``relax.op.reshape`` takes 0 for the extent that is there."""
        return relax.Call(tvm.ir.Op.get("relax.reshape"), [expr, relax.ShapeExpr(list(extents))])

    def need_same(self, extent: Any, wanted: Any) -> None:
        """Ends a run with an error where two extents differ.

        A variable alone would not do as the pattern: CanonicalizeBindings of TVM 0.27 takes it for
        a name of the extent, and never ends where the extent is an expression of it.
        """
        if not equal(extent, wanted):
            found, wanted = (_expression(each) for each in (extent, wanted))
            self._match_shape(found, tirx.Select(found == wanted, found, wanted))

    def larger_bound(self, extent: Any, bound: int, other: int) -> Any:
        """Returns a bound of a slice, or another one that is further from the first element."""
        return larger_bound(extent, bound, other)

    def at_least(self, extent: Any, count: int) -> None:
        """Ends a run with an error where an open extent is less than ``count``."""
        if not isinstance(extent, int) and count > 0:
            self._match_shape(extent, tirx.max(extent, tirx.const(count, "int64")))

    def need_at_most(self, extent: Any, limit: Any) -> None:
        """Ends a run with an error where an extent is more than another one."""
        if isinstance(extent, int) and isinstance(limit, int):
            if extent > limit:
                raise _too_many(extent, limit)
        elif not equal(extent, limit):
            found, bound = (_expression(each) for each in (extent, limit))
            self._match_shape(found, tirx.min(found, bound))

    def some_where_some(self, extent: Any, others: Sequence[Any]) -> None:
        """Ends a run with an error where an axis has no element, and a tensor has some."""
        if extent == 0 or not isinstance(extent, int):
            some = tirx.min(_expression(math.prod(others)), tirx.const(1, "int64"))
            self.need_at_most(simple(some), extent)

    def _match_shape(self, extent: Any, wanted: Any) -> None:
        """Matches one extent; TVM 0.27 needs a variable to match, not an expression."""
        computed = self.builder.emit(relax.ShapeExpr([extent]))
        self.builder.match_cast(computed, relax.ShapeType([wanted]))

    def broadcast(self, expr: Expr, shape: Any) -> Expr:
        """Returns an expression repeated to a shape; open extents may turn out to be 1."""
        return spread(self, expr, shape)

    def aligned(self, exprs: Sequence[Expr], trailing: int = 0) -> list[Expr]:
        """Returns operands that broadcast; what is not known is decided at run time."""
        return aligned(self, exprs, trailing)

    def fitted(self, expr: Expr, shape: Sequence[Any]) -> Expr:
        """Returns an operand that broadcasts to a shape; the run decides what is not known."""
        return fitted(self, expr, shape)

    def joinable(self, exprs: Sequence[Expr], axis: int) -> list[Expr]:
        """Returns operands of a concat, whose other extents are the same."""
        return joinable(self, exprs, axis)

    def emit(self, expr: Expr, name: str = "") -> Expr:
        """Binds an expression to a new variable of the block; a variable is itself."""
        if isinstance(expr, relax.Var):
            return expr
        return self.builder.emit(self._from_node(expr), name)

    def _from_node(self, expr: Expr) -> Expr:
        """Gives a call a span that says which node it comes from."""
        # A call that has a span was made for another node.
        if not self.origin or not isinstance(expr, ir.Call) or expr.span is not None:
            return expr
        span = ir.Span(ir.SourceName(self.origin), 0, 0, 0, 0)
        return ir.Call(expr.op, expr.args, expr.attrs, expr.ty_args, span)

    def qnn(
        self, name: str, args: Sequence[Any], attrs: dict[str, Any] | None = None, hint: str = ""
    ) -> Expr:
        """Emits a call of the QNN dialect."""
        return self.emit(call(f"qnn.{name}", args, attrs), hint)

    def number(self, array: NDArray[Any]) -> Expr:
        """Returns a small constant (a scale, a zero point, indices)."""
        array = as_bytes(array)
        return relax.const(np.ascontiguousarray(array).reshape(array.shape), str(array.dtype))

    def extents(self, expr: Expr) -> list[Any]:
        """Returns the shape of an expression: ints, and TIR expressions.

        Raises:
            UnsupportedTargetError: The rank is unknown.
        """
        shape = expr.ty.shape
        if shape is None:
            raise _unknown_rank()
        return [int(e) if isinstance(e, tirx.IntImm) else e for e in shape.values]

    def dtype(self, expr: Expr) -> str:
        """Returns the element type of an expression."""
        return str(expr.ty.dtype)

    def item(self, expr: Expr, index: int) -> Expr:
        """Returns a field of a tuple."""
        return relax.TupleGetItem(expr, index)

    def run_time_extent(self, expr: Expr, axis: int, dtype: str) -> Expr:
        """Returns the length of an axis as a scalar; a constant where it is known."""
        return run_time_extent(self, expr, axis, dtype)

    def run_time_shape(self, node: Node, expr: Expr) -> Expr:
        """Returns the extents that the last operand of a Reshape or Expand gives at run time."""
        if isinstance(node.attributes, ReshapeAttrs):
            return run_time_reshape(self, node, expr, allow_zero=node.attributes.allow_zero)
        return run_time_broadcast(self, node, expr)

    def shape_vector(self, expr: Expr) -> Expr:
        """Returns the extents of an expression as an int64 vector."""
        return shape_vector(self, expr)


def _too_many(extent: int, limit: int) -> UnsupportedTargetError:
    return UnsupportedTargetError(
        "indices reach beyond the data",
        why=f"they are for {extent} elements along an axis that has {limit}",
        fix="give indices that fit the data",
    )


def _expression(extent: Any) -> Any:
    return tirx.const(extent, "int64") if isinstance(extent, int) else extent


PACKED = 1 << 20
"""Codes of less than a byte from which a constant stays packed."""
_MOVED = 1 << 20
"""Bytes from which a constant is held once, in the memory of TVM."""
_PART = 1 << 26
"""Bytes that are copied before those of a mapped file are let go of."""


def _unknown_rank() -> UnsupportedTargetError:
    return UnsupportedTargetError(
        "TVM needs the rank of every tensor",
        why="the shape of a tensor is unknown",
        fix="run onnx shape inference on the model, or fix its input shapes",
    )


def to_tensor(constant: Constant) -> Any:
    """Returns constant data as a TVM tensor; a transposed or mapped array is copied just once.

    A large constant lies in the tensor's memory from then on.
    """
    dtype = tvm_dtype(constant.dtype)
    if constant.dtype is DType.BFLOAT16:  # NumPy's DLPack has no such type
        return tvm.runtime.tensor(np.ascontiguousarray(constant.numpy()).reshape(constant.shape))
    tensor = tvm.runtime.empty(constant.shape, dtype)
    view = np.from_dlpack(tensor)
    if view.flags.writeable:
        source = as_bytes(constant.numpy())
        if not source.flags.c_contiguous or source.nbytes <= _PART:
            fill(view, source)
            constant.release()
        else:
            step = max(1, _PART * len(source) // source.nbytes)
            for start in range(0, len(source), step):
                fill(view[start : start + step], source[start : start + step])
                constant.release()
        if view.nbytes >= _MOVED and view.dtype == constant.dtype.numpy:
            constant.move(view)
        return tensor
    array = np.empty(view.shape, view.dtype)  # NumPy 1 takes no memory of others to write into
    fill(array, as_bytes(constant.numpy()))
    return tvm.runtime.tensor(array)


# ---- The functions of one module in another: what a node stands for, and what that calls ---------


def added(builder: relax.BlockBuilder, module: ir.IRModule, name: str) -> ir.GlobalVar:
    """Adds ``main`` of a module, and whatever that calls, under new names."""
    functions = {variable.name_hint: function for variable, function in module.functions.items()}
    main: Any = functions["main"].without_attr("global_symbol")
    for attribute in ("num_input", "input_names", "input_types", "output_names"):
        main = main.without_attr(attribute)
    return builder.add_func(_Moved(builder, functions, {}).visit_expr(main), name)  # type: ignore[arg-type]


@mutator
class _Moved(PyExprMutator):
    """Adds the functions that are called to another module, and calls them there."""

    def __init__(
        self,
        builder: relax.BlockBuilder,
        functions: Mapping[str, Any],
        names: dict[str, ir.GlobalVar],
        moving: frozenset[str] = frozenset(),
    ) -> None:
        super().__init__()
        self.target, self.functions, self.names, self.moving = builder, functions, names, moving

    def visit_global_var_(self, op: ir.GlobalVar) -> ir.GlobalVar:
        name = op.name_hint
        if name not in self.names:
            function = self.functions[name].without_attr("global_symbol")
            if name in self.moving:  # it calls itself, so others find it before it is moved
                function = self._declared(function)
            elif isinstance(function, relax.Function):
                moving = self.moving | {name}
                inner: Any = _Moved(self.target, self.functions, self.names, moving)
                function = inner.visit_expr(function)
            if name in self.names:
                self.target.update_func(self.names[name], function)
            else:
                self.names[name] = self.target.add_func(function, name)
        return self.names[name]

    def _declared(self, function: relax.Function) -> relax.Function:
        """Returns a function without its body, unlike all others: equal ones become one."""
        number: Any = {"declared": len(self.target.get().functions)}
        attrs: Any = ir.make_node("ir.DictAttrs", **number)
        return relax.Function.create_empty(list(function.params), function.ret_ty, True, attrs)
