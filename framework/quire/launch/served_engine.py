"""An engine for another process: it composes once more, agrees with the parent, and serves it.

It composes by itself, because nothing that could be sent would be as sure as the same settings on
the same plugins; then it compares what it chose with what the parent chose.
"""

import logging
import sys
from collections.abc import Sequence
from difflib import unified_diff

from quire.composition import Composition
from quire.engine.core import EngineCore
from quire.errors import PluginError, QuireError
from quire.ipc import Channel
from quire.launch.composing import compose_engine
from quire.launch.core import start_core
from quire.launch.core_server import CoreServer
from quire.launch.engine_wire import (
    Connected,
    EngineConfig,
    ErrorMessage,
    Failed,
    Ready,
    Refused,
    ToEngine,
)
from quire.plugins import load_plugins

LAST_WORD_S = 2.0  # for the parent to read why we end

logger = logging.getLogger(__name__)


def run(config: EngineConfig) -> int:
    """Connect, start the engine, and serve it until the parent says stop; the exit status."""
    logging.basicConfig(
        level=config.log_level,
        stream=sys.stderr,
        format="%(asctime)s %(levelname)s engine %(name)s: %(message)s",
    )
    sys.path[:] = config.import_path
    channel = Channel(ToEngine, config.address, is_listening=False)
    channel.send(Connected())
    try:
        core, max_model_len = start(config)
    except BaseException as error:  # noqa: BLE001 - the edge of the process: the parent hears of it
        channel.send(Refused(_message(error)))
        channel.close(LAST_WORD_S)
        return 1
    channel.send(Ready(max_model_len))
    is_well = serve(core, channel)
    channel.close(LAST_WORD_S)
    return 0 if is_well else 1


def start(config: EngineConfig) -> tuple[EngineCore, int]:
    """Start the engine of a config.

    Returns:
        The core, and the tokens of the longest request that it takes.

    Raises:
        QuireError: It cannot be started.
        PluginError: It would be another engine than the parent believes.
    """
    composed = compose_engine(config.settings, load_plugins(config.settings.plugins))
    check_agreement(config, composed.composition)
    return start_core(composed)


def serve(core: EngineCore, channel: Channel) -> bool:
    """Serve a core until the parent says stop; whether it came to that.

    If not, the parent is told why.
    """
    try:
        CoreServer(core, channel).serve()
    except BaseException as error:  # noqa: BLE001 - the edge of the process: the parent hears of it
        channel.send(Failed(_message(error)))
        return False
    finally:
        core.shutdown()
    return True


def check_agreement(config: EngineConfig, composition: Composition) -> None:
    """Compare what this process chose with what the parent chose.

    Raises:
        PluginError: They differ; the message is the difference.
    """
    theirs = _lines(config.fingerprint, config.checkpoint_folder)
    ours = _lines(composition.fingerprint(), str(composition.checkpoint.folder))
    if theirs != ours:
        difference = unified_diff(theirs, ours, "the parent", "the engine's process", lineterm="")
        raise PluginError(
            "the engine's process chose other parts than its parent; was something installed or "
            "changed in between?\n" + "\n".join(difference)
        )


def _message(error: BaseException) -> ErrorMessage:
    if not isinstance(error, QuireError):
        logger.critical("the engine failed", exc_info=error)
    return ErrorMessage.of(error)


def _lines(fingerprint: Sequence[tuple[str, str, str, str]], folder: str) -> list[str]:
    return [f"checkpoint {folder}", *(" ".join(part) for part in fingerprint)]
