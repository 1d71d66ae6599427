"""Structural tags: what a matcher accepts is what a direct reading of the formats allows."""

import json
import random

import pytest

from quire.errors import GrammarError
from quire.interfaces.structured_output import Vocabulary
from quire.sampling_params import StructuredOutputsParams
from quire.testing.structured_output import contract_vocabulary, follows, read_mask, tokenizations
from quire_structured_output.llguidance.llguidance import LLGuidanceBackend

BACKEND = LLGuidanceBackend(contract_vocabulary())
END = BACKEND.vocabulary.eos_token_ids[0]
NUM_SAMPLES = 24
NUM_TEXTS = 24
INTEGER = {"type": "json_schema", "json_schema": {"type": "integer"}}
PAIR = {
    "type": "json_schema",
    "json_schema": {
        "type": "object",
        "properties": {"a": {"type": "integer"}},
        "required": ["a"],
        "additionalProperties": False,
    },
}
ANY = {"type": "any_text"}


def tag(begin, content, end):
    return {"type": "tag", "begin": begin, "content": content, "end": end}


def triggered(*tags, **fields):
    return {"type": "triggered_tags", "triggers": ["<f"], "tags": list(tags), **fields}


def sequence(*elements):
    return {"type": "sequence", "elements": list(elements)}


CALLS = (tag("<f=a>", PAIR, "</f>"), tag("<f=ab>", INTEGER, "</f>"))
FORMATS = {
    "two tools": triggered(*CALLS),
    "one call, and no more": triggered(*CALLS, stop_after_first=True),
    "a call at the beginning": triggered(*CALLS, at_least_one=True),
    "one call at the beginning": triggered(*CALLS, at_least_one=True, stop_after_first=True),
    "text without a word": triggered(*CALLS, excludes=["ab"]),
    "two triggers": {
        "type": "triggered_tags",
        "triggers": ["<f", "aa"],
        "tags": [*CALLS, tag("aab", {"type": "regex", "pattern": "[ab]+"}, "=")],
    },
    "a trigger that overlaps itself": {
        "type": "triggered_tags", "triggers": ["aa"], "tags": [tag("aa", INTEGER, "a")],
    },
    "thinking, and calls": sequence(tag("<b>", ANY, "</b>"), triggered(*CALLS)),
    "an end that overlaps itself": tag("a", ANY, "aba"),
    "two ends": tag("", {"type": "any_text", "excludes": ["bb"]}, ["<a", "<b"]),
    "calls in a tag": tag("<a>", triggered(*CALLS), "</a>"),
    "one call in a tag": tag("a", triggered(*CALLS, stop_after_first=True), "</a>"),
    "a list": tag("<", {"type": "tags_with_separator", "tags": [tag("a", INTEGER, "b"),
                  tag("b", ANY, "a")], "separator": "="}, ">"),
    "a list of one": {"type": "tags_with_separator", "tags": list(CALLS), "separator": "a",
                      "at_least_one": True, "stop_after_first": True},
    "a list without a separator": {"type": "tags_with_separator", "tags": list(CALLS),
                                   "separator": "", "at_least_one": True},
    "alternatives": {"type": "or", "elements": [tag("<a", PAIR, ">"), tag("<b", INTEGER, "="),
                     {"type": "const_string", "value": "ab"},
                     {"type": "const_string", "value": "a"}]},
    "what is all regular": {"type": "or", "elements": [{"type": "regex", "pattern": "a*b"}, ANY]},
    "text, and then a tag": sequence(ANY, tag("b", {"type": "regex", "pattern": "b*f?"}, "a")),
    "nested": tag("<a>", tag("<b>", tag("<f>", INTEGER, "</f>"), ""), "</a>"),
    "JSON and nothing else": PAIR,
}  # fmt: skip
WORDS = (
    *(
        "<f",
        "<f=a>",
        "<f=ab>",
        "</f>",
        '{"a": 1}',
        '{"a":',
        "}",
        "12",
        "-",
        "aab",
        "aa",
        "=",
        "<a>",
    ),
    *("</a>", "<b>", "</b>", "aba", "<", ">", "/", "a", "b", "f", "1", '"', " ", ":", "{", "é"),
)


def vocabulary_of_words():
    """Few tokens, so that a uniform choice of them begins and ends structures."""
    tokens = {word.encode(): [i] for i, word in enumerate(WORDS)}
    return Vocabulary(tokens, (len(WORDS),), len(WORDS) + 1)


FEW = LLGuidanceBackend(vocabulary_of_words())


def params_of(format_):
    return StructuredOutputsParams(structural_tag={"type": "structural_tag", "format": format_})


def accepts(matcher, token_ids, end=END):
    return all(matcher.accept(token_id) for token_id in token_ids) and matcher.accept(end)


def sampled(matcher, rng, most=80):
    """Return a text of uniformly chosen tokens, or None if it has not ended after `most`."""
    text = ""
    for _ in range(most):
        allowed = sorted(read_mask(matcher, FEW.vocabulary.size))
        assert allowed, f"no token may follow {text!r}"
        token_id = rng.choice(allowed)
        assert matcher.accept(token_id)
        if token_id == len(WORDS):
            return text
        text += WORDS[token_id]
    return None


@pytest.mark.parametrize("name", FORMATS)
def test_sampled_texts_follow_the_tag(name):
    judge, compiled = follows({"format": FORMATS[name]}), FEW.compile(params_of(FORMATS[name]))
    texts = [sampled(compiled.matcher(), random.Random(seed)) for seed in range(NUM_SAMPLES)]
    finished = [text for text in texts if text is not None]
    assert len(finished) >= 3
    assert [text for text in finished if not judge(text)] == []


@pytest.mark.parametrize("name", FORMATS)
def test_a_text_is_accepted_exactly_if_it_follows_the_tag(name):
    judge, compiled = follows({"format": FORMATS[name]}), BACKEND.compile(params_of(FORMATS[name]))
    rng, start = random.Random(name), FEW.compile(params_of(FORMATS[name]))
    texts = [sampled(start.matcher(), rng) or "" for _ in range(NUM_TEXTS // 2)]
    texts += ["".join(rng.choices(WORDS, k=rng.randint(0, 6))) for _ in range(NUM_TEXTS // 2)]
    texts += [changed(text, rng) for text in texts]
    for text in texts:
        verdict = judge(text)
        for token_ids in tokenizations(text, BACKEND.vocabulary):
            assert accepts(compiled.matcher(), token_ids) == verdict, text


def changed(text, rng):
    """Return a text with a word more, or a part less."""
    at = rng.randint(0, len(text))
    return text[:at] + rng.choice((*WORDS, "")) + text[at + rng.randint(0, 3) :]


def test_the_older_notation_is_that_of_triggered_tags():
    older = {
        "type": "structural_tag",
        "structures": [
            {"begin": each["begin"], "schema": each["content"]["json_schema"], "end": each["end"]}
            for each in CALLS
        ],
        "triggers": ["<f"],
    }
    for given in (older, json.dumps(older)):
        compiled = BACKEND.compile(StructuredOutputsParams(structural_tag=given))
        for text in ("", "x", 'x<f=a>{"a": 1}</f>y<f=ab>1</f>'):
            assert accepts(compiled.matcher(), text.encode()), text
        for text in ("<f", "<f=c>", "<f=a>1</f>"):
            assert not accepts(compiled.matcher(), text.encode()), text


def test_a_grammar_may_be_the_last_part_of_a_tag():
    grammar = {"type": "grammar", "grammar": 'root ::= "<" root ">" | "a"+ | "<g" [a-z]'}
    compiled = BACKEND.compile(params_of(sequence(tag("<g>", grammar, "</g>"))))
    for text in ("<g>a</g>", "<g><<aa>></g>", "<g><gz</g>"):
        assert accepts(compiled.matcher(), text.encode()), text
    for text in ("<g></g>", "<g><a</g>", "<g>a</g>a"):
        assert not accepts(compiled.matcher(), text.encode()), text


LIST = {"type": "tags_with_separator", "tags": [tag("a", INTEGER, "")], "separator": ","}
REFUSED = [
    ({"format": {"type": "odd"}}, "the type at structural_tag/format must be one of"),
    ({"format": ANY, "structures": []}, "either 'format', or"),
    ({}, "either 'format', or"),
    ({"format": ANY, "odd": 1}, "the field 'odd'"),
    ({"format": ANY | {"odd": 1}}, "structural_tag/format has the field 'odd'"),
    ({"type": "json", "format": ANY}, "type must be 'structural_tag'"),
    ({"format": triggered()}, "'tags' at structural_tag/format must be a list"),
    ({"format": triggered(*CALLS) | {"triggers": []}}, "'triggers' at .* is empty"),
    ({"format": triggered(*CALLS) | {"triggers": [""]}}, "has an empty text"),
    ({"format": triggered(*CALLS) | {"triggers": ["<f", "x"]}}, "no tag .* begins with .* 'x'"),
    ({"format": triggered(tag("x", INTEGER, ""))}, "no trigger .* is the beginning of 'x'"),
    ({"format": triggered(tag("", INTEGER, "x"))}, "must be a text that is not empty"),
    ({"format": triggered(*CALLS) | {"triggers": ["<f", "<f="]}}, "'<f' .* is in '<f='"),
    ({"format": triggered(*CALLS) | {"triggers": ["<f=a", "=a"]}}, "'=a' .* is in '<f=a'"),
    ({"format": tag("a", triggered(*CALLS), "x<f")}, "'<f' .* is in 'x<f'"),
    ({"format": triggered(tag("<f", INTEGER, ""))}, "may go on with the text"),
    ({"format": triggered(tag("<f", ANY, ""))}, "may go on with the text"),
    ({"format": triggered(tag("<f", LIST, ""))}, "may go on with the text"),
    ({"format": tag("a", INTEGER, "0")}, "may go on with the text .*'0'"),
    ({"format": tag("a", INTEGER, ".")}, "may go on with the text"),
    ({"format": triggered(tag("<fa", PAIR, ""), tag("<fa", INTEGER, "x"))}, "may begin alike"),
    ({"format": triggered(tag("<fa", PAIR, "x"), tag("<fab", PAIR, "x"))}, "may begin alike"),
    ({"format": {"type": "or", "elements": [ANY, PAIR]}}, "may begin alike"),
    ({"format": sequence({"type": "regex", "pattern": "a"}, INTEGER)}, "may go on with the text"),
    ({"format": sequence(triggered(*CALLS), PAIR)}, "may go on with the text"),
    ({"format": {"type": "grammar", "grammar": "start: /a/"}}, "must be in GBNF"),
    ({"format": {"type": "regex", "pattern": "(?=a)"}}, "a lookahead"),
    ({"format": {"type": "json_schema", "json_schema": {"divisibleBy": 2}}}, "'divisibleBy'"),
    ({"format": {"type": "json_schema", "json_schema": {"uniqueItems": True}}}, "'uniqueItems'"),
    ({"format": {"type": "json_schema"}}, "has no 'json_schema'"),
    ({"format": {"type": "const_string", "value": 1}}, "'value' .* must be a text"),
    ({"format": {"type": "const_string", "value": "\ud800"}}, "lone surrogate"),
    ({"format": triggered(*CALLS, at_least_one=1)}, "'at_least_one' .* must be true or false"),
    ({"format": sequence(*[ANY] * 501)}, "more than 500 formats"),
    ({"format": triggered(*CALLS, excludes=list(map(str, range(257))))}, "more than 256 texts"),
    ({"format": tag("a" * 2_000, ANY, "")}, "at most 1024 characters"),
    ({"structures": [{"begin": "", "schema": {}, "end": ""}], "triggers": ["a"]}, "not empty"),
    ({"structures": [{"begin": "a", "end": ""}], "triggers": ["a"]}, "has no 'schema'"),
]


@pytest.mark.parametrize(("given", "message"), REFUSED)
def test_what_cannot_be_followed_exactly_is_refused_by_name(given, message):
    with pytest.raises(GrammarError, match=message):
        BACKEND.check(StructuredOutputsParams(structural_tag=given))


def test_formats_nested_deeply_are_refused():
    deep = ANY
    for _ in range(40):
        deep = sequence(deep)
    with pytest.raises(GrammarError, match="nested more than 16 deep"):
        BACKEND.check(params_of(deep))


def test_a_text_that_is_not_json_is_refused():
    for text in ("{", "[" * 100_000, "1"):
        with pytest.raises(GrammarError, match=r"not JSON|must be an object"):
            BACKEND.check(StructuredOutputsParams(structural_tag=text))
