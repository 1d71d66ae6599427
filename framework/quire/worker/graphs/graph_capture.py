"""Step capture: CUDA graphs on a GPU, and plain repetition on any other device.

A captured function reads and writes tensors that never move, and uses no values that the host has
for one step only. On a CUDA device its kernel launches become a graph, which is replayed in one
launch. Any other device runs the Python function again, which is slower and gives the same result.
"""

import gc
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TypeVar

import torch

Result = TypeVar("Result")


class StepCapture(ABC):
    """Interface for capturing a function so that it can be replayed."""

    def warm_up(self, run: Callable[[], Result]) -> None:  # noqa: B027 (most need none)
        """Run a function before its capture, as often as that needs."""

    @abstractmethod
    def capture(self, run: Callable[[], Result]) -> Callable[[], Result]:
        """Return a function that replays `run`; each replay overwrites the returned tensors."""

    def finish(self) -> None:  # noqa: B027 (most have nothing to wait for)
        """Complete the captures, after the last one."""


class EagerRuns(StepCapture):
    """Capture for devices without graphs: each replay runs the function itself."""

    def capture(self, run: Callable[[], Result]) -> Callable[[], Result]:
        """Return `run` itself, without running it."""
        return run


class CUDAGraphs(StepCapture):
    """CUDA graphs that share one memory pool, because they never run at the same time.

    Capture large steps first, so that smaller ones fit into their memory.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._pool = torch.cuda.graph_pool_handle()
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]

    def warm_up(self, run: Callable[[], Result]) -> None:
        """Run once: kernels are compiled, and libraries allocate what they keep."""
        self._stream.wait_stream(torch.cuda.current_stream(self._device))
        with torch.cuda.stream(self._stream):
            run()

    def capture(self, run: Callable[[], Result]) -> Callable[[], Result]:
        """Capture what a run launches; nothing is computed."""
        caller_stream = torch.cuda.current_stream(self._device)
        graph = torch.cuda.CUDAGraph()
        try:
            with (
                torch.cuda.stream(caller_stream),  # not restored by a capture that fails at its end
                torch.cuda.graph(
                    graph, pool=self._pool, stream=self._stream, capture_error_mode="thread_local"
                ),
            ):
                result = run()
        except BaseException:
            self._end_pool_allocation()
            raise

        def replay() -> Result:
            graph.replay()
            return result

        return replay

    def finish(self) -> None:
        """Make the current stream wait for the warm-up runs on the capture stream."""
        torch.cuda.current_stream(self._device).wait_stream(self._stream)

    def _end_pool_allocation(self) -> None:
        """End the allocation to the pool after a failed capture, so that torch frees memory again.

        Some versions of torch do so themselves; others skip it when the capture fails.
        """
        with suppress(RuntimeError):  # it has already ended
            torch._C._cuda_endAllocateToPool(torch.cuda.current_device(), self._pool)


def step_capture(device: torch.device) -> StepCapture:
    """Return the step capture for a device."""
    return CUDAGraphs(device) if device.type == "cuda" else EagerRuns()


@contextmanager
def gc_disabled() -> Iterator[None]:
    """Collect garbage now and disable it inside: freeing a CUDA graph would break a capture."""
    gc.collect()
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def causes_of(error: BaseException) -> list[BaseException]:
    """Return an error and its chain of causes, the latest first."""
    causes = [error]
    while (before := causes[-1].__cause__ or causes[-1].__context__) is not None:
        if any(before is cause for cause in causes):  # `raise error from error`
            break
        causes.append(before)
    return causes
