"""Ranks in threads of one process add up, fail and start again."""

import ctypes
import struct
import threading
from contextlib import contextmanager

import pytest
import torch
from cpp_compilers import NEEDS_COMPILER
from hypothesis import given, settings
from hypothesis import strategies as st

from quire.errors import CollectiveError, SettingsError
from quire.native.collectives.member import CONTROL_BYTES, SHARED_MEMORY, GroupMember
from quire.native.collectives.shared_segment import SharedSegment

pytestmark = NEEDS_COMPILER

DTYPES = {torch.float32: 0, torch.bfloat16: 1, torch.float16: 2}
MANY = 10**6  # ranks on the node, so that each one sleeps at once
CLAIMED, ASLEEP = 128, 260  # offsets in the control words


@contextmanager
def members(size, slot_bytes=256, two_shot_bytes=64, ranks_on_node=1, timeout_s=20.0, names=None):
    num_bytes = CONTROL_BYTES + 2 * size * slot_bytes
    first = SharedSegment.create(num_bytes, (size, slot_bytes, two_shot_bytes))
    segments = [first, *(SharedSegment.open(first.handle) for _ in range(size - 1))]
    made = [
        GroupMember(segment, rank, names or range(size), ranks_on_node, timeout_s)
        for rank, segment in enumerate(segments)
    ]
    try:
        yield made
    finally:
        for member in made:
            member.close()


def reduce(member, x):
    member.library.all_reduce(ctypes.byref(member.state), x.data_ptr(), x.numel(), DTYPES[x.dtype])


def at_once(*calls):
    """Run each call in a thread; returns their errors."""
    errors = [None] * len(calls)

    def run(index):
        try:
            calls[index]()
        except CollectiveError as error:
            errors[index] = error

    threads = [threading.Thread(target=run, args=(index,)) for index in range(len(calls))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return errors


def reduced(made, inputs):
    """All-reduce each member's copy of its input."""
    outputs = [x.clone() for x in inputs]
    calls = [
        lambda member=member, x=x: reduce(member, x)
        for member, x in zip(made, outputs, strict=True)
    ]
    assert at_once(*calls) == [None] * len(made)
    return outputs


def in_order(inputs):
    total = inputs[0].float().clone()
    for x in inputs[1:]:
        total += x.float()
    return total.to(inputs[0].dtype)


def same_bits(one, other):
    return torch.equal(one.view(torch.uint8), other.view(torch.uint8))


@pytest.mark.parametrize("ranks_on_node", [1, MANY], ids=["awake", "asleep"])
@settings(max_examples=40, deadline=None)
@given(
    size=st.integers(1, 5),
    dtype=st.sampled_from(list(DTYPES)),
    counts=st.lists(st.integers(0, 400), min_size=1, max_size=8),
    seed=st.integers(0, 2**31),
)
def test_sums_are_those_in_rank_order(ranks_on_node, size, dtype, counts, seed):
    generator = torch.Generator().manual_seed(seed)
    with members(size, ranks_on_node=ranks_on_node) as made:
        for count in counts:
            inputs = [torch.randn(count, generator=generator).to(dtype) for _ in range(size)]
            for output in reduced(made, inputs):
                assert same_bits(output, in_order(inputs))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("offset", [0, 1, 1023, 0x7C00, 0x8000])
def test_every_number_of_16_bits_is_rounded_as_torch_does(dtype, offset):
    words = torch.arange(2**16, dtype=torch.int32)
    inputs = [w.to(torch.int16).view(dtype) for w in (words, (words * 7 + offset) % 2**16)]
    expected = in_order(inputs)
    with members(2, slot_bytes=2**17, two_shot_bytes=2**17) as made:
        outputs = reduced(made, inputs)
    assert same_bits(*outputs)
    torch.testing.assert_close(outputs[0], expected, rtol=0, atol=0, equal_nan=True)


def test_infinities_and_nans_are_those_of_float32():
    inf, nan = float("inf"), float("nan")
    inputs = [torch.tensor(row * 9) for row in ([inf, inf, nan, 3e38], [1.0, -inf, 0.0, 3e38])]
    with members(2) as made:
        for output in reduced(made, inputs):
            expected = torch.tensor([inf, nan, nan, inf] * 9)
            torch.testing.assert_close(output, expected, equal_nan=True)


def test_errors_name_ranks_by_their_numbers_among_all_workers():
    x = torch.ones(4)
    with members(3, timeout_s=0.05, names=(4, 6, 9)) as made:
        (error,) = at_once(lambda: reduce(made[1], x))
        assert (error.ranks, error.count) == ((4, 9), 1)
        assert str(error) == (
            "collective 1 of ranks 4, 6, 9 did not complete in time on rank 6; ranks 4, 9 have not "
            "come to it"
        )


def test_a_rank_that_died_before_it_gave_its_reason_holds_up_no_other():
    x = torch.ones(4)
    with members(2, timeout_s=0.05) as made:
        struct.pack_into("<Q", made[0]._segment.memory, CLAIMED, 1)
        for _ in range(2):
            (error,) = at_once(lambda: reduce(made[0], x))
            assert (error.ranks, error.count) == ((1,), 1)


def test_a_rank_that_died_asleep_holds_up_no_other():
    with members(2) as made:
        struct.pack_into("<I", made[0]._segment.memory, ASLEEP, 1)
        inputs = [torch.ones(100), torch.ones(100)]
        assert same_bits(reduced(made, inputs)[0], torch.full((100,), 2.0))


def test_the_largest_share_names_the_ranks_that_differ():
    with members(3) as made:
        calls = [
            lambda member=member, count=count: reduce(member, torch.ones(count))
            for member, count in zip(made, (5, 4, 5), strict=True)
        ]
        errors = at_once(*calls)
    assert [error.ranks for error in errors] == [(1,)] * 3
    assert "rank 1 all_reduce in float32 of 16 bytes" in str(errors[0])


def test_every_rank_gives_the_same_reason():
    x = torch.ones(4)
    with members(3, timeout_s=0.05) as made:
        errors = at_once(*(lambda member=member: reduce(member, x.clone()) for member in made[:2]))
        late = at_once(lambda: reduce(made[2], x))
    assert {str(error) for error in (*errors, *late)} == {str(errors[0])}


def test_an_abort_counts_only_until_the_next_epoch():
    inputs = [torch.ones(100), torch.ones(100)]
    with members(2) as made:
        for epoch in range(2, 6):
            made[epoch % 2].abort()
            errors = at_once(*(lambda m=m: reduce(m, torch.ones(4)) for m in made))
            assert all("was aborted by rank" in str(error) for error in errors)
            for member in made:
                member.reset(epoch)
            assert same_bits(reduced(made, inputs)[1], torch.full((100,), 2.0))


@settings(max_examples=30, deadline=None)
@given(data=st.data(), size=st.integers(2, 4))
def test_after_any_failures_sums_are_right(data, size):
    events = st.lists(
        st.one_of(
            st.integers(0, 300), st.sets(st.integers(0, size - 1), min_size=1, max_size=size - 1)
        ),
        max_size=8,
    )
    epoch = 1
    with members(size, ranks_on_node=data.draw(st.sampled_from([1, MANY]))) as made:
        for event in data.draw(events):
            if isinstance(event, int):
                inputs = [torch.rand(event) for _ in made]
                for output in reduced(made, inputs):
                    assert same_bits(output, in_order(inputs))
                continue
            for member in made:
                member.set_timeout(0.01)
            errors = at_once(*(lambda r=r: reduce(made[r], torch.ones(90)) for r in event))
            absent = set(range(size)) - event
            assert all(absent <= set(error.ranks) for error in errors)
            late = at_once(*(lambda r=r: reduce(made[r], torch.ones(90)) for r in absent))
            assert {str(error) for error in late} == {str(errors[0])}
            epoch += data.draw(st.integers(1, 3))
            for member in made:
                member.reset(epoch)
                member.set_timeout(20)


def test_memory_for_another_number_of_ranks_is_refused():
    segment = SharedSegment.create(CONTROL_BYTES + 4096, (2, 256, 64))
    with pytest.raises(SettingsError, match="a group of 3 ranks cannot use shared memory"):
        GroupMember(segment, 0, range(3), 1, 1.0)
    segment.close()
    large = SharedSegment.create(CONTROL_BYTES + 4096, (65, 256, 64))
    with pytest.raises(SettingsError, match="at most 64 ranks"):
        GroupMember(large, 0, range(65), 1, 1.0)
    large.close()


def test_calls_after_the_end_are_errors():
    with members(1) as made:
        (member,) = made
        member.close()
        member.close()
        member.abort()
        with pytest.raises(CollectiveError, match="is closed on rank 0"):
            reduce(member, torch.ones(4))
        for name, arguments in (("await_number", (0, 1)), ("publish_number", (1,))):
            with pytest.raises(CollectiveError, match="is closed"):
                getattr(SHARED_MEMORY.load(), name)(ctypes.byref(member.state), *arguments)
