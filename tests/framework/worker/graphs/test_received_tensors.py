"""What a stage receives is at the same place in each step, and padding is zero."""

import pytest
import torch

from quire.interfaces.model import StageTensors
from quire.worker.graphs.received_tensors import ReceivedTensors
from quire.worker.stage_forward import tensors_of


def tensors(num_rows, *values):
    hidden_states, *residual = (torch.full((num_rows, 2), value) for value in values)
    return StageTensors(hidden_states, residual[0] if residual else None)


@pytest.mark.parametrize("values", [(1.0,), (1.0, 2.0)])
def test_tensors_are_copied_to_fixed_places_and_rows_after_them_are_zeros(values):
    received = ReceivedTensors(tensors(0, *values), 4)
    places = [each.data_ptr() for each in tensors_of(received.rows(4))]
    received.fill(tensors(4, *(9.0 for _ in values)), 4)
    received.fill(tensors(2, *values), 3)
    rows = tensors_of(received.rows(4))
    assert [each.data_ptr() for each in rows] == places
    assert len(rows) == len(values)
    for value, found in zip(values, rows, strict=True):
        assert found.tolist() == [[value] * 2, [value] * 2, [0, 0], [9, 9]]


def test_buffers_have_the_dtype_and_width_of_the_example():
    example = StageTensors(torch.zeros(3, 5, dtype=torch.bfloat16), None)
    rows = ReceivedTensors(example, 2).rows(2)
    assert rows.hidden_states.dtype == torch.bfloat16
    assert rows.hidden_states.shape == (2, 5)
    assert rows.residual is None


def test_a_graph_has_the_rows_of_its_size():
    received = ReceivedTensors(tensors(0, 1.0, 2.0), 4)
    received.fill(tensors(4, 1.0, 2.0), 4)
    assert [len(each) for each in tensors_of(received.rows(3))] == [3, 3]


def test_all_messages_have_a_residual_or_none():
    with pytest.raises(ValueError, match="argument"):
        ReceivedTensors(tensors(0, 1.0), 4).fill(tensors(1, 1.0, 2.0), 1)
