"""Rows of guided requests and of their companions."""

import pytest
import torch

from quire.errors import RequestFailedError
from quire.worker.batch.slots import SlotInfo
from quire.worker.sampling.companion_rows import CompanionRows, rows_alone

CPU = torch.device("cpu")


def infos(*companions):
    return [SlotInfo(1, None, 0, (), {}, None, companion_slot=slot) for slot in companions]


def test_a_batch_without_companions_has_no_pairs():
    assert CompanionRows.of([3, 1], infos(None, None), CPU) is None
    assert CompanionRows.of([], [], CPU) is None


def test_each_row_knows_its_companion_and_whose_token_it_gets():
    pairs = CompanionRows.of([7, 2, 5, 4, 0], infos(4, None, None, None, 2), CPU)
    assert pairs.guided.tolist() == [0, 4]
    assert pairs.companions.tolist() == [3, 1]
    assert pairs.sources.tolist() == [0, 4, 2, 0, 4]


def test_a_companion_that_failed_fails_the_request():
    with pytest.raises(RequestFailedError, match="companion"):
        CompanionRows.of([7, 2], infos(4, None), CPU)


def test_pairs_are_not_split():
    assert rows_alone([7, 2, 5, 4], infos(4, None, None, None)) == [[0, 3], [1], [2]]
    assert rows_alone([4, 7], infos(None, 4)) == [[1, 0]]
    assert rows_alone([7, 2], infos(4, None)) == [[0], [1]], "its companion failed before"
