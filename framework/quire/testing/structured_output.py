"""What every structured-output backend must do. Subclass `StructuredOutputContract` in your tests.

    class TestAcmeGrammars(StructuredOutputContract):
        backend = AcmeBackend
        forms = frozenset({"json", "regex"})

Answers are drawn at random from the masks until the grammar ends, and then read by somebody who
has never heard of masks: `jsonschema` or `re`.
"""

import json
import random
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

import msgspec
import pytest

from quire.errors import GrammarError
from quire.interfaces.structured_output import Matcher, StructuredOutputBackend, Vocabulary
from quire.interfaces.tool_parsing import CallGrammar, CallShape, SchemaPiece
from quire.sampling_params import StructuredOutputsParams

NUM_WALKS = 12
MAX_STEPS = 4_000
EOS_TOKEN_IDS = (300, 302)
VOCABULARY_SIZE = 325  # no multiple of 32, and larger than the largest id
CHOICE_THAT_GOES_ON = ("a", "abc", "aé")
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

SCHEMAS: tuple[Any, ...] = (
    {"type": "boolean"},
    {"type": ["integer", "null"]},
    {"type": "number"},
    {"type": "string", "maxLength": 4},
    {"enum": ["red", 3, None, True, 1.5, 'a"b\\c', "é|.*"]},
    {"const": {"a": [1, {"b": None}]}},
    {"type": "array", "items": {"type": "integer"}, "minItems": 2, "maxItems": 4},
    {"anyOf": [{"type": "integer"}, {"type": "boolean"}]},
    PERSON,
    PERSON | {"additionalProperties": False, "title": "a person"},
)
REGEXES = (r"[0-9]{3}-[a-z]+", r"(?:yes|no)(?:, (?:yes|no)){0,3}", r"é+|日?x", r"a*")
CALLS = CallGrammar(
    (
        CallShape("add", ("add(", SchemaPiece({"type": "integer"}), ")")),
        CallShape("say.it", ("say.it(", SchemaPiece({"enum": ["yes", "no"]}), ")[0]")),
    ),
    separator=", ",
)
ONE_CALL = r'add\((?:0|-?[1-9]\d*)\)|say\.it\("(?:yes|no)"\)\[0\]'
CHOICES = (("red", "green", "blue"), ("a", "abc", "a|b", "ä\n", ".*"))


@dataclass(frozen=True, slots=True)
class Example:
    """A grammar, and a judge of finished answers that knows nothing of masks."""

    params: StructuredOutputsParams
    is_valid: Callable[[str], bool]

    def __str__(self) -> str:
        given = msgspec.to_builtins(self.params)  # its defaults are left out
        return ", ".join(f"{form} {value}" for form, value in given.items())[:60]


def contract_vocabulary() -> Vocabulary:
    """Return all single bytes, some longer tokens (one of them twice), and two ends."""
    tokens = {bytes([byte]): [byte] for byte in range(256)}
    tokens |= {word: [256 + i] for i, word in enumerate(WORDS)}
    tokens[b"true"].append(301)
    return Vocabulary(tokens, EOS_TOKEN_IDS, VOCABULARY_SIZE)


def satisfies(schema: Any) -> Callable[[str], bool]:
    """Return a judge that asks `jsonschema`, formats included."""
    from jsonschema import Draft202012Validator  # type: ignore[import-untyped]  # tests only

    validator = Draft202012Validator(schema, format_checker=Draft202012Validator.FORMAT_CHECKER)

    def judge(text: str) -> bool:
        return bool(validator.is_valid(json.loads(text)))

    return judge


def matches(regex: str) -> Callable[[str], bool]:
    """Return a judge that asks `re`."""
    return lambda text: re.fullmatch(regex, text) is not None


def examples(constraints: frozenset[str]) -> Iterator[Example]:
    """Yield examples of the forms that a backend has."""
    if "json" in constraints:
        for schema in SCHEMAS:
            yield Example(StructuredOutputsParams(json=schema), satisfies(schema))
    if "json_object" in constraints:
        yield Example(StructuredOutputsParams(json_object=True), satisfies({"type": "object"}))
    if "regex" in constraints:
        for regex in REGEXES:
            yield Example(StructuredOutputsParams(regex=regex), matches(regex))
    if "choice" in constraints:
        for choice in CHOICES:
            yield Example(StructuredOutputsParams(choice=choice), choice.__contains__)
    if "calls" in constraints:
        yield Example(StructuredOutputsParams(calls=CALLS), _are_calls)
        yield Example(StructuredOutputsParams(calls=CallGrammar(CALLS.shapes)), matches(ONE_CALL))


def _are_calls(text: str) -> bool:
    return all(re.fullmatch(ONE_CALL, call) for call in text.split(", "))


def read_mask(matcher: Matcher, size: int = VOCABULARY_SIZE) -> set[int]:
    """Return the ids that a matcher's mask allows; what was in the memory before must not count."""
    words = bytearray(b"\xa5" * (-(-size // 32) * 4))
    matcher.fill_bitmask(memoryview(words).cast("i"))
    return {8 * i + bit for i, byte in enumerate(words) for bit in range(8) if byte >> bit & 1}


def walk(matcher: Matcher, rng: random.Random, vocabulary: Vocabulary) -> str:
    """Draw from the masks until the end, and return the answer's text.

    Closing characters and ends are drawn more often than others, so that walks stay short.
    """
    spelled = {i: token for token, ids in vocabulary.tokens.items() for i in ids}
    closing = {i for i, token in spelled.items() if token in (b'"', b"}", b"]")}
    answer = b""
    for step in range(MAX_STEPS):
        allowed = read_mask(matcher, vocabulary.size)
        ends = sorted(allowed & set(vocabulary.eos_token_ids))
        closers = sorted(allowed & closing)
        eagerness = min(1.0, 0.3 + step / 500)
        if ends and (rng.random() < eagerness or len(allowed) == len(ends)):
            assert matcher.accept(rng.choice(ends)), "an end that the mask allows is not accepted"
            return answer.decode()
        choices = closers if closers and rng.random() < eagerness else sorted(allowed - set(ends))
        assert choices, f"nothing may follow {answer[-200:]!r}, not even an end"
        token_id = rng.choice(choices)
        assert token_id in spelled, f"the mask allows {token_id}, which stands for no text"
        assert matcher.accept(token_id), f"{token_id} is in the mask, and not accepted"
        answer += spelled[token_id]
    raise AssertionError(f"no end after {MAX_STEPS} tokens: {answer[:200]!r}")


class StructuredOutputContract:
    """The conformance kit.

    Attributes:
        backend: The class under test.
        constraints: What it can do, as registered.
        refused: Grammars that it must refuse, and what the message must say.
    """

    backend: ClassVar[type[StructuredOutputBackend]]
    constraints: ClassVar[frozenset[str]] = frozenset({"json", "json_object", "regex", "choice"})
    refused: ClassVar[tuple[tuple[StructuredOutputsParams, str], ...]] = ()

    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> None:
        """Run each test that takes `example` for every example of the backend's forms."""
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

    def test_random_answers_are_valid(
        self, built: StructuredOutputBackend, example: Example
    ) -> None:
        """Whatever the masks allow, the finished answer follows the grammar."""
        grammar = built.compile(example.params)
        for seed in range(NUM_WALKS):
            text = walk(grammar.matcher(), random.Random(seed), built.vocabulary)
            assert example.is_valid(text), f"{text!r} does not follow {example}"

    def test_a_mask_allows_exactly_what_is_accepted(self, matcher: Matcher) -> None:
        """Every id is tried, in a few places; one that is refused changes nothing."""
        rng = random.Random(0)
        for _ in range(6):
            allowed = read_mask(matcher)
            assert max(allowed) < VOCABULARY_SIZE, "bits behind the vocabulary are set"
            wrapped = (min(allowed) - VOCABULARY_SIZE, min(allowed) + VOCABULARY_SIZE)
            for token_id in (*range(VOCABULARY_SIZE), *wrapped):
                is_accepted = matcher.accept(token_id)
                assert is_accepted == (token_id in allowed), (
                    f"token {token_id} is {'in' if token_id in allowed else 'not in'} the mask, "
                    f"and accept says {is_accepted}"
                )
                if is_accepted:
                    matcher.rollback(1)
            assert read_mask(matcher) == allowed, "the mask changed though nothing was accepted"
            matcher.accept(rng.choice(sorted(allowed)))

    def test_a_text_may_go_on_where_it_may_end(self, built: StructuredOutputBackend) -> None:
        """A text that is the beginning of another hides it for no tokenization."""
        if "choice" not in self.constraints:
            pytest.skip("the backend has no choice")
        for text in CHOICE_THAT_GOES_ON:
            matcher = built.compile(StructuredOutputsParams(choice=CHOICE_THAT_GOES_ON)).matcher()
            for byte in text.encode():
                assert matcher.accept(byte), f"{text!r} of {CHOICE_THAT_GOES_ON} is not accepted"
            ends = read_mask(matcher) & set(EOS_TOKEN_IDS)
            assert ends, f"{text!r} of {CHOICE_THAT_GOES_ON} may not end"

    def test_rollback_returns_to_the_same_masks(self, matcher: Matcher) -> None:
        """Masks on the way back are those of the way there, over the end of the answer too."""
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
                f"rolling back {num_tokens} tokens leads to another mask than the one there"
            )

    def test_only_the_end_follows_the_end(self, matcher: Matcher) -> None:
        """After an end-of-text token the grammar is finished, and allows ends only."""
        walk(matcher, random.Random(2), contract_vocabulary())
        assert matcher.is_finished(), "behind the end the grammar is not finished"
        assert read_mask(matcher) == set(EOS_TOKEN_IDS), "behind the end, not just all ends follow"

    def test_finished_means_that_only_the_end_may_follow(self, matcher: Matcher) -> None:
        """`is_finished` and the mask say the same, all the way."""
        rng = random.Random(3)
        for _ in range(60):
            allowed = read_mask(matcher)
            is_finished = matcher.is_finished()
            assert is_finished == (allowed <= set(EOS_TOKEN_IDS)), (
                f"is_finished is {is_finished} where {sorted(allowed)[:20]} may follow"
            )
            matcher.accept(rng.choice(sorted(allowed)))

    def test_both_ends_are_allowed_or_none(self, matcher: Matcher) -> None:
        """All end-of-text ids of the model mean the same."""
        rng = random.Random(4)
        for _ in range(30):
            allowed = read_mask(matcher)
            assert len(allowed & set(EOS_TOKEN_IDS)) in (0, len(EOS_TOKEN_IDS)), (
                f"of the ends {EOS_TOKEN_IDS} only some may follow"
            )
            matcher.accept(rng.choice(sorted(allowed)))

    def test_matchers_of_one_grammar_do_not_see_each_other(
        self, built: StructuredOutputBackend, example: Example
    ) -> None:
        """Two requests with one schema stand where each of them is."""
        grammar = built.compile(example.params)
        still, moving = grammar.matcher(), grammar.matcher()
        before = read_mask(still)
        walk(moving, random.Random(5), built.vocabulary)
        assert read_mask(still) == before, "a matcher moved when another of its grammar did"

    def test_what_cannot_be_honoured_is_refused_by_name(self) -> None:
        """`check` alone, without a vocabulary, names what it refuses."""
        for params, name in self.refused:
            with pytest.raises(GrammarError) as caught:
                self.backend.check(params)
            assert name in str(caught.value), f"{caught.value} does not name {name}"
