"""How many CPU threads compute: as many as asked for, or else one for each core that is ours.

Fewer if torch was told fewer before, by OMP_NUM_THREADS or by the program around the engine.
"""

import logging

import torch

from quire.machine.cores import usable_cores

logger = logging.getLogger(__name__)


class TorchThreads:
    """The threads of torch in this process, and how many it was told before quire told it others.

    One engine's number is not taken for the program's word by the next engine.
    """

    def __init__(self) -> None:
        self._ours: int | None = None
        self._told = 0

    def told(self) -> int:
        """Return the threads that torch has by the environment's or the program's word."""
        now = torch.get_num_threads()
        if now != self._ours:
            self._told = now
        return self._told

    def use(self, wanted: int | None, num_ranks: int) -> None:
        """Set the threads of torch, which compiled kernels take over, and say so in the log.

        Args:
            wanted: As many as the user asks for; None: as fits the machine.
            num_ranks: Workers that share the machine.
        """
        number, why = thread_count(wanted, num_ranks, self.told(), usable_cores())
        torch.set_num_threads(number)
        self._ours = number
        logger.info("%d CPU thread%s: %s", number, "" if number == 1 else "s", why)


def thread_count(
    wanted: int | None, num_ranks: int, told: int, cores: tuple[int, str]
) -> tuple[int, str]:
    """Return how many threads compute, and why so many.

    Args:
        wanted: As many as the user asks for.
        num_ranks: Workers that share the machine.
        told: The threads that torch has now.
        cores: How many there are for all workers, and what sets that number.
    """
    if wanted is not None:
        return wanted, "--threads"
    number, why = cores
    share = max(1, number // num_ranks)
    if told < share:
        return told, "torch was told so"
    return share, why if num_ranks == 1 else f"{why}, shared by {num_ranks} workers"


THREADS = TorchThreads()
