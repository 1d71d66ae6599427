"""All-reduces in symmetric memory: which tensors, on which ranks, and the bits of the sums.

torch's kernels need several GPUs (tests/gpu/test_several_gpus.py). Here their operators add up the
tensors of threads, so that all but the kernels is the product's own.
"""

from functools import partial
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist
from rank_process import FolderExchange
from torch._C._distributed_c10d import _resolve_process_group

from quire.compose.choices.all_reduce_choice import SYMMETRIC_BYTES
from quire.errors import CollectiveError
from quire.testing.model.threaded_ranks import ThreadedGroup, run_ranks
from quire.worker.device.channel_store import ChannelStore
from quire.worker.device.group_place import GroupPlace
from quire.worker.device.symmetric_memory import (
    ONE_SHOT_BYTES,
    PeerDevices,
    SymmetricMemory,
    TorchGroup,
    join_symmetric_memory,
    kernel_for,
    torch_unavailable_reason,
)

CPU = torch.device("cpu")
PLACE = GroupPlace(rank=1, ranks=(4, 5), ranks_on_node=2, timeout_s=10.0)


@pytest.mark.parametrize(
    ("num_bytes", "dtype", "without", "with_multicast"),
    [
        (0, torch.float32, None, None),
        (4, torch.float32, None, None),
        (16, torch.float32, "one_shot", "one_shot"),
        (16, torch.bfloat16, "one_shot", "one_shot"),
        (24, torch.bfloat16, None, None),
        (32, torch.float16, None, None),
        (32, torch.int32, None, None),
        (ONE_SHOT_BYTES, torch.bfloat16, "one_shot", "one_shot"),
        (ONE_SHOT_BYTES + 16, torch.bfloat16, "two_shot", "multimem"),
        (SYMMETRIC_BYTES, torch.float32, "two_shot", "multimem"),
        (SYMMETRIC_BYTES + 16, torch.float32, None, None),
    ],
)
def test_the_kernel_depends_on_size_and_dtype(num_bytes, dtype, without, with_multicast):
    assert kernel_for(num_bytes, dtype, has_multicast=False) == without
    assert kernel_for(num_bytes, dtype, has_multicast=True) == with_multicast


def peers(**facts):
    known = {
        "num_nodes": 1,
        "devices": (2, 0, 1),
        "own": 0,
        "num_visible": 3,
        "can_access": lambda own, other: own == 0,
    }
    return PeerDevices(**known | facts).unavailable_reason()


def test_gpus_that_reach_each_other_share_memory():
    assert peers() is None


@pytest.mark.parametrize(
    ("facts", "reason"),
    [
        ({"num_nodes": 2}, "the ranks are on 2 nodes"),
        ({"devices": (0, 0, 1)}, "cannot use the GPUs of the others"),
        ({"num_visible": 2}, "cannot use the GPUs of the others"),
        ({"can_access": lambda own, other: other != 1}, "GPU 0 cannot access the memory of GPU 1"),
    ],
)
def test_gpus_that_cannot_share_memory_have_a_reason(facts, reason):
    assert reason in peers(**facts)


def test_this_torch_has_symmetric_memory_as_it_is_used():
    assert torch_unavailable_reason() is None


def test_an_operator_that_torch_does_not_have_is_a_reason(monkeypatch):
    monkeypatch.setattr(
        "quire.worker.device.symmetric_memory.OPERATORS", ("one_shot_all_reduce_by_hand",)
    )
    assert "one_shot_all_reduce_by_hand" in torch_unavailable_reason()


def test_torch_finds_a_group_by_its_name_until_it_is_closed(tmp_path):
    group = TorchGroup(FolderExchange(tmp_path), "group of stage 3", PLACE)
    found = _resolve_process_group(group.name)
    assert (found.rank(), found.size()) == (1, 2)
    other = ChannelStore(FolderExchange(tmp_path), "group of stage 3, symmetric memory", 1.0)
    other.set("torch/0/0", b"\x00\xff address")
    store = dist.PrefixStore("torch", found.get_group_store())  # as torch reads, in C++
    store.wait(["0/0"])
    assert store.get("0/0") == b"\x00\xff address"
    group.close()
    with pytest.raises(RuntimeError, match="Could not resolve"):
        _resolve_process_group(group.name)


def test_memory_that_cannot_be_allocated_leaves_no_group(tmp_path):
    connect = partial(SymmetricMemory.connect, FolderExchange(tmp_path), "a", PLACE, CPU)
    for _ in range(2):
        with pytest.raises(RuntimeError, match="does not support device type cpu"):
            connect()


GROUPS: dict[str, ThreadedGroup] = {}


CALLED: set[str] = set()


def one_shot(called, shared, local, operator, name):
    assert operator == "sum"
    assert shared.shape == local.shape
    assert local.storage_offset() * local.itemsize % 16 == 0, "the kernel needs whole vectors"
    CALLED.add(called)
    shared.copy_(local)
    return GROUPS[name].all_reduce(shared)


def in_place(called, shared, operator, name):
    assert operator == "sum"
    CALLED.add(called)
    return shared.copy_(GROUPS[name].all_reduce(shared))


@pytest.fixture(scope="module", autouse=True)
def operators():
    """torch's operators on a CPU, for ranks that are threads."""
    library = torch.library.Library("symm_mem", "IMPL")
    for name in ("one_shot_all_reduce_copy", "two_shot_all_reduce_", "multimem_all_reduce_"):
        operator = one_shot if name.startswith("one") else in_place
        library.impl(name, partial(operator, name), "CPU")
    yield
    library._destroy()


def memory_of(group: ThreadedGroup, *, has_multicast: bool = False) -> SymmetricMemory:
    name = f"rank {group.rank}"
    GROUPS[name] = group
    buffer = torch.full((SYMMETRIC_BYTES,), 0xFF, dtype=torch.uint8)
    closed = SimpleNamespace(name=name, close=lambda: GROUPS.pop(name))
    return SymmetricMemory(buffer, closed, has_multicast=has_multicast)


@pytest.mark.parametrize(
    ("shape", "called"),
    [
        ((8,), ("one_shot_all_reduce_copy",) * 2),
        ((3, 8), ("one_shot_all_reduce_copy",) * 2),
        ((8, 500, 256), ("two_shot_all_reduce_", "multimem_all_reduce_")),
    ],
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("has_multicast", [False, True])
def test_all_ranks_have_the_bits_of_the_sum_in_rank_order(shape, called, dtype, has_multicast):
    given = [
        torch.randn(shape, generator=torch.Generator().manual_seed(rank)).to(dtype)
        for rank in range(3)
    ]

    def run(group):
        memory = memory_of(group, has_multicast=has_multicast)
        x = given[group.rank].clone()
        kernel = memory.kernel_for(x)
        total = memory.all_reduce(x, kernel)
        memory.all_reduce(torch.ones_like(x), kernel)  # the next one does not change it
        assert total.shape == shape
        return total

    CALLED.clear()
    found = run_ranks(3, run)
    expected = (torch.zeros_like(given[0]) + given[0]) + given[1] + given[2]
    assert all(torch.equal(each, expected) for each in found)
    assert {called[has_multicast]} == CALLED


def test_a_tensor_at_an_odd_place_is_moved():
    def run(group):
        memory = memory_of(group)
        x = torch.arange(9.0)[1:]
        return memory.all_reduce(x, memory.kernel_for(x)).tolist()

    assert run_ranks(2, run) == [[2.0 * each for each in range(1, 9)]] * 2


def test_closed_memory_adds_up_nothing():
    memory = memory_of(ThreadedGroup(0, SimpleNamespace(tensors=[None])))
    memory.close()
    memory.close()
    assert "rank 0" not in GROUPS
    with pytest.raises(RuntimeError, match="closed"):
        memory.all_reduce(torch.zeros(4), "one_shot")


def join(group, reason=None, error=None, has_multicast=True):
    def connect():
        if error is not None:
            raise error
        return memory_of(group, has_multicast=has_multicast)

    return join_symmetric_memory(group, CPU, reason, connect)


def test_all_ranks_join_if_all_can(caplog):
    caplog.set_level("INFO", "quire")
    memories = run_ranks(2, join)
    assert [memory.has_multicast for memory in memories] == [True, True]
    assert "all-reduces of up to 4 MiB use symmetric memory, with multicast" in caplog.messages


def test_a_switch_adds_up_only_if_it_can_for_all_ranks():
    memories = run_ranks(2, lambda group: join(group, has_multicast=group.rank == 0))
    assert [memory.has_multicast for memory in memories] == [False, False]


def test_no_rank_joins_if_one_cannot(caplog):
    caplog.set_level("INFO", "quire")
    reasons = ["GPU 0 cannot access the memory of GPU 1", None]
    error = AssertionError("connected without the other rank")
    assert run_ranks(2, lambda group: join(group, reasons[group.rank], error)) == [None, None]
    assert f"all-reduces use NCCL and no symmetric memory: {reasons[0]}" in caplog.messages
    assert caplog.messages[-1].endswith(("another rank cannot use it", reasons[0]))


@pytest.mark.parametrize("error", [RuntimeError("no driver"), TimeoutError("rank 0 is late")])
def test_no_rank_keeps_memory_if_one_cannot_connect(caplog, error):
    caplog.set_level("INFO", "quire")
    GROUPS.clear()
    errors = [error, None]
    assert run_ranks(2, lambda group: join(group, error=errors[group.rank])) == [None, None]
    assert not GROUPS, "the memory of the other rank is closed"
    assert f"all-reduces use NCCL and no symmetric memory: {error}" in caplog.messages


def test_a_group_adds_up_small_tensors_in_its_memory(gloo_groups):
    def run(group):
        own = gloo_groups(group)
        own.use_symmetric_memory(memory_of(group))
        small = own.all_reduce(torch.ones(8))
        large = own.all_reduce(torch.ones(SYMMETRIC_BYTES // 4 + 4))
        odd = own.all_reduce(torch.ones(3))
        group.sent_bytes = [each for each in group.sent_bytes if each != 1]
        sizes = list(group.sent_bytes)
        own.close()
        assert f"rank {group.rank}" not in GROUPS
        with pytest.raises(CollectiveError, match="closed"):
            own.all_reduce(torch.ones(8))
        return small.unique().item(), large.unique().item(), odd.unique().item(), sizes

    assert run_ranks(2, run) == [(2.0, 2.0, 2.0, [32])] * 2


@pytest.fixture
def gloo_groups(tmp_path):
    from quire.worker.device.distributed_group import DistributedGroup

    def make(group):
        place = GroupPlace(rank=group.rank, ranks=(0, 1), ranks_on_node=2, timeout_s=30.0)
        return DistributedGroup.join(FolderExchange(tmp_path), "g", place, CPU, "127.0.0.1")

    return make
