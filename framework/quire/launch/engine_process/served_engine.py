"""Engine in a separate process: compose, compare the composition with the parent's, and serve.

The process composes by itself from the parent's settings, and then checks that it chose the same
parts as the parent.
"""

import logging
from contextlib import suppress

from quire.compose.composition import Composition
from quire.engine.core import EngineCore
from quire.errors import EngineDeadError, PluginError, QuireError
from quire.frontend.dispatch.backlog import Backlog
from quire.frontend.dispatch.engine_client import death_by
from quire.launch.agreement import difference, own_choices
from quire.launch.composing import compose_engine
from quire.launch.core_startup import start_core
from quire.launch.engine_process.core_server import CoreServer
from quire.launch.engine_process.engine_wire import (
    Connected,
    EngineConfig,
    Failed,
    FromEngine,
    Ready,
    Refused,
    ToEngine,
)
from quire.launch.engine_process.shared_core_server import SharedCoreServer
from quire.launch.queue_limits import queue_limits
from quire.launch.torch_modules import defer_unused_modules
from quire.messages import Started
from quire.plugins.loading import load_plugins
from quire.process.error_message import ErrorMessage
from quire.process.garbage import leave_out_code, leave_out_engine
from quire.process.local.channel import Channel
from quire.process.log_lines import log_handler

LINGER_S = 2.0  # time for the parent to read the last message

logger = logging.getLogger(__name__)


def run(config: EngineConfig) -> int:
    """Connect, start the engine, and serve it until the parent stops it; return the exit status."""
    logging.basicConfig(level=config.log_level, handlers=[log_handler(config.name)])
    channel = Channel(ToEngine, config.address, is_listening=False)
    channel.send(Connected())
    try:
        core, started = start(config)
    except BaseException as error:  # noqa: BLE001 - the edge of the process: sent to the parent
        _log(error)
        _tell(channel, Refused(ErrorMessage.of(error)))
        channel.close(LINGER_S)
        return 1
    leave_out_engine()  # so that collections during steps can skip it
    _tell(channel, Ready(started))
    was_stopped = serve(core, channel, _shared_backlog(config))
    channel.close(LINGER_S)
    return 0 if was_stopped else 1


def start(config: EngineConfig) -> tuple[EngineCore, Started]:
    """Start the engine of a config.

    Raises:
        QuireError: The engine cannot be started.
        PluginError: This process chose other parts than the parent.
    """
    composed = compose_engine(config.settings, load_plugins(config.settings.plugins))
    check_agreement(config, composed.composition)
    defer_unused_modules(composed)
    return start_core(composed, before_load=leave_out_code)


def serve(core: EngineCore, channel: Channel, shared: Backlog | None = None) -> bool:
    """Serve a core until the parent stops it, and close the channels to its front ends.

    Args:
        core: Engine core.
        channel: Channel to the parent.
        shared: Work of several front ends; None: the parent is the only one.

    Returns:
        True if the parent stopped it, False if it failed; the error is sent to all front ends.
    """
    server: CoreServer | SharedCoreServer = (
        CoreServer(core, channel) if shared is None else SharedCoreServer(core, channel, shared)
    )
    try:
        server.serve()
    except BaseException as error:  # noqa: BLE001 - the edge of the process: sent to the parent
        _log(error)
        for each in server.channels:
            _tell(each, Failed(ErrorMessage.of(death_by(error))))
        return False
    finally:
        core.shutdown()
        for each in server.channels:
            if each is not channel:
                each.close(LINGER_S)
    return True


def _shared_backlog(config: EngineConfig) -> Backlog | None:
    """Return where the work of several front ends is counted; None: there is one."""
    if not config.num_front_ends:
        return None
    max_timeout_s = config.settings.scheduler.request_timeout_s
    return Backlog(queue_limits(config.settings), max_timeout_s=max_timeout_s)


def check_agreement(config: EngineConfig, composition: Composition) -> None:
    """Check that this process chose the same parts as the parent.

    Raises:
        PluginError: They differ; the message has the difference.
    """
    names = ("the parent", "the engine process")
    found = difference(config.choices, own_choices(composition), names)
    if found is not None:
        raise PluginError(
            "the engine process chose other parts than its parent; was a plugin installed or "
            f"changed in between?\n{found}"
        )


def _tell(channel: Channel, message: FromEngine) -> None:
    """Send a message to a parent that may be gone; then the next `take` says so."""
    with suppress(EngineDeadError):
        channel.send(message)


def _log(error: BaseException) -> None:
    if not isinstance(error, QuireError):
        logger.critical("the engine failed", exc_info=error)
