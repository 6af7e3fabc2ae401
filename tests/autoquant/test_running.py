import numpy as np
import pytest

from qdqbridge.autoquant.profiling import collect as collecting
from qdqbridge.autoquant.profiling import stats as module
from qdqbridge.autoquant.profiling.collect import Recording
from qdqbridge.autoquant.profiling.stats import FastRunning, PlainRunning, running
from qdqbridge.core.graph.dtypes import DType
from qdqbridge.core.graph.graph import Value
from qdqbridge.core.graph.types import TensorType

pytestmark = pytest.mark.relax
pytest.importorskip("tvm_ffi", reason="the compiled loops need TVM 0.27")

SPECIAL = (0.0, -0.0, 1e-45, -1e-45, 1.0, np.nan, -np.nan, np.inf, -np.inf)


def both(axis, histogram=True):
    fast = running(axis, histogram=histogram)
    assert isinstance(fast, FastRunning)
    return PlainRunning(axis, histogram=histogram), fast


def drawn(rng, shape, dtype=np.float32, special=0.3):
    array = rng.standard_normal(shape) * 10.0 ** rng.uniform(-44, 37)
    with np.errstate(over="ignore"):
        array = np.asarray(array.astype(dtype))
    marked = rng.random(shape) < special
    array[marked] = rng.choice(SPECIAL, marked.sum()).astype(dtype)
    return array


def agree(tensors, axis, histogram=True):
    ways = both(axis, histogram)
    for way in ways:
        for tensor in tensors:
            way.add(tensor)
    plain, fast = (way.taken() for way in ways)
    assert plain == fast
    assert all(way.taken().count == 0 for way in ways)
    return fast


@pytest.mark.parametrize("seed", range(60))
def test_compiled_loops_find_what_numpy_finds(seed):
    rng = np.random.default_rng(seed)
    rank = int(rng.integers(1, 5))
    axis = None if rng.random() < 0.3 else int(rng.integers(rank))
    shape = rng.choice([1, 2, 3, 16, 17, 33], rank)
    special = rng.choice([0, 0.05, 0.5, 1])
    agree([drawn(rng, shape, special=special) for _ in range(4)], axis, bool(rng.integers(2)))


@pytest.mark.parametrize("dtype", [np.float16, np.float64, np.float32])
def test_other_element_types(dtype):
    rng = np.random.default_rng(0)
    agree([drawn(rng, (2, 5, 9), dtype) for _ in range(3)], 1)


def test_layouts_in_memory():
    rng = np.random.default_rng(0)
    array = rng.standard_normal((6, 5, 40)).astype(np.float32)
    read_only = array.copy()
    read_only.flags.writeable = False
    odd = np.frombuffer(bytearray(b"\0" + array.tobytes()), np.uint8)[1:].view(np.float32)
    tensors = [array.T, array[::2], array[:, :, 3:20], read_only, odd.reshape(array.shape)]
    for tensor in tensors:
        agree([tensor], 1)


def test_nothing_at_all():
    agree([np.zeros((0, 3), np.float32), np.zeros((2, 0, 3), np.float32)], None)
    agree([np.float32(3).reshape(())], None)
    agree([np.full((2, 3), np.nan, np.float32)], 1)
    agree([np.zeros((2, 3), np.float32)], 1)
    for lengths in ((0,), (0, 3), (3, 0)):  # a cache before the first token
        agree([np.ones((1, 2, length, 4), np.float32) for length in lengths], 1)


def test_a_tiny_negative_value_stays_below_zero():
    stats = agree([np.array([-1e-45, 3e38, 1e-45], np.float32)], None)
    assert stats.histogram.counts[2047] == 1


def test_many_samples_and_full_counters(monkeypatch):
    monkeypatch.setattr(module, "_FULL", 100)
    monkeypatch.setattr(module, "_MANY", 3)
    rng = np.random.default_rng(0)
    agree([drawn(rng, (2, 4, 9), special=0.1) for _ in range(20)], 1)


def test_shards_merge():
    rng = np.random.default_rng(0)
    tensors = [drawn(rng, (3, 20)) for _ in range(6)]
    whole = agree(tensors, 1)
    way = running(1, histogram=True)
    parts = []
    for tensor in tensors:
        way.add(tensor)
        parts.append(way.taken())
    total = parts[3]
    for index in (0, 5, 1, 4, 2):
        total = parts[index].merged(total)
    assert total == whole


def test_without_tvm_it_is_numpy(monkeypatch):
    monkeypatch.setattr(module, "find_spec", lambda name: None)
    assert isinstance(running(None, histogram=True), PlainRunning)
    assert isinstance(running(None, histogram=True, fast=False), PlainRunning)


@pytest.mark.parametrize("seed", range(20))
def test_loops_take_over_after_so_many_elements(seed, monkeypatch):
    rng = np.random.default_rng(seed)
    values = [Value(TensorType(DType.FLOAT32, (2, 7)), f"x{i}") for i in range(3)]
    samples = [{value.name: drawn(rng, (2, 7)) for value in values} for _ in range(12)]
    monkeypatch.setattr(collecting, "_WITHOUT_TVM", int(rng.integers(1, 600)))

    def run(sample):
        return [[array] for array in sample.values()]

    ways = [Recording(values, run, fast=fast) for fast in (None, True, False)]
    for sample in samples:
        for way in ways:
            way.observe(sample)
    both_ways, loops, plain = (list(way.taken()) for way in ways)
    assert both_ways == loops == plain
    assert all(stats.count == 0 for way in ways for stats in way.taken())
