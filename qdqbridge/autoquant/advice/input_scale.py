"""Samples of another scale than the model was trained on, shown by the float model itself.

A network whose inputs are ten times too small answers from its biases: quantized by such data it is
good on nothing else. Two things show it. A batch normalization holds the spread that its channels
had in training, and a classifier tells samples apart far better at the scale it was trained on.
Other networks hold no record of their data, and nothing is told of them.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from qdqbridge.autoquant.advice.few_samples import ENOUGH, different
from qdqbridge.autoquant.profiling.collect import Data
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
_CLASSES, _USED, _MORE, _NEAR = 8, 0.75, 1.7, 0.95
"""Columns that a classifier has at least; the share of classes that are used at the right scale;
how many times as many as in the data; the share of the most that any scale reaches which is enough.

Wrongly scaled data use 9.0 to 9.7 of ten at the right scale (twelve networks), 5.6 at most before.
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
        f"the data seem to have another scale than those the model was trained on: {evidence}. "
        "Ranges chosen by them fit no other data: give samples as the model gets them in use, with "
        "the scale and mean of its preprocessing"
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
    return f"what {name!r} normalizes spreads {ratio:.2g} times as far as it did in training"


def _by_classes(graph: Graph, samples: Samples) -> str:
    """Compares how many classes a classifier tells apart with other scales of its one input."""
    real, classes = [v for v in graph.inputs if _is_float(v)], _classes(graph)
    if len(real) != 1 or classes < _CLASSES:
        return ""
    name, runner = real[0].name, Runner(graph)
    batches = samples.batches(graph.inputs)
    most = min(classes, len(samples) * samples.step)
    given = _used(runner, batches)
    if given * _MORE > most:
        return ""
    found = {f: _used(runner, [_scaled(each, name, f) for each in batches]) for f in _FACTORS}
    best = max(found.values())
    if best < max(_USED * most, _MORE * given):
        return ""
    factor = next(f for f in _FACTORS if found[f] >= _NEAR * best)
    wanted = (
        f"about {factor:g} times as large" if factor > 1 else f"divided by {1 / factor:.0f} or so"
    )
    return (
        f"the float model uses {given:.1f} of {classes} classes (by the entropy of its answers), "
        f"and {found[factor]:.1f} where input {name!r} is {wanted}"
    )


def _classes(graph: Graph) -> int:
    """Returns the columns of the only output where each example has one row, else 0."""
    output = graph.outputs[0]
    shape = output.type.shape if len(graph.outputs) == 1 and _is_float(output) else None
    return shape[1] if shape and len(shape) == 2 and isinstance(shape[1], int) else 0


def _scaled(sample: Sample, name: str, factor: float) -> Sample:
    return {**sample, name: (sample[name] * np.float64(factor)).astype(sample[name].dtype)}


def _used(runner: Runner, batches: Sequence[Sample]) -> float:
    """Returns how many classes the answers are spread over: the exponential of their entropy."""
    answers = np.concatenate([runner.run(batch)[0].argmax(1) for batch in batches])
    shares = np.unique(answers, return_counts=True)[1] / len(answers)
    return float(np.exp(-np.sum(shares * np.log(shares))))


def _is_float(value: Value) -> bool:
    return isinstance(value.type, TensorType) and value.type.dtype.is_float
