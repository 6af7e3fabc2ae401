"""Model-local functions in the place of their calls.

``onnx.inliner`` leaves out the defaults of a function's attributes, so that a scale's axis or a
constant silently becomes another one, and does not bound what nested calls expand to.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

import onnx

from qdqbridge.errors import InvalidModelError, UnsupportedModelError
from qdqbridge.onnx_io.codecs.codec import schema_of
from qdqbridge.onnx_io.control_flow.subgraph_names import all_defined, rename_inside
from qdqbridge.onnx_io.reading.model_file import default_opset
from qdqbridge.onnx_io.reading.structure import (
    all_nodes,
    captured_names,
    describe,
    plain_domain,
    subgraphs,
)

_MAX_DEPTH = 64
_ALWAYS, _TIMES = 20_000, 50
"""Nodes that all calls may stand for: so many, and so many times those written in the file.

Functions that call each other twice, 40 deep, say 2**40 nodes in two kilobytes.
"""

_MAX_BODIES = 32
"""Bodies one in the other: protobuf reads a hundred messages in each other, three for a body."""

_Key = tuple[str, str, str]
_Attributes = dict[str, onnx.AttributeProto]


def inline_functions(model: onnx.ModelProto, file: str) -> onnx.ModelProto:
    """Replaces every call of a model-local function by the function's body.

    Args:
        model: The model; it is changed.
        file: Its name, for messages.

    Raises:
        InvalidModelError: A function calls itself, or a call does not fit its function.
        UnsupportedModelError: A function means operators of another opset than the model's, or
            the calls stand for too many nodes.
    """
    if not model.functions:
        return model
    inliner = _Inliner(model, file)
    nodes = list(inliner.expanded(model.graph.node))
    del model.graph.node[:]
    model.graph.node.extend(nodes)
    known = {plain_domain(entry.domain) for entry in model.opset_import}
    for entry in (e for f in model.functions for e in f.opset_import):
        # A function may import domains that the model does not, and its nodes are the model's now.
        if plain_domain(entry.domain) not in known:
            known.add(plain_domain(entry.domain))
            model.opset_import.append(entry)
    del model.functions[:]
    return model


class _Size(NamedTuple):
    """What nodes stand for.

    Attributes:
        nodes: How many nodes without calls they become.
        calls: How many functions lie in each other.
        bodies: How many bodies lie in each other.
    """

    nodes: int
    calls: int
    bodies: int

    def beside(self, other: _Size) -> _Size:
        """Returns what both stand for."""
        return _Size(
            self.nodes + other.nodes, max(self.calls, other.calls), max(self.bodies, other.bodies)
        )


class _Inliner:
    def __init__(self, model: onnx.ModelProto, file: str) -> None:
        self.file = file
        self.functions = {_key(f.domain, f.name, f.overload): f for f in model.functions}
        self.opsets = {plain_domain(e.domain): e.version for e in model.opset_import}
        self.opsets[""] = default_opset(model)
        self.taken = _names(model.graph)
        self.copies: dict[str, int] = {}
        self.named = {node.name for node in all_nodes(model.graph.node)}
        self._check_twice(model.functions)
        # Sizes first: functions that call each other twice, ten deep, are a thousand bodies.
        # Nothing is copied before it is known how much that would be.
        sizes: dict[_Key, _Size] = {}
        for key in self.functions:
            self._measure(key, sizes, ())
            for node in all_nodes(self.functions[key].node):
                self._check_meaning(node, self.functions[key])
        self._check_size(model.graph, sizes)

    def expanded(self, nodes: Iterable[onnx.NodeProto]) -> Iterator[onnx.NodeProto]:
        """Yields the nodes without calls; those of bodies in place of each call."""
        for node in nodes:
            for body in subgraphs(node):
                inner = list(self.expanded(body.node))
                del body.node[:]
                body.node.extend(inner)
            function = self.functions.get(_called_function_key(node))
            if function is None:
                yield node
            else:
                yield from self.expanded(self._body(node, function))

    def _body(self, call: onnx.NodeProto, function: onnx.FunctionProto) -> Iterator[onnx.NodeProto]:
        values = self._attributes(call, function)
        names = self._tensors(call, function)
        self.named.discard(call.name)  # the call itself goes
        for inner, outer in zip(function.output, call.output, strict=False):
            # An output that is an input: both names belong to the caller, so that a node has to
            # lead from one to the other.
            if inner in function.input and outer:
                name = self._node_name(call.name, "")
                yield onnx.helper.make_node("Identity", [names[inner]], [outer], name)
        for proto in function.node:
            node = onnx.NodeProto()
            node.CopyFrom(proto)
            for name in (*node.input, *captured_names(node)):
                if name and name not in names:
                    raise self._misfit(call, f"its body reads '{name}', which nothing defines")
            self._rename(node, names)
            _bind(node, values)
            node.name = self._node_name(call.name, node.name)
            yield node

    def _node_name(self, call: str, inner: str) -> str:
        """Returns a name of a node that no other has, else onnxruntime refuses the file."""
        name = found = "/".join(part for part in (call, inner) if part)
        number = 0
        while found and found in self.named:
            number += 1
            found = f"{name}__{number}"
        self.named.add(found)
        return found

    def _attributes(self, call: onnx.NodeProto, function: onnx.FunctionProto) -> _Attributes:
        values = {attribute.name: attribute for attribute in function.attribute_proto}
        given = {attribute.name: attribute for attribute in call.attribute}
        unknown = sorted(set(given) - set(values) - set(function.attribute))
        if unknown:
            raise self._misfit(call, f"it has no attribute '{unknown[0]}'")
        return values | given

    def _tensors(self, call: onnx.NodeProto, function: onnx.FunctionProto) -> dict[str, str]:
        """Returns the names that the tensors of a body have behind a call; '' where left out."""
        for what, given, taken in (
            ("inputs", call.input, function.input),
            ("outputs", call.output, function.output),
        ):
            if len(given) > len(taken):
                raise self._misfit(call, f"it has {len(taken)} {what}, {len(given)} are given")
        names = dict.fromkeys(function.input, "") | dict(
            zip(function.input, call.input, strict=False)
        )
        for inner, outer in zip(function.output, call.output, strict=False):
            if outer:
                # An output that the caller reads has the caller's name from the start, and needs no
                # copy.
                names.setdefault(inner, outer)
        for node in function.node:
            for name in node.output:
                if name and name not in names:
                    names[name] = self._fresh(name)
        made = {*function.input, *(name for node in function.node for name in node.output)}
        lost = [name for name in function.output if name not in made]
        if lost:
            raise self._misfit(call, f"nothing in it makes its output '{lost[0]}'")
        return names

    def _rename(self, node: onnx.NodeProto, names: Mapping[str, str]) -> None:
        node.input[:] = [names[name] if name else "" for name in node.input]
        node.output[:] = [names[name] if name else "" for name in node.output]
        for body in subgraphs(node):
            # Two calls of a function have the same bodies, whose tensors would be defined twice.
            inner = {name: self._fresh(name) for name in all_defined(body)}
            rename_inside(body, {**names, **inner})

    def _fresh(self, name: str) -> str:
        found = name
        while found in self.taken:
            self.copies[name] = self.copies.get(name, 0) + 1
            found = f"{name}__{self.copies[name]}"
        self.taken.add(found)
        return found

    # ---- checks -------------------------------------------------------------------------------

    def _misfit(self, call: onnx.NodeProto, why: str) -> InvalidModelError:
        return InvalidModelError(
            "a model-local function cannot be put in its callers' place",
            where=f"{self.file}, {describe(call)}",
            why=why,
            fix="call every function with the inputs, outputs and attributes that it declares",
        )

    def _check_twice(self, functions: Iterable[onnx.FunctionProto]) -> None:
        if len(self.functions) < len(list(functions)):
            names = [_key(f.domain, f.name, f.overload) for f in functions]
            twice = next(name for name in names if names.count(name) > 1)
            raise InvalidModelError(
                f"the model-local function '{twice[1]}' is defined twice",
                where=self.file,
                why=f"two functions have this name and the domain '{twice[0]}'",
                fix="every function needs a name of its own in its domain",
            )

    def _measure(self, key: _Key, sizes: dict[_Key, _Size], path: tuple[_Key, ...]) -> _Size:
        """Returns what a call stands for.

        Raises:
            InvalidModelError: The function calls itself, or functions are nested too deeply.
        """
        # The depth of a path is bounded beside the sum below: this function itself recurs along it.
        if key in path or len(path) > _MAX_DEPTH:
            raise self._nested(key, path)
        if key not in sizes:
            sizes[key] = self._sum(self.functions[key].node, sizes, (*path, key))
        if len(path) + sizes[key].calls > _MAX_DEPTH:
            raise self._nested(key, path)
        return sizes[key]

    def _sum(
        self, nodes: Iterable[onnx.NodeProto], sizes: dict[_Key, _Size], path: tuple[_Key, ...]
    ) -> _Size:
        """Returns what nodes stand for, those of their bodies among them."""
        total = _Size(0, 0, 0)
        for node in nodes:
            called = _called_function_key(node)
            inside = called in self.functions
            size = self._measure(called, sizes, path) if inside else _Size(1, 0, 0)
            total = total.beside(_Size(size.nodes, size.calls + inside, size.bodies))
            for body in subgraphs(node):
                size = self._sum(body.node, sizes, path)
                total = total.beside(_Size(size.nodes, size.calls, size.bodies + 1))
        return total

    def _nested(self, key: _Key, path: tuple[_Key, ...]) -> InvalidModelError:
        again = f"the model-local function '{key[1]}' calls itself"
        return InvalidModelError(
            again if key in path else f"functions are nested deeper than {_MAX_DEPTH}",
            where=self.file,
            why=" -> ".join(name for _, name, _ in (*path, key)),
            fix="ONNX functions must not be recursive, nor call each other so deeply",
        )

    def _check_size(self, graph: onnx.GraphProto, sizes: dict[_Key, _Size]) -> None:
        size = self._sum(graph.node, sizes, ())
        bodies = (graph.node, *(function.node for function in self.functions.values()))
        written = sum(1 for nodes in bodies for _ in all_nodes(nodes))
        most = _ALWAYS + _TIMES * written
        if size.nodes > most:
            raise UnsupportedModelError(
                "the model's functions stand for too many nodes",
                where=self.file,
                why=f"put in the place of their calls they are {size.nodes:,}, "
                f"{most:,} are taken at most",
                fix="export the model without functions that call each other over and over",
            )
        if size.bodies > _MAX_BODIES:
            raise UnsupportedModelError(
                "the model's branches and loops are nested too deeply",
                where=self.file,
                why=f"with functions in the place of their calls they are {size.bodies} deep, "
                f"and a file can hold {_MAX_BODIES}",
                fix="export the model without functions",
            )

    def _check_meaning(self, node: onnx.NodeProto, function: onnx.FunctionProto) -> None:
        opsets = {plain_domain(entry.domain): entry.version for entry in function.opset_import}
        domain = plain_domain(node.domain)
        theirs, ours = opsets.get(domain), self.opsets.get(domain)
        if (
            theirs is None
            or ours is None
            or theirs == ours
            or _called_function_key(node) in self.functions
        ):
            return
        if not _same_meaning(
            node, schema_of(node.op_type, domain, theirs), schema_of(node.op_type, domain, ours)
        ):
            raise UnsupportedModelError(
                f"the function '{function.name}' is written for another opset than the model",
                where=f"{self.file}, {describe(node)}",
                why=f"{node.op_type} of opset {theirs} is another operator than that of {ours}",
                fix="export model and functions for one opset",
            )


def _same_meaning(
    node: onnx.NodeProto, a: onnx.defs.OpSchema | None, b: onnx.defs.OpSchema | None
) -> bool:
    """True where a node says the same under two versions of its operator.

    Versions that only take more element types, or have more attributes and operands than the node
    uses, do not differ; those in which a default or the order of operands changed do.
    """
    if a is None or b is None:
        return a is b
    if a.since_version == b.since_version:
        return True
    shared = set(a.attributes) & set(b.attributes)
    count = len(node.input)
    return (
        not (a.deprecated or b.deprecated)
        and {attribute.name for attribute in node.attribute} <= shared
        and all(a.attributes[n].default_value == b.attributes[n].default_value for n in shared)
        and [i.name for i in a.inputs[:count]] == [i.name for i in b.inputs[:count]]
    )


def _bind(node: onnx.NodeProto, values: Mapping[str, onnx.AttributeProto]) -> None:
    """Puts values in the place of references to a function's attributes, or nothing."""
    for body in subgraphs(node):
        for inner in body.node:
            _bind(inner, values)
    if not any(attribute.ref_attr_name for attribute in node.attribute):
        return
    bound: list[onnx.AttributeProto] = []
    for attribute in node.attribute:
        value = values.get(attribute.ref_attr_name) if attribute.ref_attr_name else attribute
        if value is not None:
            copy = onnx.AttributeProto()
            copy.CopyFrom(value)
            copy.name = attribute.name
            bound.append(copy)
    del node.attribute[:]
    node.attribute.extend(bound)


def _key(domain: str, name: str, overload: str) -> _Key:
    return plain_domain(domain), name, overload


def _called_function_key(node: onnx.NodeProto) -> _Key:
    return _key(node.domain, node.op_type, node.overload)


def _names(graph: onnx.GraphProto) -> set[str]:
    """Returns every name of a tensor, those of subgraphs too."""
    found = {value.name for value in (*graph.input, *graph.initializer)}
    found |= {tensor.values.name for tensor in graph.sparse_initializer}
    for node in graph.node:
        found |= {*node.input, *node.output}
        for body in subgraphs(node):
            found |= _names(body)
    return found
