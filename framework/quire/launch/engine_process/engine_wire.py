"""Messages between the engine process and its parent.

parent -> engine   EngineConfig on its standard input; then Add, Abort, Call and Shutdown
engine -> parent   Connected; Ready or Refused; one Stepped per step, a Reply per Call; Failed

Further front ends, for which the parent has opened a socket by a call, send and get the same once
they have sent Connected; their Shutdown ends their connection alone.
"""

from typing import Any

import msgspec

from quire.config import Settings
from quire.errors import InvalidRequestError, QuireError
from quire.messages import (
    BlockMap,
    Control,
    EngineOutputs,
    EngineRequest,
    EngineStats,
    KVEventBatch,
    LoadAdapter,
    ReadBlockMap,
    ReadKVSnapshot,
    ResetPrefixCache,
    Started,
)
from quire.process.error_message import ErrorMessage
from quire.process.ipc import UnreadableError, decode, encode


class EngineConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Configuration with which an engine process is started.

    Attributes:
        settings: Settings as given by the user, without the server's.
        name: Name of the engine in its log.
        address: Socket address on which the parent listens.
        log_level: Log level of the parent.
        choices: Choices of the parent, which this process must share.
        num_front_ends: Number of further front ends that there may be at the same time.
    """

    settings: Settings
    name: str
    address: str
    log_level: int
    choices: list[str]
    num_front_ends: int = 0


class EncodedRequest(msgspec.Struct, frozen=True, array_like=True):
    """A request that is decoded separately, so that an unreadable one fails alone."""

    request_id: str
    body: msgspec.Raw

    @classmethod
    def of(cls, request: EngineRequest) -> "EncodedRequest":
        """Encode a request.

        Raises:
            InvalidRequestError: A value of the request cannot be encoded as msgpack.
        """
        try:
            return cls(request.request_id, msgspec.Raw(encode(request)))
        except QuireError as error:
            raise InvalidRequestError(str(error)) from error

    def request(self) -> EngineRequest:
        """Decode the request.

        Raises:
            InvalidRequestError: The bytes are not a request.
        """
        try:
            return decode(self.body, EngineRequest)
        except UnreadableError as error:
            raise InvalidRequestError(str(error)) from error


class Add(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """Queue requests, in order."""

    requests: list[EncodedRequest]


class Abort(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """Abort requests."""

    request_ids: list[str]


class ReadStats(msgspec.Struct, frozen=True, tag=True):
    """Return the current statistics."""


class OpenFrontEnd(msgspec.Struct, frozen=True, tag=True):
    """Listen for a further front end; a call of the parent alone.

    Attributes:
        number: Number of the front end, not in use.
        address: Socket address to listen on.
    """

    number: int
    address: str


class CloseFrontEnd(msgspec.Struct, frozen=True, tag=True):
    """Abort the requests of a front end, if it is still there, and forget it; for the parent."""

    number: int


Command = Control | ReadStats | OpenFrontEnd | CloseFrontEnd


class Call(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """Execute a command between two steps, and reply."""

    call_id: int
    command: Command


class Shutdown(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """Release all resources and exit."""


class Connected(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """The process has connected; the socket's folder can be removed."""


ToEngine = Add | Abort | Call | Shutdown | Connected


class Ready(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """The engine is ready for requests."""

    started: Started


class Refused(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """The engine cannot start; its last message."""

    error: ErrorMessage


class Failed(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """The engine failed while it was serving; its last message."""

    error: ErrorMessage


class Stepped(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """A step is complete.

    Attributes:
        outputs: Outputs of the step.
        num_taken: Number of commands that the engine had applied before it. Later commands, such
            as an abort, had no effect on the step.
    """

    outputs: EngineOutputs
    num_taken: int


class Reply(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """Result of a call."""

    call_id: int
    value: msgspec.Raw
    error: ErrorMessage | None = None


FromEngine = Connected | Ready | Refused | Failed | Stepped | Reply

REPLY_TYPES: dict[type[Any], Any] = {
    LoadAdapter: None,
    ResetPrefixCache: None,
    ReadKVSnapshot: list[KVEventBatch],
    ReadBlockMap: list[BlockMap],
    ReadStats: EngineStats,
    OpenFrontEnd: None,
    CloseFrontEnd: None,
}
