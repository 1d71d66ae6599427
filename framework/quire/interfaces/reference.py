"""References to code that is imported later: import strings, `package.module:attribute`."""

import re

from quire.errors import PluginError

_REFERENCE = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*(\.[^\W\d]\w*)*")


def check_reference(reference: object, what: str) -> None:
    """Check that a plugin refers to code by an import string.

    Raises:
        PluginError: It does not; `what` says where.
    """
    if not isinstance(reference, str) or not _REFERENCE.fullmatch(reference):
        raise PluginError(f"{what} must read 'package.module:attribute', got {reference!r}")
