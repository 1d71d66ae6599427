"""The id of an HTTP request: the client's, if it is plain, else a new one.

It is for logs, traces and the header of the response. Nothing is looked up by it: the engine's ids
are made by the server, so any number of requests may have the same one.
"""

import re

from starlette.types import Scope

from quire.frontend.random_bytes import random_bytes
from quire.server.wire.headers import header_values

MAX_LENGTH = 128
_PLAIN = re.compile(rf"[!-~]{{1,{MAX_LENGTH}}}")  # printable ASCII, no blank


def request_id_of(scope: Scope) -> str:
    """Return the `X-Request-Id` that a client sent once and plainly, else a new id."""
    given = header_values(scope, b"x-request-id")
    if len(given) == 1 and _PLAIN.fullmatch(given[0]):
        return given[0]
    return f"req-{random_bytes.hex(12)}"
