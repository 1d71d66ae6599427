"""What a body asks for arrives in `SamplingParams` as it was asked for, and nothing else does."""

import pytest

from quire.errors import InvalidRequestError, UnknownFieldError
from quire.frontend.unknown_fields import UnknownFields
from quire.sampling_params import MAX_STOP_TOKEN_IDS, SamplingParams, StructuredOutputsParams
from quire.server.wire.params import (
    prompt_with_options,
    response_id,
    sampling_params,
    stream_usage,
)
from quire.server.wire.protocol import SamplingBody, StreamOptions

NOTHING = {
    "max_tokens": None, "logprobs": None, "prompt_logprobs": None, "extra_args": {},
    "unknown": UnknownFields(),
}  # fmt: skip


def params(**fields):
    return sampling_params(SamplingBody(**fields), **NOTHING)


def test_what_is_absent_has_its_default():
    assert params() == SamplingParams(max_tokens=None, flat_logprobs=True)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("n", 3),
        ("best_of", 3),
        ("temperature", 0.0),
        ("top_p", 0.5),
        ("top_k", 0),
        ("top_k", 7),
        ("min_p", 0.25),
        ("seed", 0),
        ("seed", -5),
        ("min_tokens", 4),
        ("stop", ["a", "b"]),
        ("stop_regex", ["a+", "b"]),
        ("stop_token_ids", [7, 8]),
        ("include_stop_str_in_output", True),
        ("ignore_eos", True),
        ("skip_special_tokens", False),
        ("logprob_token_ids", [3, 9]),
        ("thinking_token_budget", 7),
        ("repetition_detection", {"max_pattern_size": 4, "min_count": 3}),
    ],
)
def test_each_field_arrives_by_itself(name, value):
    expected = SamplingParams(max_tokens=None, flat_logprobs=True, **{name: value})
    assert params(**{name: value}) == expected


def test_the_best_completions_cannot_be_streamed():
    with pytest.raises(InvalidRequestError, match="cannot be streamed") as caught:
        params(n=2, best_of=3, stream=True)
    assert caught.value.param == "best_of"
    assert params(n=3, best_of=3, stream=True).best_of is None


def test_what_the_routes_work_out_arrives_too():
    given = {"max_tokens": 5, "logprobs": 0, "prompt_logprobs": 3, "extra_args": {"warmth": 1}}
    assert sampling_params(SamplingBody(), **given, unknown=UnknownFields()) == SamplingParams(
        **given, flat_logprobs=True
    )


def test_one_constraint_arrives_whichever_field_sets_it():
    call = StructuredOutputsParams(regex="call")
    forced = sampling_params(SamplingBody(), **NOTHING, forced_call=call)
    assert forced.structured_outputs is call
    assert params(structured_outputs={"regex": "x"}).structured_outputs.regex == "x"
    assert params(response_format={"type": "json_object"}).structured_outputs.json_object
    plain = SamplingBody(response_format={"type": "text"})
    assert sampling_params(plain, **NOTHING, forced_call=call).structured_outputs is call
    with pytest.raises(InvalidRequestError):
        sampling_params(SamplingBody(structured_outputs={}), **NOTHING, forced_call=call)


def test_a_pattern_has_no_unknown_field():
    given = {"max_pattern_size": 4, "min_counts": 3}
    with pytest.raises(UnknownFieldError, match="did you mean 'min_count'") as caught:
        params(repetition_detection=given)
    assert caught.value.param == "repetition_detection.min_counts"
    given = {"max_pattern_size": 4, "min_count": 3, "odd": 1}
    lenient = NOTHING | {"unknown": UnknownFields(is_lenient=True)}
    found = sampling_params(SamplingBody(repetition_detection=given), **lenient)
    assert found.repetition_detection.min_count == 3


def test_a_response_has_the_id_that_its_request_gave():
    assert response_id("cmpl-", "job-1/e~") == "cmpl-job-1/e~"
    assert response_id("cmpl-", "x" * 128) == "cmpl-" + "x" * 128
    assert response_id("cmpl-", None) != response_id("cmpl", None)
    for wrong in ("", "x" * 129, "a b", "a\n", "é", "a\x7f"):
        with pytest.raises(InvalidRequestError, match="1 to 128 visible") as caught:
            response_id("cmpl-", wrong)
        assert caught.value.param == "request_id"


def test_so_many_stop_ids_are_taken_and_no_more():
    assert len(params(stop_token_ids=[1] * MAX_STOP_TOKEN_IDS).stop_token_ids) == 256
    with pytest.raises(InvalidRequestError, match="at most 256") as caught:
        params(stop_token_ids=[1] * (MAX_STOP_TOKEN_IDS + 1))
    assert caught.value.param == "stop_token_ids"


@pytest.mark.parametrize(("asked", "adds"), [(None, True), (True, True), (False, False)])
def test_a_prompt_has_its_salt_and_a_text_its_special_tokens(asked, adds):
    assert prompt_with_options("x", SamplingBody(add_special_tokens=asked)) == {
        "prompt": "x",
        "add_special_tokens": adds,
    }
    salted = SamplingBody(cache_salt="", add_special_tokens=asked)
    assert prompt_with_options([1, 2], salted) == {
        "prompt_token_ids": [1, 2],
        "cache_salt": "",
    }


@pytest.mark.parametrize(
    ("options", "wanted"),
    [
        (StreamOptions(include_usage=True), "last"),
        (StreamOptions(include_usage=False), "none"),
        (StreamOptions(), "none"),
        (StreamOptions(include_usage=True, continuous_usage_stats=True), "all"),
        (StreamOptions(include_usage=True, continuous_usage_stats=False), "last"),
        (StreamOptions(continuous_usage_stats=False, include_obfuscation=True), "none"),
    ],
)
def test_usage_comes_if_a_stream_asks_for_it(options, wanted):
    assert stream_usage(SamplingBody(stream=True, stream_options=options)) == wanted
    assert stream_usage(SamplingBody(stream=True)) == stream_usage(SamplingBody()) == "none"
    for stream in (None, False):
        with pytest.raises(InvalidRequestError, match="stream: true") as caught:
            stream_usage(SamplingBody(stream=stream, stream_options=options))
        assert caught.value.param == "stream_options"


def test_continuous_usage_needs_usage():
    options = StreamOptions(continuous_usage_stats=True)
    with pytest.raises(InvalidRequestError, match="include_usage: true") as caught:
        stream_usage(SamplingBody(stream=True, stream_options=options))
    assert caught.value.param == "stream_options.continuous_usage_stats"


@pytest.mark.parametrize("prompt", ["fox", [1, 2]])
def test_truncation_is_an_option_of_the_prompt(prompt):
    given = {"truncate_prompt_tokens": 1, "truncation_side": "right"}
    options = prompt_with_options(prompt, SamplingBody(**given))
    assert given.items() <= options.items()
