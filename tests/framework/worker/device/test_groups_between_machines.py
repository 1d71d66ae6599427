"""Gloo between machines: right results over a bad network, an error over a broken one."""

import signal
import time
from concurrent.futures import ThreadPoolExecutor
from itertools import count

import pytest
import torch
from cpp_compilers import NEEDS_COMPILER
from link_checks import received
from network_namespaces import Network
from rank_process import RankProcesses, _bytes, tensor

from quire.worker.device.group_place import GroupPlace
from quire.worker.device.shared_memory_group import SharedMemoryGroup

KEYS = (f"machines-{number}" for number in count())
SHAPES = [(1,), (5, 3), (64, 40), (30_001,)]
DTYPES = ["float32", "bfloat16", "float16"]
LIMIT_S = 2.0  # of calls over a network that is cut
BAD = {  # conditions under which everything works, only later
    "a perfect network": {},
    "200 ms of delay": {"delay_s": 0.2},
    "5 % of loss": {"loss": 0.05},
}


@pytest.fixture(scope="module")
def whole_network():
    with Network(3) as network:
        yield network


@pytest.fixture(scope="module")
def all_ranks(whole_network, tmp_path_factory):
    folder = tmp_path_factory.mktemp("machines")
    with RankProcesses(2, folder, whole_network.machines) as ranks:
        yield ranks


class Neighbours:
    """Two ranks of one machine, as threads that share memory; with the commands of `Rank`."""

    size = 2

    def __init__(self):
        places = [
            GroupPlace(rank=rank, ranks=range(2), ranks_on_node=2, timeout_s=20) for rank in (0, 1)
        ]
        first = SharedMemoryGroup.create(places[0])
        self._groups = [first, SharedMemoryGroup.attach(first.handle, places[1])]

    def values(self, name, shape, dtype, seed, *dim):
        def call(group):
            return _bytes(getattr(group, name)(tensor(shape, dtype, seed + group.rank), *dim))

        with ThreadPoolExecutor(2) as threads:
            return list(threads.map(call, self._groups))

    def close(self):
        for group in self._groups:
            group.close()


@pytest.fixture(scope="module")
def local():
    neighbours = Neighbours()
    yield neighbours
    neighbours.close()


@pytest.fixture
def network(whole_network):
    yield whole_network
    whole_network.repair()


@pytest.fixture
def ranks(all_ranks, network):
    yield all_ranks
    network.repair()
    all_ranks.revive()


@pytest.fixture
def two(ranks):
    ranks.join("gloo", next(KEYS))
    return ranks


def sums(ranks, shapes=SHAPES):
    """The bytes of sums of several shapes and dtypes, the same on all ranks."""
    found = []
    for seed, shape in enumerate(shapes):
        for dtype in DTYPES:
            first, *others = ranks.values("all_reduce", shape, dtype, seed)
            assert others == [first] * (ranks.size - 1)
            found.append(first)
    return found


@NEEDS_COMPILER
def test_two_machines_add_up_to_the_bits_of_shared_memory(two, local):
    assert sums(two) == sums(local)


@NEEDS_COMPILER
def test_two_machines_join_tensors_as_in_shared_memory(two, local):
    for dtype in ("float32", "bfloat16", "int64", "bool"):
        for dim in (0, 1):
            arguments = ("all_gather", (4, 5), dtype, 0, dim)
            assert two.values(*arguments) == local.values(*arguments)


@pytest.mark.slow
def test_three_machines_have_the_same_bits_of_a_sum(network, tmp_path):
    with RankProcesses(3, tmp_path, network.machines) as three:
        three.join("gloo", next(KEYS))
        found = sums(three)[:: len(DTYPES)]
    for shape, first in zip(SHAPES, found, strict=True):
        seed = SHAPES.index(shape)
        total = sum(tensor(shape, "float32", seed + rank).double() for rank in range(3))
        values = torch.frombuffer(bytearray(first), dtype=torch.float32).view(shape)
        torch.testing.assert_close(values, total.float(), rtol=4e-3, atol=1e-2)


@NEEDS_COMPILER
@pytest.mark.slow
@pytest.mark.parametrize("conditions", BAD)
def test_a_group_gives_the_same_over_a_bad_network(ranks, network, local, conditions):
    before = network.counts()
    network.change(**BAD[conditions])
    ranks.join("gloo", next(KEYS))
    assert sums(ranks, SHAPES[1:]) == sums(local, SHAPES[1:])
    after = network.counts()
    assert after.passed > before.passed + 100
    assert (after.lost > before.lost) == ("loss" in BAD[conditions])


@pytest.mark.slow
@pytest.mark.parametrize("conditions", BAD)
def test_messages_between_stages_arrive_in_order_over_a_bad_network(ranks, network, conditions):
    network.change(**BAD[conditions])
    ranks.join("gloo-link", next(KEYS), 12, 3)
    messages = [(1 + index % 12, 2, index) for index in range(30)]
    sent = ranks.begin(0, "send", messages)
    lengths = [num_tokens for num_tokens, _, _ in messages]
    assert ranks.answer(1, ranks.begin(1, "receive", lengths)).value == received(messages)
    assert ranks.answer(0, sent).error == ""


@pytest.mark.parametrize("one_way", [False, True], ids=["both ways", "one way"])
def test_a_link_that_is_cut_during_a_collective_is_an_error_on_both_sides_in_time(
    two, network, one_way
):
    first, second, _ = network.machines
    two.values("all_reduce", (4,), "float32", 0)
    two.values("set_timeout", LIMIT_S)
    passed = network.counts().passed
    begun = two.begin(0, "all_reduce", (4,), "float32", 0)
    while network.counts().passed == passed:
        time.sleep(0.01)
    network.change(second, first, is_cut=True, one_way=one_way)
    for answer in (
        two.answer(1, two.begin(1, "all_reduce", (4,), "float32", 0)),
        two.answer(0, begun),
    ):
        assert (answer.code, answer.count) == ("collective_failed", 2)
        assert "collective 2 of ranks 0, 1 failed on rank" in answer.error
        assert answer.seconds < LIMIT_S + 10


def test_a_link_that_is_cut_in_the_middle_of_a_tensor_is_an_error(two, network):
    two.values("set_timeout", LIMIT_S)
    network.change(delay_s=0.1)
    begun = [two.begin(rank, "all_reduce", (10**6,), "float32", 0) for rank in range(2)]
    passed = network.counts().passed
    while network.counts().passed < passed + 10:
        time.sleep(0.01)
    network.change(is_cut=True)
    for rank, number in enumerate(begun):
        assert two.answer(rank, number).code == "collective_failed"


def test_a_stage_whose_link_is_cut_does_not_wait_longer_than_its_limit(ranks, network):
    ranks.join("gloo-link", next(KEYS), 12, 3)
    assert ranks.answer(0, ranks.begin(0, "send", [(2, 2, 0)])).error == ""
    assert ranks.answer(1, ranks.begin(1, "receive", [2])).error == ""
    ranks.values("set_timeout", LIMIT_S)
    network.change(is_cut=True)
    sent = ranks.begin(0, "send", [(2, 2, 0)] * 5)
    answer = ranks.answer(1, ranks.begin(1, "receive", [2]))
    assert (answer.code, answer.count) == ("collective_failed", 2)
    assert "message 2 of ranks 0, 1" in answer.error
    assert ranks.answer(0, sent).code == "collective_failed"


def test_a_link_that_comes_back_within_the_limit_is_not_noticed(two, network):
    expected = sums(two, [(5, 3)])
    network.change(is_cut=True)
    begun = [two.begin(rank, "all_reduce", (5, 3), "float32", 0) for rank in range(2)]
    lost = network.counts().lost
    while network.counts().lost == lost:
        time.sleep(0.01)
    network.repair()
    found = [two.answer(rank, number).value for rank, number in enumerate(begun)]
    assert found == [expected[0]] * 2


@pytest.mark.slow
def test_a_rank_that_dies_on_another_machine_is_noticed_at_once(two):
    begun = two.begin(0, "all_reduce", (4,), "float32", 0)
    two.signal(1, signal.SIGKILL)
    answer = two.answer(0, begun)
    assert answer.code == "collective_failed"
    assert "closed by peer" in answer.error or "reset by peer" in answer.error
    assert answer.seconds < 30


def test_an_address_of_another_machine_is_refused_and_those_that_there_are_named(ranks, network):
    first, second, _ = network.machines
    begun = ranks.begin(0, "join", "gloo", next(KEYS), 0, 2, second.address)
    answer = ranks.answer(0, begun)
    assert answer.code == "invalid_setting"
    assert f"cannot listen on {second.address}" in answer.error
    assert f"{first.address} on quire0, {first.other_address} on quire1" in answer.error


@pytest.mark.slow
def test_an_interface_that_leads_to_no_other_machine_is_an_error_in_time(ranks, network):
    """The rank with the greater address dials the other one, so this is noticed in one order."""
    key = next(KEYS)
    addresses = [network.machines[0].address, network.machines[1].other_address]
    begun = [
        ranks.begin(rank, "join", "gloo", key, rank, 2, address, LIMIT_S)
        for rank, address in enumerate(addresses)
    ]
    for rank, number in enumerate(begun):
        answer = ranks.answer(rank, number)
        assert answer.code == "collective_failed"
        assert f"rank {rank} cannot connect to the group of ranks 0, 1" in answer.error
        assert answer.seconds < LIMIT_S + 20


def test_ranks_listen_on_their_own_address_only(two, network):
    first, second, third = network.machines
    for machine in (first, second):
        assert {address for address, _ in machine.listeners()} == {machine.address}
    assert third.listeners() == []
    two.values("close")
    assert [machine.listeners() for machine in network.machines] == [[]] * 3
