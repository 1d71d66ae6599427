"""A request has one constraint, from the field that sets it, and errors name that field."""

import hypothesis
import pytest
from hypothesis import strategies as st

from quire.errors import GrammarError, InvalidRequestError, RequestError, UnknownFieldError
from quire.frontend.unknown_fields import UnknownFields
from quire.output_types import MAX_CHOICES, MAX_CONSTRAINT_CHARACTERS
from quire.sampling_params import StructuredOutputsParams
from quire.server.wire import constraint as wire
from quire.server.wire.protocol import SamplingBody

STRICT = UnknownFields()


def constraint_of(body, call=None, unknown=STRICT):
    return wire.constraint_of(body, unknown, call)


def response_constraint(asked, unknown=STRICT):
    return wire.response_constraint(asked, unknown)


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
        (
            {
                "type": "json_schema",
                "json_schema": {"name": "x", "description": "y", "strict": True, "schema": {}},
            },
            StructuredOutputsParams(json={}),
        ),
        (
            {"type": "json_schema", "json_schema": {"strict": None, "schema": {}}, "format": None},
            StructuredOutputsParams(json={}),
        ),
        (
            {"type": "structural_tag", "format": {"type": "any_text"}},
            StructuredOutputsParams(
                structural_tag={"type": "structural_tag", "format": {"type": "any_text"}}
            ),
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
        ({"type": ["text"]}, "response_format.type"),
        ({"type": "json_object", "schema": {}}, "response_format.schema"),  # it would be dropped
        ({"type": "text", "json_schema": {"schema": {}}}, "response_format.json_schema"),
        ({"type": "json_object", "triggers": []}, "response_format.triggers"),
        ({"type": "text", "odd": 1}, "response_format.odd"),
        (
            {"type": "json_schema", "json_schema": {"schema": {}, "odd": 1}},
            "response_format.json_schema.odd",
        ),
        (
            {"type": "json_schema", "json_schema": {"schema": {}, "name": 1}},
            "response_format.json_schema.name",
        ),
        (
            {"type": "json_schema", "json_schema": {"schema": {}, "strict": "yes"}},
            "response_format.json_schema.strict",
        ),
    ],
)
def test_a_response_format_that_is_none_is_named(asked, param):
    with pytest.raises(InvalidRequestError) as caught:
        response_constraint(asked)
    assert caught.value.param == param


@pytest.mark.parametrize(
    ("asked", "param", "said"),
    [
        (
            {"type": "json_object", "schema": {}},
            "response_format.schema",
            '"json_schema": {"schema"',
        ),
        (
            {"type": "json_object", "json_schema": {}},
            "response_format.json_schema",
            "the type json_schema has it",
        ),
        (
            {"type": "text", "triggers": []},
            "response_format.triggers",
            "the type structural_tag has it",
        ),
    ],
)
def test_a_field_of_another_type_of_format_is_refused_with_the_way_out(asked, param, said):
    for unknown in (STRICT, UnknownFields(is_lenient=True)):
        with pytest.raises(InvalidRequestError, match=said) as caught:
            response_constraint(asked, unknown)
        assert (caught.value.param, caught.value.code) == (param, "invalid_request")


@pytest.mark.parametrize(
    ("fields", "param", "meant"),
    [
        ({"response_format": {"type": "text", "odd": 1}}, "response_format.odd", None),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"schema": {}, "nam": 1}}},
            "response_format.json_schema.nam",
            "name",
        ),
        (
            {"response_format": {"type": "structural_tag", "formats": {}, "format": {}}},
            "response_format.formats",
            "format",
        ),
        (
            {"structured_outputs": {"regex": "a", "choise": []}},
            "structured_outputs.choise",
            "choice",
        ),
    ],
)
def test_a_field_that_does_not_exist_is_refused_or_left_out(fields, param, meant):
    with pytest.raises(UnknownFieldError) as caught:
        constraint_of(SamplingBody(**fields))
    assert (caught.value.param, caught.value.code) == (param, "unknown_parameter")
    assert meant is None or f"did you mean {meant!r}" in str(caught.value)
    found = constraint_of(SamplingBody(**fields), unknown=UnknownFields(is_lenient=True))
    assert found is None or param.rpartition(".")[2] not in str(found)


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
        (SamplingBody(structured_outputs=given), call),
        (SamplingBody(response_format=asked, structured_outputs=given), call),
    ):
        with pytest.raises(InvalidRequestError, match="exclude each other") as caught:
            constraint_of(*several)
        assert caught.value.param == "structured_outputs"


def test_a_forced_call_leaves_no_text_for_a_response_format():
    call = StructuredOutputsParams(regex="b")
    assert constraint_of(SamplingBody(response_format={"type": "json_object"}), call) is call
    with pytest.raises(InvalidRequestError):
        constraint_of(SamplingBody(response_format={"type": "yaml"}), call)


@pytest.mark.parametrize(
    ("given", "param"),
    [
        ({"regex": "x", "odd": 1}, "structured_outputs.odd"),
        ({"regex": 3}, "structured_outputs.regex"),
        ({"choice": ["a", 1]}, "structured_outputs.choice[1]"),
        ({}, "structured_outputs"),
        ({"regex": "x", "json_object": True}, "structured_outputs"),
        ({"json": 5}, "structured_outputs.json"),
        ({"choice": "a"}, "structured_outputs.choice"),
        ({"choice": ["a"] * (MAX_CHOICES + 1)}, "structured_outputs.choice"),
        ({"choice": ["a" * 2**19] * 3}, "structured_outputs.choice"),
        ({"regex": "a" * (MAX_CONSTRAINT_CHARACTERS + 1)}, "structured_outputs.regex"),
        ({"grammar": {}}, "structured_outputs.grammar"),
        ({"structural_tag": 1}, "structured_outputs.structural_tag"),
        ({"json_object": 1}, "structured_outputs.json_object"),
        ({"regex": "a", "backend": 1}, "structured_outputs.backend"),
        ({"calls": {"shapes": []}}, "structured_outputs.calls"),  # only a tool choice makes calls
    ],
)
def test_structured_outputs_that_are_none_are_named(given, param):
    with pytest.raises((InvalidRequestError, GrammarError)) as caught:
        constraint_of(SamplingBody(structured_outputs=given))
    assert caught.value.param == param
    assert param in str(caught.value) or param.rpartition(".")[2] in str(caught.value)


@pytest.mark.parametrize(
    "neutral",
    [
        {"whitespace_pattern": None},
        {"disable_any_whitespace": False, "disable_fallback": False},
        {"disable_additional_properties": False, "json": None, "json_object": None},
    ],
)
def test_fields_of_vllm_that_change_nothing_are_accepted(neutral):
    body = SamplingBody(structured_outputs={"regex": "a"} | neutral)
    assert constraint_of(body) == StructuredOutputsParams(regex="a")


@pytest.mark.parametrize(
    ("field", "value", "way_out"),
    [
        ("whitespace_pattern", "[ ]*", "send a regex"),
        ("disable_any_whitespace", True, "send a regex"),
        ("disable_additional_properties", True, "additionalProperties: false"),
        ("disable_fallback", True, "name the backend"),
        ("whitespace_pattern", 5, "Expected"),
        ("disable_fallback", "no", "Expected"),
    ],
)
def test_a_field_of_vllm_that_no_backend_reads_is_refused_with_the_way_out(field, value, way_out):
    with pytest.raises(InvalidRequestError, match=way_out) as caught:
        constraint_of(SamplingBody(structured_outputs={"json": {}, field: value}))
    assert caught.value.param == f"structured_outputs.{field}"


def test_a_request_that_names_its_backend_has_no_fallback():
    auto = {"json": {}, "backend": "auto", "disable_fallback": True}
    with pytest.raises(InvalidRequestError, match="name the backend"):
        constraint_of(SamplingBody(structured_outputs=auto))
    given = {"json": {}, "backend": "outlines", "disable_fallback": True}
    assert constraint_of(SamplingBody(structured_outputs=given)) == StructuredOutputsParams(
        json={}, backend="outlines"
    )


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
FIELDS = st.sampled_from(
    [
        "json",
        "regex",
        "choice",
        "json_object",
        "grammar",
        "structural_tag",
        "calls",
        "backend",
        "whitespace_pattern",
        "disable_any_whitespace",
        "disable_additional_properties",
        "disable_fallback",
        "odd",
    ]
)


@hypothesis.settings(max_examples=300, deadline=None)
@hypothesis.given(given=st.dictionaries(FIELDS, JSON, max_size=4))
def test_any_structured_outputs_are_a_constraint_or_an_error_that_names_them(given):
    constraint, error = outcome(lambda: constraint_of(SamplingBody(structured_outputs=given)))
    if error is not None:
        assert error.param.startswith("structured_outputs")
        return
    kept = getattr(constraint, constraint.constraint)
    asked = given[constraint.constraint]
    assert repr(kept) == repr(tuple(asked) if isinstance(asked, list) else asked)


@hypothesis.settings(max_examples=300, deadline=None)
@hypothesis.given(
    st.sampled_from(["text", "json_object", "json_schema", "structural_tag", None, 1]),
    st.fixed_dictionaries(
        {},
        optional={
            "json_schema": JSON
            | st.dictionaries(st.sampled_from(["schema", "name", "strict", "odd"]), JSON),
            "format": JSON,
            "schema": JSON,
        },
    ),
)
def test_any_response_format_is_a_constraint_or_an_error_that_names_it(kind, fields):
    constraint, error = outcome(lambda: response_constraint({"type": kind} | fields))
    if error is not None:
        assert error.param.startswith("response_format")
        return
    expected = {"json_schema": "json", "text": None}.get(kind, kind)
    assert (None if constraint is None else constraint.constraint) == expected


def outcome(act):
    try:
        return act(), None
    except RequestError as error:
        return None, error
