"""Fields of requests that do not exist: refused, or logged and left out.

A field that nothing reads changes nothing, and a client would not learn that. So it is refused with
its path, unless the operator asks for leniency.
"""

import logging
import re
from collections.abc import Collection, Iterable
from difflib import get_close_matches

from quire.errors import UnknownFieldError

logger = logging.getLogger(__name__)

MAX_LOGGED = 100  # names; clients choose them
_MAX_NAME = 100  # characters
_MAX_LISTED = 12  # known fields in an error
_NEAR = 0.7  # similarity of a name to the one that may be meant


class UnknownFields:
    """What happens to fields that do not exist. May be used by several threads.

    Args:
        is_lenient: True to log each name once and leave the field out; False to refuse it.
    """

    def __init__(self, is_lenient: bool = False) -> None:
        self._is_lenient = is_lenient
        self._logged: set[str] = set()

    def check(self, given: Iterable[str], known: Collection[str], where: str = "") -> None:
        """Check that all names of an object are known.

        Args:
            given: Names of the object's fields.
            known: Names that it may have.
            where: Path of the object in the request; empty for the request itself.

        Raises:
            UnknownFieldError: Another one is given, and this is not lenient.
        """
        for name in given:
            if name not in known:
                self.handle(name, known, where)

    def handle(
        self, name: str, known: Collection[str], where: str = "", way_out: str | None = None
    ) -> None:
        """Refuse a field that does not exist, or log it.

        Args:
            name: Name of the field.
            known: Names of the fields that its object may have.
            where: Path of the object in the request; empty for the request itself.
            way_out: What to do instead, if that is known; None: a similar name, if there is one.

        Raises:
            UnknownFieldError: Always, unless this is lenient.
        """
        shown = name[:_MAX_NAME]
        path = f"{where}.{shown}" if where else shown
        message = f"there is no request field {path!r}; {way_out or _way_out(shown, known)}"
        if not self._is_lenient:
            raise UnknownFieldError(message, param=path)
        self._log(re.sub(r"\[\d+\]", "[]", path), message)

    def _log(self, path: str, message: str) -> None:
        if path in self._logged or len(self._logged) > MAX_LOGGED:
            return
        self._logged.add(path)
        if len(self._logged) > MAX_LOGGED:
            logger.warning("further fields that do not exist are left out without a line here")
        else:
            logger.warning("%s (--lenient-fields: it is left out)", message)


def _way_out(name: str, known: Collection[str]) -> str:
    if near := get_close_matches(name, known, 1, _NEAR):
        return f"did you mean {near[0]!r}?"
    if len(known) <= _MAX_LISTED:
        return f"leave it out (known: {', '.join(sorted(known))})"
    return "leave it out"
