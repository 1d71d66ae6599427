"""`quire chat [MODEL]`: a conversation in the terminal, with streamed completions."""

import argparse

from quire.cli.command_parser import CommandParser
from quire.cli.options import add_model_options
from quire.cli.sampling_flags import add_generation_flags, read_sampling_params
from quire.cli.setting_values import read_settings

DEFAULT_MAX_TOKENS = 1024


def add_arguments(parser: CommandParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument("--system", metavar="TEXT", help="a system message")
    add_generation_flags(parser)
    add_model_options(parser)


def run(arguments: argparse.Namespace) -> int:
    """Run a conversation until the end of the input."""
    params = read_sampling_params(arguments, DEFAULT_MAX_TOKENS)
    settings = read_settings(arguments, enable_lora=True if arguments.adapter else None)
    from quire.cli.terminal_chat import converse  # loads the engine

    converse(settings, params, arguments.system, arguments.adapter)
    return 0
