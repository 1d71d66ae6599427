"""Parameters of a query have types, and an error names the wrong one."""

from typing import Literal

import msgspec
import pytest
from starlette.requests import Request

from quire.errors import InvalidRequestError
from quire.server.wire.query import read_query


class Query(msgspec.Struct):
    order: Literal["up", "down"] = "up"
    limit: int | None = None
    stream: bool = False
    include: list[str] | None = None


def query_of(text):
    return read_query(Request({"type": "http", "query_string": text, "headers": []}), Query)


def test_what_is_absent_has_its_default():
    assert query_of(b"") == Query()


def test_texts_become_numbers_and_booleans():
    assert query_of(b"limit=7&stream=true&order=down") == Query("down", 7, True)
    assert query_of(b"stream=false") == Query()


def test_other_parameters_have_no_effect():
    assert query_of(b"exclude[]=x&limit[]=3&limit=1") == Query(limit=1)


@pytest.mark.parametrize("text", [b"include=x&include=y", b"include[]=x&include[]=y"])
def test_what_is_given_several_times_is_a_list(text):
    assert query_of(text).include == ["x", "y"]


@pytest.mark.parametrize(
    ("text", "name"),
    [
        (b"limit=x", "limit"),
        (b"limit=1.5", "limit"),
        (b"limit=" + b"9" * 5000, "limit"),
        (b"order=left", "order"),
        (b"stream=yes", "stream"),
        (b"stream=%FF", "stream"),
    ],
)
def test_a_wrong_value_is_named(text, name):
    with pytest.raises(InvalidRequestError) as failed:
        query_of(text)
    assert failed.value.param == name
    assert len(str(failed.value)) < 200
