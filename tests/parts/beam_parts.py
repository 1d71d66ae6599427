"""A model whose next token depends on all tokens, for tests of beam search."""

import random
from collections.abc import Sequence

import numpy as np
from keeping_executor import KeepingExecutor

from quire.engine.beam_search.beam_selection import BeamSelection
from quire.messages import BeamHypothesis, EngineRequest, SlotResult, TokenLogprobs


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


class BeamExecutor(KeepingExecutor):
    """Workers whose rows have the log probabilities of all tokens."""

    def _sample(self, slot: int) -> SlotResult:
        if slot == self.failing_slot:
            return self._failure(slot)
        self._check_reads(slot)
        tokens = self.tokens[slot]
        row = row_after(tokens, self.vocab_size, self.seed)
        tokens.append(row.token_ids[0])
        return SlotResult(slot, [row.token_ids[0]], [row])
