"""Parameters of a URL's query, with their types."""

from starlette.requests import Request

from quire.errors import InvalidRequestError


def flag_of(request: Request, name: str) -> bool:
    """Return a parameter that is true or false, by default false.

    Raises:
        InvalidRequestError: It is something else.
    """
    return choice_of(request, name, ("false", "true")) == "true"


def choice_of(request: Request, name: str, choices: tuple[str, ...]) -> str:
    """Return a parameter that is one of several words, by default the first.

    Raises:
        InvalidRequestError: It is none of them.
    """
    given = request.query_params.get(name, choices[0])
    if given not in choices:
        raise InvalidRequestError(
            f"{name} must be {' or '.join(choices)}, got {given!r:.80}", param=name
        )
    return given


def number_of(request: Request, name: str, most: int = 2**53) -> int | None:
    """Return a parameter that is a whole number from 0 on; None if it is absent.

    Raises:
        InvalidRequestError: It is something else, or more than `most`.
    """
    given = request.query_params.get(name)
    if given is None:
        return None
    if not (given.isascii() and given.isdecimal()) or len(given) > 16 or int(given) > most:
        raise InvalidRequestError(
            f"{name} must be a whole number from 0 to {most}, got {given!r:.80}", param=name
        )
    return int(given)
