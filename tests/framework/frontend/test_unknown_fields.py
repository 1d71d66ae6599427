"""Fields that do not exist are refused with their path, or logged once and left out."""

import logging

import pytest

from quire.errors import UnknownFieldError
from quire.frontend.unknown_fields import MAX_LOGGED, UnknownFields

KNOWN = ("begin", "end")


def test_what_is_known_is_let_through():
    UnknownFields().check(KNOWN, KNOWN, "tag")
    UnknownFields().check((), KNOWN)


@pytest.mark.parametrize(
    ("name", "where", "param", "said"),
    [
        ("begn", "", "begn", "did you mean 'begin'?"),
        ("begn", "tags[3]", "tags[3].begn", "did you mean 'begin'?"),
        ("colour", "", "colour", r"leave it out \(known: begin, end\)"),
        ("x" * 500, "tag", f"tag.{'x' * 100}", "leave it out"),
    ],
)
def test_another_field_is_refused_with_its_path(name, where, param, said):
    with pytest.raises(UnknownFieldError, match=said) as caught:
        UnknownFields().check([name], KNOWN, where)
    assert caught.value.param == param
    assert repr(param) in str(caught.value)


def test_many_known_fields_are_not_listed():
    with pytest.raises(UnknownFieldError, match=r"'colour'; leave it out$"):
        UnknownFields().check(["colour"], [f"field{i}" for i in range(13)])


def test_leniency_logs_each_name_once_wherever_it_is(caplog):
    unknown = UnknownFields(is_lenient=True)
    for i in range(3):
        unknown.check(["begn", "end"], KNOWN, f"tags[{i}]")
        unknown.check(["begn\nforged"], KNOWN)
    assert [record.levelno for record in caplog.records] == [logging.WARNING] * 2
    assert "tags[0].begn" in caplog.messages[0]
    assert "did you mean 'begin'" in caplog.messages[0]
    assert "\n" not in caplog.messages[1]


def test_a_client_cannot_fill_the_log(caplog):
    unknown = UnknownFields(is_lenient=True)
    for i in range(3 * MAX_LOGGED):
        unknown.check([f"mystery{i}"], KNOWN)
    assert len(caplog.messages) == MAX_LOGGED + 1
    assert caplog.messages[-1].startswith("further fields")
