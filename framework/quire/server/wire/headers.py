"""Headers of a request, as ASGI has them."""

from starlette.types import Scope


def header_values(scope: Scope, name: bytes) -> list[str]:
    """Return the values of all headers of a name; in ASGI names are in small letters."""
    found = []
    for key, value in scope["headers"]:  # in a loop: most requests call this several times
        if key == name:
            found.append(value.decode("latin-1"))
    return found
