"""The worker of a rank: its groups are those of its place in the grid, and end with it."""

import gc
import weakref
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest
import torch
from grid_parts import composed_engine
from rank_process import FolderExchange

from quire.errors import (
    CapacityError,
    CollectiveError,
    EngineDeadError,
    QuireError,
    SettingsError,
)
from quire.interfaces.executor import WorkerGrid
from quire.interfaces.model import StageTensors
from quire.layers.parallel import RankGroup, SingleDevice
from quire.messages import RankPlace
from quire.testing.checkpoints import write_checkpoint
from quire.testing.executor import NotingWorker
from quire.worker import rank_worker
from quire.worker import worker as worker_module
from quire.worker.parts import WorkerParts
from quire.worker.rank_worker import RankWorker, _check_gpu, make_worker

TWO_BY_TWO = WorkerGrid(2, 2)
THREE_STAGES = WorkerGrid(1, 3)
HIDDEN_SIZE = 64
PLAIN = {"threads": 1, "enforce_eager": True, "kernels": "torch", "dtype": "float32"}
PLAIN |= {"worker_start_timeout_s": 10}  # a test that hangs ends


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("model")
    return write_checkpoint(path, "LlamaForCausalLM", num_hidden_layers=5).folder


def places_on(nodes: str) -> list[RankPlace]:
    """Places of ranks, by the node of each."""
    return [
        RankPlace(f"node {node}", node, "127.0.0.1", nodes[:rank].count(node))
        for rank, node in enumerate(nodes)
    ]


class Ranks:
    """All ranks of a grid, as threads; `nodes` has the node of each, all on one by default."""

    def __init__(
        self, registries, folder, exchange, grid: WorkerGrid, nodes: str = "", **options
    ) -> None:
        composed = composed_engine(
            registries,
            folder,
            tensor_parallel_size=grid.tp_size,
            pipeline_parallel_size=grid.pp_size,
            **PLAIN | options,
        )
        self.settings, self.composition = composed.settings, composed.composition
        self.parts = WorkerParts.load(self.settings, self.composition, registries)
        self.places = places_on(nodes or "a" * grid.size)
        self._exchange = FolderExchange(exchange)
        self.threads = ThreadPoolExecutor(grid.size)
        self.workers: list[RankWorker] = []

    def join(self) -> None:
        ranks = range(self.composition.grid.size)
        self.workers = self.run([partial(self.make, rank) for rank in ranks])

    def make(self, rank: int) -> RankWorker:
        return make_worker(self.settings, self.parts, rank, self._exchange, self.places)

    def run(self, calls: Sequence[Callable]) -> list:
        futures = [self.threads.submit(call) for call in calls]
        return [future.result(60) for future in futures]

    def all(self, call: Callable) -> list:
        """Call a function with the worker of each rank, at the same time."""
        return self.run([partial(call, worker) for worker in self.workers])

    def close(self) -> None:
        for worker in self.workers:
            worker.shutdown()
        self.threads.shutdown()


def test_ranks_spin_only_if_those_of_all_replicas_have_a_core(ranks_of, tmp_path):
    ranks = ranks_of(WorkerGrid(2, 1), data_parallel_size=3)
    places = rank_worker.Ranks(
        ranks.settings, ranks.composition, 0, FolderExchange(tmp_path), ranks.places
    )
    assert places._place(range(2)).ranks_on_node == 6


def test_ranks_share_memory_with_the_gpus_of_their_own_group(ranks_of, tmp_path, monkeypatch):
    ranks = ranks_of(WorkerGrid(2, 2), "aabc")
    found = []
    for rank in range(4):
        own = rank_worker.Ranks(
            ranks.settings, ranks.composition, rank, FolderExchange(tmp_path), ranks.places
        )
        first = rank // 2 * 2
        peers = own._peers(range(first, first + 2))
        found.append((peers.num_nodes, list(peers.devices), peers.own))
        reason = own._symmetric_memory_unavailable_reason(range(first, first + 2))
        assert reason == "the device is cpu", "of this machine"
    assert found == [(1, [0, 1], 0), (1, [0, 1], 1), (2, [0, 0], 0), (2, [0, 0], 0)]


@pytest.fixture
def ranks_of(quire_registries, folder, tmp_path):
    made: list[Ranks] = []

    def make(grid: WorkerGrid, nodes: str = "", **options) -> Ranks:
        made.append(Ranks(quire_registries, folder, tmp_path, grid, nodes, **options))
        return made[-1]

    yield make
    for ranks in made:
        ranks.close()


@pytest.fixture
def joined(ranks_of):
    def join(grid: WorkerGrid, nodes: str = "") -> Ranks:
        ranks = ranks_of(grid, nodes)
        ranks.join()
        return ranks

    return join


def added_up(worker: RankWorker, value: float = 1.0) -> float:
    return worker.groups[0].all_reduce(torch.tensor([value])).item()


def passed_on(worker: RankWorker, value: float) -> float | None:
    """Send a value to the next stage, and return that of the stage before."""
    stage = worker.worker.stage
    if stage.next is not None:
        stage.next.send(StageTensors(torch.full((2, HIDDEN_SIZE), value), None))
    if stage.previous is None:
        return None
    received = stage.previous.receive(2).hidden_states
    assert received.shape == (2, HIDDEN_SIZE)
    return received[1, -1].item()


def test_the_ranks_of_a_stage_are_a_group(joined):
    ranks = joined(TWO_BY_TWO)
    values = [partial(added_up, worker, 10.0**rank) for rank, worker in enumerate(ranks.workers)]
    assert ranks.run(values) == [11.0, 11.0, 1100.0, 1100.0]
    groups = [worker.groups[0] for worker in ranks.workers]
    assert [(group.rank, group.size) for group in groups] == [(0, 2), (1, 2)] * 2


@pytest.mark.parametrize(
    ("grid", "received"),
    [
        (TWO_BY_TWO, [None, None, 1.0, 2.0]),
        (THREE_STAGES, [None, 1.0, 2.0]),
        (WorkerGrid(2, 3), [None, None, 1.0, 2.0, 3.0, 4.0]),
    ],
)
def test_each_rank_passes_on_to_its_own_rank_of_the_next_stage(joined, grid, received):
    ranks = joined(grid)
    calls = [partial(passed_on, worker, rank + 1.0) for rank, worker in enumerate(ranks.workers)]
    assert ranks.run(calls) == received


ON_NODES = {  # nodes of the ranks: types of the groups of each
    (TWO_BY_TWO, "aabb"): [["SharedMemoryGroup", "DistributedLink"]] * 4,
    (TWO_BY_TWO, "abab"): [["DistributedGroup", "SharedMemoryLink"]] * 4,
    (TWO_BY_TWO, "aaab"): [
        ["SharedMemoryGroup", "SharedMemoryLink"],
        ["SharedMemoryGroup", "DistributedLink"],
        ["DistributedGroup", "SharedMemoryLink"],
        ["DistributedGroup", "DistributedLink"],
    ],
    (TWO_BY_TWO, "abcd"): [["DistributedGroup", "DistributedLink"]] * 4,
    (THREE_STAGES, "aab"): [
        ["SingleDevice", "SharedMemoryLink"],
        ["SingleDevice", "SharedMemoryLink", "DistributedLink"],
        ["SingleDevice", "DistributedLink"],
    ],
}


@pytest.mark.parametrize(("grid", "nodes"), ON_NODES, ids=[nodes for _, nodes in ON_NODES])
def test_ranks_of_one_node_share_memory_and_others_a_network(joined, grid, nodes):
    ranks = joined(grid, nodes)
    types = [[type(group).__name__ for group in worker.groups] for worker in ranks.workers]
    assert types == ON_NODES[grid, nodes]
    assert all(worker.can_resume for worker in ranks.workers)
    values = [partial(added_up, worker, 10.0**rank) for rank, worker in enumerate(ranks.workers)]
    sums = [11.0, 11.0, 1100.0, 1100.0] if grid == TWO_BY_TWO else [1.0, 10.0, 100.0]
    assert ranks.run(values) == sums
    calls = [partial(passed_on, worker, rank + 1.0) for rank, worker in enumerate(ranks.workers)]
    assert ranks.run(calls) == [None] * grid.tp_size + [1.0, 2.0]


def test_ranks_divide_the_cores_and_memory_of_their_own_node(joined, monkeypatch):
    monkeypatch.setattr(worker_module, "host_cache_bytes", lambda num_ranks: 1200 // num_ranks)
    asked = []
    monkeypatch.setattr(worker_module.THREADS, "use", lambda wanted, number: asked.append(number))
    ranks = joined(TWO_BY_TWO, "aaab")
    loaded = ranks.all(lambda worker: worker.worker.load())
    assert [info.kv_bytes for info in loaded] == [[400], [400], [400], [1200]]
    assert sorted(asked) == [1, 3, 3, 3]


def test_a_rank_listens_on_its_own_address_only(ranks_of):
    """Not on that of rank 0, nor on the loopback address."""
    ranks = ranks_of(WorkerGrid(2, 1), "ab")
    ranks.places[1] = RankPlace("node b", "b", "192.0.2.1", 0)
    with pytest.raises(SettingsError, match=r"cannot listen on 192\.0\.2\.1"):
        ranks.make(1)


def test_a_gpu_that_is_not_there_is_named(monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    _check_gpu(5, RankPlace("node b", "b", "127.0.0.1", 1))
    with pytest.raises(CapacityError, match=r"rank 5 on node b .* GPU 2, and .* can use 2 "):
        _check_gpu(5, RankPlace("node b", "b", "127.0.0.1", 2))


def test_a_worker_has_the_layers_of_its_stage_and_all_its_groups(joined):
    ranks = joined(THREE_STAGES)
    stages = [worker.worker.stage for worker in ranks.workers]
    assert [(stage.index, stage.count) for stage in stages] == [(0, 3), (1, 3), (2, 3)]
    assert [stage.layers for stage in stages] == list(ranks.composition.stage_layers)
    assert [len(worker.groups) for worker in ranks.workers] == [2, 3, 2]
    for worker, stage in zip(ranks.workers, stages, strict=True):
        links = [link for link in (stage.previous, stage.next) if link is not None]
        assert list(worker.groups) == [worker.worker.group, *links]


def test_a_grid_of_one_has_no_other_ranks(joined):
    [worker] = joined(WorkerGrid()).workers
    assert [type(group) for group in worker.groups] == [SingleDevice]
    assert worker.can_resume


def test_what_a_rank_waits_for_is_named(ranks_of):
    ranks = ranks_of(TWO_BY_TWO, worker_start_timeout_s=1)
    with pytest.raises(CollectiveError, match="rank 2 has not created group of stage 1") as caught:
        ranks.make(3)
    assert caught.value.ranks == (2,)


@pytest.mark.parametrize("nodes", ["aaaa", "aabb", "abab", "abcd"])
def test_a_rank_that_gives_up_frees_the_others_and_all_can_go_on(joined, nodes):
    ranks = joined(TWO_BY_TWO, nodes)
    failing, waiting, *others = ranks.workers
    call = ranks.threads.submit(added_up, waiting)
    failing.abort()
    with pytest.raises(CollectiveError):
        call.result(60)
    with pytest.raises(CollectiveError):
        added_up(failing)
    with pytest.raises(CollectiveError):
        others[0].groups[1].receive(2)
    for worker in (waiting, *others):
        worker.abort()
    assert all(worker.can_resume for worker in ranks.workers)
    ranks.all(lambda worker: worker.resume(2))
    assert ranks.all(added_up) == [2.0] * 4
    calls = [partial(passed_on, worker, rank + 1.0) for rank, worker in enumerate(ranks.workers)]
    assert ranks.run(calls) == [None, None, 1.0, 2.0]


def test_a_time_limit_is_that_of_all_groups(joined):
    ranks = joined(WorkerGrid(2, 2))
    last = ranks.workers[-1]
    last.set_timeout(0.1)
    with pytest.raises(CollectiveError, match="rank 2"):
        added_up(last)
    with pytest.raises(CollectiveError, match="rank 1"):
        last.groups[1].receive(1)


def test_a_rank_that_leaves_frees_the_others(joined):
    ranks = joined(WorkerGrid(tp_size=2))
    leaving, waiting = ranks.workers
    call = ranks.threads.submit(added_up, waiting)
    leaving.shutdown()
    with pytest.raises(CollectiveError):
        call.result(60)


class Unresettable(RankGroup):
    """A group as NCCL's: it cannot be used again after a failure."""

    is_aborted = False

    def abort(self) -> None:
        self.is_aborted = True


def test_a_group_that_cannot_be_reset_is_neither_aborted_nor_reset(tmp_path):
    group = Unresettable()
    worker = RankWorker(NotingWorker(tmp_path / "calls"), [SingleDevice(), group])
    assert not worker.can_resume
    worker.abort()
    worker.resume(2)
    assert not group.is_aborted
    with pytest.raises(QuireError, match="restart the workers"):
        group.reset(2)


def test_a_worker_is_healthy_from_loading_to_shutdown_and_then_has_no_memory(joined):
    worker = joined(WorkerGrid()).workers[0].worker
    with pytest.raises(EngineDeadError, match="not running"):
        worker.check_health()
    worker.load()
    worker.check_health()
    weights = weakref.ref(next(worker._model.parameters()))
    worker.shutdown()
    with pytest.raises(EngineDeadError, match="not running"):
        worker.check_health()
    gc.collect()
    assert weights() is None
