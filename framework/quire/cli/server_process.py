"""A server from its settings: it listens, loads the model, and serves until a signal."""

from quire.config import Settings
from quire.launch import start_engine
from quire.plugins.report import plugins_report
from quire.process.garbage import settle
from quire.server.http_server import bound_health_socket, bound_socket, serve
from quire.server.keys.accounts import Accounts
from quire.server.observe.monitor import check_outputs


def run_server(settings: Settings) -> None:
    """Serve until a signal stops the server.

    Raises:
        QuireError: The address cannot be bound, the model cannot be served, or the engine died.
    """
    accounts = Accounts.load(settings.server)
    with bound_socket(settings.server) as bound, bound_health_socket(settings.server) as health:
        check_outputs(settings.server)
        engine = start_engine(settings, is_serving=True)
        settle()
        serve(
            engine.async_frontend(),
            settings.server,
            lambda: plugins_report(engine.plugins),
            on_ready=lambda url: print(f"{engine.model_name} is served at {url}", flush=True),
            bound=bound,
            bound_health=health,
            accounts=accounts,
            stats_hooks=engine.plugins.hooks("stats_logged"),
        )
