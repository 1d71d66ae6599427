"""A model whose next token depends on the tokens of a request and of its companion."""

from collections.abc import Sequence

import msgspec
from beam_parts import logits_after
from engine_parts import EOS, make_message
from keeping_executor import KeepingExecutor

from quire.messages import Companion, EngineRequest, RowBitmask, SlotResult, StepPlan, StepResult
from quire.sampling_params import SamplingParams

SCALE = 2.5


def next_token(own: Sequence[int], other: Sequence[int], vocab_size: int, seed: int) -> int:
    """Return the token that guidance makes the most likely."""
    mine, theirs = (logits_after(tokens, vocab_size, seed) for tokens in (own, other))
    return int((theirs + SCALE * (mine - theirs)).argmax())


def guided(message: EngineRequest, vocab_size: int, seed: int) -> list[int]:
    """Return the completion of a guided request that computes everything from its first token."""
    own, other = list(message.token_ids), list(message.companion.token_ids)
    completion: list[int] = []
    while len(completion) < message.max_tokens:
        completion.append(next_token(own + completion, other + completion, vocab_size, seed))
        if completion[-1] in message.stop_token_ids:
            break
    return completion


def guided_message(name, prompt, other, max_tokens, ends=True):
    message = make_message(name, prompt=prompt, max_tokens=max_tokens)
    return msgspec.structs.replace(
        message,
        stop_token_ids=(EOS,) if ends else (),
        companion=Companion(list(other), SamplingParams(temperature=0.0)),
    )


class GuidedExecutor(KeepingExecutor):
    """Workers that sample a guided request's token for its companion as well."""

    def __init__(self, vocab_size: int, seed: int) -> None:
        super().__init__(vocab_size, seed)
        self._companions: dict[int, int] = {}  # slot -> slot of its companion

    def execute(self, plan: StepPlan) -> None:
        for given in plan.assignments:
            self._companions.pop(given.slot, None)
            if given.companion_slot is not None:
                self._companions[given.slot] = given.companion_slot
        super().execute(plan)

    def sample(self, plan_id: int, masks: Sequence[RowBitmask]) -> None:
        plan = self.plans[-1]
        sampled = [entry.slot for entry in plan.requests if entry.num_samples]
        rows = []
        for slot in sampled:
            companion = self._companions.get(slot)
            if companion is not None:
                assert companion in sampled, "a guided request is sampled without its companion"
                rows += self._sample_pair(slot, companion)
        by_slot = {row.slot: row for row in rows}
        by_slot |= {slot: self._sample(slot) for slot in sampled if slot not in by_slot}
        self.results.append(
            StepResult(plan_id=plan_id, results=[by_slot[slot] for slot in sampled])
        )

    def _sample_pair(self, slot: int, companion: int) -> list[SlotResult]:
        if self.failing_slot in (slot, companion):
            return [self._failure(slot), self._failure(companion)]
        self._check_reads(slot)
        self._check_reads(companion)
        own, other = self.tokens[slot], self.tokens[companion]
        token_id = next_token(own, other, self.vocab_size, self.seed)
        own.append(token_id)
        other.append(token_id)
        return [SlotResult(slot, [token_id]), SlotResult(companion, [token_id])]
