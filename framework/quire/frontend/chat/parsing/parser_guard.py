"""`guarded`: calls of a parser's plugin, whose errors end one request and name the plugin."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from quire.errors import RequestError
from quire.frontend.plugin_failure import plugin_failure
from quire.plugins.registry import Source

R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class ParserOrigin:
    """Plugin of a parser, and the name that the user has chosen, which may be a path.

    Attributes:
        source: The plugin.
        title: Kind and name of the parser, for the log; clients do not see it.
    """

    source: Source
    title: str = "the parser"

    @property
    def part(self) -> str:
        """Words for a client."""
        return f"plugin {self.source}"

    @property
    def logged_part(self) -> str:
        """Words for the log."""
        return f"{self.title} of {self.part}"


def guarded(
    call: Callable[[], R], origin: ParserOrigin | None, action: str = "parsing the completion"
) -> R:
    """Call a plugin; log an error that it raises, and raise it as a RequestFailedError.

    Args:
        call: The call.
        origin: Origin of the parser; None: it is not known.
        action: Words for the error that follow "failed while".
    """
    try:
        return call()
    except RequestError:
        raise
    except Exception as error:
        part, logged_part = "the parser", None
        if origin is not None:
            part, logged_part = origin.part, origin.logged_part
        raise plugin_failure(error, part, f"while {action}", logged_part=logged_part) from error
