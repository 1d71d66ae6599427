"""Do once, repeat often: what a run launches is kept, and launched again on the same buffers.

A run reads and writes tensors that never move, and nothing that the host knows only for one step.
On a CUDA device the launches are kept as a graph, which starts them all at once. Any other device
runs the same Python again: slower, and equal as long as the run keeps that rule.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from itertools import chain, count, takewhile
from typing import TypeVar

import torch

Result = TypeVar("Result")


class StepCapture(ABC):
    """A way to keep what a run does."""

    @abstractmethod
    def capture(self, run: Callable[[], Result]) -> Callable[[], Result]:
        """Return what does `run`; whatever tensors that returns, it writes over each time."""

    def finish(self) -> None:  # noqa: B027 (most have nothing to wait for)
        """Hear that the last run was captured."""


class RepeatedRuns(StepCapture):
    """For devices without graphs: each repetition is the run itself."""

    def capture(self, run: Callable[[], Result]) -> Callable[[], Result]:
        """Return the run; there is nothing to do before it is asked for."""
        return run


class CUDAGraphs(StepCapture):
    """CUDA graphs, all with one pool of memory: they never run at the same time.

    Capture large steps first: smaller ones then find room in the memory of the larger.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._pool = torch.cuda.graph_pool_handle()
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]

    def capture(self, run: Callable[[], Result]) -> Callable[[], Result]:
        """Run once, for what is only done the first time, and once more to be captured."""
        self._stream.wait_stream(torch.cuda.current_stream(self._device))
        with torch.cuda.stream(self._stream):
            run()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(
            graph, pool=self._pool, stream=self._stream, capture_error_mode="thread_local"
        ):
            result = run()

        def repeat() -> Result:
            graph.replay()
            return result

        return repeat

    def finish(self) -> None:
        """Let later steps wait for the runs on our stream."""
        torch.cuda.current_stream(self._device).wait_stream(self._stream)


def step_capture(device: torch.device) -> StepCapture:
    """Return how steps are kept on a device."""
    return CUDAGraphs(device) if device.type == "cuda" else RepeatedRuns()


def graph_sizes(largest: int) -> list[int]:
    """Return the numbers of requests that steps are captured for, the smallest first.

    From 16 on there are two sizes in each octave: less than a third of a larger step is padding,
    and 512 requests need 15 graphs.
    """
    larger = (size for octave in count() for size in (16 << octave, 24 << octave))
    sizes = takewhile(lambda size: size < largest, chain((1, 2, 4, 8), larger))
    return [*sizes, largest]
