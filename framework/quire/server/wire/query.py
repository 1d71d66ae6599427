"""Typed parameters of a URL's query."""

from typing import TypeVar

import msgspec
from starlette.requests import Request

from quire.server.wire.bodies import convert

S = TypeVar("S", bound=msgspec.Struct)


def read_query(request: Request, kind: type[S]) -> S:
    """Return the parameters that a struct declares; others have no effect.

    Args:
        request: HTTP request.
        kind: Struct of the parameters.

    Raises:
        InvalidRequestError: One has a wrong value; `param` is its name.
    """
    names, given = kind.__struct_fields__, request.query_params
    return convert({name: given[name] for name in names if name in given}, kind, is_text=True)
