"""Executor that places the ranks on the nodes of a Ray cluster."""

from collections.abc import Sequence
from importlib.util import find_spec

from quire.errors import RefusedError
from quire.interfaces.executor import Executor, WorkerLaunch, WorkerProcess
from quire_executors.ray.ray_ranks import RayRanks
from quire_executors.ray.ray_wire import Reserve

DRIVER = "quire_executors.ray.ray_driver"


class RayExecutor(Executor):
    """Executor whose workers run where Ray has free devices."""

    def place(self, launch: WorkerLaunch) -> Sequence[WorkerProcess]:
        """Reserve a device for each rank, start `quire worker` there, and wait until all join.

        Raises:
            RefusedError: Ray is not installed, or cannot be used.
            CapacityError: Too few devices are free.
            EngineDeadError: A rank, or Ray's driver, ended before all had joined, or Ray is silent.
        """
        if find_spec("ray") is None:
            raise RefusedError(
                "executor 'ray' needs Ray, which is not installed: pip install 'quire[ray]'"
            )
        ranks = RayRanks(launch.start_helper(DRIVER))
        try:
            address = ranks.reserve(
                Reserve(
                    num_ranks=launch.grid.size,
                    tp_size=launch.grid.tp_size,
                    needs_gpus=launch.needs_gpus,
                    num_threads=launch.num_threads,
                ),
                launch.start_timeout_s,
            )
            point = launch.listen(address)
            ranks.start_agents(point)
            return ranks.watched(point.wait(ranks.check))
        except BaseException:
            ranks.release()
            raise
