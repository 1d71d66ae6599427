"""One rank as the engine sees it: its name for people, and what it does when it hangs."""

import pytest
from scripted_rank import ThreadProcess

from quire.interfaces.executor import WorkerGrid
from quire.launch.workers.ranks.rank_link import RankLink
from quire.launch.workers.worker_wire import Joined


@pytest.fixture
def process():
    made = ThreadProcess()
    yield made
    made.end(0.0)


@pytest.mark.parametrize(
    ("grid", "rank", "name"),
    [
        (WorkerGrid(), 0, "worker 0 of 1 (on a machine)"),
        (WorkerGrid(tp_size=2), 1, "worker 1 of 2 (tensor-parallel rank 1, on a machine)"),
        (WorkerGrid(pp_size=3), 2, "worker 2 of 3 (stage 2, on a machine)"),
        (WorkerGrid(2, 2), 2, "worker 2 of 4 (tensor-parallel rank 0, stage 1, on a machine)"),
    ],
)
def test_a_rank_is_named_by_its_place_in_the_grid(process, grid, rank, name):
    assert str(RankLink(rank, grid, process)) == name


def test_a_rank_that_has_joined_is_named_by_its_own_machine_and_process(process):
    link = RankLink(0, WorkerGrid(), process)
    link.joined = Joined(0, "another machine", 77, [], 0)
    assert str(link) == "worker 0 of 1 (process 77, on another machine)"


def test_a_rank_without_anything_to_say_where_it_hangs_has_a_log(process):
    link = RankLink(0, WorkerGrid(), process)
    assert link.state() == "its state cannot be read from here; look at the log on a machine"


def test_a_process_is_asked_for_its_state_with_the_descriptor_that_it_offered(process):
    process.state = str
    link = RankLink(0, WorkerGrid(), process)
    assert link.state() == "None"
    link.joined = Joined(0, "a machine", 77, [], 5)
    assert link.state() == "5"
