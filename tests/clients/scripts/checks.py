"""Checks of a client, run one after the other; each is reported on a line of JSON.

A script imports this module, decorates its functions with `check`, and ends with `run`. It runs in
the environment of its client, which has neither quire nor pytest.
"""

import json
import sys
import traceback
import urllib.request
from collections.abc import Callable
from contextlib import contextmanager
from importlib.metadata import version

Check = Callable[[str], None]

CHECKS: list[tuple[Check, str]] = []  # with the route that each needs beside those of today
MODEL = "demo"
QUESTION = "What is quire?"
MESSAGES = [{"role": "user", "content": QUESTION}]
SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 12}, "is_city": {"type": "boolean"}},
    "required": ["name", "is_city"],
    "additionalProperties": False,
}
PARAMETERS = {
    "type": "object",
    "properties": {"city": {"type": "string", "maxLength": 12}},
    "required": ["city"],
    "additionalProperties": False,
}
FUNCTION = {
    "name": "get_weather",
    "description": "The weather in a city",
    "parameters": PARAMETERS,
}
TOOL = {"type": "function", "function": FUNCTION}


def check(function: Check) -> Check:
    """Add a check, which gets the address of the server."""
    CHECKS.append((function, ""))
    return function


def check_of(route: str) -> Callable[[Check], Check]:
    """Add a check of a route that a server may not have."""

    def add(function: Check) -> Check:
        CHECKS.append((function, route))
        return function

    return add


def run(package: str, route: str = "") -> None:
    """Run all checks of a script, and print how each ended.

    Args:
        package: Distribution whose version is printed.
        route: Route that all of them need.
    """
    url = sys.argv[1]
    print(json.dumps({"package": package, "version": version(package)}), flush=True)
    with urllib.request.urlopen(f"{url}/openapi.json", timeout=60) as response:
        routes = {"", *json.load(response)["paths"]}
    for function, own_route in CHECKS:
        needed = own_route or route
        ended: dict[str, str | None] = {"check": function.__name__, "failure": None}
        if needed not in routes:
            ended["missing"] = needed
        else:
            try:
                function(url)
            except Exception:  # noqa: BLE001 - the other checks are made
                ended["failure"] = traceback.format_exc(limit=-6)
        print(json.dumps(ended), flush=True)


@contextmanager
def raises(kind: type[BaseException]):
    """Expect an error; return what was raised."""
    found: list[BaseException] = []
    try:
        yield found
    except kind as error:
        found.append(error)
        return
    raise AssertionError(f"{kind.__name__} was not raised")


def check_place(text: str) -> None:
    """Check that a text follows `SCHEMA`."""
    place = json.loads(text)
    assert set(place) == {"name", "is_city"}, place
    assert isinstance(place["is_city"], bool), place


def check_city(arguments: str | dict) -> None:
    """Check that the arguments of a call follow `PARAMETERS`."""
    found = json.loads(arguments) if isinstance(arguments, str) else arguments
    assert set(found) == {"city"}, found
    assert isinstance(found["city"], str), found
