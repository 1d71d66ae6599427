"""The input of a custom tool's call: the text of its arguments, however they are cut."""

import json
from itertools import pairwise

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from quire.frontend.chat.custom_input import CustomInput, input_of


def pieces_of(text, cuts):
    ends = [0, *sorted(min(cut, len(text)) for cut in cuts), len(text)]
    return [text[a:b] for a, b in pairwise(ends)]


def read(pieces):
    reader = CustomInput()
    return "".join([*map(reader.feed, pieces), reader.close()])


cuts = st.lists(st.integers(0, 80), max_size=8)


@given(st.text(max_size=30), st.booleans(), st.sampled_from([None, 1]), cuts)
@example('a "quoted" \\ line\n\t\u2028🌧', True, None, [*range(80)])
@example("🌧", True, None, [*range(80)])
def test_the_input_is_the_text_however_its_json_is_written_and_cut(text, is_ascii, indent, cuts):
    arguments = json.dumps({"input": text}, ensure_ascii=is_ascii, indent=indent)
    assert read(pieces_of(arguments, cuts)) == text
    assert input_of(arguments) == text


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ("{}", "{}"),
        ('{"input": 5}', '{"input": 5}'),
        ('{"query": "a"}', '{"query": "a"}'),
        ('{"x": 1, "input": "b"}', "b"),
        ('{"\\u0069nput": "b"}', "b"),
        ('{"input": "b", "x": {"y": "z"}}', "b"),
        ('{"input": ""}', ""),
        ('{"inputs": "b"}', '{"inputs": "b"}'),
        ('{"input": "\\ud83c"}', "\ufffd"),
        ('{"input": "\\ud83c\\n"}', "\ufffd\n"),
        ('{"input": "\\ud83c\\u0041"}', "\ufffdA"),
        ('{"input": "\\udf27\\ud83c\\udf27"}', "\ufffd🌧"),
        (' { "input" :\n"b" } ', "b"),
        ('{"in put": "b"}', '{"in put": "b"}'),
    ],
)
@given(cuts=cuts)
def test_arguments_of_any_shape_have_an_input(arguments, text, cuts):
    assert read(pieces_of(arguments, cuts)) == input_of(arguments) == text


def test_the_input_comes_with_the_pieces_that_have_it():
    reader = CustomInput()
    pieces = ['{"in', 'put": "ls', " -l", "\\", "n", "\\ud83c", "\\udf27", 'x"', "}"]
    assert [reader.feed(piece) for piece in pieces] == [
        "", "ls", " -l", "", "\n", "", "🌧", "x", "",
    ]  # fmt: skip
    assert reader.close() == ""


@given(st.text(alphabet='{}"\\:inputud83c🌧 \n', max_size=30), cuts)
def test_what_is_no_json_never_fails_and_is_the_same_in_pieces(text, cuts):
    assert read(pieces_of('{"input":"' + text, cuts)) == input_of('{"input":"' + text)
    assert read(pieces_of(text, cuts)) == input_of(text)
