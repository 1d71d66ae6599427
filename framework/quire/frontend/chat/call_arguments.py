"""Reading of a call's arguments, which are JSON text."""

import json
from typing import Any


def arguments_object(text: str) -> dict[str, Any] | None:
    """Return the arguments of a call; None if they are no JSON object.

    Whole numbers become floats: Python limits the digits of an integer, and JSON does not. So this
    is for looking at arguments, and their text is what is passed on.
    """
    try:
        found = json.loads(text, parse_int=float)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None
