"""Answers are msgspec structs, encoded once, without a detour."""

from typing import Any

import msgspec
from starlette.responses import Response


def json_response(body: Any, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    """Return a struct, or plain data, as a JSON response."""
    return Response(msgspec.json.encode(body), status, headers, media_type="application/json")
