"""A server from its settings: it listens, loads the model, and serves until a signal.

The engine process, if there is one, loads the model while this process imports the server.
"""

from quire.config import Settings
from quire.launch.engine_process.engine_start import EngineStart
from quire.launch.starting_engine import begin_engine
from quire.server.bound_sockets import bound_health_socket, bound_socket


def run_server(settings: Settings, process: EngineStart | None) -> None:
    """Serve until a signal stops the server.

    Args:
        settings: Settings as given by the user.
        process: Process for the engine, not configured yet; None if it has none of its own.

    Raises:
        QuireError: The address cannot be bound, the model cannot be served, or the engine died.
    """
    with bound_socket(settings.server) as bound, bound_health_socket(settings.server) as health:
        starting = begin_engine(settings, is_serving=True, early=process)
        if settings.server.api_server_count > 1:
            from quire.cli.api_servers.group_run import run_group

            run_group(settings, starting, bound, health)
        else:
            from quire.cli.served_engine import serve_engine  # imports the server

            serve_engine(starting, settings.server, bound, health)
