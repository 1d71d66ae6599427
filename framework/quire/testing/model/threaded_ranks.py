"""Ranks as threads of one process: their collective operations, stage links and calls."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from functools import partial
from queue import Empty, SimpleQueue
from typing import Any, TypeVar

import torch
from torch import Tensor

from quire.errors import CollectiveError, StepFailedError
from quire.interfaces.model import StageTensors
from quire.layers.parallel import SingleDevice, StageLink, TensorParallelGroup

T = TypeVar("T")
TIMEOUT_S = 60.0
ABORTED = "another rank has failed"


class Meeting:
    """Place where the ranks of a group exchange tensors."""

    def __init__(self, size: int) -> None:
        self.tensors: list[Tensor | None] = [None] * size
        self.barrier = threading.Barrier(size, timeout=TIMEOUT_S)

    def exchange(self, rank: int, x: Tensor) -> list[Tensor]:
        """Return the tensors of all ranks, in order."""
        try:
            self.tensors[rank] = x
            self.barrier.wait()
            everyone = [tensor.clone() for tensor in self.tensors if tensor is not None]
            self.barrier.wait()
        except threading.BrokenBarrierError as error:
            raise CollectiveError(ABORTED) from error
        return everyone


class ThreadedGroup(TensorParallelGroup):
    """One rank of a group; sums are in rank order, so that all ranks have the same bits.

    Attributes:
        num_sums: Number of sums that it took part in.
        sent_bytes: Number of bytes that it has given to each collective, in order.
    """

    is_traceable = False  # its collectives are computed in Python

    def __init__(self, rank: int, meeting: Meeting) -> None:
        self.rank = rank
        self.size = len(meeting.tensors)
        self.num_sums = 0
        self.sent_bytes: list[int] = []
        self._meeting = meeting

    def all_reduce(self, x: Tensor) -> Tensor:
        """Return the sum of the tensors of all ranks."""
        self.num_sums += 1
        total = torch.zeros_like(x)
        for tensor in self._exchange(x):
            total += tensor
        return total

    def all_gather(self, x: Tensor, dim: int = -1) -> Tensor:
        """Return the tensors of all ranks concatenated."""
        given = self._exchange(x)
        assert len({(each.shape, each.dtype) for each in given}) == 1, "ranks gather unlike tensors"
        return torch.cat(given, dim)

    def _exchange(self, x: Tensor) -> list[Tensor]:
        self.sent_bytes.append(x.nbytes)
        return self._meeting.exchange(self.rank, x)


class ThreadedLink(StageLink):
    """Link between two stages."""

    def __init__(self) -> None:
        self._sent: SimpleQueue[StageTensors | None] = SimpleQueue()

    def send(self, tensors: StageTensors) -> None:
        """Send a copy to the next stage."""
        self._sent.put(_copied(tensors))

    def receive(self, num_tokens: int) -> StageTensors:
        """Return the tensors of the previous stage, once they are there."""
        try:
            tensors = self._sent.get(timeout=TIMEOUT_S)
        except Empty:
            tensors = None
        if tensors is None:
            raise CollectiveError(ABORTED)
        if len(tensors.hidden_states) != num_tokens:
            raise AssertionError(f"{len(tensors.hidden_states)} tokens, expected {num_tokens}")
        return tensors

    def abort(self) -> None:
        """Make a waiting `receive` raise a CollectiveError."""
        self._sent.put(None)


def _copied(tensors: StageTensors) -> StageTensors:
    residual = None if tensors.residual is None else tensors.residual.clone()
    return StageTensors(tensors.hidden_states.clone(), residual)


class RankThreads:
    """A thread for each rank of a grid, and what connects them.

    Attributes:
        ranks: Each rank as a member of a group.
        groups: Tensor-parallel group of each rank, as a worker gets it.
        links: For each stage but the last, a link of each of its ranks to the next stage.
    """

    def __init__(self, tp_size: int, pp_size: int) -> None:
        self.tp_size = tp_size
        self.pp_size = pp_size
        self._meetings = [Meeting(tp_size) for _ in range(pp_size)]
        self.links = [[ThreadedLink() for _ in range(tp_size)] for _ in range(pp_size - 1)]
        self.ranks = [
            ThreadedGroup(rank, meeting) for meeting in self._meetings for rank in range(tp_size)
        ]
        self.groups: list[TensorParallelGroup] = [
            rank if tp_size > 1 else SingleDevice() for rank in self.ranks
        ]
        self._threads = [ThreadPoolExecutor(1) for _ in self.groups]

    def submit(self, calls: Iterable[Callable[[], T]]) -> list[Future[T]]:
        """Start a call on each rank, behind the ones before."""
        return [
            thread.submit(self._run, call)
            for thread, call in zip(self._threads, calls, strict=True)
        ]

    def run(self, calls: Iterable[Callable[[], T]]) -> list[T]:
        """Call a function on each rank, and return the results."""
        return results_of(self.submit(calls))

    def close(self) -> None:
        """End the threads."""
        for thread in self._threads:
            thread.shutdown()

    def _run(self, call: Callable[[], T]) -> T:
        try:
            return call()
        except BaseException:
            for meeting in self._meetings:
                meeting.barrier.abort()
            for links in self.links:
                for link in links:
                    link.abort()
            raise


def results_of(futures: Sequence[Future[Any]]) -> list[Any]:
    """Return the results of all; of several errors, raise one that is a reason and no consequence.

    A rank whose exchange failed, as another one did not come, has launched no step to sample.
    """
    wait(futures, TIMEOUT_S)
    errors = [error for future in futures if (error := future.exception(0)) is not None]
    errors.sort(key=lambda error: isinstance(error, CollectiveError))
    errors.sort(key=lambda error: not isinstance(error, StepFailedError))
    if errors:
        raise errors[0]
    return [future.result(0) for future in futures]


def run_ranks(size: int, run: Callable[[ThreadedGroup], T]) -> list[T]:
    """Call `run` in a thread for each rank of a group, in inference mode."""

    def run_rank(group: ThreadedGroup) -> T:
        with torch.inference_mode():
            return run(group)

    threads = RankThreads(size, 1)
    try:
        return threads.run([partial(run_rank, rank) for rank in threads.ranks])
    finally:
        threads.close()
