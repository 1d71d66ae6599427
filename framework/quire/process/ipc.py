"""Encoding of messages between processes: msgpack, without pickle."""

from typing import Any, TypeVar

import msgspec

from quire.errors import EngineDeadError, QuireError

T = TypeVar("T")

_UNREADABLE = (msgspec.MsgspecError, QuireError, RecursionError, UnicodeDecodeError)
_UNSENDABLE = (TypeError, NotImplementedError, ValueError, OverflowError, RecursionError)


class UnreadableError(QuireError):
    """Bytes are not a message of the expected type."""

    code = "unreadable_message"


def encode(message: Any) -> bytes:
    """Encode a message as msgpack.

    Raises:
        QuireError: It has a value that msgpack does not support: an unknown type, or a number of
            more than 64 bits.
    """
    try:
        return msgspec.msgpack.encode(message)
    except _UNSENDABLE as error:
        raise QuireError(f"a {type(message).__name__} cannot be sent: {error}") from error


def decode(data: Any, kind: type[T]) -> T:
    """Decode a message.

    Raises:
        UnreadableError: The bytes are not a message of this type.
    """
    try:
        return msgspec.msgpack.decode(data, type=kind)
    except _UNREADABLE as error:
        raise UnreadableError(f"a message cannot be decoded: {error}") from error


def decode_frame(decoder: msgspec.msgpack.Decoder[Any], frame: bytes, sender: str) -> Any:
    """Decode a message that a socket has received.

    Raises:
        EngineDeadError: The bytes are not a message of the decoder's type.
    """
    try:
        return decoder.decode(frame)
    except _UNREADABLE as error:
        raise EngineDeadError(
            f"{len(frame)} bytes from {sender} are not a valid message: {error}"
        ) from error
