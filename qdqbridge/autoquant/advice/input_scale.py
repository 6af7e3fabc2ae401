"""Samples of another scale or mean than the model was trained on, shown by the float model itself.

A network whose inputs are ten times too small answers from its biases; ranges of inputs ten times
too large leave the right ones a tenth of their codes. Either way it is good on nothing else. Two
things show it. A batch normalization holds the spread that its channels had in training, and a
classifier tells samples apart far better at the scale it was trained on: it uses more of its
classes, and its first choice leads the second by more of the spread of its answers.

A network whose first gates (sigmoid, tanh, the softmax of an attention) are nearly all saturated,
and are not at a smaller scale, computes with bits. And data of the range that pictures or sound
have in files, 0 to 255 or 16 bits with a sign, are told where nothing in the network scales them
and the weights that meet them first are made for numbers around 1.

Of any network the first layer may tell the mean of its training data: a batch normalization, or a
normalization of the input, that was folded into it leaves biases that are minus this mean times the
sums of the weights. Where they are (correlated by 0.98 in four networks with a folded norm, by less
than 0.5 in three without one), data of another mean are told, whatever the network is for.

Of others nothing is reported, and nothing can be: for a network and data that are scaled and
shifted there is another one whose first layer undoes that, with the same numbers behind it.
Somebody may have trained either. What lies behind the first layer tells nothing then, and the
layer's own weights only what was folded into them. How much biases matter is
no measure: fewer of the rectified units of a trained WaveNet switch at all than of a regression
network at a tenth of its scale. Nor is how sure a classifier is: mnist-8 of ONNX's own collection
answers with thousands.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from qdqbridge.autoquant.advice.few_samples import ENOUGH, different
from qdqbridge.autoquant.profiling.collect import Data
from qdqbridge.autoquant.profiling.samples import Sample, Samples
from qdqbridge.autoquant.profiling.stats import filled_by_masks
from qdqbridge.autoquant.search.tuning import spread
from qdqbridge.core.graph.graph import Graph, Node, Value
from qdqbridge.core.graph.operator import Flow, geometry_of
from qdqbridge.core.graph.types import TensorType
from qdqbridge.core.ops.attributes import EpsilonAttrs, SoftmaxAttrs
from qdqbridge.core.ops.convolution import CONV_TRANSPOSE
from qdqbridge.core.ops.normalization import BATCH_NORMALIZATION, SOFTMAX
from qdqbridge.core.ops.table import OPERATORS
from qdqbridge.core.ops.unary import HARD_SIGMOID, SIGMOID, TANH
from qdqbridge.errors import UnsupportedTargetError
from qdqbridge.onnx_io.opaque.nodes import OpaqueAttrs
from qdqbridge.targets.running import Runner

# ---- Samples that say nothing of others ----------------------------------------------------------
# They are constants, one sample many times, or so small that the model answers them all alike.
# Ranges that such samples choose are nobody's. That the model answers alike is measured against
# what 8 bits resolve: where its answers differ by less than a thousandth of their size, a quantized
# model that answers the same whatever it is given is as close as any. Gates and shares that end a
# network saturate, so that what goes into them is compared.


_FEW_SAMPLES = 16
_BOUNDED = frozenset(row.name for row in OPERATORS if row.interval is not None)
ALIKE = 1e-3
"""Answers to different samples that differ by less, as a share of their size, are reported."""


def uninformative(graph: Graph, data: Data) -> str:
    """Returns a warning where the data cannot stand for others, else nothing.

    Args:
        graph: A canonical float graph.
        data: What was given to calibrate with.
    """
    evidence = _constants(data) or _one_sample(data) or _warn_indifferent_outputs(graph, data)
    if not evidence:
        return ""
    return (
        f"the data do not represent what the model gets in use: {evidence}. Ranges chosen from "
        "them fit no other data: give different samples as the model gets them, with the scale and "
        "mean of its preprocessing"
    )


def _constants(data: Data) -> str:
    """Tells of inputs all of which are one number each, whatever their types."""
    held: dict[str, np.generic] = {}
    elements = 0
    for sample in data:
        for name, array in sample.items():
            if not array.size:
                continue
            first = array.reshape(-1)[0]
            if held.setdefault(name, first) != first or (array != first).any():
                return ""
            elements = max(elements, array.size)
    if not held or elements * len(data) < 2:
        return ""
    each = " and ".join(f"input {name!r} is {value}" for name, value in held.items())
    return f"{each} everywhere"


def _one_sample(data: Data) -> str:
    count = len(data)
    if count == 1:
        return "there is one sample alone"
    return f"all of its {count} samples are the same" if different(data, 2) < 2 else ""


def _warn_indifferent_outputs(graph: Graph, data: Data) -> str:
    """Tells of different samples which the float model answers alike."""
    if len(data) < 2:
        return ""
    samples = spread(data, _FEW_SAMPLES)
    values = [before_bounds(output) for output in graph.outputs]
    try:
        differing = _difference(Runner(graph, values), samples)
    except UnsupportedTargetError:
        return ""  # whoever profiles the model tells why it does not run
    if differing >= ALIKE:
        return ""
    return (
        f"the float model's outputs for {len(samples)} different samples differ by {differing:.1g} "
        "of their size, which 8 bits do not tell apart"
    )


def before_bounds(value: Value) -> Value:
    """Returns what an operator of bounded results at the end of a network is given, else itself."""
    node = value.producer
    while node is not None and node.inputs:
        passed = node.op.name in _BOUNDED or node.op.flow is Flow.MOVE
        operand = node.optional(0)
        if operand is None or operand.is_constant or not passed:
            break
        value, node = operand, operand.producer
    return value


def _difference(runner: Runner, samples: Samples) -> float:
    """Returns how far answers differ from their mean, as a share of their size.

    That is said of the output that differs most. Answers of several shapes, and integers that
    change, differ for sure.
    """
    answers: list[list[NDArray[np.generic]]] = [list(runner.run(sample)) for sample in samples]
    most = 0.0
    for column in zip(*answers, strict=True):
        if len({array.shape for array in column}) > 1:
            return np.inf
        stacked = np.stack(column)
        if stacked.dtype.kind != "f":
            most = max(most, float((stacked != stacked[0]).any()))
            continue
        wide = stacked.astype(np.float64)
        filled = filled_by_masks(stacked)
        if filled is not None:
            wide[filled] = 0
        if not np.isfinite(wide).all():
            return np.inf  # whoever profiles the model tells of it
        size = float(np.sqrt(np.mean(wide**2)))
        most = max(most, float(np.sqrt(wide.var(axis=0).mean())) / size if size else 0.0)
    return most


# ---- Samples of another scale than the model was trained on, shown by the float model itself -----


_SAMPLES, _ELEMENTS = 64, 1 << 20
"""Samples that are run at every scale, and elements of these; large pictures take long."""
_FACTORS = tuple(f for wide in (10.0, 30.0, 100.0, 255.0) for f in (wide, 1 / wide))
"""Scales that are tried. Nearer ones are not: samples of half of the classes may spread over more
at three times their contrast, or a third."""
_NORMALIZATIONS = ((2.0, -1.0), (1 / 0.225, -2.0), (0.5, 0.5), (0.225, 0.45))
"""Factors and offsets of (x - 0.5) / 0.5 and of (x - 0.45) / 0.225, about what ImageNet's channels
have, and of what undoes them."""
_IMAGE = 4
_APART = 3.0
"""Spreads of a channel in training and in the data that are further apart are reported."""
_OFF = 1.0
"""Means of channels that are further off than this, in deviations of training, are reported."""
_BIAS, _ROWS, _EXPLAINED, _SURE = 2, 12, 0.81, 36.0
"""The operand of a product that is its bias; rows that a first layer has at least; which part of
the biases' variance the sums of the weights have to explain to say a mean, and how many times the
rest of each row: by chance it is one in ten thousand."""
_MEANS, _SHIFTED = 3.0, 0.2
"""Means that are this many times as large are reported, or as small, if that is so much of the
data's deviation. A border of zeros makes the mean in the biases a fifth too small."""
_CLASSES, _USED, _MORE, _NEAR = 8, 0.8, 1.8, 0.95
"""Columns that a classifier has at least; the share of classes that are used at the right scale;
how many times as many as in the data; the share of the most that any scale reaches which is enough.

Wrongly scaled data use 9.0 to 9.7 of ten at the right scale (twelve networks), 5.6 at most before.
"""
_FIRMER, _FIRM = 1.4, 1.0
"""How many times as far the first choice leads at another scale that is reported, and how far it
has to lead there, in deviations of an answer's columns. Data that are too small lose classes: where
none are lost, only smaller scales are tried.
"""


_PIXEL, _SOUND = 255.0, 32768.0
_LOUD, _USUAL, _QUIET = 20.0, 4.0, 0.01
"""What a first layer makes of numbers around 1 (root mean square), at most and at least; of numbers
as they are in files, at least."""
_GATES = (SIGMOID, TANH, HARD_SIGMOID, SOFTMAX)
_MOST, _FEW, _END = 64, 2, 1e-3
"""Gates that are looked at, batches that are run, how near to an end of its range a gate's result
is where it is saturated."""
_SATURATED, _OPEN = 0.8, 0.4
"""Share of saturated results of the gate in the middle that is reported; a smaller scale has to
come below the second."""


def misscaled(graph: Graph, data: Data) -> str:
    """Returns a warning where the float model shows that the data have another scale, else nothing.

    Args:
        graph: A canonical float graph, its batch normalizations not folded.
        data: What was given to calibrate with.
    """
    few = spread(data, _SAMPLES)
    few = spread(few, max(ENOUGH, _ELEMENTS // max(few.elements, 1)))
    try:
        evidence = ""
        if different(data) >= ENOUGH:
            evidence = _by_batch_norm(graph, few) or _by_classes(graph, few)
        evidence = evidence or _by_file_range(graph, few) or _by_gates(graph, few)
        evidence = evidence or _by_first_biases(graph, few)
    except UnsupportedTargetError:
        return ""  # whoever profiles the model tells why it does not run
    if not evidence:
        return ""
    return (
        f"the data seem to have another scale or mean than the training data: {evidence}. "
        "Ranges chosen from them fit no other data: give samples as the model gets them in use, "
        "with the scale and mean of its preprocessing"
    )


def _by_batch_norm(graph: Graph, samples: Samples) -> str:
    """Compares the spread in the first batch normalization's channels with that in training."""
    node = next((n for n in graph.nodes if n.op is BATCH_NORMALIZATION), None)
    if node is None or not isinstance(node.attributes, EpsilonAttrs):
        return ""
    kept = node.operand(4).constant
    if kept is None:
        return ""
    runner = Runner(graph, [node.operand(0)])
    seen = np.concatenate([runner.run(sample)[0] for sample in samples]).astype(np.float64)
    others = tuple(axis for axis in range(seen.ndim) if axis != 1)
    trained = kept.numpy().astype(np.float64) + node.attributes.epsilon
    ratio = float(np.sqrt(np.median((seen.var(axis=others) + node.attributes.epsilon) / trained)))
    name = _name_of(node)
    if not 1 / _APART <= ratio <= _APART:
        return f"the input of {name!r} has {ratio:.2g} times the standard deviation of training"
    means = node.operand(3).constant
    if means is None:
        return ""
    off = np.square(seen.mean(axis=others) - means.numpy().astype(np.float64)) / trained
    far = float(np.sqrt(off.mean()))
    if far <= _OFF:
        return ""
    return (
        f"the means of the input of {name!r} are {far:.2g} standard deviations off the training's"
    )


def _by_first_biases(graph: Graph, samples: Samples) -> str:
    """Compares the mean of an input with that which the biases of the first layer take away."""
    for value in graph.inputs:
        node = _first_product(value) if _is_float(value) else None
        geometry = None if node is None else geometry_of(node)
        if node is None or geometry is None or node.op is CONV_TRANSPOSE:
            continue
        weight, bias = node.operand(1).constant, node.optional(_BIAS)
        if weight is None or bias is None or bias.constant is None:
            continue
        sums = geometry.rows(weight.numpy().astype(np.float64)).sum(axis=1)
        biases = bias.constant.numpy().astype(np.float64).reshape(-1)
        if sums.size < _ROWS or biases.size != sums.size or not (sums.std() and biases.std()):
            continue
        follow = float(np.corrcoef(sums, biases)[0, 1]) ** 2
        if follow < _EXPLAINED or follow * (sums.size - 2) < _SURE * (1 - follow):
            continue
        trained = -float(np.cov(sums, biases)[0, 1] / sums.var(ddof=1))
        given = np.concatenate([sample[value.name].reshape(-1) for sample in samples])
        mean, spread_ = float(given.mean(dtype=np.float64)), float(given.std(dtype=np.float64))
        near = 1 / _MEANS <= mean / trained <= _MEANS
        if not near and abs(mean - trained) > _SHIFTED * spread_:
            return (
                f"input {value.name!r} has a mean of {mean:.2g}, and the biases of "
                f"{_name_of(node)!r} were trained for one of about {trained:.2g}"
            )
    return ""


def _name_of(node: Node) -> str:
    return node.origin.nodes[0] if node.origin.nodes else node.output.name


def _by_file_range(graph: Graph, samples: Samples) -> str:
    """Tells of inputs that look like pixels or sound in a file where weights around 1 meet them."""
    for value in graph.inputs:
        node = _first_product(value) if _is_float(value) else None
        found = None if node is None else _file_range([sample[value.name] for sample in samples])
        if node is None or found is None:
            continue
        what, unit = found
        squares = [np.mean(made**2) for made in _sums(graph, node, samples)]
        size = float(np.sqrt(np.mean(squares)))
        if size >= _LOUD and _QUIET <= size / unit <= _USUAL:
            return (
                f"input {value.name!r} holds {what}, nothing scales them, and {_name_of(node)!r} "
                f"makes {size:.2g} of them ({size / unit:.2g} if they were divided by {unit:g})"
            )
    return ""


def _first_product(value: Value) -> Node | None:
    """Returns the first product with a weight that reads an input, past what moves data."""
    waiting = [value]
    while waiting:
        for node, _ in waiting.pop(0).users:
            weight = node.optional(1)
            if node.op.flow is Flow.ACCUMULATE or _is_recurrent(node):
                if weight is not None and weight.is_constant:
                    return node
            elif node.op.flow is Flow.MOVE and len(node.outputs) == 1:
                waiting.append(node.output)
    return None


def _is_recurrent(node: Node) -> bool:
    record = node.attributes
    return isinstance(record, OpaqueAttrs) and record.op_type in ("RNN", "GRU", "LSTM")


def _sums(graph: Graph, node: Node, samples: Samples) -> Iterator[NDArray[Any]]:
    """Yields what a product makes of each sample; of a recurrent layer, of what it is fed."""
    runner = Runner(graph, [node.operand(0) if _is_recurrent(node) else node.output])
    weight = node.operand(1).constant if _is_recurrent(node) else None
    for sample in samples:
        made = runner.run(sample)[0].astype(np.float64)
        yield made if weight is None else made @ weight.numpy()[0].T.astype(np.float64)


def _file_range(arrays: Sequence[NDArray[Any]]) -> tuple[str, float] | None:
    """Returns what numbers look like, and what divides them to be around 1."""
    low = min((float(a.min()) for a in arrays if a.size), default=0.0)
    high = max((float(a.max()) for a in arrays if a.size), default=0.0)
    if low >= 0 and _PIXEL / 2 < high <= _PIXEL:
        return f"{low:g} to {high:g}, as pixels do", _PIXEL
    whole = all(np.array_equal(a, np.rint(a)) for a in arrays)
    if whole and low < 0 and _SOUND / 32 < max(high, -low) <= _SOUND:
        return f"whole numbers from {low:g} to {high:g}, as sound of 16 bits does", _SOUND
    return None


def _by_gates(graph: Graph, samples: Samples) -> str:
    """Compares how many inner gates are saturated with smaller scales of the one real input."""
    real = [v for v in graph.inputs if _is_float(v)]
    ends = {before_bounds(output) for output in graph.outputs}
    gates = [node for node in _first_gates(graph) if node.optional(0) not in ends][:_MOST]
    if len(real) != 1 or not gates:
        return ""
    name, runner = real[0].name, Runner(graph, [node.output for node in gates])
    batches = samples.batches(graph.inputs)[:_FEW]

    def saturated(factor: float) -> float:
        runs = [runner.run(_scaled(each, name, factor)) for each in batches]
        columns = zip(gates, zip(*runs, strict=True), strict=True)
        return float(np.median([_saturated(node, outputs) for node, outputs in columns]))

    given = saturated(1.0)
    if given < _SATURATED:
        return ""
    for factor in sorted((f for f in _FACTORS if f < 1), reverse=True):
        other = saturated(factor)
        if other <= _OPEN:
            return (
                f"{given:.0%} of what the first gates of the float model give are at an end of "
                f"their range, and {other:.0%} if input {name!r} is divided by {1 / factor:.0f}"
            )
    return ""


def _first_gates(graph: Graph) -> list[Node]:
    """Returns the gates that no other gate lies before: behind one all numbers are small."""
    behind: set[Value] = set()
    found: list[Node] = []
    for node in graph.nodes:
        hidden = any(value in behind for value in node.inputs)
        gate = node.op in _GATES
        if gate and not hidden:
            found.append(node)
        if gate or hidden:
            behind.update(node.outputs)
    return found


def _saturated(node: Node, runs: Sequence[NDArray[Any]]) -> float:
    """Returns the share of a gate's results at an end of its range; of a softmax, by row."""
    low, high = (-1.0, 1.0) if node.op is TANH else (0.0, 1.0)
    shares: list[float] = []
    for array in runs:
        if node.op is SOFTMAX:
            largest: NDArray[Any] = np.max(array, axis=node.record(SoftmaxAttrs).axes)
            shares.append(float(np.mean(largest > 1 - _END)))
        else:
            shares.append(float(np.mean((array < low + _END) | (array > high - _END))))
    return float(np.mean(shares))


@dataclass(frozen=True, slots=True)
class _Answers:
    """What a classifier's answers are like.

    Attributes:
        used: How many classes they are spread over: the exponential of their entropy.
        lead: How far the first choice leads the second, in deviations of an answer's columns; that
            of the answer in the middle.
    """

    used: float
    lead: float


def _by_classes(graph: Graph, samples: Samples) -> str:
    """Compares how well a classifier tells samples apart with other scales of its one input."""
    real, classes = [v for v in graph.inputs if _is_float(v)], _classes(graph)
    if len(real) != 1 or classes < _CLASSES:
        return ""
    name, runner = real[0].name, Runner(graph)
    batches = samples.batches(graph.inputs)
    most = min(classes, len(samples) * samples.step)
    given = _answers(runner, batches)
    lost = given.used * _MORE <= most
    factors = _FACTORS if lost else [f for f in _FACTORS if f < 1]
    for ways in (
        [(factor, 0.0) for factor in factors],
        _NORMALIZATIONS if _is_image(real[0]) else (),
    ):
        found = {
            way: _answers(runner, [_scaled(each, name, *way) for each in batches]) for way in ways
        }
        working = {way: each for way, each in found.items() if each.used >= _USED * most}
        said = _better(given, working, f"of {classes} classes" if lost else "")
        if said is not None:
            way, ours, theirs = said
            return f"the float model {ours}, and {theirs} if input {name!r} is {_in_words(*way)}"
    return ""


def _better(
    given: _Answers, working: Mapping[tuple[float, float], _Answers], of_classes: str
) -> tuple[tuple[float, float], str, str] | None:
    """Returns the way by which answers are much better, what they are like, and would be.

    Args:
        given: The answers.
        working: Those that are given in other ways.
        of_classes: In words, where not all classes are used now.
    """
    if not working:
        return None
    used, lead = (max(getattr(a, k) for a in working.values()) for k in ("used", "lead"))
    # Of what works nearly as well the firmest: a wrong mean may keep all classes.
    if of_classes and used >= _MORE * given.used:
        near = [way for way, each in working.items() if each.used >= _NEAR * used]
        firmest = max(near, key=lambda each: working[each].lead)
        way = firmest if firmest in _NORMALIZATIONS else near[0]
        ours = f"uses {given.used:.1f} {of_classes} (by the entropy of its answers)"
        return way, ours, f"{working[way].used:.1f}"
    if lead >= max(_FIRMER * given.lead, _FIRM):
        way = next(way for way, each in working.items() if each.lead >= _NEAR * lead)
        ours = f"prefers its first choice by {given.lead:.2g} standard deviations of an answer"
        return way, ours, f"by {working[way].lead:.2g}"
    return None


def _is_image(value: Value) -> bool:
    """True for what has a batch, channels and two axes of space: what means are taken from."""
    return value.rank == _IMAGE


def _in_words(factor: float, offset: float) -> str:
    if offset > 0:
        return f"multiplied by {factor:g} with {offset:g} added, as if it were normalized twice"
    if offset < 0:
        mean = -offset / factor
        return f"normalized by a mean of {mean:.3g} and a deviation of {1 / factor:.3g} or so"
    return (
        f"about {factor:g} times as large" if factor > 1 else f"divided by {1 / factor:.0f} or so"
    )


def _classes(graph: Graph) -> int:
    """Returns the columns of the only output where each example has one row, else 0."""
    output = graph.outputs[0]
    shape = output.type.shape if len(graph.outputs) == 1 and _is_float(output) else None
    return shape[1] if shape and len(shape) == 2 and isinstance(shape[1], int) else 0


def _scaled(sample: Sample, name: str, factor: float, offset: float = 0.0) -> Sample:
    changed = sample[name] * np.float64(factor) + offset
    return {**sample, name: changed.astype(sample[name].dtype)}


def _answers(runner: Runner, batches: Sequence[Sample]) -> _Answers:
    """Returns what the answers to samples are like."""
    columns = np.concatenate([runner.run(batch)[0] for batch in batches]).astype(np.float64)
    filled = filled_by_masks(columns)
    if filled is not None and not filled.all():
        columns[filled] = columns[~filled].min()
    shares = np.unique(columns.argmax(1), return_counts=True)[1] / len(columns)
    ordered, spreads = np.sort(columns, axis=1), columns.std(axis=1)
    leads = (ordered[:, -1] - ordered[:, -2]) / np.maximum(spreads, np.finfo(float).tiny)
    return _Answers(float(np.exp(-np.sum(shares * np.log(shares)))), float(np.median(leads)))


def _is_float(value: Value) -> bool:
    return isinstance(value.type, TensorType) and value.type.dtype.is_float
