"""A model whose next token depends on all tokens, for tests of beam search."""

import random
from collections.abc import Sequence

import numpy as np
from engine_parts import BLOCK_SIZE, CountingExecutor

from quire.engine.beam_search.beam_selection import BeamSelection
from quire.errors import StepFailedError
from quire.messages import (
    BeamHypothesis,
    EngineRequest,
    ErrorReport,
    SlotResult,
    StepPlan,
    StepResult,
    TokenLogprobs,
)


def logits_after(token_ids: Sequence[int], vocab_size: int, seed: int) -> np.ndarray:
    """Return random logits that are a function of all tokens."""
    rng = random.Random(f"{seed} {list(token_ids)}")
    return np.array([rng.gauss(0, 1.5) for _ in range(vocab_size)], np.float32)


def row_after(token_ids: Sequence[int], vocab_size: int, seed: int) -> TokenLogprobs:
    """Return the row of the worker: the most likely token, and all tokens from the best on."""
    logits = logits_after(token_ids, vocab_size, seed)
    shifted = logits - logits.max()
    logprobs = shifted - np.log(np.exp(shifted).sum(dtype=np.float32))
    order = sorted(range(vocab_size), key=lambda token: -logprobs[token])
    ids = [order[0], *order]
    return TokenLogprobs(ids, [float(logprobs[token]) for token in ids], 1)


def searched(message: EngineRequest, vocab_size: int, seed: int) -> list[BeamHypothesis]:
    """Return the hypotheses of a search that computes every beam from its first token."""
    selection = BeamSelection(message)
    beams = [list(message.token_ids)]
    while not selection.is_over:
        rows = [row_after(beam, vocab_size, seed) for beam in beams]
        beams = [[*beams[each.beam], each.token_id] for each in selection.select(rows)]
    return selection.hypotheses(message.params.n)


class BeamExecutor(CountingExecutor):
    """Workers that keep what each place of the KV cache holds, and check it before they sample."""

    def __init__(self, vocab_size: int, seed: int) -> None:
        super().__init__(vocab_size)
        self.seed = seed
        self.num_computed = 0
        self.failing_slot: int | None = None
        self.fails_once = False
        self._held: dict[tuple[int, int], tuple[int, ...]] = {}  # block, place -> tokens so far

    def execute(self, plan: StepPlan) -> None:
        for copy in (each for given in plan.assignments for each in given.block_copies):
            for offset in range(BLOCK_SIZE):
                self._held.pop((copy.target, offset), None)
                if (copy.source, offset) in self._held:
                    self._held[copy.target, offset] = self._held[copy.source, offset]
        for patch in plan.token_patches:
            self.tokens[patch.slot][patch.position :] = patch.token_ids
        super().execute(plan)
        for entry in plan.requests:
            end, tokens = self.computed[entry.slot], self.tokens[entry.slot]
            for position in range(end - entry.num_tokens, end):
                place = self._place(entry.slot, position)
                self._held[place] = tuple(tokens[: position + 1])
            self.num_computed += entry.num_tokens

    def _place(self, slot: int, position: int) -> tuple[int, int]:
        index, offset = divmod(position, BLOCK_SIZE)
        return self.blocks[slot][0][index], offset

    def collect(self, plan_id: int) -> StepResult:
        result = super().collect(plan_id)
        if self.fails_once:
            self.fails_once = False
            self.plans.clear()
            self.results.clear()
            raise StepFailedError("two workers failed", plan_id=plan_id)
        return result

    def _sample(self, slot: int) -> SlotResult:
        tokens = self.tokens[slot]
        if slot == self.failing_slot:
            tokens.append(0)
            return SlotResult(slot, [], None, ErrorReport("request_failed", f"slot {slot} failed"))
        for position in range(self.computed[slot]):
            held = self._held.get(self._place(slot, position))
            if held != tuple(tokens[: position + 1]):
                raise AssertionError(f"slot {slot} reads the KV of other tokens at {position}")
        row = row_after(tokens, self.vocab_size, self.seed)
        tokens.append(row.token_ids[0])
        return SlotResult(slot, [row.token_ids[0]], [row])
