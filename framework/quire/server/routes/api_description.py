"""GET /openapi.json: the OpenAPI 3.1 description of the HTTP API, the samplers' fields included."""

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import cached_property
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from quire import __version__
from quire.interfaces.sampling import RequestField
from quire.sampling_params import MAX_LOGITS_PROCESSORS
from quire.server.http.entry_checks import OPEN_PATHS
from quire.server.http.json_response import json_response
from quire.server.routes.operation import Operation
from quire.server.routes.schema_texts import describe_fields, family_of
from quire.server.wire.families import dialect_of

OPENAPI_VERSION = "3.1.1"
_REFERENCE = "#/components/schemas/{name}"
_KEY, _KEY_HEADER = "api_key", "api_key_header"

Json = dict[str, Any]


class ApiDescription:
    """Endpoint of /openapi.json.

    Args:
        operations: Operations that it describes.
        sampler_fields: Request fields of the engine's samplers.
        logits_processors: Names that requests may have in `logits_processors`.
    """

    def __init__(
        self,
        operations: Collection[Operation],
        sampler_fields: Iterable[RequestField],
        logits_processors: Sequence[str] = (),
    ) -> None:
        self._operations = operations
        self._of_samplers = {field.name: field.json_schema() for field in sampler_fields}
        self._schemas: dict[type[msgspec.Struct], Json] = {}  # references, by their structs
        self._of_samplers["logits_processors"] = _schema_of_names(logits_processors)

    async def openapi(self, request: Request) -> Response:
        """Return the OpenAPI description of this server."""
        del request
        return json_response(self.document)

    @cached_property
    def document(self) -> Json:
        """The OpenAPI document."""
        types = [struct for operation in self._operations for struct in operation.structs]
        found, schemas = msgspec.json.schema_components(types, ref_template=_REFERENCE)
        self._schemas = dict(zip(types, found, strict=True))
        for operation in self._operations:
            if operation.has_sampler_fields and operation.body is not None:
                schema = schemas[self._schemas[operation.body]["$ref"].rpartition("/")[2]]
                schema["properties"] = _with_fields(schema["properties"], self._of_samplers)
        for schema in schemas.values():
            describe_fields(schema)
        paths: dict[str, Json] = {}
        for operation in self._operations:
            path = re.sub(r":\w+}", "}", operation.path)
            paths.setdefault(path, {})[operation.method.lower()] = self._described(operation)
        return {
            "openapi": OPENAPI_VERSION,
            "info": {"title": "quire", "version": __version__},
            "paths": paths,
            "components": {
                "schemas": schemas,
                "securitySchemes": {
                    _KEY: {"type": "http", "scheme": "bearer"},
                    _KEY_HEADER: {"type": "apiKey", "in": "header", "name": "x-api-key"},
                },
            },
        }

    def _described(self, operation: Operation) -> Json:
        error_body = dialect_of(operation.path).error_body
        described: Json = {
            "operationId": operation.id,
            "summary": operation.summary,
            "tags": [family_of(operation.path)],
            "responses": {
                "200": {"description": "Success", "content": self._content_of(operation)},
                "default": {"description": "Error", "content": self._json_content(error_body)},
            },
        }
        if parameters := _parameters(operation):
            described["parameters"] = parameters
        if operation.body is not None:
            content = self._json_content(operation.body)
            described["requestBody"] = {"required": True, "content": content}
        if operation.path not in OPEN_PATHS:
            # A server without a key asks for none.
            described["security"] = [{_KEY: []}, {_KEY_HEADER: []}, {}]
        return described

    def _content_of(self, operation: Operation) -> Json:
        if operation.media_type is not None:
            return {operation.media_type: {"schema": {"type": "string"}}}
        events = [self._schemas[event] for event in operation.events]
        has_only_events = operation.response is None and bool(events)
        content = {} if has_only_events else self._json_content(operation.response)
        if events:
            schema: Json = events[0] if len(events) == 1 else {"oneOf": events}
            media_type = dialect_of(operation.path).stream.media_type.partition(";")[0]
            content[media_type] = {"schema": schema}
        return content

    def _json_content(self, kind: type[msgspec.Struct] | None) -> Json:
        schema = {"type": "object"} if kind is None else self._schemas[kind]
        return {"application/json": {"schema": schema}}


def _parameters(operation: Operation) -> list[Json]:
    """Return the parameters of the path and of the query."""
    of_path: list[Json] = [
        {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}
        for name in re.findall(r"{(\w+)", operation.path)
    ]
    if operation.query is None:
        return of_path
    _, schemas = msgspec.json.schema_components([operation.query])
    properties = schemas[operation.query.__name__]["properties"]
    of_query = [{"name": name, "in": "query", "schema": properties[name]} for name in properties]
    return of_path + of_query


def _with_fields(properties: Json, schemas: Mapping[str, Json]) -> Json:
    """Return a body's properties, and those that depend on the samplers, with their bounds."""
    of_samplers = {
        name: {"anyOf": [schema, {"type": "null"}], "default": None}
        for name, schema in schemas.items()
    }
    return properties | of_samplers


def _schema_of_names(names: Sequence[str]) -> Json:
    """Return the schema of `logits_processors`; without any names only an empty list is valid."""
    items: Json = {"type": "string", "enum": list(names)} if names else {"type": "string"}
    return {
        "type": "array",
        "items": items,
        "maxItems": MAX_LOGITS_PROCESSORS if names else 0,
        "description": "Logits processors that run only for requests that name them.",
    }
