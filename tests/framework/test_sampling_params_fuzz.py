"""Whatever is given for a parameter: an error that names it, or parameters that can be sent."""

import math

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quire.errors import InvalidRequestError
from quire.sampling_params import (
    MAX_SEED,
    BeamSearchParams,
    RepetitionDetectionParams,
    SamplingParams,
    StructuredOutputsParams,
)

ODD_NUMBERS = (
    0, 1, -1, 2, 20, 128, 129, 2**31 - 1, 2**31, 2**63 - 1, 2**63, -(2**63), -(2**63) - 1, 10**400,
    0.0, -0.0, 1.0, 0.5, -1.5, 1e-320, 1e308, math.nan, math.inf, -math.inf, True, False,
)  # fmt: skip
ODD = st.one_of(
    st.sampled_from(ODD_NUMBERS),
    st.none(),
    st.text(max_size=5),
    st.binary(max_size=3),
    st.sampled_from(["\ud800", "(a", "a+", "a" * 2000]),
)
ANYTHING = st.recursive(
    ODD,
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.tuples(inner),
        st.dictionaries(st.one_of(st.text(max_size=4), st.integers(-2, 9)), inner, max_size=3),
        st.sets(st.integers(0, 9), max_size=3),
    ),
    max_leaves=6,
)
FIELDS = SamplingParams.__struct_fields__
RESOLVED_LATER = {  # with the vocabulary, and the fields of samplers
    "logit_bias", "allowed_token_ids", "bad_words", "stop_token_ids", "logprob_token_ids",
    "extra_args",
}  # fmt: skip


def made(kind, fields):
    """Return the struct, or None if it is refused with the name of a field."""
    error = None
    try:
        return kind(**fields)
    except InvalidRequestError as refusal:
        error = refusal
    named = (error.param or "").split(".")[0]
    assert named in fields or named == "structured_outputs" or len(fields) > 1, error
    assert named in str(error)
    assert len(str(error)) < 500
    return None


@given(st.sampled_from(FIELDS), ANYTHING)
@settings(max_examples=1500)
def test_any_value_of_a_parameter_is_refused_by_name_or_can_be_sent(name, value):
    params = made(SamplingParams, {name: value})
    if params is not None and name not in RESOLVED_LATER:
        sent = msgspec.msgpack.encode(params)
        assert msgspec.msgpack.decode(sent, type=SamplingParams) == params


@pytest.mark.parametrize(
    "value",
    [10**5000, [10**5000], {1: 10**5000}, [list(range(10**6))] * 3],
    ids=["number", "list", "dict", "long"],
)
def test_a_value_that_takes_long_to_write_is_not_written(value):
    for name in ("n", "temperature", "stop", "seed", "logprobs", "repetition_detection"):
        assert made(SamplingParams, {name: value}) is None


@given(st.dictionaries(st.sampled_from(FIELDS), ANYTHING, max_size=4))
@settings(max_examples=500)
def test_any_values_together_are_refused_or_accepted(fields):
    params = made(SamplingParams, fields)
    if params is not None:
        numbers = [params.temperature, params.top_p, params.min_p, params.repetition_penalty]
        assert all(type(number) is float and math.isfinite(number) for number in numbers)
        assert 1 <= params.n <= params.num_generated <= 128
        assert params.seed is None or abs(params.seed) <= MAX_SEED + 1


@given(st.dictionaries(st.sampled_from(BeamSearchParams.__struct_fields__), ANYTHING, max_size=3))
@settings(max_examples=500)
def test_any_beam_search_is_refused_or_accepted(fields):
    params = made(BeamSearchParams, {"beam_width": 2} | fields)
    if params is not None:
        assert 1 <= params.num_generated <= params.beam_width <= 128


@pytest.mark.parametrize("kind", [RepetitionDetectionParams, StructuredOutputsParams])
@given(st.data())
@settings(max_examples=200)
def test_any_value_of_a_part_is_refused_or_accepted(kind, data):
    names = st.sampled_from(kind.__struct_fields__)
    fields = data.draw(st.dictionaries(names, ANYTHING, max_size=3))
    try:
        kind(**fields)
    except InvalidRequestError as refusal:
        error = refusal
    else:
        return
    assert error.param is not None
    assert len(str(error)) < 500
