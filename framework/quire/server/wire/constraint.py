"""The structured-output constraint of a request: `response_format`, or `structured_outputs`."""

from typing import Any

from quire.errors import InvalidRequestError
from quire.frontend.chat.tools.tool_choice import exclusive_constraints
from quire.frontend.typed_value import convert
from quire.frontend.unknown_fields import UnknownFields
from quire.output_types import plain_choice
from quire.sampling_params import StructuredOutputsParams
from quire.server.wire.protocol import SamplingBody

_BLANKS = "the backend decides which blanks JSON may have; leave it out, or send a regex"
_FORMATS: dict[object, tuple[str, ...]] = {  # type of a response format -> its other fields
    "text": (),
    "json_object": (),
    "json_schema": ("json_schema",),
    "structural_tag": ("format", "structures", "triggers"),
}
_SCHEMA_FIELDS: dict[str, Any] = {  # beside the schema; an answer follows it, strict or not
    "name": str | None,
    "description": str | None,
    "strict": bool | None,
}
_FIELDS = tuple(name for name in StructuredOutputsParams.__struct_fields__ if name != "calls")
_REFUSED: dict[str, tuple[Any, str]] = {  # field of vLLM -> its type, and the way out
    "whitespace_pattern": (str, _BLANKS),
    "disable_any_whitespace": (bool, _BLANKS),
    "disable_additional_properties": (
        bool,
        "write additionalProperties: false into the schema, wherever it is meant",
    ),
    "disable_fallback": (
        bool,
        "name the backend: a request that names one is never given to another",
    ),
}


def constraint_of(
    body: SamplingBody, unknown: UnknownFields, forced_call: StructuredOutputsParams | None = None
) -> StructuredOutputsParams | None:
    """Return the one constraint of a request; None if its response format is plain text.

    A completion that must consist of tool calls has no text to which its response format applies.

    Args:
        body: Body of the request.
        unknown: What happens to fields that do not exist.
        forced_call: Constraint that forces a tool call.

    Raises:
        InvalidRequestError: A constraint is invalid, or there are several.
    """
    response_format = body.response_format
    of_text = None if response_format is None else response_constraint(response_format, unknown)
    constraints = (
        of_text if forced_call is None else None,
        None if body.structured_outputs is None else _structured(body.structured_outputs, unknown),
        forced_call,
    )
    given = [constraint for constraint in constraints if constraint is not None]
    if len(given) > 1:
        other = "response_format" if forced_call is None else "a forced tool call"
        raise exclusive_constraints(other)
    return given[0] if given else None


def response_constraint(
    response_format: dict[str, Any], unknown: UnknownFields
) -> StructuredOutputsParams | None:
    """Return the constraint that a `response_format` describes; None for plain text.

    Raises:
        InvalidRequestError: Its type or one of its fields is unknown, or it has no schema.
    """
    given = _without_nulls(response_format)
    kind = given.get("type")
    if not isinstance(kind, str) or kind not in _FORMATS:
        raise InvalidRequestError(
            f"response_format.type must be one of {', '.join(map(str, _FORMATS))}; "
            f"got {kind!r:.100}",
            param="response_format.type",
        )
    given = _known_fields(given, kind, unknown)
    match kind:
        case "json_object":
            return StructuredOutputsParams(json_object=True)
        case "json_schema":
            return StructuredOutputsParams(json=_schema(given.get("json_schema"), unknown))
        case "structural_tag":
            return StructuredOutputsParams(structural_tag=given)
        case _:
            return None


def _known_fields(given: dict[str, Any], kind: str, unknown: UnknownFields) -> dict[str, Any]:
    """Return the fields of a response format that its type has, and refuse those of other types."""
    known = ("type", *_FORMATS[kind])
    for name in given:
        owner = next((other for other, names in _FORMATS.items() if name in names), None)
        if name not in known and (name == "schema" or owner is not None):
            way_out = '{"type": "json_schema", "json_schema": {"schema": ...}} follows a schema'
            raise InvalidRequestError(
                f"response_format of type {kind} has no field {name}; "
                + (f"the type {owner} has it" if owner is not None else way_out),
                param=f"response_format.{name}",
            )
    unknown.check(given, known, "response_format")
    return {name: value for name, value in given.items() if name in known}


def _structured(body_field: dict[str, Any], unknown: UnknownFields) -> StructuredOutputsParams:
    given = _without_nulls(body_field)
    unknown.check(given, (*_FIELDS, *_REFUSED), "structured_outputs")
    for name, (kind, way_out) in _REFUSED.items():
        where = f"structured_outputs.{name}"
        is_set = name in given and convert(given.pop(name), kind, where) is not False
        if is_set and not (name == "disable_fallback" and given.get("backend", "auto") != "auto"):
            raise InvalidRequestError(f"{where} is not supported: {way_out}", param=where)
    if isinstance(given.get("choice"), list):
        given["choice"] = plain_choice(given["choice"])  # its length first, then its items
    known = {name: value for name, value in given.items() if name in _FIELDS}
    return convert(known, StructuredOutputsParams, "structured_outputs")


def _schema(given: object, unknown: UnknownFields) -> dict[str, Any]:
    where = "response_format.json_schema"
    wrapper = convert(given, dict[str, Any], where)
    unknown.check(_without_nulls(wrapper), ("schema", *_SCHEMA_FIELDS), where)
    for name, kind in _SCHEMA_FIELDS.items():
        convert(wrapper.get(name), kind, f"{where}.{name}")
    if "schema" not in wrapper:
        raise InvalidRequestError(f"{where} has no field schema", param=f"{where}.schema")
    return convert(wrapper["schema"], dict[str, Any], f"{where}.schema")


def _without_nulls(given: dict[str, Any]) -> dict[str, Any]:
    """Return the fields that are set: clients send null for those that are not."""
    return {name: value for name, value in given.items() if value is not None}
