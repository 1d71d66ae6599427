"""A stop regex is found at its first end, at any split, in linear time."""

import random
import re
import time
import warnings
from functools import lru_cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quire.errors import InvalidRequestError
from quire.frontend.text.stop_regex import MAX_HELD, compile_stop_regexes
from quire.frontend.text.stop_regex_parser import MAX_STATES, parse_stop_regex
from quire.frontend.text.stop_strings import StopStrings

PATTERNS = (
    "ab", "a+b", "a|bb", "(a|b)c", "[ab]{2}c", "a{2,3}b", "(?:ab)+c", "a.b", "(?i)AB", "[^a]b",
    "(?m)^ab", "(?m)^a+", "a\n", r"\d+\.", r"\w\s", "a*?b", "(?P<x>a)b", "((a|b)+c){2}", "a{,2}b",
    "(?s)a.c", "[a-b]c", r"[\]\-]", "é", "ßa", "a{0}b", "(a|){2}b", "a{x", "[]a]b", "[[a]b",
)  # fmt: skip
LOOKING_AHEAD = (r"\bab\b", "(?m)a$", r"ab\B", r"(?m)b$", r"a+\b", r"(?m)^a+$")
TEXTS = st.text("abc1.\n é]-", max_size=24)


def run(regexes, pieces, include=False, stops=()):
    search = StopStrings(stops, include, tuple(regexes))
    text = "".join([search.feed(piece) for piece in pieces] + [search.close()])
    return text, search.found


def split(text, data):
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=6)))
    return [text[i:j] for i, j in zip([0, *cuts], [*cuts, len(text)], strict=True)]


@lru_cache(maxsize=4096)
def compiled(pattern):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # of sets in sets, which `re` may have once
        return re.compile(pattern)


def first_match(pattern, text):
    """The first end of a match and the first of its starts, by `re` and every pair of positions."""
    flags, body = re.fullmatch(r"((?:\(\?[ims]+\))?)(.*)", pattern, re.DOTALL).groups()
    for end in range(1, len(text) + 1):
        exact = compiled(rf"{flags}(?:{body})(?=(?s:.{{{len(text) - end}}})\Z)")
        for start in range(end):
            if exact.match(text, start):
                return start, end
    return None


@given(st.lists(st.sampled_from(PATTERNS), min_size=1, max_size=3), TEXTS, st.booleans(), st.data())
@settings(max_examples=400)
def test_it_ends_where_re_says_and_the_split_changes_nothing(patterns, text, include, data):
    pieces = split(text, data)
    shown, found = run(patterns, pieces, include)
    matches = [(match, p) for p in patterns if (match := first_match(p, text))]
    if not matches:
        assert (shown, found) == (text, None)
        return
    (start, end), _ = min(matches, key=lambda each: (each[0][1], each[0][0]))
    assert shown == (text[:end] if include else text[:start])
    assert (found, (start, end)) in [(p, match) for match, p in matches]


@given(st.sampled_from(LOOKING_AHEAD), TEXTS, st.data())
@settings(max_examples=300)
def test_an_end_that_depends_on_the_next_character_is_found_too(pattern, text, data):
    shown, found = run([pattern], split(text, data), include=True)
    match = first_match(pattern, text)
    assert (shown, found) == ((text, None) if match is None else (text[: match[1]], pattern))


@given(TEXTS, st.data())
def test_strings_and_regexes_end_the_text_together(text, data):
    shown, found = run(["b+c"], split(text, data), stops=["ab", "c"])
    ends = [
        (end, start, name)
        for name, pattern in (("ab", "ab"), ("c", "c"), ("b+c", "b+c"))
        if (match := first_match(pattern, text))
        for start, end in [match]
    ]
    if ends:
        _, start, name = min(ends)
        assert (shown, found) == (text[:start], name)
    else:
        assert (shown, found) == (text, None)


def test_only_what_may_belong_to_a_match_is_held_back():
    search = StopStrings((), regexes=(r"\d+\.",))
    assert search.feed("abc12") == "abc"
    assert search.feed("3") == ""
    assert search.feed(" and 4") == "123 and "
    assert search.feed(".") == ""
    assert search.found == r"\d+\."


@given(st.integers(1, 3 * MAX_HELD), st.integers(1, 40))
@settings(max_examples=60)
def test_no_more_is_held_back_than_the_limit_however_long_a_match_is(length, piece):
    search = StopStrings((), regexes=("(?s)a.*z",))
    text = "a" * length + "z"
    shown = 0
    for index in range(0, len(text), piece):
        shown += len(search.feed(text[index : index + piece]))
        fed = min(index + piece, len(text))
        if search.found is None:
            assert fed - shown <= MAX_HELD
    assert search.found is not None
    assert shown == max(0, len(text) - MAX_HELD), "what can be held back of the match is left out"


def test_nothing_is_found_before_min_tokens_and_lines_begin_behind_it():
    search = StopStrings((), regexes=("(?m)^ab", "^cd"))
    search.skip("ab\nab")
    assert search.feed("\nabc") == "\n"
    assert search.found == "(?m)^ab"
    search = StopStrings((), regexes=("^ab",))
    search.skip("x")
    assert (search.feed("ab"), search.found) == ("ab", None)


@pytest.mark.parametrize(
    ("pattern", "reason"),
    [
        ("(a", "has no end"), ("a)", "without"), ("[a", "has no end"), ("a**", "repetition of a"),
        ("a{2}{3}", "repetition of a"), ("*a", "nothing to repeat"), ("a{3,2}", "minimum above"),
        ("(?=a)b", "lookaround"), ("(?<!a)b", "lookaround"), (r"(a)\1", "backreference"),
        ("(?P=x)", "lookaround"), ("(?(1)a|b)", "lookaround"), ("a(?i)b", "lookaround"),
        ("(?x)a", "flag 'x'"), ("a$", "a line"), (r"a\Z", "end of a text"),
        ("a++", "repetition"),
        ("a*", "empty text"), ("a|", "empty text"), (r"\b", "empty text"), ("()", "empty text"),
        ("(?m)^", "empty text"), (r"\q", "no character"), ("[z-a]", "no character"),
        (r"\x0", "no character"), ("\\", "no character"), (r"\N{DASH}", "no character"),
        ("[a--b]", "escape a hyphen"), (r"\b+a", "assertion is repeated"), ("[]", "has no end"),
        ("a" * 257, "states"), ("a{300}", "states"), ("(a{0,99}){0,99}b", "states"),
        ("(((a{999999999}){999999999}){999999999}){999999999}", "states"),
        ("(a{0}){999999999}b", "states"), ("(){999999999}b", "states"),
        ("(" * 51 + "a" + ")" * 51, "nested deeper"),
    ],
)  # fmt: skip
def test_what_cannot_be_used_is_refused_with_the_reason(pattern, reason):
    with pytest.raises(InvalidRequestError, match=reason) as caught:
        compile_stop_regexes((pattern,))
    assert caught.value.param == "stop_regex"


def test_the_regexes_of_a_request_have_only_so_many_states_together():
    many = f"a{{{MAX_STATES // 2 - 2}}}"
    compile_stop_regexes((many, many))
    with pytest.raises(InvalidRequestError, match="states together"):
        compile_stop_regexes((many, many, many, "b"))


@given(st.text("ab()[]{}*+?|^$\\.-,:<>=!imsxP0129dwbBAZ\n", max_size=40))
@settings(max_examples=600)
def test_any_pattern_is_refused_or_searched_for(pattern):
    try:
        parse_stop_regex(pattern)
        compile_stop_regexes((pattern,))
    except InvalidRequestError:
        return
    compiled(pattern)
    text = "ab01d\n-=!ab"
    match = None if set("$bB") & set(pattern) else first_match(pattern, text)
    if match is not None and "\\" not in pattern:
        assert run([pattern], list(text), include=True)[0] == text[: match[1]]


def test_what_is_remembered_is_bounded(monkeypatch):
    """Of an automaton with as many states as subsets, only so many steps are kept."""
    monkeypatch.setattr("quire.frontend.text.stop_regex.MAX_REMEMBERED", 64)
    pattern = "[ab]*a[ab]{9}c"
    (automaton,) = compile_stop_regexes((pattern,))
    rng = random.Random(3)
    text = "".join(rng.choice("ab") for _ in range(2000)) + "aaaaaaaaaac" + "b"
    assert run([pattern], list(text), include=True) == (text[:-1], pattern)
    assert len(automaton._groups) < 64


@pytest.mark.parametrize(
    "pattern",
    [
        "(a+)+b",
        "(a|a)+b",
        "(a|aa){1,20}b",
        "([ab]*a[ab]{9}){2}b",
        "(a?){20}a{20}b",
        "([a-z]+)*!",
        "(?s).{100}b",
    ],
)
def test_a_hostile_regex_takes_linear_time(pattern):
    search = StopStrings((), regexes=(pattern,))
    rng = random.Random(5)
    began = time.process_time()
    for index in range(400):
        search.feed("aaaaa" if index < 200 else "".join(rng.choice("ax") for _ in range(5)))
    assert time.process_time() - began < 4.0, "two thousand characters"
    assert search.found is None
