"""Types of the numbers that measures of `quire bench` take as arguments."""

import argparse


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
