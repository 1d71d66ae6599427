"""A tensor-parallel group whose ranks are threads of this process."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from typing import TypeVar

import torch
from torch import Tensor

from quire.layers import TensorParallelGroup

Result = TypeVar("Result")
DEADLINE_S = 60.0


class ThreadRank(TensorParallelGroup):
    """One rank: tensors are passed in a list that all ranks have.

    Attributes:
        sent_bytes: Number of bytes that the rank has given to each collective, in order.
    """

    def __init__(self, rank: int, barrier: Barrier, given: list[Tensor]) -> None:
        self.rank, self.size = rank, len(given)
        self.sent_bytes: list[int] = []
        self._barrier, self._given = barrier, given

    def all_reduce(self, x: Tensor) -> Tensor:
        return torch.stack(self._exchange(x)).sum(0)

    def all_gather(self, x: Tensor, dim: int = -1) -> Tensor:
        given = self._exchange(x)
        assert len({(each.shape, each.dtype) for each in given}) == 1, "ranks gather unlike tensors"
        return torch.cat(given, dim)

    def _exchange(self, x: Tensor) -> list[Tensor]:
        self.sent_bytes.append(x.nbytes)
        self._given[self.rank] = x.clone()
        self._barrier.wait()
        given = list(self._given)
        self._barrier.wait()  # before the next collective
        return given


def run_ranks(size: int, run: Callable[[ThreadRank], Result]) -> list[Result]:
    """Call `run` in a thread for each rank, in inference mode, and return the results in order."""
    barrier, given = Barrier(size, timeout=DEADLINE_S), [torch.empty(0)] * size

    def run_rank(rank: int) -> Result:
        try:
            with torch.inference_mode():
                return run(ThreadRank(rank, barrier, given))
        except BaseException:
            barrier.abort()  # the others fail instead of waiting
            raise

    with ThreadPoolExecutor(size) as pool:
        results = [pool.submit(run_rank, rank) for rank in range(size)]
    return [result.result() for result in results]
