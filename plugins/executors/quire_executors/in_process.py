"""Executor with one worker in the caller's process: a step is a plain function call."""

from quire.errors import RefusedError
from quire.interfaces.executor import Executor, Worker, WorkerLaunch


class InProcessExecutor(Executor):
    """Executor whose worker runs in the caller's process."""

    def place(self, launch: WorkerLaunch) -> Worker:
        """Build the worker.

        Raises:
            RefusedError: The model is to run on more than one device.
        """
        if launch.grid.size != 1:
            raise RefusedError(
                f"executor 'in_process' runs one worker, and {launch.grid.size} are needed "
                f"(tensor_parallel_size {launch.grid.tp_size}, pipeline_parallel_size "
                f"{launch.grid.pp_size}); start with --executor processes, or on one device"
            )
        return launch.make()
