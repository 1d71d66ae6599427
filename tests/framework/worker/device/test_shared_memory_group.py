"""Ranks in processes add up and gather through shared memory, and fail together."""

import signal
from itertools import count
from pathlib import Path

import pytest
import torch
from cpp_compilers import NEEDS_COMPILER
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from processes import eventually, is_running
from rank_process import VOCAB_SIZE, RankProcesses, tensor

pytestmark = NEEDS_COMPILER

SMALL = (256, 64)  # bytes of a slot and of the largest one-shot piece: many pieces of both kinds
DTYPES = ("float32", "bfloat16", "float16")
KEYS = (f"group-{number}" for number in count())


def as_bytes(values):
    return bytes(values.contiguous().view(torch.uint8).numpy())


def expected_sum(size, shape, dtype, seed):
    """The definition: float32 sums in rank order, rounded once."""
    total = tensor(shape, dtype, seed).float()
    for rank in range(1, size):
        total += tensor(shape, dtype, seed + rank).float()
    return as_bytes(total.to(getattr(torch, dtype)))


def expected_gather(size, shape, dtype, seed, dim):
    return as_bytes(torch.cat([tensor(shape, dtype, seed + rank) for rank in range(size)], dim))


@pytest.fixture(scope="module")
def four(tmp_path_factory):
    with RankProcesses(4, tmp_path_factory.mktemp("ranks")) as ranks:
        yield ranks


@pytest.fixture
def two(four):
    yield from joined(four, 2)


@pytest.fixture
def three(four):
    yield from joined(four, 3, *SMALL)


def joined(ranks, size, *sizes):
    ranks.join("shared", next(KEYS), *sizes, size=size)
    yield ranks
    ranks.revive()


@pytest.mark.parametrize("size", [1, 2, 3, 4])
@pytest.mark.parametrize("sizes", [(), SMALL, (2**16, 0)], ids=["usual", "small", "two-shot"])
def test_collectives_are_those_of_one_process_bit_by_bit(four, size, sizes):
    four.join("shared", next(KEYS), *sizes, size=size)
    shapes = [(1,), (7,), (16,), (3, 33), (64, 40), (2, 129), (0,), (5, 0), (70_001,)]
    for seed, shape in enumerate(shapes):
        for dtype in DTYPES:
            sums = four.values("all_reduce", shape, dtype, seed)
            assert sums == [expected_sum(size, shape, dtype, seed)] * size, (shape, dtype)
        for dtype in (*DTYPES, "int64", "uint8", "bool"):
            for dim in {0, -1, len(shape) - 1}:
                joined = four.values("all_gather", shape, dtype, seed, dim)
                expected = expected_gather(size, shape, dtype, seed, dim)
                assert joined == [expected] * size, (shape, dtype, dim)


def test_tensors_of_three_dimensions_are_joined_along_each(four):
    four.join("shared", next(KEYS), *SMALL, size=4)
    for dim in (0, 1, 2, -1, -2, -3):
        joined = four.values("all_gather", (5, 6, 7), "float32", 3, dim)
        assert joined == [expected_gather(4, (5, 6, 7), "float32", 3, dim)] * 4


calls = st.one_of(
    st.tuples(
        st.just("all_reduce"),
        st.tuples(st.lists(st.integers(0, 90), min_size=1, max_size=2), st.sampled_from(DTYPES)),
        st.integers(0, 2**31),
    ),
    st.tuples(
        st.just("all_gather"),
        st.tuples(
            st.lists(st.integers(0, 90), min_size=1, max_size=2),
            st.sampled_from([*DTYPES, "int64", "uint8"]),
        ),
        st.integers(0, 2**31),
    ),
)


@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
@given(size=st.integers(2, 4), sequence=st.lists(calls, min_size=1, max_size=30))
def test_any_sequence_of_collectives_is_that_of_one_process(four, size, sequence):
    four.join("shared", next(KEYS), *SMALL, size=size)
    commands, expected = [], []
    for name, (shape, dtype), seed in sequence:
        if name == "all_reduce":
            commands.append((name, [shape, dtype, seed]))
            expected.append(expected_sum(size, shape, dtype, seed))
        else:
            commands.append((name, [shape, dtype, seed, -1]))
            expected.append(expected_gather(size, shape, dtype, seed, -1))
    assert four.values("many", commands) == [expected] * size


def test_special_numbers_have_the_same_bits_on_all_ranks(three):
    three.values("set_timeout", 20)
    first, *others = three.values("all_reduce_special")
    assert [first] * 2 == others


def test_other_dtypes_are_not_added_up(two):
    answer, _ = two.all("all_reduce", (4,), "int64", 0)
    assert "adds up torch.float32, torch.bfloat16, torch.float16, not torch.int64" in answer.error


def begin_all(ranks, among, shape=(100,)):
    """Begin an all-reduce; returns when these ranks wait for the others."""
    begun = {rank: ranks.begin(rank, "all_reduce", shape, "float32", 0) for rank in among}
    for rank in among if len(among) < ranks.size else ():
        ranks.wait_in_call(rank, begun[rank])
    return begun


def answers_of(ranks, begun):
    return [ranks.answer(rank, number) for rank, number in begun.items()]


def test_ranks_that_do_not_come_in_time_are_named_by_all(three):
    three.values("all_reduce", (100,), "float32", 0)
    three.values("set_timeout", 0.3)
    for answer in answers_of(three, begin_all(three, [0, 2])):
        assert answer.code == "collective_failed"
        assert (answer.ranks, answer.count) == ([1], 2)
        assert "rank 1 has not come to it" in answer.error
        assert "collective 2 of ranks 0, 1, 2 did not complete in time on rank" in answer.error
        assert 0.2 < answer.seconds < 10
    late = three.answer(1, three.begin(1, "all_reduce", (100,), "float32", 0))
    assert late.ranks == [1], "the rank that comes late fails as well, with the same reason"
    assert late.seconds < 0.2


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_a_rank_that_died_or_stands_still_is_named(three, number):
    three.values("all_reduce", (10_000,), "float32", 0)
    three.values("set_timeout", 0.5)
    three.signal(2, number)
    for answer in answers_of(three, begin_all(three, [0, 1], (10_000,))):
        assert (answer.ranks, answer.count) == ([2], 2)


def test_an_abort_wakes_all_ranks_at_once(three):
    begun = begin_all(three, [0, 2])
    assert three.answer(1, three.begin(1, "abort")).error == ""
    for answer in answers_of(three, begun):
        assert answer.ranks == [1]
        assert "was aborted by rank 1; rank 1 has not come to it" in answer.error
        assert answer.seconds < 30, "the time limit is a minute"


def test_a_failed_group_fails_until_it_is_reset(three):
    begun = begin_all(three, [0])
    three.answer(2, three.begin(2, "abort"))
    answers_of(three, begun)
    again = three.all("all_reduce", (100,), "float32", 0)
    assert [answer.code for answer in again] == ["collective_failed"] * 3
    for epoch in (2, 3, 9):
        three.values("reset", epoch)
        sums = three.values("all_reduce", (1000,), "float32", epoch)
        assert sums == [expected_sum(3, (1000,), "float32", epoch)] * 3


def test_a_rank_may_start_an_epoch_before_the_others(three):
    for seed in (10, 20, 30):
        three.values("all_reduce", (100,), "float32", seed)
    three.values("abort")
    first = three.begin(0, "reset", 2)
    begun = begin_all(three, [0])
    three.answer(0, first)
    for rank in (1, 2):
        three.answer(rank, three.begin(rank, "reset", 2))
    for rank in (1, 2):
        begun[rank] = three.begin(rank, "all_reduce", (100,), "float32", 0)
    expected = expected_sum(3, (100,), "float32", 0)
    assert [answer.value for answer in answers_of(three, begun)] == [expected] * 3


@pytest.mark.parametrize("epoch", [0, 1, 2**24])
def test_an_epoch_that_does_not_follow_is_refused(two, epoch):
    for answer in two.all("reset", epoch):
        assert f"epoch {epoch} does not follow epoch 1" in answer.error


def test_ranks_with_other_sizes_are_named_by_all(three):
    begun = begin_all(three, [0, 2])
    begun[1] = three.begin(1, "all_reduce", (101,), "float32", 0)
    for answer in answers_of(three, begun):
        assert (answer.ranks, answer.count) == ([1], 1)
        assert "rank 0 all_reduce in float32 of 400 bytes, rank 1 all_reduce in float32 of 404" in (
            answer.error
        )


def test_ranks_with_other_collectives_are_named(two):
    begun = {
        0: two.begin(0, "all_reduce", (4,), "float32", 0),
        1: two.begin(1, "all_gather", (4,), "float32", 0, 0),
    }
    for answer in answers_of(two, begun):
        assert "rank 0 all_reduce in float32 of 16 bytes, rank 1 all_gather of 16" in answer.error


def test_a_rank_that_leaves_ends_the_calls_of_the_others(two):
    begun = begin_all(two, [0])
    two.answer(1, two.begin(1, "close"))
    (answer,) = answers_of(two, begun)
    assert answer.ranks == [1]
    assert "rank 1 has left" in answer.error
    own = two.answer(1, two.begin(1, "all_reduce", (4,), "float32", 0))
    assert "the group of ranks 0, 1 is closed on rank 1" in own.error


def test_a_group_can_be_closed_while_its_rank_waits(two):
    begun = begin_all(two, [0])
    for _ in range(2):
        assert two.answer(0, two.begin(0, "close")).error == ""
    (answer,) = answers_of(two, begun)
    assert answer.code == "collective_failed"
    assert "closed group" in two.answer(0, two.begin(0, "reset", 2)).error


def test_nothing_is_left_of_closed_groups(two):
    before = set(Path("/dev/shm").iterdir())
    files = []
    for _ in range(5):
        two.join("shared", next(KEYS), size=2)
        assert two.values("mappings") == [1, 1]
        two.values("close")
        assert two.values("mappings") == [0, 0]
        files.append(two.values("open_files"))
    assert files[1:] == files[:-1]
    assert not {path for path in set(Path("/dev/shm").iterdir()) - before if "quire" in path.name}


def test_nothing_is_left_of_a_killed_rank(two):
    two.signal(0, signal.SIGKILL)
    pid = two.processes[0].pid
    eventually(lambda: not is_running(pid))
    assert two.answer(1, two.begin(1, "close")).error == ""
    assert two.answer(1, two.begin(1, "mappings")).value == 0


def test_a_decode_step_with_collectives_keeps_its_cpu_graph(three):
    assert three.values("trace") == [None] * 3
    weight = tensor((VOCAB_SIZE, 8), "float32", 0)
    for ids in ([0, 49, 16, 17, 34], [3, 3, 48, 1, 20]):
        expected = torch.cat([weight[ids]] * 3, -1)
        assert three.values("replay", ids) == [as_bytes(expected)] * 3


def test_a_replay_that_fails_raises(three):
    three.values("trace")
    three.values("set_timeout", 0.3)
    begun = {rank: three.begin(rank, "replay", [1, 2, 3, 4, 5]) for rank in (0, 1)}
    for answer in answers_of(three, begun):
        assert (answer.code, answer.ranks, answer.count) == ("collective_failed", [2], 1)
