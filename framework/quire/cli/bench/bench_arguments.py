"""Arguments that several measures of `quire bench` have."""

import argparse
from collections.abc import Iterable

from quire.cli.options import add_options
from quire.config import DEFAULT_MODEL

MODEL_GROUPS = ("model", "cache", "scheduler", "parallel", "lora", "parts", "plugins")


def add_model(
    parser: argparse.ArgumentParser, groups: Iterable[str], default: str = DEFAULT_MODEL
) -> None:
    """Let the user name a model and set its options."""
    parser.add_argument("model", nargs="?", default=None, help=f"default: {default}")
    add_options(parser, groups, skip="model")


def at_least_one(text: str) -> int:
    """Read a whole number from 1 on.

    Raises:
        argparse.ArgumentTypeError: It is smaller.
        ValueError: It is no whole number.
    """
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError("must be at least 1")
    return number
