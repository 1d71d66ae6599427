"""Strict decoding of JSON request bodies to typed structs; errors name the wrong field."""

import asyncio
from typing import Any, Generic, TypeVar

import msgspec
from starlette.requests import ClientDisconnect, Request
from starlette.types import Receive, Scope

from quire.errors import InvalidRequestError
from quire.frontend.typed_value import convert
from quire.server.wire.families import dialect_of
from quire.server.wire.headers import header_values
from quire.server.wire.http_errors import HTTPError
from quire.server.wire.undeclared_fields import Undeclared, take_undeclared

S = TypeVar("S", bound=msgspec.Struct)

MAX_DEPTH = 64
MAX_BRACKETS = 100_000  # each may open an object; creating millions blocks every thread
BODY_TIMEOUT_S = 60.0
OF_PAGES = (b"origin", b"sec-fetch-site")  # headers of requests that a browser sends for a page
LARGE_BYTES = 32 * 1024  # bodies from this size on are processed in a thread


class Body(msgspec.Struct, Generic[S], frozen=True):
    """A request body.

    Attributes:
        typed: Body as its struct.
        undeclared: Fields that the struct does not declare.
        num_bytes: Size of the JSON text.
        undeclared_of_objects: The same of objects within it that have structs of their own.
    """

    typed: S
    undeclared: dict[str, Any]
    num_bytes: int
    undeclared_of_objects: tuple[Undeclared, ...] = ()

    @property
    def is_large(self) -> bool:
        """Whether work that is linear in the size of the body is done in a thread."""
        return self.num_bytes >= LARGE_BYTES


async def read_body(request: Request, kind: type[S], *, is_received: bool = False) -> Body[S]:
    """Read and decode a request's JSON body.

    Args:
        request: HTTP request.
        kind: Struct of the body.
        is_received: Whether the whole body is there already, so that it needs no timeout.

    Raises:
        HTTPError: The content type is not JSON, or the body arrives too slowly.
        InvalidRequestError: The body is not JSON, or a field has the wrong type.
    """
    check_content_type(request.scope)
    receive = request.receive
    data = await (_received(receive) if is_received else _received_in_time(receive))
    if len(data) < LARGE_BYTES:
        return decode(data, kind)
    return await asyncio.to_thread(decode, data, kind)


async def _received_in_time(receive: Receive) -> bytes:
    try:
        async with asyncio.timeout(BODY_TIMEOUT_S):
            return await _received(receive)
    except TimeoutError:
        raise HTTPError(408, "the body did not arrive in time", code="timeout") from None


async def _received(receive: Receive) -> bytes:
    """Return the whole body; nearly all bodies are one message."""
    pieces: list[bytes] = []
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientDisconnect
        pieces.append(message.get("body", b""))
        if not message.get("more_body", False):
            return b"".join(pieces)


def check_content_type(scope: Scope) -> None:
    """Check for uncompressed JSON, which browsers send across origins only after a preflight.

    Some routes take any content type from what is no browser: browsers of the last years say for
    which page they send a POST.

    Raises:
        HTTPError: The headers declare something else.
    """
    given = header_values(scope, b"content-type")
    kind = given[0].partition(";")[0].strip().lower() if given else ""
    if kind != "application/json" and not _takes_any(scope):
        message = f"the content type must be application/json, got {kind[:100] or 'none'!r}"
        raise HTTPError(415, message, code="unsupported_media_type")
    if any(value.lower() != "identity" for value in header_values(scope, b"content-encoding")):
        message = "compressed bodies are not supported; send the JSON uncompressed"
        raise HTTPError(415, message, code="unsupported_media_type")


def _takes_any(scope: Scope) -> bool:
    is_of_page = any(header_values(scope, name) for name in OF_PAGES)
    return dialect_of(scope["path"]).takes_any_content_type and not is_of_page


def decode(data: bytes, kind: type[S]) -> Body[S]:
    """Decode a JSON object.

    Raises:
        InvalidRequestError: The body is not JSON, or a field has the wrong type.
    """
    num_brackets = data.count(b"[") + data.count(b"{")
    if num_brackets > MAX_BRACKETS:
        raise InvalidRequestError(f"the body has more than {MAX_BRACKETS} opening brackets")
    try:
        typed = msgspec.json.decode(data, type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return _split(data, kind)  # it has other fields, or an error that is described there
    if num_brackets > MAX_DEPTH:
        check_depth(typed)
    return Body(typed, {}, len(data))


def _split(data: bytes, kind: type[S]) -> Body[S]:
    """Decode a JSON object, and take out the fields that its struct does not declare."""
    try:
        raw = msgspec.json.decode(data)
    except msgspec.MsgspecError as error:
        raise InvalidRequestError(f"the body is not valid JSON: {error}") from None
    except UnicodeDecodeError:
        raise InvalidRequestError("the body is not valid JSON: it is not UTF-8") from None
    except RecursionError:
        raise _too_deep() from None
    if not isinstance(raw, dict):
        raise InvalidRequestError("the body must be a JSON object")
    check_depth(raw)
    of_objects = tuple(take_undeclared(raw, kind))
    undeclared = next((each.given for each in of_objects if not each.where), {})
    return Body(
        convert(raw, kind),
        undeclared,
        len(data),
        undeclared_of_objects=tuple(each for each in of_objects if each.where),
    )


def check_depth(value: Any) -> None:
    """Check the nesting, without recursion; templates and schemas walk the value recursively.

    Raises:
        InvalidRequestError: The value is nested deeper than `MAX_DEPTH`.
    """
    level: list[Any] = [value]
    for _ in range(MAX_DEPTH):
        level = [child for parent in level for child in _children(parent)]
        if not level:
            return
    raise _too_deep()


def _children(value: Any) -> list[Any]:
    if isinstance(value, msgspec.Struct):
        value = msgspec.structs.astuple(value)
    items = value.values() if isinstance(value, dict) else value
    return [item for item in items if isinstance(item, dict | list | msgspec.Struct)]


def _too_deep() -> InvalidRequestError:
    return InvalidRequestError(f"the body is nested deeper than {MAX_DEPTH} levels")
