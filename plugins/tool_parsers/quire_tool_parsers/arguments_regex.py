"""A tool's parameters as a regex; what a regex cannot say is left to the tool to check.

`outlines_core` writes the regex. Keywords that it does not know (such as `minimum`) only make the
regex wider, and a schema that it cannot write at all becomes: any JSON object, nested as deep as
`outlines_core` unrolls one.
"""

import json
from collections.abc import Mapping
from typing import Any

from outlines_core.json_schema import build_regex_from_schema

NO_ARGUMENTS = r"\{\}"
ANY_OBJECT: dict[str, Any] = {"type": "object"}


def arguments_regex(parameters: Mapping[str, Any] | None) -> str:
    """Return a regex for the arguments of a call, one JSON object.

    Args:
        parameters: The tool's JSON schema; None means that it takes no arguments.
    """
    if parameters is None:
        return NO_ARGUMENTS
    schema = dict(parameters) | ANY_OBJECT
    try:
        return _regex(schema)
    except (ValueError, TypeError, RecursionError):
        return _regex(ANY_OBJECT)


def _regex(schema: dict[str, Any]) -> str:
    return str(build_regex_from_schema(json.dumps(schema)))
