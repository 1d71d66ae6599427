"""The rate at which an engine serves tokens, over its last seconds of work."""

import math

WINDOW_S = 10.0  # after which a measurement counts 1/e as much
MIN_MEASURED_S = 0.5  # of work in the window, before there is a rate


class ServiceRate:
    """Tokens served per second of work.

    Time without work does not count, but ages what was measured before.

    All times are on one clock, in seconds, and never go back.
    """

    def __init__(self) -> None:
        self._tokens = 0.0
        self._seconds = 0.0
        self._counted_s = 0.0  # up to which time is counted
        self._is_working = False

    def begin(self, now_s: float) -> None:
        """Work begins, or goes on."""
        if not self._is_working:
            self._age(now_s)
            self._is_working = True

    def count(self, num_tokens: int, now_s: float) -> None:
        """Count tokens served since the last call, or since work began; without work, none."""
        elapsed_s = now_s - self._counted_s
        self._age(now_s)
        if self._is_working:
            self._tokens += num_tokens
            self._seconds += elapsed_s

    def end(self, now_s: float) -> None:
        """No work is left."""
        self.count(0, now_s)
        self._is_working = False

    def per_second(self, now_s: float) -> float | None:
        """Return the rate; None while too little was measured lately.

        A step that takes longer than those before lowers it before it has ended.
        """
        elapsed_s = now_s - self._counted_s
        weight = math.exp(-elapsed_s / WINDOW_S)
        seconds = self._seconds * weight + elapsed_s * self._is_working
        if seconds < MIN_MEASURED_S or self._tokens <= 0:
            return None
        return self._tokens * weight / seconds

    def _age(self, now_s: float) -> None:
        weight = math.exp(-(now_s - self._counted_s) / WINDOW_S)
        self._tokens *= weight
        self._seconds *= weight
        self._counted_s = now_s
