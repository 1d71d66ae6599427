"""Limits of a key on the completions of one request to a plugin's route."""

from collections.abc import Iterator
from contextlib import contextmanager

from quire.server.keys.account import Account


class CompletionLimits:
    """Counts each completion as a request of the key; the request itself counts as the first.

    At any moment one of them runs in the place of the request itself, so completions one after the
    other never need more than one of `max_concurrent`.

    Args:
        account: Account of the key, which has counted the request.
    """

    def __init__(self, account: Account) -> None:
        self._account = account
        self._has_begun = False
        self._is_place_free = True

    @contextmanager
    def one(self) -> Iterator[None]:
        """Count a completion while it runs.

        Raises:
            HTTPError: A limit refuses it.
        """
        has_place = self._is_place_free
        if self._has_begun:
            self._account.begin(has_place=has_place)
        self._has_begun = True
        if has_place:
            self._is_place_free = False
        try:
            yield
        finally:
            if has_place:
                self._is_place_free = True
            else:
                self._account.end()
