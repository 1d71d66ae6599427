"""Results of a step for the engine, read once the sampled tokens have reached the host."""

import hashlib
from array import array
from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from quire.errors import QuireError, RequestFailedError
from quire.messages import ErrorReport, SlotResult, StepResult
from quire.process.traceback_text import cause_text, sendable, traceback_text
from quire.worker.sampling.carried_state import RowState
from quire.worker.sampling.prompt_logprobs import PromptLogprobs
from quire.worker.sampling.sampled_tokens import HostTokens, SampledTokens

INVALID_LOGITS = ErrorReport(
    RequestFailedError.code,
    "no token can be sampled for this request: its logits are not finite, or no token is allowed",
)


@dataclass(slots=True)
class LaunchedStep:
    """A step whose sampling was launched; its tokens may not have reached the host yet.

    Attributes:
        plan_id: Id of the step plan.
        sampled: Slots and their sampled tokens.
        prompts: Prompt log probabilities of the step.
        errors: Errors of slots that failed before sampling.
        sampler_name: Name of the sampler, for error messages.
        has_digest: Whether other workers sample the same tokens, to be compared with these.
    """

    plan_id: int
    sampled: list[tuple[list[int], SampledTokens]]
    prompts: list[PromptLogprobs]
    errors: dict[int, ErrorReport]
    sampler_name: str
    has_digest: bool = False

    @property
    def is_ready(self) -> bool:
        """Whether the tokens have reached the host."""
        return all(sampled.is_on_host for _, sampled in self.sampled)

    def read(self) -> StepResult:
        """Wait for the tokens, and return the result of the step."""
        results = [SlotResult(slot, [], None, error) for slot, error in self.errors.items()]
        for slots, sampled in self.sampled:
            results += _results(slots, sampled, self.sampler_name)
        return StepResult(
            plan_id=self.plan_id,
            results=_with_prompts(results, self.prompts),
            digest=token_digest(self.plan_id, results) if self.has_digest else 0,
        )


def token_digest(plan_id: int, results: Sequence[SlotResult]) -> int:
    """Return a 64-bit digest of a step's sampled tokens and states, in the order of its rows."""
    values = array("q", (plan_id,))
    for result in results:
        values.append(result.slot)
        values.append(len(result.token_ids))
        values.extend(result.token_ids)
        if result.state is not None:
            values.frombytes(array("d", result.state.values()).tobytes())
    return int.from_bytes(hashlib.blake2b(values, digest_size=8).digest(), "little")


def failure(what: str, error: Exception) -> ErrorReport:
    """Return the report of a failure; details that a client must not see are its cause.

    Args:
        what: Operation that failed, as the subject of the message.
        error: Error that was raised.
    """
    if isinstance(error, QuireError):
        return ErrorReport(error.code, sendable(str(error)), cause_text(error))
    message = f"{what} failed: {type(error).__name__}"
    return ErrorReport(RequestFailedError.code, sendable(message), traceback_text(error))


def _results(slots: Sequence[int], sampled: SampledTokens, sampler_name: str) -> list[SlotResult]:
    host, vocab_size = sampled.read(), sampled.vocab_size
    if sampled.states is not None:
        return _results_with_states(slots, host, vocab_size, sampler_name)
    rows = zip(slots, host.token_ids, host.is_valid, host.logprobs, strict=True)
    return [
        SlotResult(slot, [token_id], None if logprobs is None else [logprobs])
        if is_valid
        else SlotResult(slot, [], None, invalid_token_error(token_id, vocab_size, sampler_name))
        for slot, token_id, is_valid, logprobs in rows
    ]


def _results_with_states(
    slots: Sequence[int], host: HostTokens, vocab_size: int, sampler_name: str
) -> list[SlotResult]:
    return [
        SlotResult(slot, [token_id], None if logprobs is None else [logprobs], state=state)
        if is_valid and not isinstance(state, ErrorReport)
        else SlotResult(
            slot, [], None, _row_error(token_id, is_valid, state, vocab_size, sampler_name)
        )
        for slot, token_id, is_valid, logprobs, state in zip(slots, *host, strict=True)
    ]


def _row_error(
    token_id: int, is_valid: bool, state: RowState, vocab_size: int, sampler_name: str
) -> ErrorReport:
    """Return the error of a row: without a valid token its state means nothing."""
    if is_valid and isinstance(state, ErrorReport):
        return state
    return invalid_token_error(token_id, vocab_size, sampler_name)


def invalid_token_error(token_id: int, vocab_size: int, sampler_name: str) -> ErrorReport:
    """Return the error of a row without a valid token: invalid logits, or an invalid token id."""
    if 0 <= token_id < vocab_size:
        return INVALID_LOGITS
    return ErrorReport(
        RequestFailedError.code,
        f"{sampler_name} returned token id {token_id}; the vocabulary has {vocab_size} tokens",
    )


def _with_prompts(results: list[SlotResult], prompts: Sequence[PromptLogprobs]) -> list[SlotResult]:
    """Add prompt log probabilities; a prompt chunk without a sampled token gets a result."""
    if not prompts:
        return results
    by_slot = {result.slot: result for result in results}
    for prompt in prompts:
        result = by_slot.get(prompt.slot, SlotResult(prompt.slot, []))
        if result.error is None:
            by_slot[prompt.slot] = msgspec.structs.replace(result, prompt_logprobs=prompt.read())
    return list(by_slot.values())
