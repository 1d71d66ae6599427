"""Each field of a body is honoured, accepted without effect, refused, or does not exist."""

import re

import msgspec
import pytest
from openai.types import completion_create_params
from openai.types.chat import chat_completion_stream_options_param
from openai.types.chat import completion_create_params as chat

from quire.errors import InvalidRequestError, UnknownFieldError
from quire.frontend.unknown_fields import UnknownFields
from quire.server.wire.bodies import Body, decode
from quire.server.wire.fields import (
    ACCEPTED,
    REFUSED,
    REFUSED_IN_TOKENIZE,
    check_declared,
    sampler_values,
)
from quire.server.wire.protocol import (
    ChatBody,
    CompletionBody,
    StreamOptions,
    TokenizeBody,
)

BODIES = {ChatBody: {"messages": []}, CompletionBody: {"prompt": "x"}}


def sort(fields, kind=CompletionBody, of_samplers=(), offered=(), unknown=None):
    body = decode(msgspec.json.encode(BODIES[kind] | fields), kind)
    return sampler_values(body, of_samplers, dict(offered), unknown or UnknownFields(), REFUSED)


def classes_of(name, kind):
    """Return the classes of a field; each must have exactly one."""
    declared = set(kind.__struct_fields__)
    return [
        label
        for label, names in (
            ("honoured", declared - ACCEPTED),
            ("accepted", ACCEPTED & declared),
            ("refused", REFUSED.keys() - declared),
        )
        if name in names
    ]


def published(module):
    return sorted(
        module.CompletionCreateParamsBase.__annotations__.keys()
        | module.CompletionCreateParamsNonStreaming.__annotations__.keys()
        | module.CompletionCreateParamsStreaming.__annotations__.keys()
    )


@pytest.mark.parametrize(
    ("kind", "name"),
    [(ChatBody, name) for name in published(chat)]
    + [(CompletionBody, name) for name in published(completion_create_params)],
)
def test_each_field_that_openai_publishes_has_one_class(kind, name):
    assert len(classes_of(name, kind)) == 1


def test_each_stream_option_that_openai_publishes_is_known():
    options = chat_completion_stream_options_param.ChatCompletionStreamOptionsParam
    assert options.__annotations__.keys() <= set(StreamOptions.__struct_fields__)


def test_the_published_fields_of_no_effect_are_these():
    accepted = {name for name in published(chat) if classes_of(name, ChatBody) == ["accepted"]}
    assert accepted == {
        "metadata", "prediction", "prompt_cache_key", "prompt_cache_options",
        "prompt_cache_retention", "safety_identifier", "service_tier", "store", "user", "verbosity",
    }  # fmt: skip
    refused = {name for name in published(chat) if classes_of(name, ChatBody) == ["refused"]}
    assert refused == {
        "audio", "function_call", "functions", "modalities", "moderation", "web_search_options",
    }  # fmt: skip


@pytest.mark.parametrize("kind", [ChatBody, CompletionBody])
@pytest.mark.parametrize("name", sorted(ACCEPTED))
def test_what_has_no_effect_is_accepted_and_described(kind, name):
    for value in ("x", True, {"a": [1]}, None):
        assert sort({name: value}, kind) == {}
    schema = msgspec.json.schema(kind)["$defs"][kind.__name__]
    assert schema["properties"][name]["description"].startswith("No effect: ")
    assert schema["additionalProperties"] is False


@pytest.mark.parametrize("name", sorted(REFUSED))
def test_what_cannot_be_done_is_refused_by_name_and_may_be_null(name):
    kind = ChatBody if name in CompletionBody.__struct_fields__ else CompletionBody
    assert sort({name: None}, kind) == {}
    for neutral in REFUSED[name].neutral:
        assert sort({name: neutral}, kind) == {}
    with pytest.raises(InvalidRequestError, match=f"{name} is not supported; ") as caught:
        sort({name: "some value"}, kind)
    assert (caught.value.param, caught.value.code) == (name, "invalid_request")


@pytest.mark.parametrize("value", [0, 0.0, ""])
def test_false_is_no_other_value(value):
    with pytest.raises(InvalidRequestError, match="no_stop_trim"):
        sort({"no_stop_trim": value})


@pytest.mark.parametrize(
    ("name", "value", "way_out"),
    [
        ("custom_logit_processor", "{...}", "send logits_processors: names that a plugin"),
        ("custom_params", {"a": 1}, "fields of the body"),
        ("min_new_tokens", 3, "send min_tokens"),
        ("max_new_tokens", 3, "send max_tokens"),
        ("sampling_seed", 3, "send seed"),
        ("no_stop_trim", True, "send include_stop_str_in_output: true"),
        ("regex", "a+", 'send structured_outputs: {"regex": ...}'),
        ("ebnf", "root ::= a", 'send structured_outputs: {"grammar": ...}'),
        ("json_schema", "{}", 'send structured_outputs: {"json": ...}'),
        ("beam_width", 4, "send use_beam_search: true, with n beams"),
        ("num_beams", 4, "send use_beam_search: true, with n beams"),
        ("do_sample", False, "send temperature: 0"),
        ("repeat_penalty", 1.1, "send repetition_penalty"),
        ("no_repeat_ngram_size", 2, "send dry_multiplier"),
        ("mirostat", 2, "send mirostat_mode"),
        ("documents", ["x"], "write them into a message"),
        ("chat_template", "{{ x }}", "--chat-template"),
    ],
)
def test_a_field_of_another_engine_is_refused_with_ours(name, value, way_out):
    with pytest.raises(InvalidRequestError, match=re.escape(way_out)) as caught:
        sort({name: value})
    assert caught.value.param == name


def test_a_samplers_own_field_goes_to_it_even_if_it_has_a_known_name():
    declared = {"warmth", "regex", "user"}
    given = {"warmth": 1, "regex": 0.5, "user": "x"}
    assert sort(given, of_samplers=declared) == given
    assert sort(dict.fromkeys(given), of_samplers=declared) == {}


def test_a_field_of_a_sampler_that_is_not_in_use_says_how_to_use_it():
    offered = {"dry_multiplier": "start with --samplers default,dry"}
    with pytest.raises(InvalidRequestError, match="start with --samplers default,dry") as caught:
        sort({"dry_multiplier": 0.8}, offered=offered)
    assert caught.value.param == "dry_multiplier"
    assert sort({"dry_multiplier": None}, offered=offered) == {}


@pytest.mark.parametrize(
    ("fields", "param", "said"),
    [
        ({"temprature": 1}, "temprature", "did you mean 'temperature'?"),
        ({"stream_option": {}}, "stream_option", "did you mean 'stream_options'?"),
        ({"warmthh": 1}, "warmthh", "did you mean 'warmth'?"),
        ({"mystery": 0}, "mystery", "leave it out"),
        ({"x" * 101: 1}, "x" * 100, "leave it out"),
        ({"tools": []}, "tools", "/v1/chat/completions has it"),
        ({"max_completion_tokens": 5}, "max_completion_tokens", "/v1/chat/completions has it"),
        (
            {"stream_options": {"include_usages": True}},
            "stream_options.include_usages",
            "did you mean 'include_usage'?",
        ),
        ({"stream_options": {"x": 1}}, "stream_options.x", "include_obfuscation, include_usage"),
    ],
)
def test_a_field_that_does_not_exist_is_refused_with_its_path(fields, param, said):
    with pytest.raises(UnknownFieldError, match=re.escape(said)) as caught:
        sort(fields, of_samplers={"warmth"})
    assert (caught.value.param, caught.value.code) == (param, "unknown_parameter")
    assert repr(param) in str(caught.value)
    assert sort(fields, of_samplers={"warmth"}, unknown=UnknownFields(is_lenient=True)) == {}


def test_what_does_not_exist_and_asks_for_nothing_is_accepted():
    assert sort({"mystery": None, "stream_options": {"mystery": None}}) == {}


def test_a_body_without_samplers_has_the_fields_of_its_struct():
    check_declared(decode(b'{"prompt": "x", "mystery": null}', TokenizeBody), UnknownFields())
    body = decode(b'{"prompt": "x", "add_special_token": true}', TokenizeBody)
    with pytest.raises(UnknownFieldError, match="did you mean 'add_special_tokens'"):
        check_declared(body, UnknownFields())
    check_declared(body, UnknownFields(is_lenient=True))
    check_declared(Body(body.typed, {}, 5), UnknownFields())


def test_a_body_without_samplers_has_fields_that_are_refused_by_name():
    body = decode(b'{"prompt": "x", "chat_template": "y"}', TokenizeBody)
    for unknown in (UnknownFields(), UnknownFields(is_lenient=True)):
        with pytest.raises(InvalidRequestError, match="start the server with --chat-template"):
            check_declared(body, unknown, REFUSED_IN_TOKENIZE)
    neutral = decode(b'{"prompt": "x", "media_io_kwargs": {}}', TokenizeBody)
    check_declared(neutral, UnknownFields(), REFUSED_IN_TOKENIZE)
