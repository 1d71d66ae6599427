"""A row of the scorecard: what is measured, the aim, and the function that measures it."""

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Limits:
    """Durations and sizes of the run.

    Attributes:
        soak_s: Seconds of the mixed load.
        num_fuzzed: Number of random bodies for each route.
        num_events: Number of random events for the scheduler.
    """

    soak_s: float = 60.0
    num_fuzzed: int = 1000
    num_events: int = 10_000


@dataclass(frozen=True)
class Measured:
    """The result of a row.

    Attributes:
        text: What was measured, for the table.
        is_met: Whether the aim is met.
        source: Page that has the figures, with their date, if they were not measured just now.
    """

    text: str
    is_met: bool
    source: str = ""


@dataclass(frozen=True)
class Row:
    """A row.

    Attributes:
        id: Name of the row in the table.
        measure: What is measured.
        aim: What it should be.
        run: Function that measures it; None: nothing does.
        missing: Reason why it was not measured.
        is_timed: Whether the aim is a time that other work on the machine makes longer.
    """

    id: str
    measure: str
    aim: str
    run: Callable[[Limits], Measured] | None = None
    missing: str = ""
    is_timed: bool = False
