"""`check_declared`: each field of a parser's capabilities has its type, and no text is empty."""

from collections.abc import Iterator
from functools import cache
from typing import Any, get_type_hints

import msgspec

from quire.errors import PluginError


def check_declared(capabilities: object) -> None:
    """Check the fields that a plugin or a user's file declares.

    Args:
        capabilities: Instance of a dataclass; a list may be in place of a tuple.

    Raises:
        PluginError: A field has another type, or an empty text; the message names it.
    """
    declared: Any = type(capabilities)
    for name, kind in _kinds(declared).items():
        value = getattr(capabilities, name)
        what = f"{name} of {declared.__name__}"
        try:
            msgspec.convert(value, kind)
        except msgspec.ValidationError:
            shown = kind.__name__ if isinstance(kind, type) else kind
            raise PluginError(f"{what} must be of type {shown}, got {value!r:.100}") from None
        if "" in _texts(value):
            raise PluginError(f"{what} must not have an empty text, got {value!r:.100}")


@cache
def _kinds(declared: type[Any]) -> dict[str, Any]:
    """Return the types of the fields of a dataclass."""
    return get_type_hints(declared)


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, list | tuple):
        for each in value:
            yield from _texts(each)
