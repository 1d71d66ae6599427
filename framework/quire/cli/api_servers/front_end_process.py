"""A process that serves HTTP, from its configuration to its end."""

import asyncio
import logging
import socket

from quire.cli.api_servers.front_end_config import FrontEndConfig
from quire.errors import QuireError
from quire.launch.front_end_start import EngineAddress, FrontEndStart
from quire.plugins.report import plugins_report
from quire.process.garbage import settle
from quire.process.ipc import decode
from quire.process.log_lines import log_handler
from quire.server.group.control_stream import ControlStream
from quire.server.group.front_end_server import FrontEndServer
from quire.server.group.group_wire import Begin, EnteredEngine, ToProcess
from quire.server.group.shared_memory import SharedMemory
from quire.server.keys.accounts import Accounts
from quire.server.routes.plugins.loaded_route import load_routes
from quire.server.tool_servers.tool_servers import ToolServers, started_tool_servers

logger = logging.getLogger(__name__)


def run(config: FrontEndConfig) -> int:
    """Serve until the parent stops this process; return the exit status."""
    handler = log_handler(f"front end {config.number}")
    logging.basicConfig(level=config.log_level, handlers=[handler])
    listener = socket.socket(fileno=config.listener_fd)
    control = socket.socket(fileno=config.control_fd)
    try:
        servers = started_tool_servers(config.plan.settings.server)
        with listener, control, servers as tool_servers:
            return asyncio.run(_serve(config, listener, control, tool_servers))
    except QuireError as error:
        logger.critical("%s", error)
        return 1


async def _serve(
    config: FrontEndConfig,
    listener: socket.socket,
    control: socket.socket,
    tool_servers: ToolServers,
) -> int:
    parent = await ControlStream.of(control, ToProcess)
    start = FrontEndStart(config.plan)  # while the engine loads; the parent sends nothing meanwhile
    begin = await parent.receive()
    if not isinstance(begin, Begin):  # the parent ends
        return 1
    engine = start.join(decode(begin.engine, EngineAddress))
    parent.send(EnteredEngine())
    settings = config.plan.settings.server
    fds = (config.ledgers_fd, config.counts_fd)
    memory = SharedMemory.inherited(fds, settings.api_server_count, config.number)
    server = FrontEndServer(
        engine.async_frontend(),
        settings,
        lambda: plugins_report(engine.plugins),
        parent,
        Accounts.load(settings, memory.ledgers.of, config.salt_secret),
        config.number,
        memory.counts,
        load_routes(settings, engine.plugins.registries),
        tool_servers,
    )
    settle()
    await server.serve([listener])
    return 0 if server.stopping.engine_death is None else 1
