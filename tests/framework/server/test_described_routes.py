"""Random requests that /openapi.json allows, and ones that it does not, to every route.

No response is a server error, and each is as described: its status, its content type and its body,
so every error has the shape of its family.
"""

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis import GenerationMode
from schemathesis.checks import CHECKS, load_all_checks

load_all_checks()
NAMES = (
    "not_a_server_error", "content_type_conformance", "status_code_conformance",
    "response_schema_conformance",
)  # fmt: skip


TIMEOUT = 504  # what a request gets that gives itself no time


@pytest.fixture(scope="module")
def schema(module_server):
    return schemathesis.openapi.from_url(f"{module_server.url}/openapi.json")


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("num_examples", [100, pytest.param(1000, marks=pytest.mark.slow)])
@pytest.mark.parametrize("mode", [GenerationMode.POSITIVE, GenerationMode.NEGATIVE])
def test_every_route_does_what_is_described(schema, mode, num_examples):
    operations = [result.ok() for result in schema.get_all_operations()]
    assert len(operations) > 10
    if mode == GenerationMode.NEGATIVE:  # any text is a valid parameter of a path
        operations = [operation for operation in operations if operation.body or operation.query]
    failures = []
    for operation in operations:

        @settings(
            max_examples=num_examples, deadline=None, database=None,
            phases=[Phase.generate], suppress_health_check=list(HealthCheck),
        )  # fmt: skip
        @given(case=operation.as_strategy(generation_mode=mode))
        def check(case):
            response = case.call()
            is_json = response.headers["content-type"][0].startswith("application/json")
            names = NAMES if is_json else NAMES[:-1]  # the schema is that of an event's data
            if response.status_code == TIMEOUT and _has_timeout(case.body):
                names = names[1:]
            case.validate_response(response, checks=CHECKS.get_by_names(names))

        try:
            check()
        except BaseExceptionGroup as error:
            failures += [f"{operation.label}: {each}" for each in error.exceptions]
    assert not failures, "\n\n".join(failures)


def _has_timeout(body):
    return isinstance(body, dict) and body.get("timeout_s") is not None
