"""TVMScript that anybody may have written: checked first, then parsed.

TVM's parser evaluates expressions as Python, with all builtins, and even texts within shapes. So
the syntax tree is compared with what ``IRModule.script`` writes, name by name, and whatever else
Python has to offer is refused. The parser then gets the checked tree, not the file.
"""

from __future__ import annotations

import ast
import builtins
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import NoReturn, TypeGuard

from tvm import ir

# ---- names that TVMScript may use in a file that anybody may have written ------------------------

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
_SCRIPT_OPERATORS = {"R": ("relax.",), "T": ("tirx.", "tir."), "I": ()}
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
    return any(prefix + rest in _operators() for prefix in _SCRIPT_OPERATORS[root])


def _operators() -> frozenset[str]:
    return frozenset(str(name) for name in ir.Op.list_op_names())


_OPERATORS = (ast.Add, ast.Sub, ast.Mult, ast.Div, ast.FloorDiv, ast.Mod)
_PLAIN = (int, float, bool, str, type(None))
_EXTREMES = ("T.min", "T.max")
"""What extents may call."""


class ScriptRefused(Exception):
    """Says what a file has that no module needs."""


@dataclass(slots=True)
class Script:
    """A checked file.

    Attributes:
        program: The class that is the module, alone.
        symbols: The symbolic extents that it declares.
        metadata: The JSON text of its constants; None where it has none.
    """

    program: ast.ClassDef
    symbols: list[str] = field(default_factory=list[str])
    metadata: str | None = None

    @property
    def wants_metadata(self) -> bool:
        """Whether the module names constants that its file should hold."""
        nodes = ast.walk(self.program)
        return any(isinstance(node, ast.Name) and node.id == "metadata" for node in nodes)


def script_of(text: str) -> Script:
    """Returns the checked parts of a file.

    Raises:
        Refused: It has something else than a module.
        SyntaxError: It is no Python.
    """
    symbols: list[str] = []
    metadata: str | None = None
    program: ast.ClassDef | None = None
    for statement in ast.parse(text).body:
        match statement:
            case ast.ImportFrom() if _is_import(statement):
                pass
            case ast.Expr(ast.Constant(str())):
                pass
            case ast.Assign(
                [ast.Name(name)], ast.Call(ast.Name("TypeVar"), [ast.Constant(said)], [])
            ):
                if name != said or not name.isidentifier() or name in BUILTINS | ROOTS:
                    _refuse(statement, f"the extent '{name}'")
                symbols.append(name)
            case ast.Assign(
                [ast.Name("metadata")],
                ast.Call(ast.Attribute() as loader, [ast.Constant(str(held))], []),
            ) if _dotted(loader) == "tvm.ir.load_json":
                metadata = held
            case ast.ClassDef() if program is None:
                program = statement
            case _:
                _refuse(statement, "a statement beside the module")
    if program is None:
        raise ScriptRefused("it has no class with the decorator I.ir_module")
    _Checker(program, symbols).module()
    return Script(program, symbols, metadata)


def _is_import(statement: ast.ImportFrom) -> bool:
    module = statement.module or ""
    return statement.level == 0 and all(
        (module, alias.name, alias.asname) in IMPORTS for alias in statement.names
    )


def _dotted(node: ast.expr) -> str:
    """Returns ``a.b.c`` as text, nothing for any other expression."""
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    return ".".join([node.id, *reversed(parts)]) if isinstance(node, ast.Name) else ""


def _refuse(node: ast.AST, what: str) -> NoReturn:
    line = getattr(node, "lineno", 0)
    raise ScriptRefused(f"line {line}: {what} is nothing that a module needs")


class _Checker:
    """Walks over a class; everything that it does not know is refused."""

    def __init__(self, program: ast.ClassDef, symbols: Iterable[str]) -> None:
        self.program = program
        self.functions = {s.name for s in program.body if isinstance(s, ast.FunctionDef)}
        self.globals = {"metadata", "cls", program.name, *symbols}
        self.names: list[set[str]] = []

    def module(self) -> None:
        """Checks the class."""
        program = self.program
        if program.bases or program.keywords or len(program.decorator_list) != 1:
            _refuse(program, "such a class")
        self._decorator(program.decorator_list[0], {"I.ir_module"})
        if program.name in BUILTINS | ROOTS | {"metadata"} or self.functions & BUILTINS:
            _refuse(program, "the name of the class or of a function")
        for statement in program.body:
            match statement:
                case ast.FunctionDef():
                    self._function(statement)
                case ast.Expr(ast.Call() as call) if _dotted(call.func).startswith("I.module_"):
                    self._expression(call)
                case ast.Pass() | ast.Expr(ast.Constant(str())):
                    pass
                case _:
                    _refuse(statement, "a statement in the class")

    def _decorator(self, node: ast.expr, allowed: Iterable[str]) -> None:
        call = node.func if isinstance(node, ast.Call) else node
        if _dotted(call) not in allowed:
            _refuse(node, "a decorator")
        if isinstance(node, ast.Call):
            values = [*node.args, *(keyword.value for keyword in node.keywords)]
            if node.args or not all(isinstance(value, ast.Constant) for value in values):
                _refuse(node, "a decorator's argument")

    # ---- statements ---------------------------------------------------------------------------

    def _function(self, node: ast.FunctionDef) -> None:
        given = node.args
        special = [given.vararg, given.kwarg, *given.kwonlyargs, *given.posonlyargs]
        if any(special) or given.defaults or getattr(node, "type_params", None):
            _refuse(node, "such a parameter")
        for decorator in node.decorator_list:
            self._decorator(decorator, DECORATORS)
        if not node.decorator_list:
            _refuse(node, "a function without a decorator")
        names = {argument.arg for argument in given.args} | _bound(node.body)
        # Calls are allowed by how they are spelled, so the spelling must mean TVM's module
        # everywhere.
        reserved = names & (ROOTS | self.globals) - {"cls"}
        if reserved:
            _refuse(node, f"another meaning of {sorted(reserved)}")
        self.names.append(names)
        for annotation in (*(argument.annotation for argument in given.args), node.returns):
            if annotation is not None:
                self._annotation(annotation)
        self._body(node.body)
        self.names.pop()

    def _body(self, body: Sequence[ast.stmt]) -> None:
        for statement in body:
            self._statement(statement)

    def _statement(self, node: ast.stmt) -> None:
        match node:
            case ast.Assign([ast.Name("cls")], ast.Name(name)) if name == self.program.name:
                pass
            case ast.Assign(targets, value):
                self._assigned(targets, value)
            case ast.AnnAssign(target, annotation, value):
                self._annotation(annotation)
                self._assigned([target], value)
            case ast.With(items, body):
                for item in items:
                    self._call_of(item.context_expr)
                    self._target(item.optional_vars)
                self._body(body)
            case ast.For(target, iterated, body, []):
                self._target(target)
                self._iterated(iterated)
                self._body(body)
            case ast.If(test, body, rest):
                self._expression(test)
                self._body([*body, *rest])
            case ast.Return(value):
                self._expression(value)
            case ast.Expr(ast.Constant(str())) | ast.Pass():
                pass
            case ast.Expr(value):
                self._call_of(value)
            case ast.FunctionDef():
                self._function(node)
            case _:
                _refuse(node, "such a statement")

    def _assigned(self, targets: Sequence[ast.expr], value: ast.expr | None) -> None:
        if len(targets) != 1:
            _refuse(targets[0], "an assignment to several names")
        self._target(targets[0])
        # Extents that are texts are evaluated as Python. They are found where they are written,
        # which a name for a text would hide, as arithmetic with texts would.
        if isinstance(value, ast.Constant | ast.List | ast.Dict) and not _is_number(value):
            _refuse(value, "a name for a text or a list")
        self._expression(value)

    def _target(self, node: ast.expr | None) -> None:
        match node:
            case None:
                pass
            case ast.Name(name) if name != "cls":
                pass
            case ast.Tuple(elements):
                for element in elements:
                    self._target(element)
            case ast.Subscript(ast.Name(), index):
                self._expression(index)
            case _:
                _refuse(node, "such a target")

    def _iterated(self, node: ast.expr) -> None:
        if isinstance(node, ast.Call) and _dotted(node.func) == "range" and not node.keywords:
            self._all(node.args)
        else:
            self._call_of(node)

    def _call_of(self, node: ast.expr) -> None:
        if not isinstance(node, ast.Call):
            _refuse(node, "an expression as a statement")
        self._expression(node)

    # ---- expressions --------------------------------------------------------------------------

    def _annotation(self, node: ast.expr) -> None:
        if isinstance(node, ast.Attribute) and known(_dotted(node)):  # R.Object
            return
        if not isinstance(node, ast.Call | ast.Subscript):
            _refuse(node, "such an annotation")
        self._expression(node)

    def _all(self, nodes: Iterable[ast.expr | None]) -> None:
        for node in nodes:
            self._expression(node)

    def _expression(self, node: ast.expr | None) -> None:
        match node:
            case None:
                pass
            case ast.Constant(value) if isinstance(value, _PLAIN):
                pass
            case ast.Name(name):
                self._name(node, name)
            case ast.Attribute():
                self._attribute(node)
            case ast.Call():
                self._call(node)
            case ast.Tuple(elements) | ast.List(elements):
                self._no_holes(elements)
                self._all(elements)
            case ast.Dict(keys, values) if all(isinstance(key, ast.Constant) for key in keys):
                self._all([*keys, *values])
            case ast.Subscript(value, index):
                self._expression(value)
                self._expression(index)
            case ast.Slice(lower, upper, step):
                self._all([lower, upper, step])
            case ast.BinOp(left, operator, right) if isinstance(operator, _OPERATORS):
                self._numbers([left, right])
            case ast.UnaryOp(ast.USub() | ast.Not() | ast.Invert(), operand):
                self._numbers([operand])
            case ast.Compare(left, _, others):
                self._numbers([left, *others])
            case ast.BoolOp(_, values):
                self._numbers(values)
            case _:
                _refuse(node, "such an expression")

    def _no_holes(self, nodes: Iterable[ast.expr]) -> None:
        """TVM follows every element of a shape or tuple; None ends the process."""
        for node in nodes:
            if isinstance(node, ast.Constant) and node.value is None:
                _refuse(node, "None in a list")

    def _numbers(self, nodes: Sequence[ast.expr]) -> None:
        for node in nodes:
            if isinstance(node, ast.Tuple | ast.List | ast.Dict):
                _refuse(node, "arithmetic with a list")
            if isinstance(node, ast.Constant) and not _is_number(node):
                _refuse(node, "arithmetic with a text")
        self._all(nodes)

    def _name(self, node: ast.expr, name: str) -> None:
        inside = any(name in names for names in self.names[-1:])
        around = name not in BUILTINS and any(name in names for names in self.names)
        if not inside and not around and name not in self.globals:
            _refuse(node, f"the name '{name}'")

    def _attribute(self, node: ast.Attribute) -> None:
        name = _dotted(node)
        root, _, rest = name.partition(".")
        if root in ("cls", self.program.name) and rest in self.functions:
            return
        if name not in ("R.Object", "R.Any"):
            _refuse(node, f"'{ast.unparse(node)[:60]}'")

    def _call(self, node: ast.Call) -> None:
        name = _dotted(node.func)
        root, _, rest = name.partition(".")
        ours = root in ("cls", self.program.name) and rest in self.functions
        local = not rest and name and name not in BUILTINS and any(name in n for n in self.names)
        if not (ours or local or known(name)):
            _refuse(node, f"a call of '{ast.unparse(node.func)[:60]}'")
        # What `**` unpacks is not seen here, and derive_func names any function that TVM has
        # registered.
        if any(keyword.arg in (None, "derive_func") for keyword in node.keywords):
            _refuse(node, "such an argument")
        if name == "R.tuple":
            self._no_holes(node.args)
        self._all([*node.args, *(keyword.value for keyword in node.keywords)])
        if name in TYPES:
            self._extents(node)

    def _extents(self, node: ast.Call) -> None:
        """Checks the extents of a type: TVM evaluates those that are texts as Python."""
        named = [k.value for k in node.keywords if k.arg in ("shape", "values")]
        for given in [*node.args[:1], *named]:
            if isinstance(given, ast.Constant) and (given.value is None or given in node.args):
                continue  # no extents, or the element type
            if not isinstance(given, ast.Tuple | ast.List):
                _refuse(given, "a shape that is not written out")
            for extent in given.elts:
                if isinstance(extent, ast.Constant) and isinstance(extent.value, str):
                    _check_extent(extent, extent.value)


def _check_extent(node: ast.expr, text: str) -> None:
    try:
        tree = ast.parse(text, mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        # Python's parser: text too deep, or a NUL
        _refuse(node, f"the extent {text[:40]!r}")
    allowed = (ast.Name, ast.Constant, ast.BinOp, ast.operator, ast.expr_context)
    chosen = [part for part in ast.walk(tree) if _is_extreme(part)]
    named = [part.func for part in chosen]
    for part in ast.walk(tree):
        # Powers and shifts of a few digits are numbers that fill all memory.
        whole = isinstance(part, allowed) and not isinstance(part, ast.Pow | ast.LShift)
        whole = whole or part in chosen or part in named
        if isinstance(part, ast.Constant):
            whole = isinstance(part.value, int)
        if isinstance(part, ast.Name):
            whole = part.id not in BUILTINS
        if not whole:
            _refuse(node, f"the extent {text[:40]!r}")


def _is_extreme(node: ast.AST) -> TypeGuard[ast.Call]:
    """True for ``T.min(a, b)`` and ``T.max(a, b)``: what a Slice leaves of an open axis."""
    if not isinstance(node, ast.Call) or node.keywords or len(node.args) != 2:
        return False
    return _dotted(node.func) in _EXTREMES


def _is_number(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, int | float)


def _bound(body: Sequence[ast.stmt]) -> set[str]:
    """Returns the names that statements bind, those of nested functions left out."""
    found: set[str] = set()
    waiting: list[ast.AST] = list(body)
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.FunctionDef):
            found.add(node.name)
            continue
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            found.add(node.id)
        waiting += ast.iter_child_nodes(node)
    return found
