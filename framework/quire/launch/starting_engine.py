"""The first part of an engine's start: its parts are chosen, and its process starts, if it has one.

Nothing of the front end is imported for it, so that an engine process can be configured early; the
caller imports that while the process loads the model.
"""

import logging
import time
from dataclasses import dataclass

from quire.config import Settings
from quire.launch.composing import Composed, compose_engine, log_composition
from quire.launch.engine_process.early_start import has_engine_process
from quire.launch.engine_process.engine_config import engine_config, launch_engine
from quire.launch.engine_process.engine_start import EngineStart
from quire.plugins.loading import load_plugins

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class StartingEngine:
    """An engine whose parts are chosen.

    Attributes:
        composed: Composition of the engine.
        process: Process of the engine, which starts; None if it has none, or several.
        began: Time of the beginning of the start, by `time.perf_counter`.
    """

    composed: Composed
    process: EngineStart | None
    began: float

    def close(self, reason: str) -> None:
        """End the process, if there is one."""
        if self.process is not None:
            self.process.close(reason)


def begin_engine(
    settings: Settings, *, is_serving: bool = False, early: EngineStart | None = None
) -> StartingEngine:
    """Choose the parts of an engine, and let its process start.

    Args:
        settings: Settings as given by the user.
        is_serving: Whether the engine is for a server. It runs in another process by default, so
            that the event loop never delays a step.
        early: Process for the engine that was launched before; None to launch one if needed.

    Raises:
        QuireError: The engine cannot be started; the message says why and what would help.
    """
    began = time.perf_counter()
    plugins = load_plugins(settings.plugins)
    for record in plugins.failed:
        logger.warning("plugin %s failed to load: %s", record.source, record.error)
    composed = compose_engine(settings, plugins)
    process = _process(composed, early, is_serving=is_serving)
    log_composition(composed.composition, composed.settings.parallel.data_parallel_size)
    return StartingEngine(composed, process, began)


def _process(
    composed: Composed, early: EngineStart | None, *, is_serving: bool
) -> EngineStart | None:
    """Return the process of the engine, configured; None if it has none, or several."""
    settings = composed.settings
    if early is not None:
        early.configure(engine_config(composed, early.address))
        return early
    is_single = settings.parallel.data_parallel_size == 1
    if is_single and has_engine_process(settings, is_serving=is_serving):
        return launch_engine(composed)
    return None
