"""Deadlines of one connection: for a head, for idleness, and for a client that does not read.

They run one after another. A deadline that follows a response starts once the response has left:

    connected, or a head begins: HEAD_TIMEOUT_S
    a response is in progress:   none, but for a client that does not read
    it is written, not sent:     STALL_S without progress
    it is sent:                  KEEP_ALIVE_S; or LINGER_S, then the end
"""

import asyncio
from collections.abc import Callable

from quire.server.http.deadline import Deadline

HEAD_TIMEOUT_S = 10.0
KEEP_ALIVE_S = 5.0  # of an idle connection
LINGER_S = 1.0  # for a client to read its response before a reset may destroy it
STALL_S = 60.0  # for a client to read anything at all of what it was sent
LOOKS_PER_STALL = 8


class Lifetime:
    """Ends a connection whose client takes too long.

    `pause` and `resume` are the transport's reports about its buffer. While a response is in
    progress they come at the usual marks, and afterwards when the buffer is not empty, and when it
    is.

    Args:
        transport: Transport of the connection.
        on_stall: Function called when the client has read nothing for `STALL_S`.
    """

    def __init__(self, transport: asyncio.Transport, on_stall: Callable[[], None]) -> None:
        self._transport = transport
        self._on_stall = on_stall
        self._loop = asyncio.get_running_loop()
        self._deadline = Deadline(self._loop, transport.abort)
        self._delay_s: float | None = None  # of the deadline that starts when the buffer is empty
        self._looking: asyncio.TimerHandle | None = None
        self._num_unsent = 0
        self._progress_s = 0.0
        self._reports_empty = False  # whether the transport reports when its buffer is empty

    def await_head(self) -> None:
        """Wait for the rest of a head."""
        self._end_in(HEAD_TIMEOUT_S)

    def idle(self) -> None:
        """Wait for a request."""
        self._end_in(KEEP_ALIVE_S)

    def linger(self) -> None:
        """End the sending side, and leave the client time to end its own."""
        self._end_in(LINGER_S)
        self._transport.write_eof()  # to close it now would be a reset, for what is not read

    def serve(self) -> None:
        """Wait for a response, for as long as it takes."""
        self._delay_s = None
        self._deadline.clear()
        if self._reports_empty:
            self._reports_empty = False
            self._transport.set_write_buffer_limits()

    def close(self) -> None:
        """Close the connection once all is sent."""
        self.serve()
        self._transport.set_write_buffer_limits(0)
        self._transport.close()

    def pause(self) -> None:
        """Watch the progress of the client: there is much to read."""
        if self._looking is None:
            self._num_unsent = self._transport.get_write_buffer_size()
            self._progress_s = self._loop.time()
            self._look_later()

    def resume(self) -> None:
        """Go on to the next deadline: the client has read enough."""
        if self._looking is not None:
            self._looking.cancel()
            self._looking = None
        if self._delay_s is not None:
            self._deadline.set(self._delay_s)

    def end(self) -> None:
        """End all deadlines."""
        self._delay_s = None
        self.resume()
        self._deadline.cancel()

    def _end_in(self, delay_s: float) -> None:
        """End the connection after a time that begins once all is sent."""
        self._delay_s = delay_s
        self._deadline.clear()
        if not self._reports_empty and self._transport.get_write_buffer_size():
            self._reports_empty = True
            self._transport.set_write_buffer_limits(0)
        if self._looking is None:
            self._deadline.set(delay_s)

    def _look(self) -> None:
        num_unsent, now_s = self._transport.get_write_buffer_size(), self._loop.time()
        if num_unsent < self._num_unsent:
            self._progress_s = now_s
        self._num_unsent = num_unsent
        if now_s - self._progress_s >= STALL_S:
            self._looking = None
            self._on_stall()
        else:
            self._look_later()

    def _look_later(self) -> None:
        self._looking = self._loop.call_later(STALL_S / LOOKS_PER_STALL, self._look)
