"""Conformance kit of HTTP routes: responses as declared, refusals, and nothing left behind.

    from quire.testing.http_route import HTTPRouteContract

    class TestSummary(HTTPRouteContract):
        route = Summary
        capabilities = HTTPRouteCapabilities("/acme/summary", generates=True)
        bodies = ({"text": "Once upon a time"}, {"text": "Once", "stream": True})
        refused = ({"text": ""},)

pytest collects the inherited tests. They send requests to quire's own HTTP application, over an
engine with the tiny demo model.
"""

import asyncio
import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, ClassVar

import msgspec
from starlette.types import Message, Scope

from quire.config import ServerSettings, Settings
from quire.frontend.async_frontend import AsyncFrontend
from quire.interfaces.http_route import WITHOUT_BODY, HTTPRoute, HTTPRouteCapabilities
from quire.launch import start_engine
from quire.plugins.kinds import KINDS
from quire.plugins.registry import Entry, Source
from quire.server.app import App, create_app
from quire.server.routes.plugins.loaded_route import LoadedRoute, check_described
from quire.server.wire.families import dialect_of
from quire.testing.expectation import expect
from quire.testing.torch_imports import imports_torch

ADMIN_KEY = "kit-admin-key"
TIMEOUT_S = 60.0


class HTTPRouteContract:
    """Tests that an HTTP route must pass; subclass it and set the route and bodies.

    Attributes:
        route: Route class under test.
        capabilities: Capabilities as registered.
        bodies: Bodies that it accepts, with streams if it streams; ignored without a body.
        refused: Bodies that it refuses beyond what its struct says.
        options: Options of the engine, by name.
    """

    route: ClassVar[type[HTTPRoute]]
    capabilities: ClassVar[HTTPRouteCapabilities]
    bodies: ClassVar[Sequence[Mapping[str, Any]]] = ({},)
    refused: ClassVar[Sequence[Mapping[str, Any]]] = ()
    options: ClassVar[Mapping[str, Any]] = {}

    _frontend: ClassVar[AsyncFrontend]
    _loaded: ClassVar[LoadedRoute]
    _app: ClassVar[App]

    @classmethod
    def setup_class(cls) -> None:
        """Start the engine and the application."""
        engine = start_engine(Settings.from_options({"model": "demo", **cls.options}))
        cls._frontend = engine.async_frontend()
        settings = ServerSettings(admin_key=(ADMIN_KEY,) if cls.capabilities.is_admin else ())
        kind = next(kind for kind in KINDS if kind.name == "routes")
        reference = f"{cls.route.__module__}:{cls.route.__qualname__}"
        source = Source("under_test", "under_test", "0")
        entry = Entry(kind, "under_test", reference, source, capabilities=cls.capabilities)
        cls._loaded = LoadedRoute(entry, cls.route())
        cls._app = create_app(cls._frontend, settings, list, routes=[cls._loaded])

    @classmethod
    def teardown_class(cls) -> None:
        """Stop the engine."""
        asyncio.run(cls._frontend.shutdown())

    def test_responses_are_as_declared(self) -> None:
        """Accepted bodies get status 200, and JSON or events of the declared structs."""
        for body in self.bodies:
            self._check_response(body, asyncio.run(self._ask(body)))

    def test_wrong_bodies_are_refused(self) -> None:
        """Refused bodies get a status from 400 to 499, and an error that says why."""
        for body in self.refused:
            self._check_refusal(body)
        if self.route.body is not None:
            self._check_refusal({**self.bodies[0], "no_such_field": 1})

    def test_requests_at_once_do_not_disturb_each_other(self) -> None:
        """All accepted bodies are sent twice, at the same time."""

        async def all_at_once() -> list[_Client]:
            return await asyncio.gather(*(self._ask(body) for body in [*self.bodies] * 2))

        for body, client in zip([*self.bodies] * 2, asyncio.run(all_at_once()), strict=True):
            self._check_response(body, client)

    def test_a_client_that_leaves_ends_its_completions(self) -> None:
        """A client leaves at once or after the first piece: nothing is generated any more."""
        for body in self.bodies:
            for num_read in (0, 1, 2):
                asyncio.run(self._left(body, num_read))

    def test_it_is_described(self) -> None:
        """The API description has the route, with its structs."""
        check_described([self._loaded])
        path = "/openapi.json"
        client = _Client(b"")
        asyncio.run(self._app(self._scope(path, "GET"), client.receive, client.send))
        expect(client.status == 200, f"{path} got status {client.status}: {client.data!r}")
        described = json.loads(client.data)["paths"][self.capabilities.path]
        expect(self.capabilities.method.lower() in described, f"{path} has {described}")

    def test_it_imports_no_torch(self) -> None:
        """The process that serves HTTP runs without torch."""
        module = self.route.__module__
        expect(not imports_torch(f"import {module}"), f"{module} imports torch")

    def _check_response(self, body: Mapping[str, Any], client: "_Client") -> None:
        expect(client.status == 200, f"{body} got status {client.status}: {client.data!r}")
        media_type = client.headers["content-type"]
        if media_type == "application/json":
            _check_type(client.data, self.route.response)
            return
        stream = dialect_of(self.capabilities.path).stream
        expect(media_type == stream.media_type, f"{body} got content of type {media_type!r}")
        for event in client.events:
            expect("error" not in json.loads(event), f"{body}: the stream broke: {event!r}")
            _check_type(event, self.route.event)

    def _check_refusal(self, body: Mapping[str, Any]) -> None:
        client = asyncio.run(self._ask(body))
        expect(400 <= client.status <= 499, f"{body} got status {client.status}, not a refusal")
        expect("error" in json.loads(client.data), f"{body} got {client.data!r}, not an error")

    async def _left(self, body: Mapping[str, Any], num_read: int) -> None:
        client = _Client(self._encoded(body), num_read=num_read)
        with suppress(TimeoutError):
            await asyncio.wait_for(self._app(self._scope(), client.receive, client.send), TIMEOUT_S)
        left = self._frontend.dispatch.streams()
        expect(not left, f"{body}: {len(left)} completions still run after the client has left")

    async def _ask(self, body: Mapping[str, Any]) -> "_Client":
        client = _Client(self._encoded(body))
        await asyncio.wait_for(self._app(self._scope(), client.receive, client.send), TIMEOUT_S)
        return client

    def _encoded(self, body: Mapping[str, Any]) -> bytes:
        return b"" if self.capabilities.method in WITHOUT_BODY else json.dumps(body).encode()

    def _scope(self, path: str | None = None, method: str | None = None) -> Scope:
        path = path or self.capabilities.path
        headers = [(b"host", b"127.0.0.1:8000"), (b"content-type", b"application/json")]
        if self.capabilities.is_admin:
            headers.append((b"authorization", f"Bearer {ADMIN_KEY}".encode()))
        return {
            "type": "http",
            "http_version": "1.1",
            "method": method or self.capabilities.method,
            "scheme": "http",
            "path": path,
            "raw_path": path.encode(),
            "query_string": b"",
            "headers": headers,
            "server": ("127.0.0.1", 8000),
            "client": ("127.0.0.1", 50000),
        }


def _check_type(data: bytes, struct: type[msgspec.Struct] | None) -> None:
    if struct is None:
        return
    try:
        msgspec.json.decode(data, type=struct)
    except msgspec.MsgspecError as error:
        raise AssertionError(f"{data!r} is not a {struct.__name__}: {error}") from None


@dataclass
class _Client:
    """The client's end of a connection; it leaves after a number of messages, if one is set."""

    body: bytes
    num_read: int | None = None
    messages: list[Message] = field(default_factory=list)
    gone: asyncio.Event = field(default_factory=asyncio.Event)
    has_sent: bool = False

    async def receive(self) -> Message:
        if not self.has_sent:
            self.has_sent = True
            self._leave_if_done()
            return {"type": "http.request", "body": self.body, "more_body": False}
        await self.gone.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: Message) -> None:
        self.messages.append(message)
        self._leave_if_done()

    def _leave_if_done(self) -> None:
        if self.num_read is not None and len(self.messages) >= self.num_read:
            self.gone.set()

    @property
    def status(self) -> int:
        return int(self.messages[0]["status"])

    @property
    def headers(self) -> dict[str, str]:
        return {name.decode(): value.decode() for name, value in self.messages[0]["headers"]}

    @property
    def data(self) -> bytes:
        return b"".join(message.get("body", b"") for message in self.messages)

    @property
    def events(self) -> list[bytes]:
        """JSON texts of a stream."""
        lines = (line.removeprefix(b"data: ") for line in self.data.splitlines())
        return [line for line in lines if line.startswith((b"{", b"[", b'"')) and line != b"[DONE]"]
