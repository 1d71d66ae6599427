"""An engine for another process: it composes once more, agrees with the parent, and serves it.

It composes by itself, because nothing that could be sent would be as sure as the same settings on
the same plugins; then it compares what it chose with what the parent chose.
"""

import gc
import logging
import sys
from collections.abc import Sequence
from difflib import unified_diff

from quire.compose.composition import Composition
from quire.engine.core import EngineCore
from quire.errors import PluginError, QuireError
from quire.frontend.dispatch.engine_client import death_by
from quire.launch.composing import compose_engine
from quire.launch.core_startup import start_core
from quire.launch.engine_process.core_server import CoreServer
from quire.launch.engine_process.engine_wire import (
    Connected,
    EngineConfig,
    ErrorMessage,
    Failed,
    Ready,
    Refused,
    ToEngine,
    own_quire,
)
from quire.messages import Started
from quire.plugins.loading import load_plugins
from quire.process.ipc import Channel

LAST_WORD_S = 2.0  # for the parent to read why we end

logger = logging.getLogger(__name__)


def run(config: EngineConfig) -> int:
    """Connect, start the engine, and serve it until the parent says stop; the exit status."""
    logging.basicConfig(
        level=config.log_level,
        stream=sys.stderr,
        format="%(asctime)s %(levelname)s engine %(name)s: %(message)s",
    )
    channel = Channel(ToEngine, config.address, is_listening=False)
    channel.send(Connected())
    try:
        core, started = start(config)
    except BaseException as error:  # noqa: BLE001 - the edge of the process: the parent hears of it
        _log(error)
        channel.send(Refused(ErrorMessage.of(error)))
        channel.close(LAST_WORD_S)
        return 1
    gc.collect()
    gc.freeze()  # what is here now stays: no collection in a step need look at it again
    channel.send(Ready(started))
    is_well = serve(core, channel)
    channel.close(LAST_WORD_S)
    return 0 if is_well else 1


def start(config: EngineConfig) -> tuple[EngineCore, Started]:
    """Start the engine of a config.

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
        _log(error)
        channel.send(Failed(ErrorMessage.of(death_by(error))))
        return False
    finally:
        core.shutdown()
    return True


def check_agreement(config: EngineConfig, composition: Composition) -> None:
    """Compare what this process chose with what the parent chose.

    Raises:
        PluginError: They differ; the message is the difference.
    """
    theirs = _lines(config.quire, config.checkpoint_folder, config.fingerprint)
    folder = str(composition.checkpoint.folder)
    ours = _lines(own_quire(), folder, composition.fingerprint())
    if theirs != ours:
        difference = unified_diff(theirs, ours, "the parent", "the engine's process", lineterm="")
        raise PluginError(
            "the engine's process chose other parts than its parent; was something installed or "
            "changed in between?\n" + "\n".join(difference)
        )


def _log(error: BaseException) -> None:
    if not isinstance(error, QuireError):
        logger.critical("the engine failed", exc_info=error)


def _lines(
    quire: str, checkpoint: str, fingerprint: Sequence[tuple[str, str, str, str]]
) -> list[str]:
    return [quire, f"checkpoint {checkpoint}", *(" ".join(part) for part in fingerprint)]
