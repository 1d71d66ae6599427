"""`quire <command>`: entry point that imports only the module of the command."""

import argparse
import logging
import os
import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.metadata import version
from typing import NoReturn

from quire.errors import AdapterError, QuireError
from quire.process.children.stack_dump import enable_stack_dumps
from quire.process.traceback_text import with_cause

COMMANDS = {
    "run": "complete a prompt on the command line",
    "chat": "talk to a model in the terminal",
    "serve": "serve a model over HTTP, with OpenAI's routes",
    "explain": "show which plugin would serve each part of a model, and why",
    "plugins": "list, show and check the installed plugins",
    "worker": "run ranks of an engine that is started on another machine",
    "bench": "measure throughput, start-up, the scheduler, the prefix cache and grammars",
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command; return the exit status: 0, 1 for a `QuireError`, 2 for wrong usage."""
    argv = list(sys.argv[1:] if argv is None else argv)
    parser = argparse.ArgumentParser(
        prog="quire",
        description="An LLM inference and serving engine composed from plugins.",
        epilog="`quire COMMAND --help` shows the options of a command.",
    )
    parser.add_argument("--version", action="version", version=f"quire {version('quire')}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    wanted = next((word for word in argv if word in COMMANDS), None)
    for name, summary in COMMANDS.items():
        command = commands.add_parser(name, help=summary, description=summary, allow_abbrev=False)
        if name == wanted:
            import_module(f"quire.cli.{name}").add_arguments(command)
    arguments, unknown = parser.parse_known_args(argv)
    if unknown:
        _refuse(parser, unknown[0])
    logging.basicConfig(
        level=logging.INFO,
        stream=sys.stderr,
        format="%(asctime)s %(levelname)s %(name)s: %(message)s",
    )
    enable_stack_dumps()
    try:
        return int(import_module(f"quire.cli.{arguments.command}").run(arguments))
    except QuireError as error:
        message = with_cause(error) if isinstance(error, AdapterError) else error
        print(f"quire: {message} [{error.code}]", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:  # the reader of the pipe, `head` for example, is gone
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141


def _refuse(parser: argparse.ArgumentParser, unknown: str) -> NoReturn:
    from quire.cli.options import all_options
    from quire.config import OPTIONS_ELSEWHERE
    from quire.plugins.registry import did_you_mean

    flag = unknown.partition("=")[0]
    hint = did_you_mean(flag, [option.flag for option in all_options()])
    name = flag.removeprefix("--").replace("-", "_")
    if name in OPTIONS_ELSEWHERE:
        hint = f"; {OPTIONS_ELSEWHERE[name]}"
    parser.error(f"unrecognized argument: {unknown}{hint if flag.startswith('-') else ''}")
