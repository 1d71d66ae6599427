"""Files of batches, and a small application that answers their requests."""

import asyncio
import json
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from quire.cli.batch.batch_input import BatchInput
from quire.cli.batch.batch_output import BatchOutput, Existing, batch_id_of
from quire.cli.batch.batch_run import BatchRun

URL = "/v1/echo"
MODEL = "echo"
MAX_LINE_BYTES = 1000


class EchoApp:
    """Answers a body with itself, and does what its fields say.

    `status` is the status of the response, `refused` the number of times that the request is
    refused before, and a body with `stream` gets a stream.

    Args:
        passed: Statuses that are 200 now.

    Attributes:
        bodies: Bodies in the order of their arrival.
        most_running: Largest number of requests that ran at the same time.
    """

    def __init__(self, passed: Collection[int] = ()) -> None:
        self._passed = passed
        self.bodies: list[dict[str, Any]] = []
        self.most_running = 0
        self._num_running = 0
        self._refused: dict[str, int] = {}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        body = await Request(scope, receive, send).json()
        self.bodies.append(body)
        self._num_running += 1
        self.most_running = max(self.most_running, self._num_running)
        await asyncio.sleep(body.get("seconds", 0.0))
        self._num_running -= 1
        await self._response(body)(scope, receive, send)

    def _response(self, body: dict[str, Any]) -> Response:
        name = json.dumps(body, sort_keys=True)
        self._refused[name] = self._refused.get(name, 0) + 1
        if self._refused[name] <= body.get("refused", 0):
            error = {"message": "full", "type": "overloaded", "code": "overloaded"}
            return JSONResponse({"error": error}, 503, {"retry-after": "1"})
        if body.get("events"):
            return StreamingResponse(iter([b"data: 1\n\n"]), media_type="text/event-stream")
        status = body.get("status", 200)
        if status in self._passed:
            status = 200
        if status >= 400:
            error = {"message": "wrong", "type": "invalid_request_error", "code": "invalid_request"}
            return JSONResponse({"error": error}, status)
        return JSONResponse({"echo": body})


def line_of(custom_id: str, **body: Any) -> bytes:
    """Return the line of a request."""
    line = {"custom_id": custom_id, "method": "POST", "url": URL, "body": body}
    return json.dumps(line).encode() + b"\n"


def run_to_end(
    app: ASGIApp,
    source: Path,
    target: Path,
    existing: Existing = Existing.CONTINUE,
    max_concurrency: int = 4,
    check_alive: Any = lambda: None,
    urls: Sequence[str] = (URL,),
) -> list[dict[str, Any]]:
    """Run a batch; return all results that its file has then."""
    requests = BatchInput.open(str(source), MAX_LINE_BYTES)
    checked = requests.check()
    results = BatchOutput.open(str(target), batch_id_of(checked, MODEL), checked, existing)

    async def run() -> None:
        batch = BatchRun(
            app,
            urls,
            requests,
            results,
            max_concurrency=max_concurrency,
            max_body_bytes=MAX_LINE_BYTES - 100,
            check_alive=check_alive,
        )
        await batch.run()

    try:
        asyncio.run(run())
        requests.check_unchanged(checked)
    finally:
        results.close()
        requests.close()
    return read_results(target)


def read_results(target: Path) -> list[dict[str, Any]]:
    """Return the results in a file."""
    return [json.loads(line) for line in target.read_bytes().splitlines()]
