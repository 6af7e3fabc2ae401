"""The canonical form: its rules to their fixpoint, and what looks at the whole graph."""

from __future__ import annotations

from collections.abc import Sequence

from qdqbridge.core.arguments import BIT_FOR_BIT, ReadingOptions
from qdqbridge.core.canonical import (
    absorb,
    bias,
    channels,
    clamps,
    concatenation,
    conversions,
    data_movement,
    dynamic,
    folding,
    fusions,
    identities,
    linear,
    norms,
    order,
    pools,
    reshapes,
    storage,
)
from qdqbridge.core.canonical import decomposed as decompositions
from qdqbridge.core.canonical.channels import CHANNELS
from qdqbridge.core.canonical.diagnostics import diagnose
from qdqbridge.core.canonical.fusions import FUSIONS
from qdqbridge.core.canonical.order import order_operands, order_steps
from qdqbridge.core.canonical.storage import propagate_storage, share_dequantized
from qdqbridge.core.graph.graph import Graph, Node, Note
from qdqbridge.core.ops.integers import leave_as_stored, propagate_parameters, release_interface
from qdqbridge.core.rewrite import Reject, Rule, run

# ---- The canonical rules, in the order in which they look at a node ------------------------------
# The first that proposes wins; the node and its neighbours are looked at again, until no rule
# fires. So the order decides only where two rules want the same node, and nearly always they lead
# to one form whoever comes first: ``tests/core/canonical/test_rule_order.py`` holds that random
# orders give the same digests. The exceptions are the last two, ``absorb-both-sides`` and
# ``compose-elementwise``: they take operators in as they are, and what is simpler has to be found
# before: a clamp before a quantize is a range of the quantized type, and would become an operator
# that rounds.
#
# Else the tuple goes from what is known of constants, extents and weights over single operators and
# data movement to products with their bias, what is joined, and what is fused.


RULES: tuple[Rule, ...] = (
    folding.shape_of_stored,
    folding.known_extents,
    decompositions.cast_scale_is_dequantize,
    folding.small_constant,
    conversions.one_zero_point,
    identities.merge_equal,
    identities.capture_once,
    order.constants_last,
    order.extreme_of_extremes,
    order.extreme_of_equals,
    conversions.quantized_constant,
    conversions.reinterpreted_constant,
    conversions.reinterpret_twice,
    conversions.cast_nothing,
    conversions.cast_dequantized,
    conversions.cast_before_quantize,
    storage.positive_scale,
    storage.coarsest_granularity,
    storage.signed_weight,
    storage.normal_operands,
    storage.float_norm_offset,
    folding.static_reshape,
    data_movement.negative_indices,
    data_movement.axes_from_the_front,
    data_movement.gather_of_all_in_order,
    identities.reduces_nothing,
    pools.no_padding_to_count,
    pools.mean_over_space,
    pools.pool_over_a_sequence,
    pools.nearest_by_whole_factors,
    pools.nearest_keeps_quantization,
    norms.softmax_of_one_element,
    norms.softmax_of_a_matrix,
    norms.softmax_of_rows,
    data_movement.moved_constant,
    identities.moves_nothing,
    identities.slice_to_the_end,
    identities.negated_twice,
    identities.computes_nothing,
    reshapes.reshape_nothing,
    reshapes.reshape_of_no_element,
    reshapes.blocks_of_depth,
    reshapes.moved_twice,
    channels.region_of_a_layout,
    reshapes.flatten_is_reshape,
    reshapes.reshape_is_flatten,
    reshapes.reshape_target,
    clamps.clip_of_an_extreme,
    clamps.clip_twice,
    clamps.clip_of_finite,
    clamps.clip_nothing,
    fusions.division_of_one,
    fusions.hard_swish_of_its_gate,
    norms.norm_without_offset,
    data_movement.dequantize_through_data_movement,
    data_movement.reinterpret_through_data_movement,
    clamps.clamp_before_quantize,
    data_movement.quantize_through_data_movement,
    conversions.dequantize_quantize,
    conversions.requantize_nothing,
    data_movement.pad_value_as_stored,
    data_movement.data_movement_keeps_range,
    data_movement.requantize_after_data_movement,
    clamps.clamp_into_producer,
    absorb.absorb_accumulator_operands,
    dynamic.block_product,
    linear.matmul_is_dense,
    linear.gemm_is_dense,
    dynamic.dynamic_product,
    dynamic.dynamic_convolution,
    dynamic.dynamic_rows,
    dynamic.dynamic_bias,
    linear.convolution_bias,
    linear.product_of_matrices,
    linear.bias_is_a_vector,
    linear.product_bias,
    linear.product_of_rows,
    bias.bias_from_add,
    bias.bias_of_zeros,
    bias.derived_bias,
    absorb.absorb_result,
    concatenation.dequantize_through_concat,
    concatenation.quantize_into_concat,
    concatenation.convert_after_concat,
    concatenation.concat_keeps_range,
    concatenation.joined_constant,
    absorb.absorb_both_sides,
    fusions.compose_elementwise,
)


def rules_with(options: ReadingOptions, *, channels_first: bool = False) -> tuple[Rule, ...]:
    """Returns the rules with those of the options in front.

    Args:
        options: What is rewritten beyond what keeps every bit.
        channels_first: Transposes to channels-last move down, to where something undoes them.
    """
    chosen: tuple[tuple[bool, tuple[Rule, ...]], ...] = (
        (options.decomposed, (decompositions.fake_quantize,)),
        (options.fold_affine, (bias.fold_affine,)),
        (options.fuse, FUSIONS),
        (options.fuse or options.dynamic, (dynamic.dynamic_activation,)),
        (channels_first, CHANNELS),
    )
    return (*(rule for wanted, rules in chosen if wanted for rule in rules), *RULES)


# ---- The canonical form: its rules to their fixpoint, and what looks at the whole graph ----------


def canonicalize(
    graph: Graph, options: ReadingOptions = BIT_FOR_BIT, *, channels_first: bool = False
) -> Graph:
    """Rewrites ``graph`` in place to the canonical form and returns it.

    Applying it again changes nothing. Refusals that still stand are appended to ``graph.notes``,
    and so is what the parameters say that somebody should know.

    Args:
        graph: Any graph.
        options: What is rewritten beyond what keeps every bit.
        channels_first: Carry transposes to channels-last down the graph until something undoes
            them, as an image network of another layout wants it. Float sums change their order.
    """
    propagate_parameters(graph)
    rules = rules_with(options, channels_first=channels_first)
    refused = _settled(graph, rules)
    if propagate_parameters(graph):  # once: rules may make plain again what it has typed
        refused = _settled(graph, rules)
    order_steps(graph.nodes)
    order_operands(graph)
    release_interface(graph)
    graph.canonical = True
    for note in (*notes_of(refused), *diagnose(graph)):
        if note not in graph.notes:
            graph.notes.append(note)
    return graph


def _settled(graph: Graph, rules: Sequence[Rule]) -> dict[tuple[str, Node], Reject]:
    """Runs the rules, and again behind what looks at the whole graph, to their fixpoint."""
    refused = run(graph, rules)
    while leave_as_stored(graph) or propagate_storage(graph) or share_dequantized(graph):
        refused = run(graph, rules)
    return refused


def notes_of(refused: dict[tuple[str, Node], Reject]) -> list[Note]:
    """Returns refusals as notes, in the order of the graph's nodes."""
    return [
        Note(name, (reject.about or node).name, reject.reason, reject.culprits)
        for (name, node), reject in refused.items()
    ]
