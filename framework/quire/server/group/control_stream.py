"""Messages between a server and one of its processes, over a pair of sockets, in event loops."""

import asyncio
import socket
import struct
from typing import Any

import msgspec

from quire.process.ipc import UnreadableError, encode

_LENGTH = struct.Struct(">I")


class ControlStream:
    """One end of the pair. The other end is trusted: it is a process of the same server.

    Args:
        reader: What the other end sends.
        writer: To the other end.
        kind: Type of the messages from the other end.
    """

    def __init__(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, kind: Any
    ) -> None:
        self._reader = reader
        self._writer = writer
        self._decoder = msgspec.msgpack.Decoder(kind)

    @classmethod
    async def of(cls, connected: socket.socket, kind: Any) -> "ControlStream":
        """Use a connected socket, which belongs to the stream from now on."""
        reader, writer = await asyncio.open_connection(sock=connected)
        return cls(reader, writer, kind)

    def send(self, message: Any) -> None:
        """Send a message soon; it is lost if the other end has gone."""
        if not self._writer.is_closing():
            data = encode(message)
            self._writer.write(_LENGTH.pack(len(data)) + data)

    async def receive(self) -> Any:
        """Return the next message; None once the other end has gone.

        Raises:
            QuireError: The message is invalid.
        """
        try:
            (length,) = _LENGTH.unpack(await self._reader.readexactly(_LENGTH.size))
            data = await self._reader.readexactly(length)
        except (asyncio.IncompleteReadError, ConnectionError):
            return None
        try:
            return self._decoder.decode(data)
        except msgspec.MsgspecError as error:
            raise UnreadableError(f"a message of a server's process is invalid: {error}") from error

    def close(self) -> None:
        """Close this end, once what was sent is gone."""
        self._writer.close()
