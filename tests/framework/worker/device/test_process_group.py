"""Calls over torch.distributed: a failed rank frees the others, and all can connect anew."""

import os
import socket
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest
import torch
from rank_process import FolderExchange

from quire.errors import CollectiveError, QuireError
from quire.process.network.listening_sockets import listening_sockets
from quire.worker.device.group_place import GroupPlace
from quire.worker.device.process_group import ProcessGroup
from quire.worker.device.rendezvous import Rendezvous

PATIENCE_S = 30.0  # far more than anything here takes
RANKS = (4, 5, 8)


@pytest.fixture
def threads():
    with ThreadPoolExecutor(3) as pool:
        yield pool


@pytest.fixture
def join(tmp_path, threads):
    """Make a group; returns its ranks, which are threads."""
    made = []

    def connect(size, rank):
        rendezvous = Rendezvous(
            exchange=FolderExchange(tmp_path),
            key="group",
            place=GroupPlace(
                rank=rank, ranks=RANKS[:size], ranks_on_node=size, timeout_s=PATIENCE_S
            ),
            device=torch.device("cpu"),
            interface_address=f"127.0.0.{10 + rank}",
        )
        return ProcessGroup(rendezvous, "collective")

    def run(size):
        made.extend(threads.map(partial(connect, size), range(size)))
        return list(made)

    yield run
    for group in made:
        group.close()


@pytest.fixture
def groups(join):
    return join(2)


def add_up(group, value=1.0) -> float:
    x = torch.full((3,), value)
    with group.call() as backend:
        backend.allreduce([x]).wait()
    return x[0].item()


def receive(group, source) -> None:
    with group.call() as backend:
        group.wait_for_message(backend.recv([torch.zeros(3)], source, 0))


def both(threads, groups, call: Callable) -> list:
    return list(threads.map(call, groups))


def test_each_rank_listens_on_its_own_address(groups, tmp_path):
    published = [file.read_bytes() for file in tmp_path.iterdir()]
    for address, is_offered in {"127.0.0.10": True, "127.0.0.11": True, "127.0.0.1": False}.items():
        assert any(socket.inet_aton(address) in value for value in published) == is_offered


def as_worker(call: Callable, group) -> CollectiveError:
    """What a worker does with a call that fails; its error is alive meanwhile, and returned."""
    with pytest.raises(CollectiveError) as caught:
        call(group)
    group.abort()
    return caught.value


def freed_by(first, threads, *calls: Callable) -> list[CollectiveError]:
    """The errors of ranks that wait, which end as soon as the first one aborts."""
    waiting = [threads.submit(call) for call in calls]
    started = time.monotonic()
    first.abort()
    errors = [future.result() for future in waiting]
    assert time.monotonic() - started < PATIENCE_S / 2
    return errors


def test_a_rank_that_aborts_frees_one_that_waits(groups, threads):
    first, second = groups
    [error] = freed_by(first, threads, partial(as_worker, add_up, second))
    assert "collective 1 of ranks 4, 5 failed on rank 5: " in str(error)


def test_all_ranks_of_a_sum_are_freed_by_one_that_aborts(join, threads):
    first, *others = join(3)
    errors = freed_by(first, threads, *(partial(as_worker, add_up, each) for each in others))
    assert len(errors) == 2


def test_a_rank_that_was_freed_frees_the_next_although_the_frames_of_its_error_are_alive(
    join, threads
):
    first, second, third = join(3)
    calls = [partial(receive, source=0), partial(receive, source=1)]
    freed_by(
        first,
        threads,
        partial(as_worker, calls[0], second),
        partial(as_worker, calls[1], third),
    )


def test_a_group_is_usable_again_after_all_have_reset_it(groups, threads):
    assert both(threads, groups, add_up) == [2.0, 2.0]
    for epoch in (2, 3, 7):
        freed_by(groups[0], threads, partial(as_worker, add_up, groups[1]))
        with pytest.raises(CollectiveError, match="was aborted on this rank"):
            add_up(groups[0])
        both(threads, groups, lambda group: group.reset(epoch))  # noqa: B023
        assert both(threads, groups, add_up) == [2.0, 2.0]


def test_messages_of_an_earlier_epoch_are_not_received(groups, threads):
    first, second = groups
    with first.call() as backend:
        sent = backend.send([torch.ones(3)], 1, 0)
    del sent
    both(threads, groups, lambda group: group.reset(2))
    x = torch.zeros(3)
    with first.call() as backend:
        work = backend.send([torch.full((3,), 2.0)], 1, 0)
    with second.call() as backend:
        second.wait_for_message(backend.recv([x], 0, 0))
    first.wait_for_message(work)
    assert x.tolist() == [2.0] * 3


def test_a_reset_group_has_the_time_limit_that_was_set(groups, threads):
    for group in groups:
        group.set_timeout(0.2)
    both(threads, groups, lambda group: group.reset(2))
    with pytest.raises(CollectiveError, match=r"collective 1 of .* on rank 4: .* 200ms"):
        add_up(groups[0])


def test_a_rank_that_resets_alone_waits_no_longer_than_the_limit(groups):
    groups[0].set_timeout(0.2)
    with pytest.raises(CollectiveError, match="rank 4 cannot connect to the group of ranks 4, 5"):
        groups[0].reset(2)
    with pytest.raises(CollectiveError):
        add_up(groups[0])


def test_an_epoch_must_follow_and_a_closed_group_stays_closed(groups, threads):
    both(threads, groups, lambda group: group.reset(3))
    with pytest.raises(QuireError, match="epoch 3 does not follow epoch 3"):
        groups[0].reset(3)
    assert both(threads, groups, add_up) == [2.0, 2.0]
    groups[0].close()
    with pytest.raises(QuireError, match="a closed group of ranks cannot be reset"):
        groups[0].reset(4)
    with pytest.raises(CollectiveError, match="the group is closed"):
        add_up(groups[0])


def test_calls_are_counted_from_each_reset(groups, threads):
    both(threads, groups, partial(add_up, value=1.0))
    both(threads, groups, lambda group: group.reset(2))
    groups[0].abort()
    with pytest.raises(CollectiveError) as caught:
        add_up(groups[0])
    assert caught.value.count == 0


def ports_of(rank):
    """Return host and port of what a rank listens on."""
    ports = []
    for fd in listening_sockets(f"127.0.0.{10 + rank}").values():
        with socket.socket(fileno=os.dup(fd)) as listener:
            ports.append(listener.getsockname())
    return ports


def test_a_stranger_cannot_connect_to_ranks_that_are_connected_nor_after_a_reset(groups, threads):
    for epoch in (2, 3):
        for rank in range(2):
            [port] = ports_of(rank)
            with pytest.raises(TimeoutError):
                socket.create_connection(port, 0.1)
        assert both(threads, groups, add_up) == [2.0, 2.0]
        both(threads, groups, lambda group: group.reset(epoch))  # noqa: B023
    assert both(threads, groups, add_up) == [2.0, 2.0]


def test_other_ports_of_a_process_stay_open(join):
    with socket.create_server(("127.0.0.10", 0)) as server:
        join(2)
        socket.create_connection(server.getsockname(), 5).close()
