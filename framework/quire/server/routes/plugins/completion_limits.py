"""Limits of a key on the completions of one request to a plugin's route."""

from collections.abc import Iterator
from contextlib import contextmanager

from quire.server.keys.account import Account


class CompletionLimits:
    """Counts each completion as a request of the key; the request itself counts as the first.

    One of those that run has the place of the request itself, so that completions one after the
    other never need more than one of `max_concurrent`.

    Args:
        account: Account of the key, which has counted the request.
    """

    def __init__(self, account: Account) -> None:
        self._account = account
        self._has_begun = False
        self._num_running = 0

    @contextmanager
    def one(self) -> Iterator[None]:
        """Count a completion while it runs.

        Raises:
            HTTPError: A limit refuses it.
        """
        if self._has_begun:
            self._account.begin(has_place=self._num_running == 0)
        self._has_begun = True
        self._num_running += 1
        try:
            yield
        finally:
            self._num_running -= 1
            if self._num_running:
                self._account.end()
