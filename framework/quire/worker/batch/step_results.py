"""What a step says to the engine, once its tokens have reached the host."""

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from quire.errors import QuireError, RequestFailedError
from quire.messages import ErrorReport, SlotResult, StepResult
from quire.process.traceback_text import cause_text, sendable, traceback_text
from quire.worker.sampling.prompt_logprobs import PromptLogprobs
from quire.worker.sampling.sampled_tokens import SampledTokens

NOT_A_NUMBER = ErrorReport(
    RequestFailedError.code,
    "no token can be drawn for this request: its logits are not numbers, or none is allowed",
)


@dataclass(slots=True)
class LaunchedStep:
    """A step whose tokens are drawn, and may not have reached the host.

    Attributes:
        sampled: Slots, and what they drew.
        errors: Slots that failed before they could draw.
        sampler_name: Name of the step that drew, in errors.
    """

    plan_id: int
    sampled: list[tuple[list[int], SampledTokens]]
    prompts: list[PromptLogprobs]
    errors: dict[int, ErrorReport]
    sampler_name: str

    def read(self) -> StepResult:
        """Wait for the tokens, and return what the engine is told."""
        results = [SlotResult(slot, [], None, error) for slot, error in self.errors.items()]
        for slots, sampled in self.sampled:
            results += _results(slots, sampled, self.sampler_name)
        return StepResult(plan_id=self.plan_id, results=_with_prompts(results, self.prompts))


def failure(what: str, error: Exception) -> ErrorReport:
    """Name the kind of failure; what a client may not see is its cause."""
    if isinstance(error, QuireError):
        return ErrorReport(error.code, sendable(str(error)), cause_text(error))
    message = f"{what} failed: {type(error).__name__}"
    return ErrorReport(RequestFailedError.code, sendable(message), traceback_text(error))


def _results(slots: Sequence[int], sampled: SampledTokens, sampler_name: str) -> list[SlotResult]:
    return [
        SlotResult(slot, [token_id], None if logprobs is None else [logprobs])
        if is_sound
        else SlotResult(slot, [], None, why_unsound(token_id, sampled.vocab_size, sampler_name))
        for slot, token_id, is_sound, logprobs in zip(slots, *sampled.read(), strict=True)
    ]


def why_unsound(token_id: int, vocab_size: int, sampler_name: str) -> ErrorReport:
    """Say why a row has no token: the model gave it none, or the draw returned something else."""
    if 0 <= token_id < vocab_size:
        return NOT_A_NUMBER
    return ErrorReport(
        RequestFailedError.code,
        f"{sampler_name} returned token id {token_id}; the vocabulary has {vocab_size} tokens",
    )


def _with_prompts(results: list[SlotResult], prompts: Sequence[PromptLogprobs]) -> list[SlotResult]:
    """Add the log probabilities of prompts; a chunk that drew nothing has a result for them."""
    if not prompts:
        return results
    by_slot = {result.slot: result for result in results}
    for prompt in prompts:
        result = by_slot.get(prompt.slot, SlotResult(prompt.slot, []))
        if result.error is None:
            by_slot[prompt.slot] = msgspec.structs.replace(result, prompt_logprobs=prompt.read())
    return list(by_slot.values())
