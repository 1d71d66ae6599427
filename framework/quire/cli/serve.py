"""`quire serve [MODEL]`: an HTTP server with OpenAI's routes."""

import argparse

from quire.cli.command_parser import CommandParser
from quire.cli.options import add_model_options
from quire.cli.setting_values import read_settings
from quire.config import GROUPS
from quire.process.garbage import paused_collections


def add_arguments(parser: CommandParser) -> None:
    """Declare the command's arguments."""
    add_model_options(parser, GROUPS)


def run(arguments: argparse.Namespace) -> int:
    """Serve until a signal stops the server."""
    settings = read_settings(arguments)
    from quire.launch.engine_process.early_start import started_early

    with started_early(settings) as process, paused_collections():
        from quire.cli.server_process import run_server  # while the process imports its own

        run_server(settings, process)
    return 0
