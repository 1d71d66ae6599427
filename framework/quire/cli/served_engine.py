"""A server for an engine whose parts are chosen: it waits until that is ready, and serves."""

import socket

from quire.config import ServerSettings
from quire.launch.engine import finish_engine
from quire.launch.starting_engine import StartingEngine
from quire.plugins.report import plugins_report
from quire.process.garbage import settle
from quire.server.http_server import serve
from quire.server.keys.accounts import Accounts
from quire.server.observe.monitor import check_outputs
from quire.server.routes.plugins.loaded_route import load_routes
from quire.server.tool_servers.tool_servers import started_tool_servers


def serve_engine(
    starting: StartingEngine,
    settings: ServerSettings,
    bound: socket.socket,
    bound_health: socket.socket | None,
) -> None:
    """Serve an engine until a signal stops the server.

    Args:
        starting: Engine that starts.
        settings: Settings of the server.
        bound: Socket of the server.
        bound_health: Socket of the port that has only health checks; None if there is none.

    Raises:
        QuireError: A file, a route or a tool server cannot be used, or the engine cannot start, or
            it died.
    """
    accounts = Accounts.load(settings)  # these fail before the model is loaded
    check_outputs(settings)
    routes = load_routes(settings, starting.composed.plugins.registries)
    with started_tool_servers(settings) as tool_servers:
        engine = finish_engine(starting, owns_process=True)
        settle()
        serve(
            engine.async_frontend(),
            settings,
            lambda: plugins_report(engine.plugins),
            on_ready=lambda url: print(f"{engine.model_name} is served at {url}", flush=True),
            bound=bound,
            bound_health=bound_health,
            accounts=accounts,
            stats_hooks=engine.plugins.hooks("stats_logged"),
            routes=routes,
            tool_servers=tool_servers,
        )
