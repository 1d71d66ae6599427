"""`guarded`: calls of a parser's plugin, whose errors end one request and name the plugin."""

from collections.abc import Callable
from typing import TypeVar

from quire.errors import RequestError
from quire.frontend.plugin_failure import plugin_failure
from quire.plugins.registry import Source

R = TypeVar("R")


def guarded(
    call: Callable[[], R], source: Source | None, action: str = "parsing the completion"
) -> R:
    """Call a plugin; log an error that it raises, and raise it as a RequestFailedError.

    Args:
        call: The call.
        source: The plugin; None: it is not known.
        action: Words for the error that follow "failed while".
    """
    try:
        return call()
    except RequestError:
        raise
    except Exception as error:
        part = "the parser" if source is None else f"plugin {source}"
        raise plugin_failure(error, part, f"while {action}") from error
