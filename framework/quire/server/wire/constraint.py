"""The structured-output constraint of a request: `response_format`, or `structured_outputs`."""

from typing import Any

from quire.errors import InvalidRequestError
from quire.sampling_params import StructuredOutputsParams
from quire.server.wire.bodies import convert
from quire.server.wire.fields import check_known
from quire.server.wire.protocol import SamplingBody


def constraint_of(
    body: SamplingBody, forced_call: StructuredOutputsParams | None = None
) -> StructuredOutputsParams | None:
    """Return the one constraint of a request; None if its response format is plain text.

    Args:
        body: Body of the request.
        forced_call: Constraint that forces a tool call.

    Raises:
        InvalidRequestError: A constraint is invalid, or there are several.
    """
    response_format = body.response_format
    constraints = (
        None if response_format is None else response_constraint(response_format),
        None if body.structured_outputs is None else _structured(body.structured_outputs),
        forced_call,
    )
    given = [constraint for constraint in constraints if constraint is not None]
    if len(given) > 1:
        raise InvalidRequestError(
            "response_format, structured_outputs and a forced tool call exclude each other; "
            "send one of them",
            param="response_format",
        )
    return given[0] if given else None


def response_constraint(response_format: dict[str, Any]) -> StructuredOutputsParams | None:
    """Return the constraint that OpenAI's `response_format` describes; None for plain text.

    Raises:
        InvalidRequestError: Its type is not text, json_object or json_schema, or has no schema.
    """
    match response_format.get("type"):
        case "text":
            return None
        case "json_object":
            return StructuredOutputsParams(json_object=True)
        case "json_schema":
            return StructuredOutputsParams(json=_schema(response_format))
        case other:
            raise InvalidRequestError(
                "response_format.type must be text, json_object or json_schema, "
                f"got {other!r:.100}",
                param="response_format.type",
            )


def _structured(given: dict[str, Any]) -> StructuredOutputsParams:
    check_known(given, StructuredOutputsParams, "structured_outputs")
    return convert(given, StructuredOutputsParams, "structured_outputs")


def _schema(response_format: dict[str, Any]) -> dict[str, Any]:
    wrapper = convert(
        response_format.get("json_schema"), dict[str, Any], "response_format.json_schema"
    )
    if "schema" not in wrapper:
        raise InvalidRequestError(
            "response_format.json_schema has no field schema",
            param="response_format.json_schema.schema",
        )
    return convert(wrapper["schema"], dict[str, Any], "response_format.json_schema.schema")
