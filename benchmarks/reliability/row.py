"""A row of the scorecard: what is measured, the aim, and the function that measures it."""

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Limits:
    """Durations and sizes of the run.

    Attributes:
        soak_s: Seconds of the mixed load.
        num_fuzzed: Number of random bodies for each route.
    """

    soak_s: float = 60.0
    num_fuzzed: int = 1000


@dataclass(frozen=True)
class Measured:
    """The result of a row.

    Attributes:
        text: What was measured, for the table.
        is_met: Whether the aim is met.
    """

    text: str
    is_met: bool


@dataclass(frozen=True)
class Row:
    """A row.

    Attributes:
        id: Name of the row in the table.
        measure: What is measured.
        aim: What it should be.
        run: Function that measures it.
        is_timed: Whether the aim is a time that other work on the machine makes longer.
    """

    id: str
    measure: str
    aim: str
    run: Callable[[Limits], Measured]
    is_timed: bool = False
