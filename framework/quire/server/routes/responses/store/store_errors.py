"""Errors of stored responses."""

from quire.server.routes.responses.store.stored_response import StoredResponse
from quire.server.wire.http_errors import HTTPError
from quire.server.wire.retry_after import retry_headers


def no_response(response_id: str, param: str | None = None) -> HTTPError:
    """Return the error of a response that is not stored, with the status and code of OpenAI's."""
    return HTTPError(
        404 if param is None else 400,
        f"there is no response {response_id!r:.140}; it was not stored, is too old or was deleted, "
        "or made room for others",
        code="response_not_found" if param is None else "previous_response_not_found",
        param=param,
    )


def id_is_taken(response: StoredResponse) -> HTTPError:
    """Return the error of a request whose response would have the id of a stored one."""
    state = "being generated" if response.is_running else "stored"
    return HTTPError(
        409,
        f"the response {response.id!r:.140} is {state}; send another request_id, or delete it",
        code="response_in_progress" if response.is_running else "response_exists",
        param="request_id",
    )


def input_too_large(max_bytes: int) -> HTTPError:
    """Return the error of a response in the background that can never be stored."""
    return HTTPError(
        413,
        "the request, with what it continues, is larger than all stored responses may be "
        f"({max_bytes} bytes, --responses-store-max-bytes); leave out background",
        code="response_too_large",
        param="background",
    )


def store_is_full(num_running: int, num_bytes: int) -> HTTPError:
    """Return the error of a response in the background that cannot be stored at present."""
    return HTTPError(
        429,
        f"{num_running} responses of {num_bytes} bytes are generated in the background, and the "
        "server stores no more of this key at present (--responses-store-max, "
        "--responses-store-max-bytes); try again later",
        code="rate_limit_exceeded",
        headers=retry_headers(),
    )


def too_many_events(max_bytes: int) -> HTTPError:
    """Return the error of a response in the background whose events have no room any more."""
    return HTTPError(
        503,
        "the events of responses in the background take all the room that they may take "
        f"({max_bytes} bytes, --responses-store-max-bytes); leave out stream or background",
        code="response_too_large",
    )


def output_too_large(max_bytes: int) -> HTTPError:
    """Return the error of a response in the background whose output has no room at its end."""
    return HTTPError(
        503,
        "the response is too large to be stored beside those that are generated "
        f"({max_bytes} bytes, --responses-store-max-bytes); leave out background",
        code="response_too_large",
    )
