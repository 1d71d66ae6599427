"""Messages between the engine and its grammar processes: msgpack frames over sockets.

engine -> fork server   Setup, in a file; then Spawn and SpawnMatcher (with the socket of the new
                        process), Kill, and Explain (with a socket for Ended)
engine -> process       Turn: operations for its grammars and requests, in order
process -> engine       Compiled once, unless it compiles nothing; then one TurnDone for each Turn

A frame is the length of the message in four bytes, and the message.
"""

import os
import socket
import struct
from typing import Any, TypeVar

import msgspec

from quire.errors import GrammarError
from quire.interfaces.structured_output import Vocabulary
from quire.sampling_params import StructuredOutputsParams

ELAPSED_PER_CPU = 3.0  # compiling may take so many times its limit of CPU time
MAX_FRAME_BYTES = 256 * 2**20
RUNNING = struct.Struct("<Q")  # after the masks: number of the grammar that is at work
_LENGTH = struct.Struct("<I")
_PART_BYTES = 2**20

T = TypeVar("T")


class VocabularyMessage(msgspec.Struct, frozen=True, array_like=True):
    """A `Vocabulary`, in msgpack's own types."""

    tokens: list[tuple[bytes, list[int]]]
    eos_token_ids: tuple[int, ...]
    size: int
    special_tokens: dict[str, int] = {}

    @classmethod
    def of(cls, vocabulary: Vocabulary) -> "VocabularyMessage":
        """Pack a vocabulary."""
        tokens = [(token, list(ids)) for token, ids in vocabulary.tokens.items()]
        special_tokens = dict(vocabulary.special_tokens)
        return cls(tokens, vocabulary.eos_token_ids, vocabulary.size, special_tokens)

    def vocabulary(self) -> Vocabulary:
        """Unpack it."""
        return Vocabulary(dict(self.tokens), self.eos_token_ids, self.size, self.special_tokens)


class Setup(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """State that every grammar process inherits."""

    plugins: dict[str, Any]  # the fields of PluginSettings
    vocabulary: VocabularyMessage
    num_rows: int  # of the shared table of masks
    memory_limit_bytes: int  # that compiling and matching one grammar may add
    shared_memory_limit_bytes: int  # that all grammars of the matcher process may add


class Spawn(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Start a process that compiles a grammar; its socket is sent with this message."""

    process: int  # also the number of the grammar
    backends: list[str]  # tried in turn
    params: StructuredOutputsParams
    timeout_s: float  # of CPU time


class SpawnMatcher(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Start a process that compiles nothing and loads grammars; its socket is sent along."""

    process: int
    backends: list[str]  # that it can load grammars of


class Kill(msgspec.Struct, frozen=True, tag=True):
    """Kill a process."""

    process: int


class Explain(msgspec.Struct, frozen=True, tag=True):
    """Report the end of a process on the socket that is sent with this message."""

    process: int


class Ended(msgspec.Struct, frozen=True):
    """End of a process.

    Attributes:
        status: Exit status, or the negative number of a signal; None: unknown, or it runs.
    """

    status: int | None


class Failure(msgspec.Struct, frozen=True, array_like=True):
    """Reason why a grammar cannot be compiled or matched.

    Attributes:
        message: Text of the error.
        is_for_client: Whether the error is about the grammar, for its author to read. If not, the
            backend failed, and the message is for the log.
        is_slow: Whether the grammar has kept others waiting for too long.
    """

    message: str
    is_for_client: bool = True
    is_slow: bool = False


class Sendable(msgspec.Struct, frozen=True, array_like=True):
    """A compiled grammar that can be sent: its backend, and what that backend packed."""

    backend: str
    packed: bytes


class Compiled(msgspec.Struct, frozen=True):
    """Compile result, the first message of a process that compiles; no `failure`: it is ready.

    Attributes:
        pid: Process id.
        failure: Reason why the grammar could not be compiled.
        num_bytes: Memory of the compiled grammar.
        cpu_s: CPU time that compiling took.
        sendable: The grammar as another process can load it; None: it cannot be sent.
    """

    pid: int
    failure: Failure | None = None
    num_bytes: int = 0
    cpu_s: float = 0.0
    sendable: Sendable | None = None


class LoadGrammar(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """Load a grammar that another process has compiled."""

    grammar: int
    sendable: Sendable


class UnloadGrammar(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """Remove a grammar."""

    grammar: int


class Start(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """Create a matcher at a grammar's start."""

    matcher: int
    grammar: int


class Accept(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """Accept sampled tokens."""

    matcher: int
    token_ids: list[int]


class Fill(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """Write a mask into a row of the shared table, and those after draft tokens into the next ones.

    Where the grammar forbids a draft token, the rows after it are all zero: nothing is sampled
    there. The matcher stays where it was.
    """

    matcher: int
    row: int
    draft_token_ids: list[int] = []


class Drop(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """Remove a matcher."""

    matcher: int


Operation = LoadGrammar | UnloadGrammar | Start | Accept | Fill | Drop


class Turn(msgspec.Struct, frozen=True):
    """Operations, in order."""

    operations: list[Operation]


class TurnDone(msgspec.Struct, frozen=True):
    """Result of a turn: failed matchers."""

    failed: dict[int, Failure]


def send(connection: socket.socket, message: Any, fds: list[int] | None = None) -> None:
    """Send one message, with file descriptors if there are any.

    Raises:
        GrammarError: The message is longer than a frame may be; nothing was sent.
        OSError: The other end is gone, or does not read within the socket's timeout.
    """
    body = msgspec.msgpack.encode(message)
    if len(body) > MAX_FRAME_BYTES:
        raise GrammarError(
            f"the grammar cannot be sent to its process: {len(body)} bytes, of {MAX_FRAME_BYTES} "
            "at most"
        )
    header = _LENGTH.pack(len(body))
    if fds:
        socket.send_fds(connection, [header], fds)
        connection.sendall(body)
    else:
        connection.sendall(header + body)


def receive(connection: socket.socket, kind: type[T]) -> T:
    """Receive one message.

    Raises:
        EOFError: The other end is gone.
        TimeoutError: Nothing came within the socket's timeout.
        msgspec.DecodeError: It is not such a message.
    """
    message: T = receive_with_fds(connection, kind)[0]
    return message


def receive_with_fds(connection: socket.socket, kind: Any) -> tuple[Any, list[int]]:
    """Receive one message and its file descriptor, if it has one; raises as `receive`.

    After an invalid message the next one can be received: its frame was read to the end, and its
    file descriptor closed.
    """
    header, fds, _, _ = socket.recv_fds(connection, _LENGTH.size, 1)
    header += _receive_exactly(connection, _LENGTH.size - len(header)) if header else b""
    if not header:
        raise EOFError("the other end is gone")
    try:
        return _decoded(connection, _LENGTH.unpack(header)[0], kind), list(fds)
    except BaseException:
        for fd in fds:
            os.close(fd)
        raise


def _decoded(connection: socket.socket, length: int, kind: Any) -> Any:
    if length > MAX_FRAME_BYTES:
        for start in range(0, length, _PART_BYTES):
            _receive_exactly(connection, min(_PART_BYTES, length - start))
        raise msgspec.DecodeError(f"a frame of {length} bytes is too long")
    try:
        return msgspec.msgpack.decode(_receive_exactly(connection, length), type=kind)
    except (RecursionError, UnicodeDecodeError) as error:
        raise msgspec.DecodeError(f"a frame cannot be read: {error}") from error


def _receive_exactly(connection: socket.socket, num_bytes: int) -> bytes:
    body = bytearray(num_bytes)
    view = memoryview(body)
    while view:
        num_read = connection.recv_into(view)
        if num_read == 0:
            raise EOFError("the other end is gone")
        view = view[num_read:]
    return bytes(body)
