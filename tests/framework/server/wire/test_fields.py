"""Each field of a body is supported, refused, or ignored, silently or with a header."""

import re

import pytest

from quire.errors import InvalidRequestError
from quire.server.wire.fields import (
    IGNORED_HEADER,
    NEUTRAL,
    SILENTLY_IGNORED,
    Extras,
    check_known,
    sort_fields,
)
from quire.server.wire.protocol import SamplingBody


def sort(of_samplers=(), **undeclared):
    return sort_fields(undeclared, of_samplers)


@pytest.mark.parametrize("name", sorted(NEUTRAL))
def test_what_cannot_be_done_may_be_null(name):
    assert sort(**{name: None}) == Extras()


@pytest.mark.parametrize(
    ("name", "value"), [(name, value) for name, values in NEUTRAL.items() for value in values]
)
def test_what_changes_nothing_is_ignored_silently(name, value):
    assert sort(**{name: value}) == Extras()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("continue_final_message", 0),
        ("continue_final_message", True),
        ("add_generation_prompt", 1),
        ("add_generation_prompt", False),
        ("functions", [1]),
        ("guided_json", {}),
        ("guided_decoding_backend", "outlines"),
        ("guided_whitespace_pattern", " ?"),
        ("echo", True),
    ],
)
def test_what_would_change_the_completion_is_refused_by_name(name, value):
    with pytest.raises(InvalidRequestError, match=name) as caught:
        sort(**{name: value})
    assert caught.value.param == name


@pytest.mark.parametrize(
    ("name", "value", "way_out"),
    [
        ("custom_logit_processor", "{...}", "send logits_processors: the names of a plugin's"),
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
    ],
)
def test_a_field_of_another_engine_is_refused_with_ours(name, value, way_out):
    with pytest.raises(InvalidRequestError, match=re.escape(way_out)) as caught:
        sort(**{name: value})
    assert caught.value.param == name


def test_a_samplers_own_field_goes_to_it_even_if_it_has_a_known_name():
    declared = {"warmth", "length_penalty", "user"}
    found = sort(declared, warmth=1, length_penalty=0.5, user="x")
    assert found.for_samplers == {"warmth": 1, "length_penalty": 0.5, "user": "x"}
    assert found.ignored == ()


def test_fields_of_clients_about_themselves_are_not_listed_and_the_rest_is():
    found = sort(**dict.fromkeys(SILENTLY_IGNORED, 1), mystery=1, other=0)
    assert found == Extras({}, ("mystery", "other"))
    assert found.headers() == {IGNORED_HEADER: "mystery,other"}
    assert Extras().headers() == {}


def test_a_field_of_a_sampler_that_is_not_in_use_says_how_to_use_it():
    offered = {"dry_multiplier": "start with --samplers default,dry"}
    with pytest.raises(InvalidRequestError, match="start with --samplers default,dry") as caught:
        sort_fields({"dry_multiplier": 0.8}, (), offered)
    assert caught.value.param == "dry_multiplier"
    assert sort_fields({"dry_multiplier": None}, (), offered) == Extras()


@pytest.mark.parametrize(
    ("name", "meant"),
    [("temprature", "temperature"), ("stream_option", "stream_options"), ("warmthh", "warmth")],
)
def test_a_misspelt_field_is_refused_with_the_right_name(name, meant):
    declared = SamplingBody.__struct_fields__
    with pytest.raises(InvalidRequestError, match=f"did you mean '{meant}'") as caught:
        sort_fields({name: 1}, {"warmth"} if meant == "warmth" else (), {}, declared)
    assert caught.value.param == name


def test_names_of_other_engines_are_no_misspellings():
    declared = SamplingBody.__struct_fields__
    names = ("top_a", "max_output_tokens", "typical_p", "temperature_last", "n_predict", "stopping")
    assert sort_fields(dict.fromkeys(names, 1), (), {}, declared).ignored == names


def test_a_header_is_short_and_holds_no_characters_of_a_clients_choice():
    names = ("a" * 65, "é\r\n,:", "x.y-Z_9", *(f"n{i}" for i in range(20)))
    shown = Extras({}, names).headers()[IGNORED_HEADER].split(",")
    assert shown[:3] == ["a" * 64, "?????", "x.y-Z_9"]
    assert len(shown) == 16


def test_an_object_has_no_field_that_its_type_lacks():
    check_known({"include_usage": True}, ("include_usage",), "stream_options")
    with pytest.raises(InvalidRequestError, match=r"no field 'odd'.*include_usage") as caught:
        check_known({"include_usage": True, "odd": 1}, ("include_usage",), "stream_options")
    assert caught.value.param == "stream_options"
