"""Feeding more examples than a model takes at once."""

import numpy as np
import pytest

from qdqbridge.core.graph.batches import batches, concat_batch_results
from qdqbridge.core.graph.dtypes import DType
from qdqbridge.core.graph.graph import Value
from qdqbridge.core.graph.types import TensorType
from qdqbridge.errors import InputDataError


def graph_input(*shape):
    return Value(TensorType(DType.FLOAT32, shape), "x")


def rows(count):
    return {"x": np.arange(count * 3, dtype=np.float32).reshape(count, 3)}


def test_data_that_fits_is_one_batch():
    for value, count in ((graph_input(4, 3), 4), (graph_input("n", 3), 7)):
        (batch,) = batches([value], rows(count))
        assert (batch.rows, batch.size, batch.count) == (count, count, 1)


def test_only_axis_0_counts_samples():
    """A cache is empty before the first token."""
    (batch,) = batches([graph_input("n", 2, "past", 4)], {"x": np.zeros((1, 2, 0, 4), np.float32)})
    assert batch.rows == 1
    with pytest.raises(InputDataError, match="no samples"):
        next(batches([graph_input("n", 3)], rows(0)))


def test_a_fixed_batch_is_filled_up_and_the_filling_cut_off_again():
    data = rows(10)
    fed = list(batches([graph_input(4, 3)], data))
    assert [(b.rows, b.size, b.count) for b in fed] == [(4, 4, 3), (4, 4, 3), (2, 4, 3)]
    assert (fed[2].inputs["x"][2:] == data["x"][9]).all()
    whole = concat_batch_results([b.inputs["x"] * 2 for b in fed], fed, "y")
    assert np.array_equal(whole, data["x"] * 2)


def test_fewer_examples_than_the_model_takes():
    fed = list(batches([graph_input(4, 3)], rows(1)))
    assert [len(b.inputs["x"]) for b in fed] == [4]
    assert len(concat_batch_results([fed[0].inputs["x"]], fed, "y")) == 1


def test_an_open_batch_is_split_on_request_without_filling():
    fed = list(batches([graph_input("n", 3)], rows(5), 2))
    assert [len(b.inputs["x"]) for b in fed] == [2, 2, 1]


def test_sizes_the_model_does_not_take_are_refused():
    with pytest.raises(InputDataError, match="takes 4 examples at a time, not 2"):
        list(batches([graph_input(4, 3)], rows(8), 2))
    with pytest.raises(InputDataError, match="a batch of 0"):
        list(batches([graph_input("n", 3)], rows(8), 0))


def test_inputs_that_disagree_are_left_to_the_input_check():
    other = Value(TensorType(DType.FLOAT32, (4, 3)), "y")
    data = {**rows(8), "y": np.zeros((4, 3), np.float32)}
    (batch,) = batches([graph_input(4, 3), other], data)
    assert batch.inputs == data


def test_outputs_without_an_axis_of_examples_cannot_be_joined():
    fed = list(batches([graph_input(4, 3)], rows(8)))
    with pytest.raises(InputDataError, match="'y' cannot be put together"):
        concat_batch_results([np.zeros(3), np.zeros(3)], fed, "y")
