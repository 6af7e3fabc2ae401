"""Names that TVMScript may use in a file that anybody may have written."""

from __future__ import annotations

import builtins

from tvm import ir

BUILTINS = frozenset(dir(builtins))
"""What TVM's parser finds where a program defines nothing of that name."""

IMPORTS = frozenset(
    {
        ("typing", "TypeVar", None), ("__future__", "annotations", None),
        ("tvm.script", "ir", "I"), ("tvm.script", "relax", "R"), ("tvm.script", "tirx", "T"),
        ("tvm.script.parser", "ir", "I"), ("tvm.script.parser", "relax", "R"),
        ("tvm.script.parser", "tirx", "T"), ("tvm.tirx.layout", "Axis", None),
    }
)  # fmt: skip
"""Imports that are left out, since their names are given to the parser anyway."""

_R = frozenset(
    {
        "Tensor", "Shape", "Tuple", "Callable", "Object", "Prim", "Any", "const", "shape", "str",
        "dtype", "tuple", "prim_value", "output", "dataflow", "func_attr", "function",
        "match_cast", "ExternFunc", "call_packed", "call_pure_packed",
    }
)  # fmt: skip
_I = frozenset({"ir_module", "module_attrs", "module_global_infos", "vdevice", "dummy_global_info"})
_T = frozenset(
    {
        "Call", "prim_func", "Buffer", "handle", "match_buffer", "func_attr", "grid", "serial",
        "parallel", "vectorized", "unroll", "sblock", "block", "sblock_alloc_buffer",
        "alloc_buffer", "axis.spatial", "axis.reduce", "axis.remap", "axis.opaque", "reads",
        "writes", "init", "where", "Select", "Cast", "max", "min", "bool", "boolean",
        "truncdiv", "truncmod", "floordiv", "floormod", "sblock_attr", "block_attr", "Div", "let",
        *(f"{kind}{bits}" for kind in ("int", "uint", "float") for bits in (8, 16, 32, 64)),
    }
)  # fmt: skip
_OPERATORS = {"R": ("relax.",), "T": ("tirx.", "tir."), "I": ()}
_OTHERS = {"R": _R, "T": _T, "I": _I}
ROOTS = frozenset(_OTHERS)
TYPES = frozenset({"R.Tensor", "R.Shape"})
"""Calls that take extents as texts, which TVM evaluates as Python."""

DECORATORS = frozenset({"R.function", "T.prim_func"})


def known(name: str) -> bool:
    """Returns whether a dotted name builds a piece of a module and does nothing else."""
    root, _, rest = name.partition(".")
    if root not in ROOTS:
        return False
    if rest in _OTHERS[root]:
        return True
    return any(prefix + rest in _operators() for prefix in _OPERATORS[root])


def _operators() -> frozenset[str]:
    return frozenset(str(name) for name in ir.Op.list_op_names())
