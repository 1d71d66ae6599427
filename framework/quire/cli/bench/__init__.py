"""`quire bench MEASURE`: benchmarks of this machine, each in a module of its own."""

import argparse
import json
from importlib import import_module

MEASURES = {
    "throughput": "tokens per second, all prompts at once",
    "startup": "fresh process to first token, in seconds",
    "scheduler": "CPU time of the engine itself, around workers that do nothing",
    "prefix": "what the prefix cache costs and gains, by hit rate",
    "structured": "tokens per second, by the share of requests with structured output",
    "cluster": "routing policies over many simulated replicas, in virtual time",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    measures = parser.add_subparsers(dest="measure", required=True, metavar="MEASURE")
    for name, summary in MEASURES.items():
        measure = measures.add_parser(name, help=summary, description=summary, allow_abbrev=False)
        import_module(f"quire.cli.bench.bench_{name}").add_arguments(measure)
        measure.add_argument("--json", action="store_true", help="print JSON")


def run(arguments: argparse.Namespace) -> int:
    """Measure and print."""
    module = import_module(f"quire.cli.bench.bench_{arguments.measure}")
    figures = module.measure(arguments)
    print(json.dumps(figures, indent=2) if arguments.json else "\n".join(module.lines(figures)))
    return 0
