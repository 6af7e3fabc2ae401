"""What a report on a quantization shows: plain data, made by whoever quantized."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class OutputPart:
    """How a part of an output came out that a Concat joins with others.

    Attributes:
        name: The tensor's name in the float model.
        sqnr_db: Of this part alone.
        low: Its smallest value in the float model.
        high: Its largest.
    """

    name: str
    sqnr_db: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Output:
    """How one output of the model came out.

    Attributes:
        sqnr_db: Power of the float result over that of the difference, in dB; infinite where
            nothing differs, NaN where nothing was compared.
        parts: What Concats join to it; empty where none does.
    """

    name: str
    sqnr_db: float
    parts: tuple[OutputPart, ...] = ()


@dataclass(frozen=True, slots=True)
class LayerError:
    """How far the result of one layer is from the float one.

    Attributes:
        name: The tensor's name in the float model.
        operator: The operator that computes it.
        accumulated_db: SQNR behind the quantized layers before it, in dB; infinite where nothing
            differs, NaN where the tensor is all zero.
        local_db: SQNR of the layer alone, fed with the float tensors, rounded once.
    """

    name: str
    operator: str
    accumulated_db: float
    local_db: float


@dataclass(frozen=True, slots=True)
class TensorReport:
    """What was seen of one tensor, and how it is stored.

    Attributes:
        name: Its name in the float model.
        operator: The operator that computes it; empty for an input.
        storage: Storage type; empty where the tensor stays float.
        scale: Its scale; None where it stays float.
        low: The smallest real number that its codes stand for.
        high: The largest.
        decided: Who chose the range: the chooser's name, ``fixed: …``, ``as …``.
        minimum: The smallest value seen.
        maximum: The largest.
        count: Number of values seen.
        zeros: How many of them were zero.
        clipped: Share of the values outside of the range, by the bins of the histogram.
        first: Left edge of the first bin.
        width: Width of a bin; 0 where values were not counted.
        bins: Counts of values other than zero.
    """

    name: str
    operator: str
    storage: str
    scale: float | None
    zero_point: int
    low: float
    high: float
    decided: str
    minimum: float
    maximum: float
    count: int
    zeros: int
    clipped: float = 0.0
    first: float = 0.0
    width: float = 0.0
    bins: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class WeightError:
    """How far stored weights are from the float ones.

    Attributes:
        node: The node that reads them.
        name: The constant's name.
        storage: Storage type.
        scales: Number of scales: 1 per tensor, else one for each channel.
        sqnr_db: Power of the weights over that of the rounding error, in dB.
        largest: The largest error of a weight, in units of its scale.
    """

    node: str
    operator: str
    name: str
    storage: str
    scales: int
    sqnr_db: float
    largest: float


@dataclass(frozen=True, slots=True)
class AccumulatorRow:
    """What one product asks of its accumulator; numbers of bits are those of the worst channel.

    Attributes:
        node: Its name.
        channels: Number of output channels.
        terms: Products in one sum.
        naive_bits: Bits by the widths of the types alone.
        bits: Bits that no input overflows.
        calibrated_bits: The same within the observed range of inputs; None without data.
        observed_bits: Bits of the sums that data gave; None without data.
        observed: The smallest and the largest of these sums; None without data.
        headroom: Bits to spare in int32; negative where it may overflow.
        pairs: Pairs that a kernel adds in 16 bits, in all channels; 0 where none does.
        saturating_pairs: How many of them can saturate.
        calibrated_pairs: How many can within the observed range of inputs; None without data.
        saturating_channels: Channels with such a pair.
        remedy: The largest factor by which a channel's weight scale has to grow against that.
        dead_channels: Number of channels whose weights are all zero.
    """

    node: str
    operator: str
    channels: int
    terms: int
    naive_bits: int
    bits: int
    calibrated_bits: int | None
    observed_bits: int | None
    observed: tuple[int, int] | None
    headroom: int
    pairs: int
    saturating_pairs: int
    calibrated_pairs: int | None
    saturating_channels: int
    remedy: float
    dead_channels: int


@dataclass(frozen=True, slots=True)
class FloatNode:
    """A node that computes in float.

    Attributes:
        node: Its name.
        reason: Why.
    """

    node: str
    operator: str
    reason: str


@dataclass(frozen=True, slots=True)
class Culprit:
    """What one layer costs.

    Attributes:
        layer: Its name.
        kind: What kind of layer it is.
        alone_db: Output SQNR where only this layer is quantized, in dB.
    """

    layer: str
    kind: str
    alone_db: float


@dataclass(frozen=True, slots=True)
class FallbackRow:
    """A layer that was taken back to more bits, or to float, because it cost too much.

    Attributes:
        layer: Its name.
        to: ``int16``, another storage type, or ``float``.
        rank: Its place among all layers, 1 for the most costly.
        alone_db: Output SQNR where only this layer is quantized, in dB.
        reason: One sentence.
    """

    layer: str
    to: str
    rank: int
    alone_db: float
    reason: str


@dataclass(frozen=True, slots=True)
class ParetoRow:
    """A choice of bits per layer: what it takes and what it gives.

    Attributes:
        name: What layers have.
        size: Bytes of all constants.
        sqnr_db: Of the outputs, in dB.
        top1: Share of examples with the same largest class; None where there are no classes.
        milliseconds: For one sample in onnxruntime, the fastest of several runs; all nodes of the
            engine together where these have a budget.
        slowest_milliseconds: What the engine's slowest node takes; None where nobody asked.
    """

    name: str
    size: int
    sqnr_db: float
    top1: float | None
    milliseconds: float
    slowest_milliseconds: float | None = None


@dataclass(frozen=True, slots=True)
class RepairRow:
    """A repair step, tried on calibration samples.

    Attributes:
        step: Its name.
        applied: Whether it was kept.
        outcome: What it did, or why it did nothing.
        before_db: Output SQNR without it, in dB; None where nothing was tried.
        after_db: With it.
    """

    step: str
    applied: bool
    outcome: str
    before_db: float | None = None
    after_db: float | None = None


@dataclass(frozen=True, slots=True)
class QuantizationRecord:
    """Everything that a report shows.

    Attributes:
        model: What the model is called: its file.
        float_digest: Digest of the float graph that was quantized.
        digest: Digest of the quantized graph.
        target: The target's name.
        data: What the data is called: its file, or where there is only a profile, that.
        samples: Number of samples that the statistics are of.
        measured: Number of samples that errors of layers were measured on.
        versions: Of the programs that took part, by name.
        choosers: Who chose parameters: what for, and its name with its settings.
        outputs: Errors of the model's outputs.
        sqnr_db: Of all outputs, the figure that every place tells; None without samples.
        judged: Which samples outputs and classes were compared on, and what is said of others.
        top1: Share of examples with the same largest class; None where there are no classes.
        layers: Errors per layer, in topological order.
        tensors: What was seen of every float tensor, in topological order.
        weights: Errors of weights.
        accumulators: Sums of products.
        floats: Nodes that stay float.
        culprits: Layers by what they cost, the most costly one first; empty where it was not tried.
        fallback: Layers that were taken back.
        pareto: Size and time against quality, the smallest first; empty where nobody asked.
        goal: What the outputs had to be like; empty where nobody asked.
        repairs: Repair steps in the order in which they were tried.
        notes: What else there is to know.
    """

    model: str
    float_digest: str
    digest: str
    target: str
    data: str
    samples: int
    measured: int = 0
    versions: Mapping[str, str] = field(default_factory=dict[str, str])
    choosers: Mapping[str, str] = field(default_factory=dict[str, str])
    outputs: tuple[Output, ...] = ()
    sqnr_db: float | None = None
    judged: str = ""
    top1: float | None = None
    layers: tuple[LayerError, ...] = ()
    tensors: tuple[TensorReport, ...] = ()
    weights: tuple[WeightError, ...] = ()
    accumulators: tuple[AccumulatorRow, ...] = ()
    floats: tuple[FloatNode, ...] = ()
    culprits: tuple[Culprit, ...] = ()
    fallback: tuple[FallbackRow, ...] = ()
    pareto: tuple[ParetoRow, ...] = ()
    goal: str = ""
    repairs: tuple[RepairRow, ...] = ()
    notes: tuple[str, ...] = ()
