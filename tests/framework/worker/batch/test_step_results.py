"""Step results have the sampled token of each slot, or an error for the client and its cause."""

import weakref

import pytest
import torch

from quire.errors import AdapterError, PromptTooLongError, RequestFailedError
from quire.messages import ErrorReport, SlotResult
from quire.process.ipc import decode, encode
from quire.worker.batch.step_results import LaunchedStep, failure, token_digest
from quire.worker.sampling.prompt_logprobs import PromptLogprobs
from quire.worker.sampling.row_logprobs import row_logprobs
from quire.worker.sampling.sampled_tokens import SampledTokens


class Thing:
    """What a frame holds."""


def raises(held):
    """Raise with something in the frame, and behind another exception."""
    try:
        raise KeyError("first")
    except KeyError as error:
        kept = (held, torch.ones(1))
        assert kept
        raise ValueError("secret") from error


def failed(wrap=None):
    """Return the failure of a call, and a reference to what its frames held."""
    held = Thing()
    reference = weakref.ref(held)
    try:
        try:
            raises(held)
        except ValueError as error:
            if wrap is None:
                raise
            raise wrap("of acme failed") from error
    except Exception as error:  # noqa: BLE001 - as at the edge of a plugin
        del held
        return failure("sampling", error), reference


def test_what_a_client_may_not_see_is_the_cause_with_its_traceback_as_text():
    report, held = failed()
    assert (report.code, report.message) == ("request_failed", "sampling failed: ValueError")
    assert report.cause.startswith("Traceback")
    assert "KeyError: 'first'" in report.cause
    assert "in raises" in report.cause
    assert report.cause.endswith("ValueError: secret")
    assert held() is None, "no frame is kept"


@pytest.mark.parametrize("kind", [AdapterError, RequestFailedError])
def test_an_error_of_ours_keeps_its_words_and_what_it_comes_from(kind):
    report, held = failed(kind)
    assert (report.code, report.message) == (kind.code, "of acme failed")
    assert report.cause.endswith("ValueError: secret")
    assert held() is None


def test_what_an_exception_holds_beside_its_frames_is_not_kept():
    held = torch.ones(1)
    reference = weakref.ref(held)
    error = ExceptionGroup("two", [AttributeError("no x", obj=held), KeyError("y")])
    report = failure("sampling", error)
    del held, error
    assert "AttributeError: no x" in report.cause
    assert reference() is None


def test_an_exception_that_is_its_own_cause_is_reported_once():
    error = ValueError("loop")
    error.__cause__ = error
    first, second = failure("sampling", error), failure("sampling", error)
    assert first == second, "the same exception may be raised again"
    assert first.cause.count("ValueError: loop") == 1
    ours = AdapterError("torn")
    ours.__cause__ = ours
    assert failure("loading", ours).cause.endswith("AdapterError: torn")


@pytest.mark.parametrize("kind", [ValueError, AdapterError])
def test_what_is_no_text_is_escaped_and_can_be_sent(kind):
    error = kind("half \ud800 of 😀")
    error.__cause__ = KeyError("\udfff")
    report = failure("loading", error)
    assert decode(encode(report), ErrorReport) == report
    assert r"\udfff" in report.cause


def test_a_long_cause_keeps_its_end():
    report = failure("sampling", ValueError("é" * 100_000 + "end"))
    assert 16_000 < len(report.cause.encode()) <= 16 * 1024
    assert report.cause.endswith("éend")
    assert report.message == "sampling failed: ValueError"


def test_an_error_of_ours_without_a_cause_has_none():
    assert failure("loading", AdapterError("no place")).cause is None
    assert failure("x", PromptTooLongError("long")).code == "context_length_exceeded"


def test_an_id_out_of_range_is_blamed_on_the_sampler():
    sampled = SampledTokens.of(torch.tensor([7, 1, 2]), torch.tensor([1.0, 1.0, torch.nan]), 7)
    step = LaunchedStep(3, [([5, 6, 4], sampled)], [], {}, "sampler 'x'")
    results = {result.slot: result for result in step.read().results}
    assert results[5].error.message == (
        "sampler 'x' returned token id 7; the vocabulary has 7 tokens"
    )
    assert results[5].error.code == "request_failed"
    assert results[5].token_ids == []
    assert (results[6].token_ids, results[6].error) == ([1], None)
    assert "its logits are not finite" in results[4].error.message


def prompt_logprobs(slot):
    return PromptLogprobs(slot, [row_logprobs(torch.zeros(2, 3), torch.tensor([1, 2]), [0, 0])])


def test_prompt_logprobs_go_to_valid_slots_and_those_without_sampled_tokens():
    sampled = SampledTokens.of(torch.tensor([1, 1]), torch.tensor([1.0, torch.nan]), 3)
    failed = {8: ErrorReport("x", "it failed")}
    prompts = [prompt_logprobs(slot) for slot in (5, 6, 7, 8)]
    step = LaunchedStep(3, [([5, 6], sampled)], prompts, failed, "sampler 'x'")
    result = step.read()
    by_slot = {each.slot: each for each in result.results}
    assert (result.plan_id, len(result.results), sorted(by_slot)) == (3, 4, [5, 6, 7, 8])
    assert by_slot[5].token_ids == [1]
    assert len(by_slot[5].prompt_logprobs) == 2
    assert by_slot[6].prompt_logprobs is None
    assert (by_slot[7].token_ids, len(by_slot[7].prompt_logprobs)) == ([], 2)
    assert (by_slot[8].error.message, by_slot[8].prompt_logprobs) == ("it failed", None)


def test_log_probabilities_of_a_token_are_those_of_its_row():
    logprobs = row_logprobs(torch.zeros(1, 3), torch.tensor([2]), [None, 1])
    sampled = SampledTokens.of(torch.tensor([1, 2]), torch.ones(2), 3)
    sampled.logprobs = logprobs
    first, second = LaunchedStep(1, [([5, 6], sampled)], [], {}, "").read().results
    assert first.logprobs is None
    assert second.logprobs[0].token_ids[0] == 2


STEP = [SlotResult(3, [17]), SlotResult(1, [5])]


def test_a_digest_is_that_of_the_tokens_and_fits_a_message():
    again = [SlotResult(3, [17], None, None), SlotResult(1, [5])]
    assert token_digest(9, STEP) == token_digest(9, again)
    assert 0 < token_digest(9, STEP) < 2**64


@pytest.mark.parametrize(
    ("plan_id", "other"),
    [
        (8, STEP),
        (9, [SlotResult(3, [18]), SlotResult(1, [5])]),
        (9, [SlotResult(2, [17]), SlotResult(1, [5])]),
        (9, STEP[::-1]),
        (9, STEP[:1]),
        (9, [SlotResult(3, [17, 1, 5])]),
        (9, [SlotResult(3, [17, 5]), SlotResult(1, [])]),
        (9, [SlotResult(3, []), SlotResult(1, [17, 5])]),
    ],
)
def test_other_tokens_have_another_digest(plan_id, other):
    assert token_digest(plan_id, other) != token_digest(9, STEP)


def test_a_step_has_a_digest_only_where_it_is_compared():
    tokens = torch.tensor([17, 5])
    for has_digest in (False, True):
        sampled = SampledTokens.of(tokens, torch.ones(2), 20)
        result = LaunchedStep(9, [([3, 1], sampled)], [], {}, "a sampler", has_digest).read()
        assert result.digest == (token_digest(9, STEP) if has_digest else 0)
        assert decode(encode(result), type(result)) == result
