"""Halves of surrogate pairs are replaced in JSON texts; all else stays as it is."""

import json

import pytest

from quire.frontend.chat.surrogate_halves import without_halves


@pytest.mark.parametrize(
    ("text", "value"),
    [
        (r'"\ud800"', "\ufffd"),
        (r'"a\uDFFFb\uD83Dc"', "a\ufffdb\ufffdc"),
        (r'"\ud83d\ude00"', "\U0001f600"),
        (r'"\ud83d\ud83d\ude00"', "\ufffd\U0001f600"),
        (r'"\\ud800"', r"\ud800"),
        (r'"\\\ud800"', "\\\ufffd"),
        (r'"\ude00\ud83d"', "\ufffd\ufffd"),
        (r'"\u00e9\n"', "\u00e9\n"),
    ],
)
def test_halves_are_replaced(text, value):
    assert json.loads(without_halves(text)) == value


@pytest.mark.parametrize("text", ["", "\\", "no escape", '{"a": 1', r"\ud8"])
def test_what_has_no_half_stays(text):
    assert without_halves(text) == text
