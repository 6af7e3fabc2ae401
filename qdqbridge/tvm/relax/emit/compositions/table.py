"""Which ONNX operators are composed here, and by what."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from qdqbridge.core.graph.graph import Node
from qdqbridge.core.ops.attention import ATTENTION, ROTARY_EMBEDDING
from qdqbridge.core.ops.group_query_attention import GROUP_QUERY_ATTENTION, SPARSE_ATTENTION
from qdqbridge.onnx_io.opaque.nodes import OpaqueAttrs
from qdqbridge.tvm.qnn.emit.emitter import Expr
from qdqbridge.tvm.relax.emit.compositions.attention import (
    MULTI_HEAD,
    QUANTIZED_ATTENTION,
    attention,
)
from qdqbridge.tvm.relax.emit.compositions.elementwise import (
    BROADCASTING,
    CONVERSION,
    ELEMENTWISE,
    PRESENCE,
    Composition,
    CompositionContext,
    of_row,
)
from qdqbridge.tvm.relax.emit.compositions.group_query_attention import (
    group_query_attention,
    sparse_attention,
)
from qdqbridge.tvm.relax.emit.compositions.images import FOURIER, IMAGES
from qdqbridge.tvm.relax.emit.compositions.linear_attention import (
    EXPERT_LOOPS,
    GATES,
    LINEAR_ATTENTION,
)
from qdqbridge.tvm.relax.emit.compositions.recurrent import RECURRENT
from qdqbridge.tvm.relax.emit.compositions.reductions import (
    NORMS,
    PACKED_PRODUCTS,
    PRODUCTS,
    REDUCTIONS,
)
from qdqbridge.tvm.relax.emit.compositions.regions import FOLDING, POOLING, REGIONS, SUPPRESSION
from qdqbridge.tvm.relax.emit.compositions.rotary_embedding import (
    EMBEDDINGS,
    ROTARY,
    rotary_embedding,
)
from qdqbridge.tvm.relax.emit.compositions.shapes import (
    CACHES,
    COMPUTED_SIZES,
    INDEXING,
    REVERSAL,
    SHAPES,
)
from qdqbridge.tvm.relax.emit.emitter import RelaxEmitter

COMPOSITIONS: Mapping[str, Composition] = {
    **CONVERSION, **ELEMENTWISE, **IMAGES, **POOLING, **PRODUCTS, **REDUCTIONS, **REGIONS, **SHAPES,
    **COMPUTED_SIZES, **CACHES, **INDEXING, **LINEAR_ATTENTION, **RECURRENT, **REVERSAL,
    **SUPPRESSION, **FOURIER, **NORMS, **FOLDING,
    **BROADCASTING, **PRESENCE,
}  # fmt: skip
"""By the operator's name in ONNX's own domain."""
OF_MICROSOFT: Mapping[str, Composition] = {
    **EMBEDDINGS, **LINEAR_ATTENTION, **GATES, **PACKED_PRODUCTS,
    **QUANTIZED_ATTENTION,
    **ROTARY,
}  # fmt: skip
"""By the operator's name in com.microsoft, of those that have no row."""
OF_DOMAINS: Mapping[str, Mapping[str, Composition]] = {
    "": COMPOSITIONS,
    "com.microsoft": OF_MICROSOFT,
}
"""Those without a row, by their domain."""
OF_ROWS: Mapping[str, Composition] = {
    **MULTI_HEAD,
    **EXPERT_LOOPS,
    **dict((
        of_row(ATTENTION, attention),
        of_row(GROUP_QUERY_ATTENTION, group_query_attention),
        of_row(SPARSE_ATTENTION, sparse_attention),
        of_row(ROTARY_EMBEDDING, rotary_embedding),
    )),
}  # fmt: skip
"""By the name of a row that hosts compute in a function of its own."""


def composition_of(node: Node) -> Callable[[RelaxEmitter, Node], Sequence[Expr]] | None:
    """Returns what emits a node in a function of its own; None where nothing here does.

    What is returned raises :class:`~qdqbridge.onnx_io.codecs.view.NoRow` for a variant that it
    does not know.
    """
    attributes = node.attributes
    if node.op.apart:
        composition = OF_ROWS.get(node.op.name)
    elif isinstance(attributes, OpaqueAttrs):
        composition = OF_DOMAINS.get(attributes.domain, {}).get(attributes.op_type)
    else:
        return None
    if composition is None:
        return None
    return lambda emitter, alone: composition(CompositionContext.of(emitter, alone))
