"""Structured-output conformance kit: every check rejects a broken backend."""

from dataclasses import replace

import pytest

from quire.errors import GrammarError
from quire.sampling_params import StructuredOutputsParams
from quire.testing import structured_output
from quire.testing.structured_output import (
    ALL,
    EOS_TOKEN_IDS,
    Example,
    StructuredOutputContract,
    contract_vocabulary,
    examples,
    matches,
    read_mask,
    satisfies,
)
from quire_structured_output.llguidance.llguidance import LLGuidanceBackend
from quire_structured_output.outlines.outlines import OutlinesBackend, OutlinesMatcher

REGEX = "[a-f]{2,5}(?:-[0-9]+)?"
EXAMPLE = Example(StructuredOutputsParams(regex=REGEX), matches(REGEX))
A_LETTER, SPECIAL, BEYOND = ord("b"), 310, 340
ENDS = set(EOS_TOKEN_IDS)


class Masked(OutlinesMatcher):
    """Changes the mask, and accepts the tokens of the changed mask only."""

    def allowed(self, allowed):
        raise NotImplementedError

    def fill_bitmask(self, words):
        super().fill_bitmask(words)
        before = {v for v in range(32 * len(words)) if words[v // 32] >> v % 32 & 1}
        after = self.allowed(before)
        for v in before ^ after:
            bit = 1 << v % 32
            words[v // 32] ^= bit - (1 << 32) if bit >= 1 << 31 else bit

    def accept(self, token_id):
        return token_id in read_mask(self) and super().accept(token_id)


class KnowsOneEnd(Masked):
    def allowed(self, allowed):
        return allowed - {EOS_TOKEN_IDS[1]}


class NeverEnds(Masked):
    def allowed(self, allowed):
        return allowed - ENDS


class EndsAsSoonAsItCan(Masked):
    def allowed(self, allowed):
        return allowed & ENDS or allowed


class EndsAsLateAsItCan(Masked):
    def allowed(self, allowed):
        return allowed - ENDS or allowed


class AllowsSpecials(Masked):
    def allowed(self, allowed):
        return {SPECIAL}


class SetsBitsBeyond(Masked):
    def allowed(self, allowed):
        return allowed | {BEYOND}


class RefusesALetter(OutlinesMatcher):
    def accept(self, token_id):
        return token_id in ENDS and super().accept(token_id)


class RefusesEnds(OutlinesMatcher):
    def accept(self, token_id):
        return token_id not in ENDS and super().accept(token_id)


class AcceptsAnything(OutlinesMatcher):
    def accept(self, token_id):
        super().accept(token_id)
        return True


class TakesIdsForTokens(OutlinesMatcher):
    """Wraps ids around at the vocabulary size."""

    def accept(self, token_id):
        return super().accept(token_id % 325)


class AddsToTheMask(OutlinesMatcher):
    def fill_bitmask(self, words):
        before = bytes(words)
        super().fill_bitmask(words)
        words[0] |= int.from_bytes(before[:4], "little", signed=True)


class GoesOnBehindTheEnd(OutlinesMatcher):
    def accept(self, token_id):
        return token_id in ENDS or super().accept(token_id)


class MovesWhenItRefuses(Masked):
    num_refused = 0

    def allowed(self, allowed):
        return allowed - {A_LETTER} if self.num_refused else allowed

    def accept(self, token_id):
        is_accepted = OutlinesMatcher.accept(self, token_id)
        self.num_refused += not is_accepted
        return is_accepted


class ForgetsToRollBack(OutlinesMatcher):
    def rollback(self, num_tokens):
        super().rollback(max(0, num_tokens - 1))


class RollsBackOne(OutlinesMatcher):
    def rollback(self, num_tokens):
        super().rollback(min(num_tokens, 1))


class NeverFinishes(OutlinesMatcher):
    def is_finished(self):
        return False


class FinishesWhereItMayEnd(OutlinesMatcher):
    def is_finished(self):
        return bool(read_mask(self) & ENDS)


class ForgetsTheEnd(OutlinesMatcher):
    """Returns to the state before the EOS token."""

    def accept(self, token_id):
        is_accepted = super().accept(token_id)
        self._num_ends = 0
        return is_accepted

    def is_finished(self):
        return True


class ForgetsALetterNowAndThen(Masked):
    num_masks = 0

    def allowed(self, allowed):
        type(self).num_masks += 1
        return allowed - {A_LETTER} if self.num_masks % 3 == 0 else allowed


def backend_of(matcher_class):
    class Backend(OutlinesBackend):
        def compile(self, params):
            grammar = super().compile(params)
            grammar.matcher = lambda: matcher_class(grammar)
            return grammar

    return Backend(contract_vocabulary())


class AddsALetter(OutlinesBackend):
    def compile(self, params):
        return super().compile(StructuredOutputsParams(regex=f"(?:{params.regex})x?"))


class HasOneMatcher(OutlinesBackend):
    def compile(self, params):
        grammar = super().compile(params)
        only = OutlinesMatcher(grammar)
        grammar.matcher = lambda: only
        return grammar


EXACT = "a_mask_allows_exactly_what_is_accepted"
VALID = "random_completions_are_valid"
TOKENIZED = "valid_completions_are_accepted_in_every_tokenization"
LONGER = "a_text_may_continue_where_it_may_end"
END = "only_the_end_follows_the_end"
FINISHED = "finished_means_that_only_the_end_may_follow"
ROLLBACK = "rollback_returns_to_the_same_masks"
BOTH = "both_ends_are_allowed_or_none"
ALONE = "matchers_of_one_grammar_do_not_see_each_other"
WRONG = "invalid_completions_are_refused"
SAME = "masks_are_the_same_each_time"
BY_ID = "a_special_token_in_the_text_of_a_call_is_matched_by_its_id"
REFUSED = "what_cannot_be_honoured_is_refused_by_name"
OF_A_MATCHER = [
    (SetsBitsBeyond, EXACT, "allows token 340, beyond the vocabulary"),
    (AddsToTheMask, EXACT, "but accept returned False"),
    (AcceptsAnything, EXACT, "forbids token 0, but accept returned True"),
    (TakesIdsForTokens, EXACT, "forbids token -228, but accept returned True"),
    (RefusesALetter, EXACT, "allows token 97, but accept returned False"),
    (GoesOnBehindTheEnd, EXACT, "forbids token 300"),
    (MovesWhenItRefuses, EXACT, "changed after refused tokens"),
    (ForgetsToRollBack, ROLLBACK, "the mask differs from the one before"),
    (RollsBackOne, ROLLBACK, "after a rollback of [23] tokens the mask differs"),
    (NeverFinishes, END, "is_finished must be true after an EOS token"),
    (ForgetsTheEnd, END, "must allow the EOS tokens .* and no others"),
    (NeverFinishes, FINISHED, "is_finished is False"),
    (FinishesWhereItMayEnd, FINISHED, "is_finished is True"),
    (KnowsOneEnd, BOTH, "must allow all or none of the EOS tokens"),
]
OF_SAMPLING = [
    (RefusesEnds, "refuses an EOS token"),
    (NeverEnds, "allows no token|no EOS token after 60 tokens"),
    (AllowsSpecials, "allows token 310, which has no text"),
    (RefusesALetter, "which the mask allows"),
]


def run(test, *arguments):
    getattr(StructuredOutputContract(), f"test_{test}")(*arguments)


def matcher_of(matcher_class):
    return backend_of(matcher_class).compile(EXAMPLE.params).matcher()


@pytest.mark.parametrize(("matcher_class", "test", "reason"), OF_A_MATCHER)
def test_a_broken_matcher_is_rejected(matcher_class, test, reason):
    run(test, matcher_of(OutlinesMatcher))
    with pytest.raises(AssertionError, match=reason):
        run(test, matcher_of(matcher_class))


@pytest.mark.parametrize(("matcher_class", "reason"), OF_SAMPLING)
def test_a_completion_that_cannot_end_is_rejected(monkeypatch, matcher_class, reason):
    monkeypatch.setattr(structured_output, "MAX_STEPS", 60)
    with pytest.raises(AssertionError, match=reason):
        run(VALID, backend_of(matcher_class), EXAMPLE)


def test_a_dead_end_and_an_endless_completion_have_different_errors(monkeypatch):
    monkeypatch.setattr(structured_output, "MAX_STEPS", 60)
    for regex, reason in (("ab", "not even EOS"), ("a*", "no EOS token after 60 tokens")):
        with pytest.raises(AssertionError, match=reason):
            run(VALID, backend_of(NeverEnds), Example(StructuredOutputsParams(regex=regex), str))


def test_a_completion_that_does_not_follow_the_grammar_is_rejected():
    run(VALID, OutlinesBackend(contract_vocabulary()), EXAMPLE)
    with pytest.raises(AssertionError, match="does not follow the grammar regex"):
        run(VALID, AddsALetter(contract_vocabulary()), EXAMPLE)


@pytest.mark.parametrize(
    ("matcher_class", "reason"),
    [
        (EndsAsSoonAsItCan, "accept refuses 'abc' of"),
        (EndsAsLateAsItCan, "no EOS token after 'a' of"),
    ],
)
def test_a_text_that_hides_another_is_rejected(matcher_class, reason):
    run(LONGER, backend_of(OutlinesMatcher))
    with pytest.raises(AssertionError, match=reason):
        run(LONGER, backend_of(matcher_class))


class ForbidsATokenOfSeveralBytes(Masked):
    def allowed(self, allowed):
        return {i for i in allowed if not 256 <= i < 300} or allowed


class AcceptsBytesOnly(OutlinesMatcher):
    def accept(self, token_id):
        return (token_id < 256 or token_id in ENDS) and super().accept(token_id)


@pytest.mark.parametrize(
    ("matcher_class", "reason"),
    [
        (ForbidsATokenOfSeveralBytes, "the mask forbids token 265 of 'ab-12'"),
        (AcceptsBytesOnly, "accept refuses token 265 of 'ab-12'"),
        (RefusesALetter, "accept refuses token 97"),
        (NeverEnds, "the mask forbids token 300"),
    ],
)
def test_a_wrong_reject_of_a_tokenization_is_rejected(matcher_class, reason):
    example = Example(EXAMPLE.params, EXAMPLE.is_valid, ("ab-12",))
    run(TOKENIZED, backend_of(OutlinesMatcher), example)
    with pytest.raises(AssertionError, match=reason):
        run(TOKENIZED, backend_of(matcher_class), example)


def test_a_wrong_accept_is_rejected():
    run(WRONG, backend_of(OutlinesMatcher), EXAMPLE)
    with pytest.raises(AssertionError, match="which does not follow the grammar regex"):
        run(WRONG, backend_of(AcceptsAnything), EXAMPLE)


def test_masks_that_change_are_rejected():
    run(SAME, backend_of(OutlinesMatcher), EXAMPLE)
    with pytest.raises(AssertionError, match="differ after the same tokens"):
        run(SAME, backend_of(ForgetsALetterNowAndThen), EXAMPLE)


def test_every_completion_of_the_examples_is_valid_by_their_validator():
    for example in examples(ALL):
        assert example.completions
        assert all(example.is_valid(text) for text in example.completions), example


def test_matchers_that_share_their_state_are_rejected():
    run(ALONE, OutlinesBackend(contract_vocabulary()), EXAMPLE)
    with pytest.raises(AssertionError, match="a matcher changed when another"):
        run(ALONE, HasOneMatcher(contract_vocabulary()), EXAMPLE)


class Lenient(StructuredOutputContract):
    backend = OutlinesBackend
    refused = ((StructuredOutputsParams(regex="a"), "'minimum'"),)


class SaysTooLittle(StructuredOutputContract):
    backend = OutlinesBackend
    refused = ((StructuredOutputsParams(regex="(?=a)"), "'minimum'"),)


def test_a_missing_refusal_is_rejected():
    with pytest.raises(pytest.fail.Exception, match="DID NOT RAISE"):
        Lenient().test_what_cannot_be_honoured_is_refused_by_name()


def test_a_refusal_without_the_name_is_rejected():
    with pytest.raises(AssertionError, match="must contain 'minimum'"):
        SaysTooLittle().test_what_cannot_be_honoured_is_refused_by_name()


class SpellsSpecialTokens(LLGuidanceBackend):
    def __init__(self, vocabulary):
        super().__init__(replace(vocabulary, special_tokens={}))


class SpellsThem(StructuredOutputContract):
    backend = SpellsSpecialTokens
    constraints = frozenset({"calls"})


def test_a_special_token_that_is_spelled_is_rejected():
    with pytest.raises(AssertionError, match="must allow the special token, and only it"):
        getattr(SpellsThem(), f"test_{BY_ID}")()


def test_each_test_of_the_kit_has_a_backend_that_fails_it():
    tests = {name for name in dir(StructuredOutputContract) if name.startswith("test_")}
    proven = {test for _, test, _ in OF_A_MATCHER} | {
        VALID,
        TOKENIZED,
        LONGER,
        ALONE,
        WRONG,
        SAME,
        REFUSED,
        BY_ID,
    }
    assert tests == {f"test_{test}" for test in proven}


@pytest.mark.parametrize("constraint", [*sorted(ALL), "calls", "calls_in_text"])
def test_a_supported_constraint_is_tried(constraint):
    tried = list(examples(frozenset({constraint})))
    assert tried
    assert {example.params.constraint for example in tried} == {constraint}
    assert all(example.is_valid(text) for example in tried for text in example.completions)


def test_the_validators_reject_wrong_completions():
    assert satisfies({"type": "string", "format": "date"})('"2024-02-29"')
    assert not satisfies({"type": "string", "format": "date"})('"2023-02-29"')
    assert not satisfies({"type": "integer"})('"1"')
    assert matches("a+")("aa")
    assert not matches("a+")("aab")
    (gbnf, lark) = examples(frozenset({"grammar"}))
    assert gbnf.is_valid("((abc))")
    assert lark.is_valid("ab,ac")
    assert not gbnf.is_valid("((abc)")
    assert not lark.is_valid("(abd)")
    (calls, one, section) = examples(frozenset({"calls"}))
    assert section.is_valid("[[get:;|put:<a=x> <n=0>;]]")
    assert not section.is_valid("[[put:<n=0>;]]")
    assert calls.is_valid('add(1), say.it("yes")[0]')
    assert not calls.is_valid("add(1), add(x)")
    assert not one.is_valid("add(1), add(2)")
    (several, at_most_one, sections, at_start) = examples(frozenset({"calls_in_text"}))
    assert several.is_valid("a add(1) b add(2)")
    assert not several.is_valid("a add(x) b")
    assert not at_most_one.is_valid("add(1) b")
    assert sections.is_valid("a [[get:;]] b")
    assert not sections.is_valid("a [[get;]] b")
    assert at_start.is_valid("a [[get;")
    assert not at_start.is_valid("[[get:;]] b")


def test_the_vocabulary_has_the_difficult_cases():
    vocabulary = contract_vocabulary()
    assert all(bytes([byte]) in vocabulary.tokens for byte in range(256))
    assert any(len(ids) > 1 for ids in vocabulary.tokens.values())
    assert any(b"\x80" <= token[:1] < b"\xc0" and len(token) > 1 for token in vocabulary.tokens)
    ids = {i for each in vocabulary.tokens.values() for i in each} | set(vocabulary.eos_token_ids)
    assert len(vocabulary.eos_token_ids) == 2
    assert vocabulary.size % 32
    assert max(ids) + 1 < vocabulary.size
    with pytest.raises(GrammarError, match="lookahead"):
        OutlinesBackend.check(StructuredOutputsParams(regex="(?=a)"))
