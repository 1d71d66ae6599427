"""How long the device takes: events around a captured graph's replays, and on a CPU the clock."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import torch


def device_s(run: Callable[[], object], device: torch.device, *, repeats: int = 10) -> float:
    """Return the median seconds of one run, on the device.

    On a GPU the run is captured once and replayed, so that launches cost next to nothing, as in a
    decode step.
    """
    if device.type != "cuda":
        return statistics.median(_clocked(run) for _ in range(repeats))
    replay = captured(run)
    for _ in range(2):
        replay()
    return statistics.median(_between_events(replay) for _ in range(repeats))


def captured(run: Callable[[], object]) -> Callable[[], object]:
    """Return what replays the kernels that a run launches."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        run()  # compiles what has to be compiled
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run()
    return graph.replay


def eager_s(run: Callable[[], object], device: torch.device, *, repeats: int = 10) -> float:
    """Return the median seconds of a run that cannot be captured, launches included."""
    if device.type != "cuda":
        return statistics.median(_clocked(run) for _ in range(repeats))
    for _ in range(2):
        run()
    return statistics.median(_between_events(run) for _ in range(repeats))


def _between_events(run: Callable[[], object]) -> float:
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    run()
    end.record()
    end.synchronize()
    return float(start.elapsed_time(end)) / 1000


def _clocked(run: Callable[[], object]) -> float:
    started = time.perf_counter()
    run()
    return time.perf_counter() - started
