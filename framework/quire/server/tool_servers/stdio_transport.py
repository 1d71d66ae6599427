"""A tool server that is a child process, and speaks on its standard input and output.

The transport of the `mcp` package reads lines of any length, so this is one of our own: a message
that is too long is skipped, and is an error of the request that it responds to. The process leads a
session of its own; it and its children end with the connection, and also if this process is killed.
"""

import asyncio
import contextlib
import logging
import os
import signal
from asyncio.subprocess import PIPE, Process
from collections import deque
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager

import anyio
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream
from mcp.shared.message import SessionMessage
from mcp_types import INTERNAL_ERROR, ErrorData, JSONRPCError, jsonrpc_message_adapter

from quire.process.children.guarded_command import guarded_arguments
from quire.server.tool_servers.message_lines import READ_BYTES, LongLine, message_lines
from quire.server.tool_servers.tool_limits import STOP_TIMEOUT_S

logger = logging.getLogger(__name__)

MAX_LOG_LINE = 500  # characters of a line that the server writes to its standard error
_POLL_S = 0.01  # between two looks for an exit
Incoming = SessionMessage | Exception
Streams = tuple[MemoryObjectReceiveStream[Incoming], MemoryObjectSendStream[SessionMessage]]


class ServerProcess:
    """The process of a tool server.

    Args:
        name: Name of the server, for the log.
        command: Program and its arguments.
        environment: Its environment, without that of this process.
        max_bytes: Largest size of a message.
    """

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        environment: Mapping[str, str],
        max_bytes: int,
    ) -> None:
        self._name = name
        self._command = command
        self._environment = environment
        self._max_bytes = max_bytes
        self._last_lines: deque[str] = deque(maxlen=3)

    @property
    def last_words(self) -> str:
        """The last lines that it wrote to its standard error, for a message; empty for none."""
        return " | ".join(self._last_lines)

    @asynccontextmanager
    async def connected(self) -> AsyncIterator[Streams]:
        """Run the process; yield the streams of its messages.

        Raises:
            OSError: It cannot be started.
        """
        process = await asyncio.create_subprocess_exec(
            *guarded_arguments(self._command),
            stdin=PIPE,
            stdout=PIPE,
            stderr=PIPE,
            env=dict(self._environment),
            start_new_session=True,
            limit=READ_BYTES,
        )
        incoming, read_stream = anyio.create_memory_object_stream[Incoming](0)
        write_stream, outgoing = anyio.create_memory_object_stream[SessionMessage](0)
        tasks = [
            asyncio.create_task(self._read(_reader(process.stdout), incoming)),
            asyncio.create_task(self._write(process, outgoing, incoming)),
            asyncio.create_task(self._log(_reader(process.stderr))),
        ]
        signals = _Signals(process)
        try:
            yield read_stream, write_stream
        finally:
            try:
                await asyncio.shield(asyncio.create_task(signals.stop()))
            finally:
                signals.send(signal.SIGKILL)
                signals.close()
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)
                for stream in (incoming, read_stream, write_stream, outgoing):
                    stream.close()

    async def _read(
        self, stdout: asyncio.StreamReader, incoming: MemoryObjectSendStream[Incoming]
    ) -> None:
        """Read messages until the end, or until their reader is closed."""
        try:
            async for line in message_lines(stdout, self._max_bytes):
                if isinstance(line, LongLine):
                    await self._skip(line, incoming)
                elif line.strip():
                    await incoming.send(_message_of(line))
        except (anyio.ClosedResourceError, anyio.BrokenResourceError, ConnectionError):
            pass
        finally:
            incoming.close()

    async def _skip(self, line: LongLine, incoming: MemoryObjectSendStream[Incoming]) -> None:
        """Fail the call whose message is too long."""
        what = f"a message is longer than {self._max_bytes} bytes"
        logger.warning("the tool server %s: %s, and is skipped", self._name, what)
        if line.request_id is not None:
            error = ErrorData(code=INTERNAL_ERROR, message=what)
            response = JSONRPCError(jsonrpc="2.0", id=line.request_id, error=error)
            await incoming.send(SessionMessage(response))

    async def _write(
        self,
        process: Process,
        outgoing: MemoryObjectReceiveStream[SessionMessage],
        incoming: MemoryObjectSendStream[Incoming],
    ) -> None:
        """Write messages; if the process does not read, the waiting calls fail."""
        if process.stdin is None:
            raise RuntimeError("the process has no standard input")
        try:
            async for message in outgoing:
                encoded = message.message.model_dump_json(by_alias=True, exclude_unset=True)
                process.stdin.write(encoded.encode() + b"\n")
                await process.stdin.drain()
        except (ConnectionError, anyio.ClosedResourceError):
            incoming.close()

    async def _log(self, stderr: asyncio.StreamReader) -> None:
        """Log what it writes to its standard error, for those who look for a fault."""
        while True:
            try:
                line = await stderr.readline()
            except ValueError:  # a line without an end
                continue
            if not line:
                return
            text = line.decode("utf-8", "replace").strip()[:MAX_LOG_LINE]
            if text:
                self._last_lines.append(text)
                logger.debug("the tool server %s says: %s", self._name, text)


def _reader(stream: asyncio.StreamReader | None) -> asyncio.StreamReader:
    if stream is None:
        raise RuntimeError("the process was started without a pipe")
    return stream


def _message_of(line: bytes) -> Incoming:
    """Return a message, or the error of a line that is none."""
    try:
        return SessionMessage(jsonrpc_message_adapter.validate_json(line, by_name=False))
    except ValueError as error:
        return error


class _Signals:
    """Signals to a process, which are never sent to another one that got its number.

    Its children are killed by its watchdog, as soon as it has ended.
    """

    def __init__(self, process: Process) -> None:
        self._process = process
        self._fd = os.pidfd_open(process.pid)

    async def stop(self) -> None:
        """Let the process exit: by the end of its input, and if that does not help, by signals."""
        if self._process.stdin is not None:
            self._process.stdin.close()
        for number in (signal.SIGTERM, signal.SIGKILL):
            if await self._has_exited(STOP_TIMEOUT_S):
                return
            self.send(number)
        await self._has_exited(STOP_TIMEOUT_S)

    def send(self, number: signal.Signals) -> None:
        """Send a signal; nothing happens if the process has ended."""
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._fd, number)

    def close(self) -> None:
        """Release what is needed for signals."""
        os.close(self._fd)

    async def _has_exited(self, timeout_s: float) -> bool:
        """Wait for the exit; `Process.wait` would also wait for pipes that others may hold."""
        for _ in range(int(timeout_s / _POLL_S)):
            if self._process.returncode is not None:
                return True
            await asyncio.sleep(_POLL_S)
        return self._process.returncode is not None
