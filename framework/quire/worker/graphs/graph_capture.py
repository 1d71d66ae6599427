"""Do once, repeat often: what a run launches is kept, and launched again on the same buffers.

A run reads and writes tensors that never move, and nothing that the host knows only for one step.
On a CUDA device the launches are kept as a graph, which starts them all at once. Any other device
runs the same Python again: slower, and equal as long as the run keeps that rule.
"""

import gc
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
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
        ours = torch.cuda.current_stream(self._device)
        self._stream.wait_stream(ours)
        with torch.cuda.stream(self._stream):
            run()
        graph = torch.cuda.CUDAGraph()
        try:
            with (
                torch.cuda.stream(ours),  # a capture that fails at its end does not go back to it
                torch.cuda.graph(
                    graph, pool=self._pool, stream=self._stream, capture_error_mode="thread_local"
                ),
            ):
                result = run()
        except BaseException:
            self._leave_pool()
            raise

        def repeat() -> Result:
            graph.replay()
            return result

        return repeat

    def finish(self) -> None:
        """Let later steps wait for the runs on our stream."""
        torch.cuda.current_stream(self._device).wait_stream(self._stream)

    def _leave_pool(self) -> None:
        """Tell torch's allocator that a failed capture is over; while one runs, it frees less.

        Some versions of torch say so themselves, and others do not get that far.
        """
        with suppress(RuntimeError):  # it was said
            torch._C._cuda_endAllocateToPool(torch.cuda.current_device(), self._pool)


def step_capture(device: torch.device) -> StepCapture:
    """Return how steps are kept on a device."""
    return CUDAGraphs(device) if device.type == "cuda" else RepeatedRuns()


@contextmanager
def no_collection() -> Iterator[None]:
    """Collect garbage now, and none inside: a stray graph that dies in a capture would break it."""
    gc.collect()
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def causes_of(error: BaseException) -> list[BaseException]:
    """Return an error and what it came after, the last one being the first that happened."""
    causes = [error]
    while (before := causes[-1].__cause__ or causes[-1].__context__) is not None:
        if any(before is cause for cause in causes):  # `raise error from error`
            break
        causes.append(before)
    return causes
