"""`quire serve [MODEL]`: an HTTP server with OpenAI's routes."""

import argparse

from quire.cli.command_parser import CommandParser
from quire.cli.options import add_model_options
from quire.cli.setting_values import read_settings
from quire.config import GROUPS
from quire.launch import start_engine
from quire.plugins.report import plugins_report
from quire.server.http_server import bound_socket, serve
from quire.server.keys.accounts import Accounts


def add_arguments(parser: CommandParser) -> None:
    """Declare the command's arguments."""
    add_model_options(parser, GROUPS)


def run(arguments: argparse.Namespace) -> int:
    """Serve until a signal stops the server."""
    settings = read_settings(arguments)
    accounts = Accounts.load(settings.server)
    with bound_socket(settings.server) as bound:
        engine = start_engine(settings, is_serving=True)
        serve(
            engine.async_frontend(),
            settings.server,
            lambda: plugins_report(engine.plugins),
            on_ready=lambda url: print(f"{engine.model_name} is served at {url}", flush=True),
            bound=bound,
            accounts=accounts,
            stats_hooks=engine.plugins.hooks("stats_logged"),
        )
    return 0
