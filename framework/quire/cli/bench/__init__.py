"""`quire bench MEASURE`: benchmarks of this machine, each in a module of its own."""

import argparse
import json
from importlib import import_module
from types import ModuleType

from quire.cli.command_parser import CommandParser


def add_arguments(parser: CommandParser) -> None:
    """Declare the arguments of a measure."""
    _module(parser.path[-1]).add_arguments(parser)
    if "--json" not in parser.flags:
        parser.add_argument("--json", action="store_true", help="print JSON")


def run(arguments: argparse.Namespace) -> int:
    """Measure and print."""
    module = _module(arguments.path[-1])
    figures = module.measure(arguments)
    is_json = arguments.json is True  # else it is a file, which the measure writes
    print(json.dumps(figures, indent=2) if is_json else "\n".join(module.lines(figures)))
    return 0


def _module(measure: str) -> ModuleType:
    return import_module(f"quire.cli.bench.bench_{measure}")
