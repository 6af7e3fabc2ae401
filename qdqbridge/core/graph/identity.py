"""Ids of tensors that do not depend on how a file is stored or its nodes are numbered."""

from __future__ import annotations

import hashlib

from qdqbridge.core.graph.graph import Value


def tensor_id(value: Value) -> str:
    """Returns the stable id of a tensor.

    It is made of the tensor's name, the operator that computes it and which result it is.
    """
    return id_of(value.name, *origin_of(value))


def id_of(name: str, operator: str, index: int) -> str:
    """Returns the id of the result ``index`` of an operator; a graph input has none, so ``""``."""
    return hashlib.sha256(f"{name}\0{operator}\0{index}".encode()).hexdigest()[:16]


def origin_of(value: Value) -> tuple[str, int]:
    """Returns the operator that computes a value, and which of its results it is."""
    if value.producer is None:
        return "", 0
    return value.producer.op.name, value.producer.outputs.index(value)
