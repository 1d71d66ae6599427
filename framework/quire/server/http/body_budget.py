"""Limits on the size of request bodies: of each, and of all that are being received together.

A body is held whole until it has been decoded, so clients that send many large ones slowly would
fill the memory. While the budget is used up, further bodies get 503.
"""

from starlette.types import Message, Receive

from quire.server.wire.http_errors import HTTPError, unavailable


class BodyBudget:
    """Bytes of bodies that are being received; used in one event loop.

    Args:
        max_body_bytes: Maximum size of a body.
        max_bytes: Maximum size of all bodies together.
    """

    def __init__(self, max_body_bytes: int, max_bytes: int) -> None:
        self.max_body_bytes = max_body_bytes
        self.num_bytes = 0
        self._max_bytes = max_bytes

    def receive(self, receive: Receive) -> "LimitedReceive":
        """Return a `receive` of one request that takes its bytes from this budget."""
        return LimitedReceive(receive, self)

    def take(self, num_bytes: int) -> None:
        """Count bytes that have arrived.

        Raises:
            HTTPError: All bodies together are too large.
        """
        if self.num_bytes + num_bytes > self._max_bytes:
            raise unavailable(
                f"the bodies that are being received have {self.num_bytes} bytes, and all together "
                f"may have {self._max_bytes}; try again later, or see --max-received-bytes"
            )
        self.num_bytes += num_bytes


class LimitedReceive:
    """A `receive` that fails once a body exceeds its limit, whatever its headers declare.

    The bytes are free when the next message is received after the whole body, which is decoded
    then, or by `release`.
    """

    def __init__(self, receive: Receive, budget: BodyBudget) -> None:
        self._receive = receive
        self._budget = budget
        self._num_bytes = 0
        self._is_whole = False

    async def __call__(self) -> Message:
        """Receive the next message.

        Raises:
            HTTPError: The body is too large, or all bodies together are.
        """
        if self._is_whole:
            self.release()
        message = await self._receive()
        if message["type"] == "http.request":
            num_bytes = len(message.get("body", b""))
            if self._num_bytes + num_bytes > self._budget.max_body_bytes:
                raise too_large(self._budget.max_body_bytes)
            self._budget.take(num_bytes)
            self._num_bytes += num_bytes
            self._is_whole = not message.get("more_body", False)
        return message

    def release(self) -> None:
        """Return the bytes to the budget. May be called twice."""
        self._budget.num_bytes -= self._num_bytes
        self._num_bytes = 0


def too_large(limit: int) -> HTTPError:
    """Return the error of a body that is larger than a limit."""
    return HTTPError(
        413,
        f"the body is larger than {limit} bytes; see --max-body-bytes",
        code="body_too_large",
        headers={"connection": "close"},
    )
