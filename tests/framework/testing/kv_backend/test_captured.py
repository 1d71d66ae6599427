"""A captured step must not make the host wait for the device, by any operator or method."""

import pytest
import torch

from quire.interfaces.attention import StepLayout
from quire.testing.kv_backend.captured import refill, replayable, sync_refused

NUMBERS = torch.tensor([3, 0, 2])
MASK = NUMBERS > 0

WAITING = {
    "item": lambda: NUMBERS[0].item(),
    "bool": lambda: bool(MASK.any()),
    "tolist": lambda: NUMBERS.tolist(),
    "numpy": lambda: NUMBERS.numpy(),
    "cpu": lambda: NUMBERS.cpu(),
    "array": lambda: NUMBERS.__array__(),
    "nonzero": lambda: NUMBERS.nonzero(),
    "masked_select": lambda: NUMBERS.masked_select(MASK),
    "equal": lambda: torch.equal(NUMBERS, NUMBERS),
    "unique": lambda: NUMBERS.unique(),
    "repeats by data": lambda: NUMBERS.repeat_interleave(NUMBERS),
    "a mask as index": lambda: NUMBERS[MASK],
    "values by a mask": lambda: NUMBERS.clone().__setitem__(MASK, torch.tensor([1, 2])),
}
SILENT = {
    "arithmetic": lambda: NUMBERS * 2 + NUMBERS.cumsum(0),
    "an index": lambda: NUMBERS[torch.tensor([1, 2])],
    "values by an index": lambda: NUMBERS.clone().__setitem__(torch.tensor([1]), 5),
    "one value by a mask": lambda: NUMBERS.clone().__setitem__(MASK, 5),
    "where": lambda: NUMBERS.where(MASK, 0),
    "repeats of a known size": lambda: torch.repeat_interleave(NUMBERS, NUMBERS, output_size=5),
}


@pytest.mark.parametrize("name", WAITING)
def test_what_the_host_must_wait_for_is_refused(name):
    WAITING[name]()
    with (
        pytest.raises(AssertionError, match="a captured step must not"),
        sync_refused(),
    ):
        WAITING[name]()


@pytest.mark.parametrize("name", SILENT)
def test_what_the_device_does_by_itself_is_not(name):
    with sync_refused():
        SILENT[name]()


def test_a_replay_runs_over_the_new_contents():
    buffer = torch.zeros(2)
    run = replayable(lambda: buffer + 1, "cpu")
    buffer.fill_(4)
    assert run().tolist() == [5, 5]
    with pytest.raises(AssertionError):
        replayable(lambda: buffer + buffer[0].item(), "cpu")()


def layout(num_blocks, number):
    return StepLayout(
        query_start=torch.full((3,), number),
        seq_lens=torch.full((2,), number),
        block_table=torch.full((2, num_blocks), number),
        slot_mapping=torch.full((4,), number),
        num_tokens=4,
        max_query_len=4,
        query_lens_host=[],
        seq_lens_host=[],
    )


def test_a_refilled_step_holds_nothing_of_the_one_before():
    fixed = layout(3, 7)
    before = fixed.block_table
    refill(fixed, layout(2, 5))
    assert fixed.block_table is before
    assert before.tolist() == [[5, 5, 0], [5, 5, 0]]
    for buffer in (fixed.query_start, fixed.seq_lens, fixed.slot_mapping):
        assert set(buffer.tolist()) == {5}
