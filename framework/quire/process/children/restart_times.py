"""Times at which a child that died is started again: pauses that grow, and a limit to them."""

from collections import deque

FIRST_PAUSE_S = 0.5
LONGEST_PAUSE_S = 30.0
MAX_STARTS = 6  # in a window; a child that dies more often stays down
WINDOW_S = 600.0


class RestartTimes:
    """Deaths of one child within the last `WINDOW_S`."""

    def __init__(self) -> None:
        self._deaths: deque[float] = deque()

    def next_after(self, death_s: float) -> float | None:
        """Return when to start it again after a death.

        Args:
            death_s: Time of the death.

        Returns:
            The time; None: it died too often, and stays down.
        """
        while self._deaths and self._deaths[0] <= death_s - WINDOW_S:
            self._deaths.popleft()
        self._deaths.append(death_s)
        num_deaths = len(self._deaths)
        if num_deaths > MAX_STARTS:
            return None
        return death_s + min(FIRST_PAUSE_S * 2.0 ** (num_deaths - 1), LONGEST_PAUSE_S)
