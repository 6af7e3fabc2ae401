"""The canonical rules, in the order in which they look at a node.

The first that proposes wins; the node and its neighbours are looked at again, until no rule fires.
So the order decides only where two rules want the same node, and nearly always they lead to one
form whoever comes first: ``tests/core/canonical/test_rule_order.py`` holds that random orders give
the
same digests. The exceptions are the last two, ``absorb-both-sides`` and ``compose-elementwise``:
they take operators in as they are, and what is simpler has to be found before: a clamp before a
quantize is a range of the quantized type, and would become an operator that rounds.

Else the tuple goes from what is known of constants, extents and weights over single operators and
data movement to products with their bias, what is joined, and what is fused.
"""

from __future__ import annotations

from qdqbridge.core.arguments import ReadingOptions
from qdqbridge.core.canonical import (
    absorb,
    bias,
    casts,
    channels,
    clamps,
    compositions,
    concatenation,
    conversions,
    data_movement,
    dense,
    dynamic,
    folding,
    fusions,
    identities,
    linear,
    norms,
    order,
    pools,
    reshapes,
    resizes,
    sharing,
    weights,
)
from qdqbridge.core.canonical import decomposed as decompositions
from qdqbridge.core.canonical.channels import CHANNELS
from qdqbridge.core.canonical.fusions import FUSIONS
from qdqbridge.core.rewrite.rule import Rule

RULES: tuple[Rule, ...] = (
    folding.shape_of_stored,
    folding.known_extents,
    decompositions.cast_scale_is_dequantize,
    folding.small_constant,
    conversions.one_zero_point,
    sharing.merge_equal,
    sharing.capture_once,
    order.constants_last,
    order.extreme_of_extremes,
    order.extreme_of_equals,
    conversions.quantized_constant,
    conversions.reinterpreted_constant,
    conversions.reinterpret_twice,
    conversions.cast_nothing,
    casts.cast_dequantized,
    casts.cast_before_quantize,
    weights.positive_scale,
    weights.coarsest_granularity,
    weights.signed_weight,
    weights.normal_operands,
    weights.float_norm_offset,
    folding.static_reshape,
    data_movement.negative_indices,
    data_movement.axes_from_the_front,
    data_movement.gather_of_all_in_order,
    identities.reduces_nothing,
    pools.no_padding_to_count,
    pools.mean_over_space,
    pools.pool_over_a_sequence,
    resizes.nearest_by_whole_factors,
    resizes.nearest_keeps_quantization,
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
    dense.matmul_is_dense,
    dense.gemm_is_dense,
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
    bias.derived_bias,
    absorb.absorb_result,
    concatenation.dequantize_through_concat,
    concatenation.quantize_into_concat,
    concatenation.convert_after_concat,
    concatenation.concat_keeps_range,
    concatenation.joined_constant,
    absorb.absorb_both_sides,
    compositions.compose_elementwise,
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
