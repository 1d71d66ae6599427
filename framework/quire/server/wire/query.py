"""Typed parameters of a URL's query."""

from functools import cache
from typing import Any, TypeVar, get_args, get_type_hints

import msgspec
from starlette.requests import Request

from quire.frontend.typed_value import convert

S = TypeVar("S", bound=msgspec.Struct)


def read_query(request: Request, kind: type[S]) -> S:
    """Return the parameters that a struct declares; others have no effect.

    A list is a parameter that is given several times, as `name` or, as some clients do, `name[]`.

    Args:
        request: HTTP request.
        kind: Struct of the parameters.

    Raises:
        InvalidRequestError: One has a wrong value; `param` is its name.
    """
    given, lists = request.query_params, _lists(kind)
    names = kind.__struct_fields__
    found: dict[str, Any] = {name: given[name] for name in names if name in given}
    for name in lists:
        if texts := [*given.getlist(name), *given.getlist(f"{name}[]")]:
            found[name] = texts
    return convert(found, kind, is_text=True)


@cache
def _lists(kind: type[msgspec.Struct]) -> tuple[str, ...]:
    """Return the parameters that are lists of texts."""
    hints = get_type_hints(kind)
    return tuple(name for name, hint in hints.items() if list[str] in get_args(hint))
