"""What tensors on the CPU take, counted from every allocation and release while something runs."""

import gc
from collections.abc import Callable

from torch.profiler import ProfilerActivity, profile

from quire.worker.memory.device_memory import MemoryMeter


class AllocationMeter(MemoryMeter):
    """A device of so many bytes, on which this process holds `held` and others `others`."""

    def __init__(self, total: int = 10**9, held: int = 10**6, others: int = 10**7) -> None:
        self.total = total
        self.held = held
        self.others = others

    def total_bytes(self) -> int:
        return self.total

    def free_bytes(self) -> int:
        return self.total - self.held - self.others

    def held_bytes(self) -> int:
        return self.held

    def peak_bytes(self, run: Callable[[], object]) -> int:
        gc.collect()  # what is released meanwhile must have been allocated meanwhile
        with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as recorded:
            run()
        results = recorded.profiler.kineto_results  # type: ignore[union-attr]
        changes = [event for event in results.events() if event.name() == "[memory]"]
        now = most = 0
        for change in sorted(changes, key=lambda event: event.start_ns()):
            now += change.nbytes()
            most = max(most, now)
        return most
