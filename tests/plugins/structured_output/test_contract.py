"""The conformance kit notices what is wrong with a backend: each mutant fails the test for it."""

import pytest

from quire.sampling_params import StructuredOutputsParams
from quire.testing.structured_output import (
    Example,
    StructuredOutputContract,
    contract_vocabulary,
    matches,
)
from quire_structured_output.outlines import OutlinesBackend, OutlinesMatcher

EXAMPLE = Example(StructuredOutputsParams(regex="[a-f]{2,5}(?:-[0-9]+)?"), matches("[a-f]{2,3}"))
RIGHT = Example(EXAMPLE.params, matches("[a-f]{2,5}(?:-[0-9]+)?"))


class AddsToTheMask(OutlinesMatcher):
    def fill_bitmask(self, words):
        before = bytes(words)
        super().fill_bitmask(words)
        words[0] |= int.from_bytes(before[:4], "little", signed=True)


class ForgetsToRollBack(OutlinesMatcher):
    def rollback(self, num_tokens):
        super().rollback(max(0, num_tokens - 1))


class AcceptsAnything(OutlinesMatcher):
    def accept(self, token_id):
        super().accept(token_id)
        return True


class KnowsOneEnd(OutlinesMatcher):
    def fill_bitmask(self, words):
        super().fill_bitmask(words)
        words[302 // 32] &= ~(1 << 302 % 32)


class NeverFinishes(OutlinesMatcher):
    def is_finished(self):
        return False


class GoesOnBehindTheEnd(OutlinesMatcher):
    def accept(self, token_id):
        return token_id in (300, 302) or super().accept(token_id)


def mutant(matcher_class):
    class Mutant(OutlinesBackend):
        def compile(self, params):
            grammar = super().compile(params)
            grammar.matcher = lambda: matcher_class(grammar)
            return grammar

    return Mutant(contract_vocabulary())


PROOFS = [
    (AddsToTheMask, "test_a_mask_allows_exactly_what_is_accepted"),
    (ForgetsToRollBack, "test_rollback_returns_to_the_same_masks"),
    (AcceptsAnything, "test_a_mask_allows_exactly_what_is_accepted"),
    (KnowsOneEnd, "test_both_ends_are_allowed_or_none"),
    (NeverFinishes, "test_finished_means_that_only_the_end_may_follow"),
    (GoesOnBehindTheEnd, "test_a_mask_allows_exactly_what_is_accepted"),
]


@pytest.mark.parametrize(("matcher_class", "test"), PROOFS)
def test_a_wrong_matcher_fails(matcher_class, test):
    contract = StructuredOutputContract()
    run = vars(StructuredOutputContract)[test]
    run(contract, mutant(OutlinesMatcher).compile(RIGHT.params).matcher())
    with pytest.raises(AssertionError):
        run(contract, mutant(matcher_class).compile(RIGHT.params).matcher())


def test_an_answer_that_does_not_follow_the_grammar_fails():
    backend = mutant(OutlinesMatcher)
    StructuredOutputContract().test_random_answers_are_valid(backend, RIGHT)
    with pytest.raises(AssertionError):
        StructuredOutputContract().test_random_answers_are_valid(backend, EXAMPLE)


def test_a_refusal_that_is_missing_fails():
    class Contract(StructuredOutputContract):
        backend = OutlinesBackend
        refused = ((StructuredOutputsParams(regex="a"), "'minimum'"),)

    with pytest.raises(pytest.fail.Exception):
        Contract().test_what_cannot_be_honoured_is_refused_by_name()
