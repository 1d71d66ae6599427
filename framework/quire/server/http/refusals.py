"""Log lines about connections that are refused: one for a kind and an interval, with their number.

An overload refuses thousands of connections in a second; a line for each would fill a disk.
"""

import logging
import math
import time
from dataclasses import dataclass

logger = logging.getLogger(__name__)

REPORT_INTERVAL_S = 10.0
KINDS = ("crowded", "replaced", "protocol", "stalled", "broken", "exhausted")


@dataclass
class _Kind:
    """Events of one kind since its last line."""

    num: int = 0
    reported_s: float = -math.inf


class Refusals:
    """Counts events by kind, for one line of each kind at intervals.

    Attributes:
        totals: Number of events of each kind since the start.
    """

    def __init__(self) -> None:
        self.totals = dict.fromkeys(KINDS, 0)
        self._kinds: dict[str, _Kind] = {}

    def note(self, kind: str, line: str) -> None:
        """Count an event, and log all since the last line of its kind if that is long ago.

        Args:
            kind: One of `KINDS`.
            line: Line for the log, in which `{num}` stands for the number of events.
        """
        found = self._kinds.setdefault(kind, _Kind())
        found.num += 1
        self.totals[kind] += 1
        now_s = time.monotonic()
        if now_s - found.reported_s >= REPORT_INTERVAL_S:
            logger.warning("%s", line.replace("{num}", str(found.num)))
            found.num, found.reported_s = 0, now_s
