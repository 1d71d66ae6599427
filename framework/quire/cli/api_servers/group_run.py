"""A server with several processes, from its settings to its end."""

import asyncio
import socket

from quire.cli.api_servers.engine_door import EngineDoor
from quire.cli.api_servers.launching import Launcher
from quire.config import Settings
from quire.errors import SettingsError
from quire.launch.engine import Engine, finish_engine
from quire.launch.engine_process.remote_core import RemoteCore
from quire.launch.front_end_start import FrontEndPlan
from quire.launch.starting_engine import StartingEngine
from quire.messages import Started
from quire.plugins.report import plugins_report
from quire.process.garbage import settle
from quire.server.group.front_end_group import FrontEndGroup
from quire.server.group.group_server import GroupServer
from quire.server.group.shared_memory import SharedMemory
from quire.server.keys.accounts import Accounts
from quire.server.observe.monitor import check_outputs
from quire.server.routes.plugins.loaded_route import load_routes


def run_group(
    settings: Settings,
    starting: StartingEngine,
    bound: socket.socket,
    bound_health: socket.socket | None,
) -> None:
    """Serve until a signal stops the server.

    Args:
        settings: Settings, of which `api_server_count` is more than 1.
        starting: Engine that starts.
        bound: Bound socket from which the processes accept.
        bound_health: Bound socket of the port that has only health checks.

    Raises:
        QuireError: The model cannot be served, a process did not start, or the engine died.
    """
    count = settings.server.api_server_count
    memory = SharedMemory.new(count)
    accounts = Accounts.load(settings.server, memory.ledgers.of)
    check_outputs(settings.server)
    load_routes(settings.server, starting.composed.plugins.registries)  # errors come early, once
    group = FrontEndGroup(count, memory.clear)
    plan = FrontEndPlan.of(settings, starting.composed)
    try:
        group.launch(Launcher(plan, bound, memory, accounts).launch)
        engine = finish_engine(starting, owns_process=True, is_shared=True)
        settle()
        asyncio.run(_serve(engine, group, accounts, bound, bound_health))
    finally:
        group.kill()


async def _serve(
    engine: Engine,
    group: FrontEndGroup,
    accounts: Accounts,
    bound: socket.socket,
    bound_health: socket.socket | None,
) -> None:
    frontend, core = engine.async_frontend(), engine.core
    if not isinstance(core, RemoteCore):
        raise SettingsError("several front ends need an engine in a process of its own")
    started = Started(engine.composition.max_model_len)
    group.door = EngineDoor(core, frontend.thread, started, engine.adapters)
    server = GroupServer(
        frontend,
        engine.settings.server,
        lambda: plugins_report(engine.plugins),
        group,
        accounts,
        engine.plugins.hooks("stats_logged"),
    )
    await server.serve(
        bound,
        bound_health,
        lambda url: print(f"{engine.model_name} is served at {url}", flush=True),
    )
