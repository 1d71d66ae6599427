"""Early start of the engine process of a server: it imports its code while its parent composes.

Both take about as long. So the parent launches the process as soon as it has read its own command
line, and configures it once it has chosen the parts.
"""

import sys
from collections.abc import Iterator
from contextlib import contextmanager

from quire.config import Settings
from quire.launch.engine_process.engine_start import EngineStart


@contextmanager
def started_early(settings: Settings) -> Iterator[EngineStart | None]:
    """Yield a process for the engine of a server, not configured yet; it ends with the block.

    None if the engine will run in this process, or in several others: those of replicas may differ
    in their environment.

    Raises:
        QuireError: The process cannot be launched.
    """
    is_single = settings.parallel.data_parallel_size == 1
    if not is_single or not has_engine_process(settings, is_serving=True):
        yield None
        return
    start = EngineStart.launch()
    try:
        yield start
    finally:
        start.close("the server ended")


def has_engine_process(
    settings: Settings, *, is_serving: bool = False, platform: str = sys.platform
) -> bool:
    """Whether the engine runs in a separate process: by setting, else for a server on Linux."""
    wanted = settings.parallel.engine_process
    return wanted if wanted is not None else is_serving and platform == "linux"
