"""Arguments are an object of JSON, whatever numbers they have."""

import pytest

from quire.frontend.chat.call_arguments import arguments_object

DIGITS = "9" * 5000  # more than Python reads as an integer


def test_numbers_may_have_any_digits():
    found = arguments_object(f'{{"a": [{DIGITS}, -{DIGITS}], "b": 1e9999, "c": "1", "d": 7}}')
    assert found == {"a": [float("inf"), -float("inf")], "b": float("inf"), "c": "1", "d": 7.0}


@pytest.mark.parametrize("text", ["", "[1]", '"{}"', '{"a": ', DIGITS, "{} {}", '{"a":' * 10**5])
def test_what_is_no_object_is_none(text):
    assert arguments_object(text) is None
