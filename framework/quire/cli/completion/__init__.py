"""`quire completion SHELL`: a script that completes commands, options and values in a shell."""

import argparse
from importlib import import_module

from quire.cli.command_parser import CommandParser

SHELLS = ("bash", "zsh", "fish")


def add_arguments(parser: CommandParser) -> None:
    """Declare the command's arguments."""
    parser.add_word("shell", "bash, zsh or fish", is_required=True, choices=SHELLS)


def run(arguments: argparse.Namespace) -> int:
    """Print the script."""
    from quire.cli.completion.command_table import command_table  # loads all commands

    script = import_module(f"quire.cli.completion.{arguments.shell}_script").script
    print(script(command_table()), end="")
    return 0
