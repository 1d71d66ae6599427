"""A request has one constraint, from the field that sets it, and errors name that field."""

import pytest

from quire.errors import InvalidRequestError
from quire.sampling_params import StructuredOutputsParams
from quire.server.wire.constraint import constraint_of, response_constraint
from quire.server.wire.protocol import SamplingBody


@pytest.mark.parametrize(
    ("asked", "constraint"),
    [
        ({"type": "text"}, None),
        ({"type": "json_object"}, StructuredOutputsParams(json_object=True)),
        ({"type": "json_schema", "json_schema": {"schema": {}}}, StructuredOutputsParams(json={})),
        (
            {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "null"}}},
            StructuredOutputsParams(json={"type": "null"}),
        ),
    ],
)
def test_a_response_format_is_a_constraint(asked, constraint):
    assert response_constraint(asked) == constraint


@pytest.mark.parametrize(
    ("asked", "param"),
    [
        ({}, "response_format.type"),
        ({"type": "xml"}, "response_format.type"),
        ({"type": "json_schema"}, "response_format.json_schema"),
        ({"type": "json_schema", "json_schema": []}, "response_format.json_schema"),
        ({"type": "json_schema", "json_schema": {}}, "response_format.json_schema.schema"),
        (
            {"type": "json_schema", "json_schema": {"schema": None}},
            "response_format.json_schema.schema",
        ),
    ],
)
def test_a_response_format_that_is_none_is_named(asked, param):
    with pytest.raises(InvalidRequestError) as caught:
        response_constraint(asked)
    assert caught.value.param == param


def test_constraints_exclude_each_other():
    asked, given = {"type": "json_object"}, {"regex": "a"}
    call = StructuredOutputsParams(regex="b")
    assert constraint_of(SamplingBody()) is None
    assert constraint_of(SamplingBody(response_format={"type": "text"})) is None
    assert constraint_of(SamplingBody(), call) is call
    assert constraint_of(SamplingBody(structured_outputs=given)) == StructuredOutputsParams(
        regex="a"
    )
    for several in (
        (SamplingBody(response_format=asked, structured_outputs=given), None),
        (SamplingBody(response_format=asked), call),
        (SamplingBody(structured_outputs=given), call),
        (SamplingBody(response_format=asked, structured_outputs=given), call),
    ):
        with pytest.raises(InvalidRequestError, match="exclude each other") as caught:
            constraint_of(*several)
        assert caught.value.param == "response_format"


@pytest.mark.parametrize(
    ("given", "param"),
    [
        ({"regex": "x", "odd": 1}, "structured_outputs"),
        ({"regex": 3}, "structured_outputs.regex"),
        ({"choice": ["a", 1]}, "structured_outputs.choice[1]"),
        ({}, "structured_outputs"),
        ({"regex": "x", "json_object": True}, "structured_outputs"),
    ],
)
def test_structured_outputs_that_are_none_are_named(given, param):
    with pytest.raises(InvalidRequestError) as caught:
        constraint_of(SamplingBody(structured_outputs=given))
    assert caught.value.param == param
