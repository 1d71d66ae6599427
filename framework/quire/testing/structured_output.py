"""Conformance kit of structured-output backends.

Subclass `StructuredOutputContract` in your tests:

    class TestAcmeGrammars(StructuredOutputContract):
        backend = AcmeBackend
        constraints = frozenset({"json", "regex"})

Completions are sampled at random from the masks until the grammar ends, and then validated
independently of the masks, by `jsonschema` with regexes of ECMA-262, or by `re`; valid completions
must be accepted in every tokenization. The packages `jsonschema` and `regress` must be installed.
"""

import json
import random
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import msgspec
import pytest

from quire.errors import GrammarError
from quire.interfaces.structured_output import Matcher, StructuredOutputBackend, Vocabulary
from quire.interfaces.tool_parsing import (
    CallGrammar,
    CallShape,
    EitherPiece,
    Member,
    MembersPiece,
    SchemaPiece,
    TextPiece,
)
from quire.sampling_params import StructuredOutputsParams
from quire.testing.tag_judge import follows_tag

NUM_WALKS = 12
MAX_STEPS = 4_000
CHAOTIC_STEPS = 60
EOS_TOKEN_IDS = (300, 302)
VOCABULARY_SIZE = 325  # not a multiple of 32, and larger than the largest id
NESTED_CHOICE = ("a", "abc", "aé")
WORDS = (
    *(b'{"', b'"}', b'": "', b'", "', b"true", b"false", b"null", b'"name"', b"  ", b"ab", b"}}"),
    *(
        "é".encode(),
        "日本".encode(),
        "日".encode()[1:],
        b"12",
        b"0.5",
        b"-1",
        b"e+",
        b"\\n",
        b'\\"',
    ),
)

PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "minLength": 1, "maxLength": 8},
        "age": {"type": "integer"},
        "tags": {"type": "array", "items": {"type": "string", "maxLength": 3}, "maxItems": 3},
        "mail": {"type": ["string", "null"]},
    },
    "required": ["name", "age"],
}

# Each with completions that it must allow, in every tokenization.
SCHEMAS: tuple[tuple[Any, tuple[str, ...]], ...] = (
    ({"type": "boolean"}, ("true", "false")),
    ({"type": ["integer", "null"]}, ("0", "-12", "null")),
    ({"type": "number"}, ("0.5", "-1", "12.5e+10")),
    ({"type": "string", "maxLength": 4}, ('""', '"abcd"', '"日本é\\n"')),
    ({"enum": ["red", 3, None, True, 1.5, 'a"b\\c', "é|.*"]}, ("3", r'"a\"b\\c"', '"é|.*"')),
    ({"const": {"a": [1, {"b": None}]}}, ('{"a": [1, {"b": null}]}', '{"a":[1,{"b":null}]}')),
    (
        {"type": "array", "items": {"type": "integer"}, "minItems": 2, "maxItems": 4},
        ("[1, 2]", "[1,2,12,-1]"),
    ),
    ({"anyOf": [{"type": "integer"}, {"type": "boolean"}]}, ("12", "true")),
    (
        PERSON,
        (
            '{"name": "ab", "age": 12}',
            '{"name":"é","age":0,"tags":["ab",""],"mail":null}',
            '{"name": "日本", "age": -1, "mail": "a@b"}',
        ),
    ),
    (PERSON | {"additionalProperties": False, "title": "a person"}, ('{"name": "ab", "age": 1}',)),
)
REGEXES = (
    (r"[0-9]{3}-[a-z]+", ("012-true", "999-a")),
    (r"(?:yes|no)(?:, (?:yes|no)){0,3}", ("no", "yes, no, yes, no")),
    (r"é+|日?x", ("éé", "x", "日x")),
    (r"a*", ("", "aaa")),
)
CALLS = CallGrammar(
    (
        CallShape("add", ("add(", SchemaPiece({"type": "integer"}), ")")),
        CallShape("say.it", ("say.it(", SchemaPiece({"enum": ["yes", "no"]}), ")[0]")),
    ),
    separator=", ",
)
ONE_CALL = r'add\((?:0|-?[1-9]\d*)\)|say\.it\("(?:yes|no)"\)\[0\]'
TRIGGERS = ("add(", "say.it(")
_WORD = TextPiece({"enum": ["yes", "no"]}, '">')
_KEYS = MembersPiece(
    (
        Member(("<a=", TextPiece({"type": "string", "maxLength": 3}, ">", ("<", "]")))),
        Member(("<b=", EitherPiece((("none>",), ('"', _WORD)))), is_required=False),
        Member(("<n=", SchemaPiece({"type": "integer"}), ">"), is_required=False),
    ),
    separator=" ",
)
SECTION = CallGrammar(
    (
        CallShape("put", ("put:", _KEYS, ";")),
        CallShape("get", ("get:", MembersPiece(_KEYS.members[1:], ","), ";")),
    ),
    separator="|",
    begin="[[",
    end="]]",
)
_B, _N = '<b=(?:none|"(?:yes|no)")>', r"<n=(?:0|-?[1-9]\d*)>"
_CALL = rf"(?:put:<a=[^<>\]]{{0,3}}>(?: {_B})?(?: {_N})?|get:(?:{_B}(?:,{_N})?|{_N})?);"
A_SECTION = rf"\[\[{_CALL}(?:\|{_CALL})*\]\]"
SECTIONS = (
    '[[put:<a=é"a> <b="no"> <n=12>;]]',
    "[[get:;|put:<a=>;|get:<b=none>,<n=-1>;]]",
    "[[get:<n=0>;]]",
)
UNTRIGGERED = r"(?:(?!add\(|say\.it\()[\s\S])*"  # text without calls
GRAMMARS = (  # one in GBNF and one in Lark, of the same texts
    'root ::= "(" root ")" | word ("," word)*\nword ::= "a" [a-z] | "ab" "c"\n',
    'start: "(" start ")" | WORD ("," WORD)*\nWORD: /a(?:[a-z]|bc)/\n',
)
NESTED_WORDS = ("((ab,abc))", "ax", "(ab)")
AN_INTEGER = {"type": "json_schema", "json_schema": {"type": "integer"}}
TAGS: tuple[tuple[dict[str, Any], tuple[str, ...]], ...] = (
    (
        {
            "structures": [
                {"begin": "](", "schema": {"type": "integer"}, "end": ")"},
                {"begin": "]{", "schema": {"enum": ["yes", "no"]}, "end": "]"},
            ],
            "triggers": ["]"],
        },
        ("", "ab", "](12)", 'é](-1)]{"yes"]"日本"'),
    ),
    (
        {
            "format": {
                "type": "sequence",
                "elements": [
                    {"type": "tag", "begin": "<", "content": {"type": "any_text"}, "end": '""'},
                    {
                        "type": "tags_with_separator",
                        "tags": [{"type": "tag", "begin": "[", "content": AN_INTEGER, "end": "]"}],
                        "separator": ", ",
                    },
                ],
            }
        },
        ('<""', '<true"ab""[12]', '<é""[0], [-1], [12]'),
    ),
)
CHOICES = (("red", "green", "blue"), ("a", "abc", "a|b", "ä\n", ".*"))

ALL = frozenset({"json", "json_object", "regex", "choice", "grammar", "structural_tag"})


@dataclass(frozen=True, slots=True)
class Example:
    """A grammar, a validator of its completions that does not use masks, and some of them."""

    params: StructuredOutputsParams
    is_valid: Callable[[str], bool]
    completions: tuple[str, ...] = ()  # that the grammar must allow

    def __str__(self) -> str:
        given = msgspec.to_builtins(self.params)  # its defaults are left out
        return ", ".join(f"{name} {value}" for name, value in given.items())[:60]


def contract_vocabulary() -> Vocabulary:
    """Return all single bytes, some longer tokens (one of them twice), and two EOS tokens."""
    tokens = {bytes([byte]): [byte] for byte in range(256)}
    tokens |= {word: [256 + i] for i, word in enumerate(WORDS)}
    tokens[b"true"].append(301)
    return Vocabulary(tokens, EOS_TOKEN_IDS, VOCABULARY_SIZE)


def satisfies(schema: Any) -> Callable[[str], bool]:
    """Return a validator by `jsonschema`, formats included, with regexes of ECMA-262."""
    from quire.testing.schema_judge import judge  # its packages are for tests only

    validator = judge(schema)

    def is_valid(text: str) -> bool:
        return bool(validator.is_valid(json.loads(text)))

    return is_valid


def matches(regex: str) -> Callable[[str], bool]:
    """Return a validator by `re`."""
    return lambda text: re.fullmatch(regex, text) is not None


def follows(tag: dict[str, Any]) -> Callable[[str], bool]:
    """Return a validator by a direct reading of a structural tag."""
    validators: dict[str, Callable[[str], bool]] = {}  # of its schemas

    def validator(schema: Any) -> Callable[[str], bool]:
        text = json.dumps(schema)
        if text not in validators:
            validators[text] = satisfies(schema)
        return validators[text]

    return lambda text: follows_tag(text, tag, validator)


def examples(constraints: frozenset[str]) -> Iterator[Example]:
    """Yield examples of the structured-output constraints that a backend supports."""
    if "json" in constraints:
        for schema, texts in SCHEMAS:
            yield Example(StructuredOutputsParams(json=schema), satisfies(schema), texts)
    if "json_object" in constraints:
        is_object = satisfies({"type": "object"})
        yield Example(StructuredOutputsParams(json_object=True), is_object, ('{"ab": [12]}', "{}"))
    if "regex" in constraints:
        for regex, texts in REGEXES:
            yield Example(StructuredOutputsParams(regex=regex), matches(regex), texts)
    if "choice" in constraints:
        for choice in CHOICES:
            yield Example(StructuredOutputsParams(choice=choice), choice.__contains__, choice)
    if "grammar" in constraints:
        for grammar in GRAMMARS:
            yield Example(StructuredOutputsParams(grammar=grammar), _are_nested, NESTED_WORDS)
    if "structural_tag" in constraints:
        for tag, texts in TAGS:
            yield Example(StructuredOutputsParams(structural_tag=tag), follows(tag), texts)
    if "calls" in constraints:
        yield Example(StructuredOutputsParams(calls=CALLS), _are_calls)
        yield Example(StructuredOutputsParams(calls=CallGrammar(CALLS.shapes)), matches(ONE_CALL))
        yield Example(StructuredOutputsParams(calls=SECTION), matches(A_SECTION), SECTIONS)
    if "calls_in_text" in constraints:
        several = CallGrammar(CALLS.shapes, "", TRIGGERS)
        yield Example(
            StructuredOutputsParams(calls=several),
            matches(f"{UNTRIGGERED}(?:(?:{ONE_CALL}){UNTRIGGERED})*"),
            ("", "é ad", "add(12)", 'ab add(1)say.it("yes")[0] d(', 'say.it("no")[0]'),
        )
        yield Example(
            StructuredOutputsParams(calls=CallGrammar(CALLS.shapes, None, TRIGGERS)),
            matches(f"{UNTRIGGERED}(?:{ONE_CALL})?"),
            ("", "é ad", 'ab say.it("yes")[0]'),
        )
        yield from _sections_in_text()


def _sections_in_text() -> Iterator[Example]:
    section = msgspec.structs.replace(SECTION, triggers=("[[",), excluded=("]]",))
    free = r"(?:(?!\[\[|\]\])[\s\S])*"
    yield Example(
        StructuredOutputsParams(calls=section),
        matches(f"{free}(?:{A_SECTION}{free})*"),
        ("", "a [é] b", f"é {SECTIONS[0]} b {SECTIONS[1]}", *SECTIONS),
    )
    at_start = msgspec.structs.replace(section, is_at_start=True)
    yield Example(
        StructuredOutputsParams(calls=at_start),
        matches(rf"{A_SECTION}|(?!\s*\[\[)(?:(?!\]\])[\s\S])*"),
        ("", "[", "a [[ b", *SECTIONS),
    )


def _are_calls(text: str) -> bool:
    return all(re.fullmatch(ONE_CALL, call) for call in text.split(", "))


def _is_valid(example: Example, text: str) -> bool:
    try:
        return example.is_valid(text)
    except ValueError:  # it is not JSON
        return False


def _are_nested(text: str) -> bool:
    depth = len(text) - len(text.lstrip("("))
    words = text.removeprefix("(" * depth).removesuffix(")" * depth)
    return re.fullmatch("a(?:[a-z]|bc)(?:,a(?:[a-z]|bc))*", words) is not None


def read_mask(matcher: Matcher, size: int = VOCABULARY_SIZE) -> set[int]:
    """Return the ids that a matcher's mask allows, whatever the memory held before."""
    words = bytearray(b"\xa5" * (-(-size // 32) * 4))
    matcher.fill_bitmask(memoryview(words).cast("i"))
    return {8 * i + bit for i, byte in enumerate(words) for bit in range(8) if byte >> bit & 1}


def tokenizations(text: str, vocabulary: Vocabulary) -> list[list[int]]:
    """Return a text in single bytes, in its longest tokens, and in random ones."""
    rng, whole = random.Random(text), text.encode()
    ids = {token: token_ids[-1] for token, token_ids in vocabulary.tokens.items()}

    def split(choose: Callable[[list[int]], int]) -> list[int]:
        token_ids, start = [], 0
        while start < len(whole):
            ends = [end for end in range(start + 1, len(whole) + 1) if whole[start:end] in ids]
            end = choose(ends)
            token_ids.append(ids[whole[start:end]])
            start = end
        return token_ids

    return [split(min), split(max), split(rng.choice)]


def sample_completion(
    matcher: Matcher, rng: random.Random, vocabulary: Vocabulary, *, closes_after: int = 0
) -> str:
    """Sample from the masks until an EOS token, and return the text of the completion.

    For `closes_after` tokens all allowed ones are equally likely. After that, closing characters
    and EOS tokens are sampled more often than others, to keep completions short.
    """
    spelled = {i: token for token, ids in vocabulary.tokens.items() for i in ids}
    closing = {i for i, token in spelled.items() if token in (b'"', b"}", b"]")}
    completion = b""
    for step in range(MAX_STEPS):
        allowed = read_mask(matcher, vocabulary.size)
        assert allowed, f"the mask allows no token, not even EOS, after {completion[-200:]!r}"
        ends = sorted(allowed & set(vocabulary.eos_token_ids))
        closers = sorted(allowed & closing)
        if step < closes_after:
            token_id = rng.choice(sorted(allowed))
        else:
            is_closing = rng.random() < 0.3 + step / 500
            others = sorted(allowed - set(ends))
            token_id = rng.choice(((ends or closers) if is_closing else others) or others or ends)
        if token_id in ends:
            assert matcher.accept(token_id), "accept refuses an EOS token that the mask allows"
            return completion.decode()
        assert token_id in spelled, f"the mask allows token {token_id}, which has no text"
        assert matcher.accept(token_id), f"accept refuses token {token_id}, which the mask allows"
        completion += spelled[token_id]
    raise AssertionError(f"no EOS token after {MAX_STEPS} tokens: {completion[:200]!r}")


class StructuredOutputContract:
    """Tests that a structured-output backend must pass.

    Attributes:
        backend: Backend class under test.
        constraints: Structured-output constraints that it supports, as registered.
        refused: Grammars that it must refuse, each with a text that the error must contain.
    """

    backend: ClassVar[type[StructuredOutputBackend]]
    constraints: ClassVar[frozenset[str]] = frozenset({"json", "json_object", "regex", "choice"})
    refused: ClassVar[tuple[tuple[StructuredOutputsParams, str], ...]] = ()

    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> None:
        """Parametrize tests that take `example` with all examples of the supported constraints."""
        if "example" in metafunc.fixturenames:
            metafunc.parametrize("example", list(examples(self.constraints)), ids=str)

    @pytest.fixture
    def built(self) -> StructuredOutputBackend:
        """Return the backend for the contract's vocabulary."""
        return self.backend(contract_vocabulary())

    @pytest.fixture
    def matcher(self, built: StructuredOutputBackend, example: Example) -> Matcher:
        """Return a matcher at the start of the example."""
        built.check(example.params)
        return built.compile(example.params).matcher()

    def test_random_completions_are_valid(
        self, built: StructuredOutputBackend, example: Example
    ) -> None:
        """Validate completions that are sampled from the masks alone."""
        grammar = built.compile(example.params)
        for seed in range(NUM_WALKS):
            closes_after = CHAOTIC_STEPS * (seed % 2)
            rng, matcher = random.Random(seed), grammar.matcher()
            text = sample_completion(matcher, rng, built.vocabulary, closes_after=closes_after)
            assert example.is_valid(text), (
                f"the masks allowed {text!r}, which does not follow the grammar {example}"
            )

    def test_valid_completions_are_accepted_in_every_tokenization(
        self, built: StructuredOutputBackend, example: Example
    ) -> None:
        """Walk through completions that follow the grammar, by masks and by `accept`."""
        grammar = built.compile(example.params)
        for text in example.completions:
            for token_ids in tokenizations(text, built.vocabulary):
                matcher = grammar.matcher()
                for token_id in [*token_ids, built.vocabulary.eos_token_ids[0]]:
                    assert token_id in read_mask(matcher, built.vocabulary.size), (
                        f"the mask forbids token {token_id} of {text!r}, in tokens {token_ids}"
                    )
                    assert matcher.accept(token_id), (
                        f"accept refuses token {token_id} of {text!r}, in tokens {token_ids}"
                    )

    def test_invalid_completions_are_refused(
        self, built: StructuredOutputBackend, example: Example
    ) -> None:
        """Try completions of other examples that do not follow this one's grammar."""
        grammar = built.compile(example.params)
        for text in sorted({text for each in examples(ALL) for text in each.completions}):
            if not _is_valid(example, text):
                matcher = grammar.matcher()
                token_ids = [*text.encode(), built.vocabulary.eos_token_ids[0]]
                assert not all(matcher.accept(token_id) for token_id in token_ids), (
                    f"accept takes {text!r}, which does not follow the grammar {example}"
                )

    def test_masks_are_the_same_each_time(
        self, built: StructuredOutputBackend, example: Example
    ) -> None:
        """Compile a grammar twice: the same tokens lead to the same masks, read once or twice."""
        first, second = (built.compile(example.params).matcher() for _ in range(2))
        rng = random.Random(6)
        for _ in range(30):
            allowed = read_mask(first)
            assert allowed == read_mask(first) == read_mask(second), (
                "the masks of two matchers differ after the same tokens, or a mask changes when it "
                "is read again"
            )
            token_id = rng.choice(sorted(allowed))
            first.accept(token_id)
            second.accept(token_id)

    def test_a_mask_allows_exactly_what_is_accepted(self, matcher: Matcher) -> None:
        """Try every id at several positions; a refused id must not change the state."""
        rng = random.Random(0)
        for _ in range(12):
            allowed = read_mask(matcher)
            assert max(allowed) < VOCABULARY_SIZE, (
                f"the mask allows token {max(allowed)}, beyond the vocabulary of {VOCABULARY_SIZE}"
            )
            wrapped = (min(allowed) - VOCABULARY_SIZE, min(allowed) + VOCABULARY_SIZE)
            for token_id in (*range(VOCABULARY_SIZE), *wrapped):
                is_accepted = matcher.accept(token_id)
                assert is_accepted == (token_id in allowed), (
                    f"the mask {'allows' if token_id in allowed else 'forbids'} token {token_id}, "
                    f"but accept returned {is_accepted}"
                )
                if is_accepted:
                    matcher.rollback(1)
            assert read_mask(matcher) == allowed, (
                "the mask changed after refused tokens and rollbacks: both must restore the state"
            )
            matcher.accept(rng.choice(sorted(allowed)))

    def test_a_text_may_continue_where_it_may_end(self, built: StructuredOutputBackend) -> None:
        """A choice that is a prefix of another must not hide it, in any tokenization."""
        if "choice" not in self.constraints:
            pytest.skip("the backend does not support choice")
        for text in NESTED_CHOICE:
            matcher = built.compile(StructuredOutputsParams(choice=NESTED_CHOICE)).matcher()
            for byte in text.encode():
                assert matcher.accept(byte), f"accept refuses {text!r} of {NESTED_CHOICE}"
            ends = read_mask(matcher) & set(EOS_TOKEN_IDS)
            assert ends, f"the mask allows no EOS token after {text!r} of {NESTED_CHOICE}"

    def test_rollback_returns_to_the_same_masks(self, matcher: Matcher) -> None:
        """Compare the masks before and after a rollback, also one across the EOS token."""
        rng = random.Random(1)
        masks = [read_mask(matcher)]
        for _ in range(40):
            matcher.accept(rng.choice(sorted(masks[-1])))
            masks.append(read_mask(matcher))
        while len(masks) > 1:
            num_tokens = min(rng.randint(1, 3), len(masks) - 1)
            matcher.rollback(num_tokens)
            del masks[-num_tokens:]
            assert read_mask(matcher) == masks[-1], (
                f"after a rollback of {num_tokens} tokens the mask differs from the one before"
            )

    def test_only_the_end_follows_the_end(self, matcher: Matcher) -> None:
        """After an EOS token the grammar is finished, and allows EOS tokens only."""
        sample_completion(matcher, random.Random(2), contract_vocabulary())
        assert matcher.is_finished(), "is_finished must be true after an EOS token"
        assert read_mask(matcher) == set(EOS_TOKEN_IDS), (
            f"after an EOS token the mask must allow the EOS tokens {EOS_TOKEN_IDS} and no others"
        )

    def test_finished_means_that_only_the_end_may_follow(self, matcher: Matcher) -> None:
        """Compare `is_finished` with the mask after every token."""
        rng = random.Random(3)
        for _ in range(60):
            allowed = read_mask(matcher)
            is_finished = matcher.is_finished()
            assert is_finished == (allowed <= set(EOS_TOKEN_IDS)), (
                f"is_finished is {is_finished}, but the mask allows tokens {sorted(allowed)[:20]}"
            )
            matcher.accept(rng.choice(sorted(allowed)))

    def test_both_ends_are_allowed_or_none(self, matcher: Matcher) -> None:
        """All EOS tokens of the model are equivalent."""
        rng = random.Random(4)
        for _ in range(30):
            allowed = read_mask(matcher)
            assert len(allowed & set(EOS_TOKEN_IDS)) in (0, len(EOS_TOKEN_IDS)), (
                f"the mask must allow all or none of the EOS tokens {EOS_TOKEN_IDS}, not some"
            )
            matcher.accept(rng.choice(sorted(allowed)))

    def test_matchers_of_one_grammar_do_not_see_each_other(
        self, built: StructuredOutputBackend, example: Example
    ) -> None:
        """Two requests with the same schema have separate states."""
        grammar = built.compile(example.params)
        still, moving = grammar.matcher(), grammar.matcher()
        before = read_mask(still)
        sample_completion(moving, random.Random(5), built.vocabulary)
        assert read_mask(still) == before, (
            "a matcher changed when another matcher of its grammar accepted tokens"
        )

    def test_a_special_token_in_the_text_of_a_call_is_matched_by_its_id(self) -> None:
        """The token itself is in the mask, and not what spells it; or the backend refuses it."""
        if "calls" not in self.constraints:
            pytest.skip("the backend does not support calls")
        vocabulary = replace(contract_vocabulary(), special_tokens={"<|call|>": 310, "<|x|>": 311})
        calls = CallGrammar((CallShape("f", ("a<|call|>b", TextPiece({}, "<|x|>"))),))
        params = StructuredOutputsParams(calls=calls)
        try:
            matcher = self.backend(vocabulary).compile(params).matcher()
        except GrammarError as error:
            if "<|call|>" in str(error):
                return
            raise
        assert matcher.accept(ord("a"))
        assert read_mask(matcher) == {310}, "the mask must allow the special token, and only it"
        for token_id in (310, *b"bcd"):
            assert matcher.accept(token_id)
        allowed = read_mask(matcher)
        assert 311 in allowed, "the mask must allow the special token that ends a text"
        assert 310 not in allowed, "the mask must not allow a special token in a text"
        assert matcher.accept(311)
        assert matcher.is_finished()

    def test_what_cannot_be_honoured_is_refused_by_name(self) -> None:
        """`check` names the unsupported part, without a vocabulary."""
        for params, name in self.refused:
            with pytest.raises(GrammarError) as caught:
                self.backend.check(params)
            assert name in str(caught.value), f"the error must contain {name}, got: {caught.value}"
