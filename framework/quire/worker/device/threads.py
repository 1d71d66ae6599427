"""Number of CPU threads: as set by the user, otherwise one per core available to this process.

Fewer if OMP_NUM_THREADS or the program that embeds the engine has set fewer threads for torch.
"""

import logging

import torch

from quire.machine.cores import usable_cores

logger = logging.getLogger(__name__)


class TorchThreads:
    """Number of torch threads in this process, with the number set before quire changed it.

    The number that one engine sets is thus not mistaken for the program's choice by the next one.
    """

    def __init__(self) -> None:
        self._last_set: int | None = None
        self._preset = 0

    def preset(self) -> int:
        """Return the number of torch threads set by the environment or the program."""
        now = torch.get_num_threads()
        if now != self._last_set:
            self._preset = now
        return self._preset

    def use(self, wanted: int | None, num_ranks: int) -> None:
        """Set and log the number of torch threads, which compiled kernels also use.

        Args:
            wanted: Number of threads set by the user; None: as fits the machine.
            num_ranks: Number of workers that share the machine.
        """
        number, why = thread_count(wanted, num_ranks, self.preset(), usable_cores())
        torch.set_num_threads(number)
        self._last_set = number
        logger.info("%d CPU thread%s: %s", number, "" if number == 1 else "s", why)


def thread_count(
    wanted: int | None, num_ranks: int, preset: int, cores: tuple[int, str]
) -> tuple[int, str]:
    """Return the number of threads, and the reason for it.

    Args:
        wanted: Number of threads set by the user; None: as fits the machine.
        num_ranks: Number of workers that share the machine.
        preset: Number of torch threads set by the environment or the program.
        cores: Number of cores for all workers, and the reason for it.
    """
    if wanted is not None:
        return wanted, "--threads"
    number, why = cores
    per_worker = max(1, number // num_ranks)
    if preset < per_worker:
        return preset, "set for torch by OMP_NUM_THREADS or the program"
    return per_worker, why if num_ranks == 1 else f"{why}, shared by {num_ranks} workers"


THREADS = TorchThreads()
