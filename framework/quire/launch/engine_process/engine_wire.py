"""What the engine's process and its parent say to each other.

parent -> engine   EngineConfig on its standard input; then Add, Abort, Call and Shutdown
engine -> parent   Connected; Ready or Refused; one Stepped a step, and Answers; at worst Failed
"""

from pathlib import Path
from typing import Any

import msgspec

import quire
import quire.errors
from quire.config import Settings
from quire.errors import CauseError, QuireError, RequestError
from quire.messages import (
    Control,
    EngineOutputs,
    EngineRequest,
    EngineStats,
    LoadAdapter,
    ResetPrefixCache,
    Started,
)
from quire.process.ipc import decode, encode
from quire.process.traceback_text import cause_text, sendable

_KINDS: dict[str, type[QuireError]] = {
    name: kind
    for name, kind in vars(quire.errors).items()
    if isinstance(kind, type) and issubclass(kind, QuireError)
}


def own_quire() -> str:
    """Return which quire runs here."""
    return f"quire {quire.__version__} in {Path(quire.__file__).parent}"


class ErrorMessage(msgspec.Struct, frozen=True, array_like=True):
    """One of our errors, on its way to another process."""

    kind: str  # the nearest class of quire.errors
    message: str
    param: str | None = None
    cause: str | None = None  # what it comes from, as the text of a traceback

    @classmethod
    def of(cls, error: BaseException) -> "ErrorMessage":
        """Pack an error; one that is not ours keeps its name in the message."""
        param = error.param if isinstance(error, RequestError) else None
        message, cause = sendable(str(error)), cause_text(error)
        for kind in type(error).__mro__:
            if kind.__name__ in _KINDS and _KINDS[kind.__name__] is kind:
                return cls(kind.__name__, message, param, cause)
        return cls(QuireError.__name__, f"{type(error).__name__}: {message}", cause=cause)

    def error(self) -> QuireError:
        """Unpack it."""
        kind = _KINDS.get(self.kind, QuireError)
        error = kind(self.message)
        if isinstance(error, RequestError):
            error.param = self.param
        error.__cause__ = None if self.cause is None else CauseError(self.cause)
        return error


class EngineConfig(msgspec.Struct, frozen=True, kw_only=True):
    """All that an engine's process is started with.

    Attributes:
        settings: What the user asked for, without what is the server's.
        address: Where the parent listens.
        log_level: The parent's.
        quire: The parent's quire: its version, and where it lies.
        fingerprint: The parts that the parent chose.
        checkpoint_folder: Where the parent found the model.
    """

    settings: Settings
    address: str
    log_level: int
    quire: str
    fingerprint: list[tuple[str, str, str, str]]
    checkpoint_folder: str


class EncodedRequest(msgspec.Struct, frozen=True, array_like=True):
    """A request that is decoded on its own: if it cannot be, it fails and no other does."""

    request_id: str
    body: msgspec.Raw

    @classmethod
    def of(cls, request: EngineRequest) -> "EncodedRequest":
        """Encode a request.

        Raises:
            QuireError: It holds what msgpack cannot carry.
        """
        return cls(request.request_id, msgspec.Raw(encode(request)))

    def request(self) -> EngineRequest:
        """Decode it.

        Raises:
            UnreadableError: It is none.
        """
        return decode(self.body, EngineRequest)


class Add(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """Queue requests, in order."""

    requests: list[EncodedRequest]


class Abort(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """Forget requests."""

    request_ids: list[str]


class ReadStats(msgspec.Struct, frozen=True, tag=True):
    """Say a few numbers about now."""


class Call(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """Do something between two steps, and answer."""

    call_id: int
    command: Control | ReadStats


class Shutdown(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """Give everything back and end."""


ToEngine = Add | Abort | Call | Shutdown


class Connected(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """The process has found its parent; nobody else needs the socket's place any more."""


class Ready(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """The engine takes requests."""

    started: Started


class Refused(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """The engine cannot start; the last word."""

    error: ErrorMessage


class Failed(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """The engine took requests and cannot go on; the last word."""

    error: ErrorMessage


class Stepped(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """A step is done; all that it has to say.

    Attributes:
        num_taken: Commands that the engine had taken before it: what was sent later, as an abort,
            it did not know.
    """

    outputs: EngineOutputs
    num_taken: int


class Reply(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """What came of a call."""

    call_id: int
    value: msgspec.Raw
    error: ErrorMessage | None = None


FromEngine = Connected | Ready | Refused | Failed | Stepped | Reply

ANSWERS: dict[type[Any], Any] = {LoadAdapter: None, ResetPrefixCache: None, ReadStats: EngineStats}
