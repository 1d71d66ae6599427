"""Each field of a body is supported, refused, or ignored, silently or with a header."""

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
from quire.server.wire.protocol import StreamOptions


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
        ("best_of", 2),
        ("best_of", True),
        ("presence_penalty", False),
        ("presence_penalty", 0.1),
        ("use_beam_search", 0),
        ("use_beam_search", True),
        ("logit_bias", {"1": 2}),
        ("guided_json", {}),
        ("echo", True),
    ],
)
def test_what_would_change_the_completion_is_refused_by_name(name, value):
    with pytest.raises(InvalidRequestError, match=name) as caught:
        sort(**{name: value})
    assert caught.value.param == name


def test_a_samplers_own_field_goes_to_it_even_if_it_has_a_known_name():
    declared = {"warmth", "presence_penalty", "user"}
    found = sort(declared, warmth=1, presence_penalty=0.5, user="x")
    assert found.for_samplers == {"warmth": 1, "presence_penalty": 0.5, "user": "x"}
    assert found.ignored == ()


def test_fields_of_clients_about_themselves_are_not_listed_and_the_rest_is():
    found = sort(**dict.fromkeys(SILENTLY_IGNORED, 1), mystery=1, other=0)
    assert found == Extras({}, ("mystery", "other"))
    assert found.headers() == {IGNORED_HEADER: "mystery,other"}
    assert Extras().headers() == {}


def test_a_header_is_short_and_holds_no_characters_of_a_clients_choice():
    names = ("a" * 65, "é\r\n,:", "x.y-Z_9", *(f"n{i}" for i in range(20)))
    shown = Extras({}, names).headers()[IGNORED_HEADER].split(",")
    assert shown[:3] == ["a" * 64, "?????", "x.y-Z_9"]
    assert len(shown) == 16


def test_an_object_has_no_field_that_its_type_lacks():
    check_known({"include_usage": True}, StreamOptions, "stream_options")
    with pytest.raises(InvalidRequestError, match=r"no field 'odd'.*include_usage") as caught:
        check_known({"include_usage": True, "odd": 1}, StreamOptions, "stream_options")
    assert caught.value.param == "stream_options"
