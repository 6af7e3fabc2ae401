"""Samples of another scale than the model was trained on, shown by the float model itself.

A network whose inputs are ten times too small answers from its biases; ranges of inputs ten times
too large leave the right ones a tenth of their codes. Either way it is good on nothing else. Two
things show it. A batch normalization holds the spread that its channels had in training, and a
classifier tells samples apart far better at the scale it was trained on: it uses more of its
classes, and its first choice leads the second by more of the spread of its answers.

Of other networks nothing is told. Where biases and saturations do not matter, ten times as large
data give ten times as large answers, and weights of a tenth would have given these: somebody may
have trained either network, and nothing inside tells whose data they are. How much biases matter is
no measure: fewer of the rectified units of a trained WaveNet switch at all than of a regression
network at a tenth of its scale. Nor is how sure a classifier is: mnist-8 of ONNX's own collection
answers with thousands.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from qdqbridge.autoquant.advice.few_samples import ENOUGH, different
from qdqbridge.autoquant.profiling.collect import Data
from qdqbridge.autoquant.profiling.masks import filled_by_masks
from qdqbridge.autoquant.profiling.samples import Sample, Samples
from qdqbridge.autoquant.search.tuning import spread
from qdqbridge.errors import UnsupportedTargetError
from qdqbridge.graph.graph import Graph, Value
from qdqbridge.graph.types import TensorType
from qdqbridge.onnx_io.runtime.running import Runner
from qdqbridge.ops.attributes import EpsilonAttrs
from qdqbridge.ops.normalization import BATCH_NORMALIZATION

_SAMPLES = 64
_FACTORS = tuple(f for wide in (10.0, 30.0, 100.0, 255.0) for f in (wide, 1 / wide))
"""Scales that are tried. Nearer ones are not: samples of half of the classes may spread over more
at three times their contrast, or a third."""
_APART = 3.0
"""Spreads of a channel in training and in the data that are further apart are told."""
_CLASSES, _USED, _MORE, _NEAR = 8, 0.8, 1.8, 0.95
"""Columns that a classifier has at least; the share of classes that are used at the right scale;
how many times as many as in the data; the share of the most that any scale reaches which is enough.

Wrongly scaled data use 9.0 to 9.7 of ten at the right scale (twelve networks), 5.6 at most before.
"""
_FIRMER, _FIRM = 1.4, 1.0
"""How many times as far the first choice leads at another scale that is told of, and how far it has
to lead there, in deviations of an answer's columns. Data that are too small lose classes: where
none are lost, only smaller scales are tried.
"""


def misscaled(graph: Graph, data: Data) -> str:
    """Returns a warning where the float model shows that the data have another scale, else nothing.

    Args:
        graph: A canonical float graph, its batch normalizations not folded.
        data: What was given to calibrate with.
    """
    if different(data) < ENOUGH:
        return ""
    few = spread(data, _SAMPLES)
    try:
        evidence = _by_batch_norm(graph, few) or _by_classes(graph, few)
    except UnsupportedTargetError:
        return ""  # whoever profiles the model tells why it does not run
    if not evidence:
        return ""
    return (
        f"the data seem to have another scale than the training data: {evidence}. "
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
    if 1 / _APART <= ratio <= _APART:
        return ""
    name = node.origin.nodes[0] if node.origin.nodes else node.output.name
    return f"the input of {name!r} has {ratio:.2g} times the standard deviation of training"


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
    found = {f: _answers(runner, [_scaled(each, name, f) for each in batches]) for f in factors}
    working = {f: each for f, each in found.items() if each.used >= _USED * most}
    if not working:
        return ""
    used, lead = (max(getattr(a, k) for a in working.values()) for k in ("used", "lead"))
    if lost and used >= _MORE * given.used:
        factor = next(f for f, each in working.items() if each.used >= _NEAR * used)
        told = f"uses {given.used:.1f} of {classes} classes (by the entropy of its answers)"
        better = f"{found[factor].used:.1f}"
    elif lead >= max(_FIRMER * given.lead, _FIRM):
        factor = next(f for f, each in working.items() if each.lead >= _NEAR * lead)
        told = f"prefers its first choice by {given.lead:.2g} standard deviations of an answer"
        better = f"by {found[factor].lead:.2g}"
    else:
        return ""
    wanted = (
        f"about {factor:g} times as large" if factor > 1 else f"divided by {1 / factor:.0f} or so"
    )
    return f"the float model {told}, and {better} if input {name!r} is {wanted}"


def _classes(graph: Graph) -> int:
    """Returns the columns of the only output where each example has one row, else 0."""
    output = graph.outputs[0]
    shape = output.type.shape if len(graph.outputs) == 1 and _is_float(output) else None
    return shape[1] if shape and len(shape) == 2 and isinstance(shape[1], int) else 0


def _scaled(sample: Sample, name: str, factor: float) -> Sample:
    return {**sample, name: (sample[name] * np.float64(factor)).astype(sample[name].dtype)}


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
