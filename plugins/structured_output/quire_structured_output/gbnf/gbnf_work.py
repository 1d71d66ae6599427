"""Limit on the work of finding terminals in a client's grammar."""


class TooMuchWorkError(Exception):
    """The work is at its limit; the grammar is then read character by character."""


class Work:
    """Counted work, with a limit."""

    def __init__(self, limit: int) -> None:
        self._left = limit

    def charge(self, amount: int) -> None:
        """Charge work before it is done; raises a TooMuchWorkError."""
        self._left -= amount
        if self._left < 0:
            raise TooMuchWorkError
