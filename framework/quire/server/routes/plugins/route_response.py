"""The response of a plugin's route: in full or as a stream, with all of the plugin's failures.

The plugin runs while its client is connected and its time lasts. What it raises beside a
`RequestError` is logged with its name, and ends this request only.
"""

import asyncio
import math
import re
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from typing import Any, TypeVar

import msgspec
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from quire.errors import EngineDeadError, RequestError, RequestTimeoutError
from quire.frontend.intake.time_limit import TimeLimit
from quire.frontend.plugin_failure import plugin_failure
from quire.interfaces.http_route import RouteRefusedError
from quire.server.http.disconnect import run_while_connected
from quire.server.http.event_stream import EventStream
from quire.server.http.json_response import json_of
from quire.server.routes.plugins.loaded_route import LoadedRoute
from quire.server.routes.plugins.route_call import RouteCall
from quire.server.wire.http_errors import HTTPError

T = TypeVar("T")

END = object()  # in place of an event, after the last one
LINE_BREAK = re.compile(rb"[\r\n]")


class RouteResponse(Response):
    """Calls a route, and sends what it returns.

    Args:
        loaded: The route.
        call: The request as the route gets it.
        limit: Time limit of the request.
    """

    def __init__(self, loaded: LoadedRoute, call: RouteCall, limit: TimeLimit) -> None:
        # `Response.__init__` would make an empty body, and headers for it.
        self.status_code = 200
        self.background = None
        self._loaded = loaded
        self._call = call
        self._limit = limit

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Call the route and send its response."""
        try:
            response = await run_while_connected(self._response(), receive, scope)
            await response(scope, receive, send)
        finally:
            await self._call.aclose()

    async def _response(self) -> Response:
        reply = await self._run(lambda: self._loaded.route.respond(self._call))
        if isinstance(reply, AsyncIterator):
            return EventStream(self._events(reply), self._call.request_id)
        return Response(self._json(reply), media_type="application/json")

    async def _events(self, events: AsyncIterator[Any]) -> AsyncGenerator[bytes]:
        try:
            while (event := await self._run(lambda: anext(events, END))) is not END:
                yield self._json(event)
        finally:
            if isinstance(events, AsyncGenerator):
                await self._close(events)

    async def _close(self, events: AsyncGenerator[Any]) -> None:
        try:
            await events.aclose()
        except BaseException as error:  # the edge of a plugin
            if _is_of_host(error, asyncio.current_task()):
                raise
            self._failure(error)  # the log has it; the response has ended already

    async def _run(self, step: Callable[[], Awaitable[T]]) -> T:
        """Run a step of the plugin's code.

        Raises:
            RequestError: The plugin refuses the request or failed, or its time has passed.
            EngineDeadError: The engine stopped.
        """
        left_s, task = self._limit.left_s, asyncio.current_task()
        try:
            async with asyncio.timeout(None if left_s == math.inf else left_s) as timeout:
                return await step()
        except RouteRefusedError as error:
            refusal = HTTPError(error.status, str(error), code=error.name, param=error.param)
            raise refusal from error
        except (RequestError, EngineDeadError):
            raise
        except TimeoutError as error:
            if not timeout.expired():
                raise self._failure(error) from error
            raise RequestTimeoutError(
                f"the {self._loaded} did not finish within the request_timeout_s here"
            ) from None
        except BaseException as error:
            if _is_of_host(error, task):
                raise
            raise self._failure(error) from error

    def _json(self, value: Any) -> bytes:
        """Return a value as JSON in one line, as an event must be; raw JSON may have several."""
        try:
            data = json_of(value)
            return msgspec.json.format(data, indent=-1) if LINE_BREAK.search(data) else data
        except Exception as error:
            raise self._failure(error) from error

    def _failure(self, error: BaseException) -> RequestError:
        return plugin_failure(error, f"the {self._loaded}", "on a request")


def _is_of_host(error: BaseException, task: asyncio.Task[Any] | None) -> bool:
    """Whether an error ends the task that runs the plugin, and was not raised by the plugin.

    Args:
        error: Error that came out of the plugin's code.
        task: Task that runs it.
    """
    if isinstance(error, asyncio.CancelledError):
        return task is not None and task.cancelling() > 0
    if isinstance(error, GeneratorExit):  # a task that is dropped is closed by another one, or none
        return task is None or asyncio.current_task(task.get_loop()) is not task
    return isinstance(error, KeyboardInterrupt)
