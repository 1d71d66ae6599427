"""Configuration of an engine process, from the composition of its parent."""

import logging
from collections.abc import Mapping
from dataclasses import replace

from quire.config import ServerSettings
from quire.launch.agreement import own_choices
from quire.launch.composing import Composed
from quire.launch.engine_process.engine_link import EXIT_GRACE_S
from quire.launch.engine_process.engine_start import EngineStart
from quire.launch.engine_process.engine_wire import EngineConfig


def launch_engine(
    composed: Composed,
    name: str = "engine",
    environment: Mapping[str, str] | None = None,
    exit_grace_s: float = EXIT_GRACE_S,
) -> EngineStart:
    """Launch a process and configure it; it starts while the caller goes on.

    Args:
        composed: Composition of the engine.
        name: Name of the engine in its log.
        environment: Variables to set, beside those of this process.
        exit_grace_s: Time for a process that failed to exit by itself, before it is killed.

    Raises:
        QuireError: The process cannot be launched.
    """
    start = EngineStart.launch(environment, exit_grace_s)
    start.configure(engine_config(composed, start.address, name))
    return start


def engine_config(composed: Composed, address: str, name: str = "engine") -> EngineConfig:
    """Return the configuration of a process that composes the same engine.

    Args:
        composed: Composition of the engine.
        address: Address of the socket on which this process listens.
        name: Name of the engine in its log.
    """
    return EngineConfig(
        settings=replace(composed.settings, server=ServerSettings()),  # without the API key
        name=name,
        address=address,
        log_level=logging.getLogger("quire").getEffectiveLevel(),
        choices=own_choices(composed.composition),
        num_front_ends=_num_front_ends(composed.settings.server),
    )


def _num_front_ends(server: ServerSettings) -> int:
    """Return the number of processes that serve beside this one."""
    return server.api_server_count if server.api_server_count > 1 else 0
