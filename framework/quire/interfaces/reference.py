"""References to code that is imported later: import strings, `package.module:attribute`."""

import re

from quire.errors import PluginError

_REFERENCE = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*(\.[^\W\d]\w*)*")


def check_reference(reference: object, what: str) -> None:
    """Check that a reference of a plugin is an import string.

    Raises:
        PluginError: It is not. The message names `what` refers to it.
    """
    if not isinstance(reference, str) or not _REFERENCE.fullmatch(reference):
        raise PluginError(f"{what} must read 'package.module:attribute', got {reference!r}")
