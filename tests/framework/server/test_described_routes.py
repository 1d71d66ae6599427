"""Random requests that /openapi.json allows, and ones that it does not, to every route.

No response is a server error, each is as described, and every error has the shape of its family.
"""

from collections.abc import Iterator

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)
from schemathesis.specs.openapi.schemas import APIOperation

CHECKS = [
    not_a_server_error, content_type_conformance, response_schema_conformance,
    status_code_conformance,
]  # fmt: skip
QUICK = [*HealthCheck]


@pytest.fixture(scope="module")
def schema(module_server):
    return schemathesis.openapi.from_url(f"{module_server.url}/openapi.json")


def operations(schema) -> Iterator[APIOperation]:
    for result in schema.get_all_operations():
        yield result.ok()


def check_error(path, response):
    """Check the shape that the clients of a family of routes read."""
    body = response.json()
    if path.startswith("/v1/messages"):
        assert body["type"] == "error"
        assert {"type", "message"} <= set(body["error"])
    elif path.startswith("/api/"):
        assert isinstance(body["error"], str)
    elif not path.startswith(("/readyz", "/health", "/livez")):
        assert set(body["error"]) == {"message", "type", "param", "code"}


@pytest.mark.parametrize("num_examples", [15, pytest.param(100, marks=pytest.mark.slow)])
@pytest.mark.parametrize("mode", [GenerationMode.POSITIVE, GenerationMode.NEGATIVE])
def test_every_route_does_what_is_described(schema, mode, num_examples):
    found = list(operations(schema))
    assert len(found) >= 10
    for operation in found:

        @settings(
            max_examples=num_examples, deadline=None, suppress_health_check=QUICK,
            phases=[Phase.generate], database=None,
        )  # fmt: skip
        @given(case=operation.as_strategy(generation_mode=mode))
        def check(case, path=operation.path):
            response = case.call()
            case.validate_response(response, checks=CHECKS)
            if response.status_code >= 400:
                check_error(path, response)

        check()
