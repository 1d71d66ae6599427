"""Client of a server with OpenAI's routes, for a load generator."""

import asyncio
import ssl
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

import msgspec

from quire.cli.bench.serving.http_connection import BodyReader, HTTPConnection, HTTPReply
from quire.cli.bench.serving.outcome import Outcome
from quire.cli.bench.serving.prompts import LoadRequest
from quire.cli.bench.serving.sse_reader import SSEReader
from quire.errors import BenchmarkError, UsageError

PORTS = {"http": 80, "https": 443}
DETAIL_CHARACTERS = 300


@dataclass(frozen=True, slots=True)
class LoadTarget:
    """Where the requests of a load go, and what all of them have.

    Attributes:
        url: Address of the server, with or without /v1.
        endpoint: `completions` or `chat`.
        model: Name of the model.
        api_key: Key of the requests; None: without.
        fields: More fields of each request.
        timeout_s: Seconds that a request may take.
    """

    url: str
    endpoint: str
    model: str = ""
    api_key: str | None = field(default=None, repr=False)
    fields: Mapping[str, Any] = field(default_factory=dict)
    timeout_s: float = 600.0

    def __post_init__(self) -> None:
        parts = urlsplit(self.url)
        if parts.scheme not in PORTS or not parts.hostname:
            raise UsageError(
                f"{self.url!r} is no address of a server",
                hint="write one such as http://127.0.0.1:8000; see `quire bench serve --help`",
            )

    @property
    def is_chat(self) -> bool:
        """Whether prompts are conversations."""
        return self.endpoint == "chat"

    def body(self, request: LoadRequest) -> bytes:
        """Return the body of a request."""
        own: dict[str, Any] = {"messages" if self.is_chat else "prompt": request.prompt}
        own["max_completion_tokens" if self.is_chat else "max_tokens"] = request.max_tokens
        streamed = {"stream": True, "stream_options": {"include_usage": True}}
        return msgspec.json.encode({"model": self.model} | own | streamed | dict(self.fields))


class LoadClient:
    """Sends requests over connections that are kept open and used again.

    Args:
        target: Where they go.
    """

    def __init__(self, target: LoadTarget) -> None:
        self._target = target
        parts = urlsplit(target.url)
        self._host, self._port = str(parts.hostname), parts.port or PORTS[parts.scheme]
        self._tls = ssl.create_default_context() if parts.scheme == "https" else None
        self._root = parts.path.rstrip("/").removesuffix("/v1")
        key = f"Authorization: Bearer {target.api_key}\r\n" if target.api_key else ""
        self._head = f"Host: {parts.netloc.rpartition('@')[2]}\r\n{key}Accept: */*\r\n"
        self._idle: list[HTTPConnection] = []

    async def complete(self, request: LoadRequest, outcome: Outcome) -> None:
        """Send a request and read its stream; what becomes of it is written to the outcome."""
        path = "/v1/chat/completions" if self._target.is_chat else "/v1/completions"
        message = self._message("POST", path, self._target.body(request))
        reader = SSEReader(outcome)
        outcome.sent_s = time.perf_counter()
        try:
            async with asyncio.timeout(self._target.timeout_s):
                reply = await self._exchange(message, reader)
        except TimeoutError:
            outcome.error = "timeout"
        except OSError as error:
            outcome.error, outcome.detail = "connection", str(error)
        else:
            _judge(reply, reader, outcome)
        if outcome.error or not outcome.end_s:
            outcome.end_s = time.perf_counter()
        if not outcome.is_counted:
            outcome.num_output_tokens = len(outcome.chunks_s)

    async def first_model(self) -> str:
        """Return the name of the first model that the server lists.

        Raises:
            BenchmarkError: There is no server, or it lists no model.
        """
        url = self._target.url
        try:
            async with asyncio.timeout(self._target.timeout_s):
                reply = await self._exchange(self._message("GET", "/v1/models", b""), None)
        except (OSError, TimeoutError) as error:
            reason = str(error) or "it does not respond"
            raise BenchmarkError(f"there is no server at {url}: {reason}") from error
        try:
            return str(msgspec.json.decode(reply.body)["data"][0]["id"])
        except (msgspec.DecodeError, LookupError, TypeError):
            raise BenchmarkError(
                f"{url} lists no model: GET /v1/models was answered with {reply.status} "
                f"{_text(reply.body)!r}; name one with --model"
            ) from None

    def close(self) -> None:
        """Close all connections that no request uses."""
        for connection in self._idle:
            connection.close()
        self._idle.clear()

    def _message(self, method: str, path: str, body: bytes) -> bytes:
        lines = f"{method} {self._root}{path} HTTP/1.1\r\n{self._head}"
        if body:
            lines += f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n"
        return lines.encode() + b"\r\n" + body

    async def _exchange(self, message: bytes, reader: BodyReader | None) -> HTTPReply:
        """Send a message; again over a new connection if the server had closed an idle one."""
        while self._idle:
            connection = self._idle.pop()
            if not connection.is_open:
                continue
            reply = HTTPReply(reader)
            try:
                return await self._over(connection, message, reply)
            except ConnectionError:
                if reply.status:
                    raise
        return await self._over(await self._connect(), message, HTTPReply(reader))

    async def _over(
        self, connection: HTTPConnection, message: bytes, reply: HTTPReply
    ) -> HTTPReply:
        try:
            await connection.exchange(message, reply)
        except BaseException:
            connection.close()
            raise
        if connection.is_open:
            self._idle.append(connection)
        return reply

    async def _connect(self) -> HTTPConnection:
        loop = asyncio.get_running_loop()
        _, connection = await loop.create_connection(
            HTTPConnection, self._host, self._port, ssl=self._tls
        )
        return connection


def _judge(reply: HTTPReply, reader: SSEReader, outcome: Outcome) -> None:
    """Write what is wrong with a complete reply to the outcome."""
    if reply.status != 200:
        outcome.error, outcome.detail = str(reply.status), _text(reply.body)
    elif not outcome.error and not reader.is_done:
        outcome.error = "incomplete stream"


def _text(body: bytes) -> str:
    return body.decode(errors="replace")[:DETAIL_CHARACTERS]
