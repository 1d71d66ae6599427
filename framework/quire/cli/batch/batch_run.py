"""The requests of a batch as calls of the server's application, a bounded number at a time.

A request that is refused because there is no room for it, as one with hundreds of prompts may be,
is sent again until there is, or until it is refused although nothing else runs. If the engine dies,
the run ends, and what it was computing has no result.
"""

import asyncio
from collections.abc import AsyncGenerator, Callable, Collection
from contextlib import aclosing
from dataclasses import dataclass

import msgspec
from starlette.types import ASGIApp

from quire.cli.batch.batch_input import BatchInput, InputLine
from quire.cli.batch.batch_lines import (
    INVALID_LINE,
    NO_JSON,
    SERVER_ERROR,
    BatchFault,
    BatchRequest,
    BatchResponse,
    BatchResult,
    LineError,
    fault_of,
    read_request,
)
from quire.cli.batch.batch_output import BatchOutput
from quire.server.asgi_call import HTTPCall, ResponseStart, respond

CLIENT = "batch"  # of all requests, for fair shares
HEADERS = [(b"content-type", b"application/json")]
UNAVAILABLE, ERROR = 503, 400
RETRY_S = 0.5
ALONE_TRIES = 3  # of a request that is refused although nothing else runs


@dataclass(frozen=True, slots=True)
class WholeReply:
    """A whole response of the application."""

    start: ResponseStart
    body: bytes

    @property
    def is_json(self) -> bool:
        """Whether the body is JSON."""
        return b"application/json" in (self._header(b"content-type") or b"")

    @property
    def is_refusal(self) -> bool:
        """Whether the request was refused, and may be sent again."""
        return self.start.status == UNAVAILABLE and self._header(b"retry-after") is not None

    def _header(self, name: bytes) -> bytes | None:
        return next((value for key, value in self.start.headers if key.lower() == name), None)


class BatchRun:
    """The requests of a batch that have no result yet.

    Args:
        app: Application of the server, without a guard.
        urls: Paths of the routes that a request may name.
        requests: File of requests.
        results: File of results.
        max_concurrency: Number of requests that run at a time.
        max_body_bytes: Largest size of a body.
        check_alive: Function that raises an error if the engine is dead.
    """

    def __init__(
        self,
        app: ASGIApp,
        urls: Collection[str],
        requests: BatchInput,
        results: BatchOutput,
        *,
        max_concurrency: int,
        max_body_bytes: int,
        check_alive: Callable[[], None],
    ) -> None:
        self._app = app
        self._urls = urls
        self._lines = requests.lines()
        self._results = results
        self._max_concurrency = max_concurrency
        self._max_body_bytes = max_body_bytes
        self._check_alive = check_alive
        self._refused = asyncio.Lock()  # one of the refused requests at a time is sent again
        self._num_running = 0
        self._is_stopping = False

    async def run(self) -> None:
        """Compute what has no result yet, until all have one or the run is stopped.

        Raises:
            EngineDeadError: The engine died.
            OSError: The results cannot be written.
        """
        workers = [asyncio.create_task(self._work()) for _ in range(self._max_concurrency)]
        try:
            await asyncio.gather(*workers)
        finally:
            for worker in workers:
                worker.cancel()
            await asyncio.gather(*workers, return_exceptions=True)

    def stop(self) -> None:
        """Begin no more requests; those that run come to their end."""
        self._is_stopping = True

    async def _work(self) -> None:
        """Compute one line after the other; all workers take them from the same file."""
        while (line := self._next()) is not None:
            result = await self._result(line)
            self._results.append(line.number, result)

    def _next(self) -> InputLine | None:
        if self._is_stopping:
            return None
        return next((line for line in self._lines if not self._results.has(line.number)), None)

    async def _result(self, line: InputLine) -> BatchResult:
        """Compute a line; what is no request has an error in place of a response."""
        result_id = self._results.id_of(line.number)
        try:
            request = self._read(line)
        except LineError as error:
            await asyncio.sleep(0)  # a file of such lines must not keep the loop from signals
            fault = BatchFault(INVALID_LINE, f"line {line.number}: {error}")
            return BatchResult(id=result_id, custom_id=error.custom_id, error=fault)
        reply = await self._reply(request, result_id)
        return _result_of(reply, request, result_id)

    def _read(self, line: InputLine) -> BatchRequest:
        """Read a line as a request.

        Raises:
            LineError: It is none, or is too long.
        """
        if line.data is None:
            raise LineError(self._too_large, None)
        request = read_request(line.data, self._urls)
        if len(request.body) > self._max_body_bytes:
            raise LineError(self._too_large, request.custom_id)
        return request

    @property
    def _too_large(self) -> str:
        return f"a body may have {self._max_body_bytes} bytes (--max-body-bytes)"

    async def _reply(self, request: BatchRequest, result_id: str) -> WholeReply:
        """Send a request, again if there was no room for it."""
        reply = await self._call(request, result_id)
        if not reply.is_refusal:
            return reply
        async with self._refused:
            num_alone = 0
            while reply.is_refusal and num_alone < ALONE_TRIES:
                num_alone += self._num_running == 0
                await asyncio.sleep(RETRY_S)
                reply = await self._call(request, result_id)
        return reply

    async def _call(self, request: BatchRequest, result_id: str) -> WholeReply:
        self._num_running += 1
        try:
            call = HTTPCall("POST", request.url, b"", HEADERS, request.body, result_id, CLIENT)
            async with aclosing(respond(self._app, call)) as items:
                reply = await _received(items)
        finally:
            self._num_running -= 1
        if reply.start.status >= SERVER_ERROR:
            self._check_alive()
        return reply


async def _received(items: AsyncGenerator[bytes]) -> WholeReply:
    """Receive a response; of one that is no JSON only the start, as it may be a stream."""
    start = msgspec.msgpack.decode(await anext(items), type=ResponseStart)
    reply = WholeReply(start, b"")
    if not reply.is_json:
        return reply
    return WholeReply(start, b"".join([piece async for piece in items]))


def _result_of(reply: WholeReply, request: BatchRequest, result_id: str) -> BatchResult:
    status = reply.start.status
    result = BatchResult(id=result_id, custom_id=request.custom_id)
    if not reply.is_json:
        message = "the response is no JSON object; a request of a batch must not ask for a stream"
        result.error = BatchFault(NO_JSON, message)
        return result
    result.response = BatchResponse(status, result_id, msgspec.Raw(_one_line(reply.body)))
    if status >= ERROR:
        result.error = fault_of(reply.body, status)
    return result


def _one_line(body: bytes) -> bytes:
    """Return JSON text without line breaks, which a plugin's route may write."""
    return body if b"\n" not in body else msgspec.json.encode(msgspec.json.decode(body))
