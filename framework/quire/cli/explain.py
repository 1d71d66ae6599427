"""`quire explain MODEL`: what would be composed, without loading a weight or importing torch."""

import argparse
import json
from typing import Any

from quire.cli.options import add_options, read_settings
from quire.composition import Composition
from quire.config import DEFAULT_MODEL
from quire.launch import plan_composition


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument("model", nargs="?", default=None, help=f"default: {DEFAULT_MODEL}")
    parser.add_argument("--json", action="store_true", help="print JSON")
    groups = ("model", "cache", "scheduler", "parallel", "lora", "parts", "plugins")
    add_options(parser, groups, skip="model")


def run(arguments: argparse.Namespace) -> int:
    """Print the composition."""
    composition = plan_composition(read_settings(arguments))
    facts = describe(composition)
    if arguments.json:
        print(json.dumps(facts | {"parts": [c.as_dict() for c in composition.choices]}, indent=2))
        return 0
    for name, value in facts.items():
        print(f"{name.replace('_', ' '):<18} {value}")
    print()
    for choice in composition.choices:
        source = choice.entry.source
        print(f"{choice.role:<26} {choice.name}")
        print(f"{'':<26}   from {source}; {choice.why}")
        for rejection in choice.rejected:
            print(f"{'':<26}   not {rejection.name}: {rejection.reason}")
    return 0


def describe(composition: Composition) -> dict[str, Any]:
    """Return the facts of a composition that are not parts."""
    description = composition.description
    return {
        "model": composition.checkpoint.name,
        "folder": str(composition.checkpoint.folder),
        "architecture": description.architecture,
        "parameters": description.num_params,
        "layers": description.num_layers,
        "device": composition.device,
        "dtype": f"{composition.dtype} ({composition.dtype_why})",
        "max_model_len": composition.max_model_len,
        "block_size": composition.block_size,
    }
