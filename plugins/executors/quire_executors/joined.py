"""Executor whose ranks are started by others, on any machines, and join the engine."""

from collections.abc import Sequence

from quire.errors import SettingsError
from quire.interfaces.executor import Executor, WorkerLaunch, WorkerProcess


class JoinedExecutor(Executor):
    """Executor that waits for `quire worker` on each machine."""

    def place(self, launch: WorkerLaunch) -> Sequence[WorkerProcess]:
        """Wait until all ranks have joined.

        Raises:
            SettingsError: There is no file from which they could read the key.
        """
        point = launch.listen(None)
        if not point.has_key_file:
            raise SettingsError(
                "executor 'joined' needs --worker-key-file FILE, with the key that `quire worker` "
                "must have; `quire worker --new-key FILE` writes one"
            )
        return point.wait(_no_check)


def _no_check() -> None:
    """Wait for ranks of which nothing is known until they join."""
