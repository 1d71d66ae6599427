"""A request that waits, within one read of its connection, for the decision to refuse it early."""

from dataclasses import dataclass, field

from starlette.types import Scope

from quire.server.wire.headers import header_values

MAX_DISCARDED_BYTES = 64 * 1024  # of a refused body that has not come yet


@dataclass(slots=True)
class HeldRequest:
    """A request that has begun, and was not passed to the application.

    Attributes:
        scope: ASGI scope of the request.
        keep_alive: Whether the client wants the connection to stay open.
        body: Its body, as far as it was received.
        is_whole: Whether that is all of it.
    """

    scope: Scope
    keep_alive: bool
    body: bytearray = field(default_factory=bytearray)
    is_whole: bool = False

    @property
    def is_worth_waiting(self) -> bool:
        """Whether the rest of its body is so short that receiving it costs less than to reconnect.

        A client that asks before it sends its body may then send it or not.
        """
        if self.is_whole:
            return True
        lengths = header_values(self.scope, b"content-length")
        is_short = len(lengths) == 1 and int(lengths[0]) <= MAX_DISCARDED_BYTES
        return is_short and not header_values(self.scope, b"expect")
