"""Nodes whose operands are constants, computed as far as that is cheap.

What a file asks for is computed only where it is known beforehand to stay in proportion to what
the file holds; what is not computed stays a node.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from qdqbridge.core.graph.constant import Constant
from qdqbridge.core.graph.graph import Node
from qdqbridge.core.graph.interpreter import computed
from qdqbridge.core.ops.steps import steps

_ONE = 1 << 20
"""Steps that one node may always take; quantization parameters and shapes take far fewer."""
_ALL = 1 << 21
"""Steps that all nodes of a file may always take together: a fraction of a second, and 200 MB with
all that is made of them."""
_GROWTH = 4
"""One node may take so many steps for each element that it reads."""
_PER_ELEMENT, _PER_NODE = 8, 1 << 12
"""All nodes together may take so many more for each element, and for each node, of the file."""


class Budget:
    """What may still be computed while one file is read.

    Attributes:
        left: The steps that are left.
    """

    __slots__ = ("left",)

    def __init__(self, elements: int = 0, nodes: int = 0) -> None:
        """Makes a budget.

        Args:
            elements: How many elements the constants have that the file really holds.
            nodes: How many nodes it has.
        """
        self.left = _ALL + _PER_ELEMENT * elements + _PER_NODE * nodes

    @staticmethod
    def of(nodes: Sequence[Node]) -> Budget:
        """Returns the budget of a graph."""
        constants = {v for n in nodes for v in n.inputs if v is not None and v.constant}
        return Budget(sum(v.constant.size for v in constants if v.constant), len(nodes))

    def affords(self, count: int) -> bool:
        """Takes ``count`` steps; False, and nothing taken, where they are not left."""
        if count > self.left:
            return False
        self.left -= count
        return True


def proportionate(node: Node, operands: Sequence[Constant | None]) -> int:
    """Returns what computing a node takes; 0 where that is unknown or far more than it reads."""
    count = steps(node, operands) or 0
    read = sum(operand.size for operand in operands if operand is not None)
    return count if count <= max(_ONE, _GROWTH * read) else 0


def affordable(node: Node, operands: Sequence[Constant | None], budget: Budget) -> bool:
    """Returns whether a node may be computed, and takes that from the budget."""
    count = proportionate(node, operands)
    return count > 0 and budget.affords(count)


def folded(
    node: Node, operands: Sequence[Constant | None], budget: Budget
) -> list[Constant] | None:
    """Returns the results of a node, None where they would cost too much or cannot be told.

    Raises:
        InvalidModelError: The constants do not fit together.
        UnsupportedModelError: An opaque operator is one that onnxruntime does not have.
    """
    if not affordable(node, operands, budget):
        return None
    arrays = [None if operand is None else operand.numpy() for operand in operands]
    return [Constant.of(np.asarray(array)) for array in computed(node, arrays)]
