"""The id of a request is the client's if it is plain, and a new one otherwise."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quire.server.observe.request_id import request_id_of


def found(*values):
    return request_id_of({"headers": [(b"x-request-id", value) for value in values]})


@pytest.mark.parametrize("given_id", [b"a", b"0f8fad5b-d9cb-469f-a165-70867728950e", b"~" * 128])
def test_a_plain_id_is_taken(given_id):
    assert found(given_id) == given_id.decode()


@pytest.mark.parametrize(
    "values",
    [
        (), (b"",), (b"a b",), (b"a\r\nb",), (b"a\x1b[31m",), (b"\xc3\xa9",), (b"~" * 129,),
        (b"a\x7f",), (b"a", b"a"),
    ],
)  # fmt: skip
def test_any_other_is_replaced_by_a_new_one(values):
    assert re.fullmatch("req-[0-9a-f]{24}", found(*values))
    assert found(*values) != found(*values)


@given(st.binary(max_size=140))
def test_no_id_has_blanks_or_control_characters(value):
    assert re.fullmatch("[!-~]{1,128}", found(value))
