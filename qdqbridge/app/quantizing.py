"""Quantization of float models: what the verb ``quantize`` is made of."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from qdqbridge.app.pipeline import explain, load, unquantize
from qdqbridge.app.profiling import load_profile
from qdqbridge.core.arguments import checked, path_of
from qdqbridge.core.graph.atomic_write import read_arrays, write_text
from qdqbridge.core.graph.graph import Graph
from qdqbridge.errors import InputDataError
from qdqbridge.options import (
    ChooserName,
    FallbackFormat,
    PresetName,
    TargetName,
    WeightFormat,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from qdqbridge.autoquant.choosers import Chooser
    from qdqbridge.autoquant.delivered import Delivered
    from qdqbridge.autoquant.inside import QuantizedBody
    from qdqbridge.autoquant.planning.formats import Format, Unstored
    from qdqbridge.autoquant.planning.targets import Target
    from qdqbridge.autoquant.profiling.collect import Data
    from qdqbridge.autoquant.profiling.profile import Profile
    from qdqbridge.autoquant.profiling.samples import GivenData, Samples
    from qdqbridge.autoquant.quantize import Quantized, QuantizeOptions
    from qdqbridge.autoquant.search.search import Fallback, Goal
    from qdqbridge.autoquant.search.time_limit import SizeLimit, TimeLimit
    from qdqbridge.autoquant.simulation.metrics import Metric, Metrics
    from qdqbridge.autoquant.simulation.user_metric import MetricScore, UserMetric
    from qdqbridge.core.graph.types import QuantParams

File: TypeAlias = "str | PathLike[str]"
_REPAIR = ("equalize", "smooth", "round", "learn", "bias")
_LOGGER = logging.getLogger(__name__)
_JUDGING = 256
"""Samples on which goals and reports are judged, taken from all of the data."""


@dataclass(frozen=True, slots=True, eq=False)
class Quantization:
    """A quantized model and how it came about.

    Attributes:
        made: The quantized graph before anything was taken back, its parameters, what repair did.
        original: The float graph.
        samples: What goals and reports are judged on, beside what was left out; None where there
            is only a profile.
        left_out: Numbers of the samples that nothing was chosen by: figures are of them.
        measure: The user's own measure, with all samples as they were given.
        goal: What the outputs had to be like; None for nothing.
        fallback: What it took to meet the goal.
    """

    made: Quantized
    original: Graph
    samples: Samples | None
    goal: Goal | SizeLimit | TimeLimit | None = None
    fallback: Fallback | None = None
    left_out: Sequence[int] = ()
    measure: UserMetric | None = None
    _delivered: list[Delivered] = field(default_factory=list["Delivered"], init=False, repr=False)
    _scores: list[tuple[MetricScore, MetricScore | None]] = field(
        default_factory=list["tuple[MetricScore, MetricScore | None]"], init=False, repr=False
    )

    @property
    def graph(self) -> Graph:
        """The quantized graph."""
        return self.made.graph if self.fallback is None else self.fallback.graph

    @property
    def inside(self) -> tuple[QuantizedBody, ...]:
        """What became of the bodies of If, Loop and Scan."""
        if self.fallback is None:
            return self.made.inside
        kept = {place for new in self.fallback.decision.bodies.values() for place in new.places}
        dropped = f"its bodies stay float for {self.goal}"
        return tuple(
            body
            if body.made is None or body.body.place in kept
            else replace(body, made=None, reason=dropped)
            for body in self.made.inside
        )

    def meeting(
        self,
        *,
        min_sqnr: float | None = None,
        max_drop: float | None = None,
        fallback: FallbackFormat = "int16",
        progress: Callable[[int, int], None] | None = None,
    ) -> Quantization:
        """Returns this with as many layers in more bits, or in float, as a goal needs.

        Args:
            min_sqnr: Smallest signal to noise of the outputs, in dB.
            max_drop: Largest loss of the user's measure, else of top-1 agreement (0.01 for 1 %).
            fallback: What layers get first; ``float`` leaves them float at once.
            progress: Called with the trials done, and how many there will be at most.

        Raises:
            InputDataError: There are no samples, or the goal cannot be met.
        """
        from qdqbridge.autoquant.search.fallback import met
        from qdqbridge.autoquant.search.search import Goal

        goal = Goal(min_sqnr, max_drop, self._optimism())
        made, samples, metric = self._judged("no goal can be judged without it")
        found = met(made, goal, samples, fallback=fallback, metric=metric, progress=progress)
        return replace(self, goal=goal, fallback=found)

    def within(
        self,
        *,
        max_bytes: int | None = None,
        max_node_seconds: float | None = None,
        engine: str = "tvm",
        min_sqnr: float | None = None,
        max_drop: float | None = None,
        threads: int | None = None,
        state: File | None = None,
        sized: Callable[[Graph], int] | None = None,
        progress: Callable[[int, int], None] | None = None,
    ) -> Quantization:
        """Returns this with bits per layer for a size or a time.

        With ``max_bytes`` or ``max_node_seconds`` the outputs are as good as that size or time
        allows; else the model is as small as the goal leaves.

        Args:
            max_bytes: How large the file may be.
            max_node_seconds: What each node may take that ``engine`` makes of the model, for one
                sample.
            engine: ``tvm``, ``onnxruntime`` or ``openvino``.
            threads: How many the engine may use; None for its default.
            min_sqnr: Smallest signal to noise of the outputs, in dB.
            max_drop: Largest loss of the user's measure, else of top-1 agreement (0.005 for half a
                point).
            state: A file of trials: a search that was killed goes on with it.
            sized: Returns the bytes of a graph's file; by default those of the ONNX file that is
                written for the target.
            progress: Called with the trials done, and how many there will be, about.

        Raises:
            InputDataError: There are no samples, or the limit cannot be met.
            UnsupportedTargetError: There is no such engine, or it tells no times.
        """
        from qdqbridge.autoquant.search.search import Goal
        from qdqbridge.autoquant.search.time_limit import SizeLimit, TimeLimit, within
        from qdqbridge.targets.profiles.export import file_size

        sized = sized or partial(file_size, profile=self.made.target.profile)
        given = min_sqnr is not None or max_drop is not None
        goal = Goal(min_sqnr, max_drop, self._optimism()) if given else None
        made, samples, metric = self._judged("no size or time can be judged without it")
        path = None if state is None else path_of(state)
        if max_node_seconds is not None:
            if max_bytes is not None:
                raise InputDataError("one search has one limit", fix="give a size or a time")
            time = TimeLimit(max_node_seconds, engine, goal, threads, sized)
            return self._within_time(time, path, progress)
        limit = SizeLimit(max_bytes, goal, sized)
        found = within(made, limit, samples, state=path, metric=metric, progress=progress)
        return replace(self, goal=limit, fallback=found)

    def _within_time(
        self,
        limit: TimeLimit,
        state: Path | None,
        progress: Callable[[int, int], None] | None,
    ) -> Quantization:
        from qdqbridge.app.judging import node_times
        from qdqbridge.autoquant.inside import bodies_within_time
        from qdqbridge.autoquant.search.time_limit import within_time

        made, samples, metric = self._judged("no size or time can be judged without it")
        clock = partial(node_times, limit.engine, threads=limit.threads)
        made, inside = bodies_within_time(made, limit, samples, clock, state)
        found = within_time(
            made, limit, samples, clock, state=state, metric=metric, progress=progress
        )
        found = replace(found, reverted=[*inside, *found.reverted])
        return replace(self, made=made, goal=limit, fallback=found)

    def _judged(self, why: str) -> tuple[Quantized, Samples, Metric | None]:
        """Returns what goals are judged on: all samples for a user's measure."""
        if self.samples is None:
            raise _no_data(why)
        if self.measure is None:
            return self.made, self.samples, None
        samples, unseen, metric = self.measure.apart()
        return replace(self.made, unseen=unseen), samples, metric

    def scores(self) -> tuple[MetricScore, MetricScore | None] | None:
        """Returns the user's measure of the float model and of this; None where he has none.

        First of all samples; then of those left out alone, where the measure is of labels.
        """
        # Running the user's measure takes as long as the model does on all of the data: once is
        # enough.
        if self.measure is not None and not self._scores:
            self._scores.append(self.measure.scores(self.graph))
        return self._scores[0] if self._scores else None

    def doubts(self) -> list[str]:
        """Returns warnings about outputs that are far from the float model's, or parts of them.

        They name the layers that do it, and what mends it.
        """
        from qdqbridge.autoquant.reporting import BAD, doubt

        found = self.delivered()
        if found is None or self.samples is None:
            return []
        texts = [found.mixed()]
        if self.fallback is None and found.expected < BAD:
            texts.append(doubt(self.made, self.samples, found.expected))
        return [text for text in texts if text]

    def outputs(self) -> Metrics | None:
        """Returns how far the outputs are from the float model's; None without samples.

        It is of samples that were left out, where there were enough to leave some out.
        """
        found = self.delivered()
        return None if found is None else found.metrics

    def delivered(self) -> Delivered | None:
        """Returns the same, what others most likely have, what was measured, parts of outputs."""
        from qdqbridge.autoquant.delivered import delivered

        if self.samples is None:
            return None
        if not self._delivered:
            optimism = sum(step.optimism for step in self.made.repairs if step.applied)
            found = delivered(self.original, self.graph, self.samples, self.made.unseen, optimism)
            self._delivered.append(found)
        return self._delivered[0]

    def _optimism(self) -> float:
        """Returns how much closer samples come than others most likely do, in dB."""
        # Of what was made before anything was taken back: the gain of choosing belongs to that.
        found = replace(self, goal=None, fallback=None).delivered()
        return 0.0 if found is None else found.optimism

    def report(
        self,
        path: File,
        *,
        model: str = "model",
        data: str = "data",
        verdict: Sequence[tuple[str, str]] | None = None,
        progress: Callable[[int, int], None] | None = None,
    ) -> None:
        """Writes a page about it, which shows the float graph and what was made of it.

        It tells errors per layer and weight, what each layer costs alone, what was tried, ranges
        and histograms, accumulators, what fell back.

        Args:
            path: The ``.html`` file; it is replaced.
            model: What to call the model.
            data: What to call the data.
            verdict: The first panel, as rows of a name and a sentence; by default what
                :func:`qdqbridge.app.verdict.verdict` says.
            progress: Called with the steps done and their number.

        Raises:
            OutputFileError: The operating system refuses.
        """
        from qdqbridge.app.verdict import verdict as verdict_of
        from qdqbridge.app.viewer import document_of_quantization, page
        from qdqbridge.autoquant.reporting import ranked, record_of

        ranking = None if self.fallback is None else self.fallback.ranking
        if ranking is None and self.samples is not None:
            ranking = ranked(self.made, self.samples)
        tuning = self.made.tuning
        record = record_of(
            self.made if self.fallback is None else _Fallen(self.made, self.fallback),
            self.made.target,
            self.samples,
            shown=self.delivered(),
            model=model,
            data=data,
            repairs=[*self.made.repairs, *([] if tuning is None else [tuning])],
            ranking=ranking,
            fallback=self.fallback,
            goal="" if self.goal is None else str(self.goal),
            inside=self.inside,
            progress=progress,
        )
        shown = document_of_quantization(
            record,
            self.original,
            self.graph,
            explain(self.graph),
            verdict=verdict_of(self) if verdict is None else verdict,
        )
        write_text(path_of(path), page(shown))


class _Fallen:
    """What a report looks at where layers were taken back."""

    def __init__(self, made: Quantized, fallback: Fallback) -> None:
        self.graph, self.decision, self.profile = fallback.graph, fallback.decision, made.profile
        self.original = made.original


@checked
def quantize(
    model: Graph | File,
    data: GivenData | File | None,
    *,
    target: TargetName | Target = "ort",
    profile: Profile | File | None = None,
    exclude: Sequence[str] = (),
    only: Sequence[str] = (),
    fixed: Mapping[str, QuantParams] | None = None,
    formats: Mapping[str, Format | Unstored] | None = None,
    chooser: ChooserName | Chooser | None = None,
    weight_chooser: ChooserName | Chooser | None = None,
    weights: WeightFormat | None = None,
    block: int | None = None,
    weight_formats: Mapping[str, Format] | None = None,
    repair: Sequence[str] = _REPAIR,
    min_sqnr: float | None = None,
    max_drop: float | None = None,
    metric: Metric | None = None,
    labels: NDArray[Any] | File | None = None,
    fallback: FallbackFormat = "int16",
    preset: PresetName = "balanced",
    progress: Callable[[int, int], None] | None = None,
) -> Graph:
    """Quantizes a float model with ranges from calibration data, keeping what helps its outputs.

    Args:
        model: A canonical float graph, or the file of one. A quantized one is quantized again, as
            :func:`qdqbridge.unquantize` returns it.
        data: Samples: one array per input with examples along axis 0; an ``.npz`` file of such
            arrays, or a folder of such files; or the inputs of each run, as a list or generator of
            mappings, of lists of arrays or of the only input's arrays, or, for a model without a
            batch axis, one file per run. Inputs that nothing reads may be left out. None if only
            ``profile`` is used.
        target: What the result is for: a name (``qdqbridge.autoquant.planning.targets``), or a
            target of your own.
        profile: The statistics that ``qdqbridge profile`` collected for the same model.
        exclude: Nodes that stay float: names or patterns of nodes or operators.
        only: Nodes that are quantized, all others staying float.
        fixed: Parameters of tensors by name, instead of a chooser's.
        formats: Formats of the activations that nodes read and compute, by name or pattern; or
            that products read float or dynamically quantized activations (``Unstored``).
        chooser: Parameters of activations: ``mse``, ``minmax``, ``percentile``,
            ``mean-of-maxima``, ``extrapolated``, ``kl``, or any function; by default the target's.
        weight_chooser: Parameters of weights: the same, or ``hqq``.
        weights: How weights are stored: ``int8``, ``uint8``, ``int16``, ``int4``, ``uint4``,
            ``int2``, ``uint2``; by default the target's type.
        block: Block size of weight scales along the reduced axis, as 32; by default there is one
            scale per channel.
        weight_formats: Formats of the weights of nodes, by name or pattern.
        repair: Steps to try; each is kept only if it brings the outputs closer to those of the
            float model: ``equalize`` channels across layers, ``smooth`` activations, ``round``
            4-bit weights jointly, ``learn`` weights, correct the ``bias``. Nothing is tried
            without data.
        min_sqnr: Give layers more bits until the outputs reach this SQNR, in dB.
        max_drop: Give layers more bits until at most this much of ``metric`` or of the accuracy by
            ``labels`` is lost, or without either of top-1 agreement (0.01 for 1 %).
        metric: Your own measure: a function that takes all outputs by name, examples along axis 0
            in the order of the data, and returns a number; more is better. What it says of the
            float model and of the quantized one is logged.
        labels: Instead of a metric: the right class of each example, as an array or an ``.npy`` or
            ``.npz`` file; the measure is top-1 accuracy.
        fallback: What to try first for a layer when there is a goal; ``float`` leaves it float at
            once.
        preset: ``balanced``; ``full`` tries choosers for single tensors and scaled channels always,
            in up to three times the time; ``fast`` tries no choosers and no repair but biases.
        progress: Called with the steps done and their number; then, for a goal, with the trials
            done and the largest number there can be.

    Raises:
        InputDataError: The data or the profile does not fit the model, the model computes NaN,
            a name matches nothing, or the goal cannot be met.
        UnsupportedModelError: Nothing in the model can be quantized.
        UnsupportedTargetError: There is no such target, chooser or type.
    """
    from qdqbridge.autoquant.quantize import QuantizeOptions

    options = QuantizeOptions(
        target=target,
        exclude=exclude,
        only=only,
        fixed=fixed or {},
        formats=formats or {},
        chooser=chooser,
        weight_chooser=weight_chooser,
        weights=weights,
        block=block,
        weight_formats=weight_formats or {},
        repair=repair,
        preset=preset,
    )
    made = quantization(
        model, data, options, profile=profile, metric=metric, labels=labels, progress=progress
    )
    wanted = min_sqnr is not None or max_drop is not None
    if wanted:
        made = made.meeting(
            min_sqnr=min_sqnr, max_drop=max_drop, fallback=fallback, progress=progress
        )
    for score in made.scores() or ():
        if score is not None:
            _LOGGER.info(
                "%s of %d samples: %.6g, of the float model %.6g",
                score.name, score.samples, score.score, score.reference,
            )  # fmt: skip
    for warning in () if wanted else made.doubts():
        _LOGGER.warning(warning)
    return made.graph


@checked
def quantization(
    model: Graph | File,
    data: GivenData | File | None,
    options: QuantizeOptions | None = None,
    *,
    profile: Profile | File | None = None,
    metric: Metric | None = None,
    labels: NDArray[Any] | File | None = None,
    progress: Callable[[int, int], None] | None = None,
    warn: Callable[[str], None] | None = None,
    **wanted: Any,
) -> Quantization:
    """Quantizes as :func:`quantize` does and returns how it came about as well.

    Args:
        model: As for :func:`quantize`.
        data: Samples.
        options: What it is for, and what is wanted otherwise.
        profile: Statistics.
        metric: Your own measure, which goals are judged by and :meth:`Quantization.scores` tells.
        labels: Instead of it: the right class of each example.
        progress: Called with the steps done and their number.
        warn: Called with what was assumed about files of data.
        wanted: The same as ``options``, or instead of some of them, each by its name.

    Raises:
        QdqBridgeError: As :func:`quantize`.
    """
    from qdqbridge.autoquant.advice.few_samples import check_unseen
    from qdqbridge.autoquant.calibration import Calibration
    from qdqbridge.autoquant.hardware.fit import check_fitted, fitted, rounding_cost
    from qdqbridge.autoquant.inside import (
        check_anything,
        options_outside,
        with_bodies_quantized,
    )
    from qdqbridge.autoquant.profiling.collect import NanError
    from qdqbridge.autoquant.profiling.control_flow import has_bodies
    from qdqbridge.autoquant.quantize import QuantizeOptions, quantized
    from qdqbridge.autoquant.repair.steps import Rounds, StepRecord
    from qdqbridge.autoquant.search.operator_choice import chosen
    from qdqbridge.autoquant.search.pair_cost import on_both
    from qdqbridge.autoquant.search.tuning import spread

    if data is None and profile is None:
        raise _no_data("without it only what a profile has seen can be quantized")
    graph = _as_float(load(model) if isinstance(model, (str, PathLike)) else model, warn)
    samples = _samples(graph, data, warn, labelled=labels is not None)
    asked, tried = replace(options or QuantizeOptions(), **wanted), tuple[StepRecord, ...]()
    few, left_out, every = None, list[int](), samples
    if samples is not None:
        # A profile has seen all samples: nothing can be left out of what it chose by.
        own = asked if profile is None else None
        samples, few, left_out = _parted(graph, samples, own, warn or _LOGGER.warning)
    given, within = asked, has_bodies(graph)
    if within:
        asked = options_outside(graph, asked)
    try:
        # Before anything costly: NaN of samples that are only judged by would show when all is
        # done.
        if few is not None:
            check_unseen(graph, few)
        measure = _measure(graph, every, left_out, metric, labels)
        asked, suited = fitted(graph, samples, asked)
        given_profile = load_profile(profile) if isinstance(profile, (str, PathLike)) else profile
        ready = Calibration.of(graph, samples, given_profile)
        if profile is None and suited is None:
            Rounds(1, progress).trying("operators", ["ranges", *asked.repair])
            asked, tried = chosen(graph, samples, asked, ready)
        made = quantized(
            graph,
            samples,
            asked,
            profile=given_profile,
            progress=progress,
            empty=within,
            ready=ready,
        )
    except NanError as error:
        # Only the samples say which of them gives NaN, and at which tensor.
        raise error if every is None else error.located(graph, every) from error
    if within:
        made = with_bodies_quantized(made, samples, given)
        check_anything(made)
    # Repair changed scales since the fit: sums may have grown out of the accumulator again.
    if suited is not None and samples is not None:
        check_fitted(made, samples)
    elif samples is not None:
        suited = rounding_cost(made, graph, samples)
    steps = () if suited is None else (suited,)
    judged = None if samples is None else spread(samples, _JUDGING)
    if judged is not None:
        how = asked.avoids_pairs_by
        # On samples left out where there are some: the operators were chosen by the others.
        tried = on_both(tried, graph, made, few or judged, how, warn or _LOGGER.warning)
    made = replace(made, repairs=(*steps, *tried, *made.repairs), unseen=few)
    return Quantization(made, graph, judged, left_out=left_out, measure=measure)


def _samples(
    graph: Graph,
    data: GivenData | File | None,
    warn: Callable[[str], None] | None,
    *,
    labelled: bool,
) -> Data | None:
    from qdqbridge.autoquant.profiling.samples import open_samples, samples_of

    if isinstance(data, (str, PathLike)):
        return open_samples(Path(data), graph.inputs, warn, labelled=labelled)
    return None if data is None else samples_of(graph.inputs, data)


def _measure(
    graph: Graph,
    data: Data | None,
    left_out: Sequence[int],
    metric: Metric | None,
    labels: NDArray[Any] | File | None,
) -> UserMetric | None:
    """Returns the user's measure, with the float model measured; None where he has none."""
    from qdqbridge.autoquant.search.tuning import spread
    from qdqbridge.autoquant.simulation.user_metric import LabelledTop1, UserMetric

    if metric is None and labels is None:
        return None
    if metric is not None and labels is not None:
        raise InputDataError(
            "a metric and labels are two measures", fix="give the one that decides"
        )
    if data is None:
        raise _no_data("nothing can be measured without it")
    if metric is not None and not callable(metric):
        raise InputDataError(
            f"metric is {type(metric).__name__}, no function",
            fix="give a function of the outputs by name that returns a number",
        )
    if metric is None:
        assert labels is not None
        classes = labels if isinstance(labels, np.ndarray) else _labels_of(path_of(labels))
        metric = LabelledTop1(classes)
    return UserMetric.of(metric, graph, spread(data, len(data)), left_out)


def _labels_of(path: Path) -> NDArray[Any]:
    """Returns the labels of a file: those called ``labels`` or ``y``, or its only array."""
    arrays = read_arrays(path)
    for name in ("labels", "y"):
        if name in arrays:
            return arrays[name]
    if len(arrays) == 1:
        return next(iter(arrays.values()))
    raise InputDataError(
        "no array of labels",
        where=str(path),
        why=f"it has {', '.join(arrays) or 'no arrays'}",
        fix="call the array 'labels', or give an .npy file",
    )


def _as_float(graph: Graph, warn: Callable[[str], None] | None) -> Graph:
    """Returns a float32 graph, or what a quantized one has been: it is quantized again."""
    from qdqbridge.autoquant.profiling.collect import in_float32
    from qdqbridge.core.canonical.unquantized import is_quantized

    if not is_quantized(graph):
        return in_float32(graph)
    (warn or _LOGGER.warning)(
        "the model is quantized already: it is compared with its float form, whose weights are "
        "those that its integers stand for; better give the float model that it was made from"
    )
    return in_float32(unquantize(graph))


def _parted(
    graph: Graph, samples: Data, asked: QuantizeOptions | None, warn: Callable[[str], None]
) -> tuple[Data, Samples | None, list[int]]:
    """Returns samples to choose parameters by, those left out to judge, and their numbers.

    Samples that are far larger than all others are in neither part, which is reported, as is what
    does not represent others. A profile has seen all of them: none are left out then.
    """
    from qdqbridge.autoquant.advice.few_samples import FAR, outlying, parted, unseen
    from qdqbridge.autoquant.advice.input_scale import misscaled, uninformative
    from qdqbridge.autoquant.profiling.samples import named_samples

    far = outlying(samples) if asked and asked.tune else []
    if far:
        warn(
            f"samples {named_samples(samples, far)} are more than {FAR:g} times as large as most "
            "others and are left out: ranges that they decide would resolve nothing else. Give "
            "more samples of that size if the model has to bear it"
        )
    numbers = [number for number in range(len(samples)) if number not in set(far)]
    samples = parted(samples, far)[0] if far else samples
    message = uninformative(graph, samples) or misscaled(graph, samples)
    if message:
        warn(message)
    if asked is None or asked.sums_of != "any-input":
        return samples, None, []  # sums have to fit in all that is given
    left_out = unseen(samples)
    if not left_out:
        return samples, None, []
    samples, few = parted(samples, left_out)
    return samples, few, [numbers[number] for number in left_out]


def _no_data(why: str) -> InputDataError:
    return InputDataError(
        "no data is given",
        why=why,
        fix="give samples: arrays, an .npz file or a folder of them (--data on the command line)",
    )
