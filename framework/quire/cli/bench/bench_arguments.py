"""Arguments shared by several measures of `quire bench`."""

import argparse
from collections.abc import Iterable

from quire.cli.options import add_options
from quire.config import DEFAULT_MODEL

MODEL_GROUPS = ("model", "cache", "scheduler", "parallel", "lora", "parts", "plugins")


def add_model(
    parser: argparse.ArgumentParser, groups: Iterable[str], default: str = DEFAULT_MODEL
) -> None:
    """Add the arguments for a model and its options."""
    parser.add_argument("model", nargs="?", default=None, help=f"default: {default}")
    add_options(parser, groups, skip="model")


def at_least_one(text: str) -> int:
    """Parse an integer of at least 1.

    Raises:
        argparse.ArgumentTypeError: The number is smaller.
        ValueError: The text is not an integer.
    """
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError("must be at least 1")
    return number
