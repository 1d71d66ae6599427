"""Selection of beams by cumulative log probability, without requests or blocks.

After each step every beam has its most likely next tokens. Of all of them, those with the largest
sums continue. One that ends, with a stop token or at the longest length, becomes a hypothesis if it
is among the first `beam_width`; hypotheses are compared by sum / length ** length_penalty. The
definition is that of transformers, sums in float32 included, so that the results are the same.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import NamedTuple

import numpy as np

from quire.messages import BeamHypothesis, EngineRequest, FinishReason, TokenLogprobs


@dataclass(frozen=True, slots=True)
class _Token:
    """A generated token of a beam, with those before it; beams share them."""

    token_id: int
    logprobs: TokenLogprobs
    before: _Token | None

    def all(self) -> list[_Token]:
        """Return all generated tokens up to this one, in order."""
        tokens: list[_Token] = []
        token: _Token | None = self
        while token is not None:
            tokens.append(token)
            token = token.before
        return tokens[::-1]


class Continuation(NamedTuple):
    """A beam and its next token.

    Attributes:
        beam: Index of the beam that continues.
        token_id: Its next token.
    """

    beam: int
    token_id: int


class _Candidate(NamedTuple):
    """A possible continuation.

    Attributes:
        total: Sum of the log probabilities.
        beam: Index of the beam.
        place: Place of the token among the most likely ones of the beam, from 0.
        token_id: The token.
    """

    total: np.float32
    beam: int
    place: int
    token_id: int


class _Hypothesis(NamedTuple):
    score: np.float32
    cumulative_logprob: np.float32
    last: _Token


class BeamSelection:
    """The beams of one search, and its hypotheses.

    Args:
        message: Request with `beam_search`.

    Attributes:
        is_over: Whether no further step can improve the hypotheses.
    """

    def __init__(self, message: EngineRequest) -> None:
        if message.beam_search is None:
            raise ValueError(f"request {message.request_id} is no beam search")
        params = message.beam_search
        self.is_over = False
        self._width = params.beam_width
        self._length_penalty = params.length_penalty
        self._early_stopping = params.early_stopping
        self._max_tokens = message.max_tokens
        self._min_tokens = message.params.min_tokens
        self._num_logprobs = message.params.logprobs
        self._stop_token_ids = frozenset(message.stop_token_ids)
        self._num_candidates = params.num_candidates(len(message.stop_token_ids))
        self._named_stops = frozenset(message.params.stop_token_ids)
        self._sums = [np.float32(0)]
        self._last: list[_Token | None] = [None]
        self._num_tokens = 0
        self._finished: list[_Hypothesis] = []  # the best first

    @property
    def num_beams(self) -> int:
        """Number of beams: one before the first token."""
        return len(self._sums)

    def select(self, rows: Sequence[TokenLogprobs]) -> list[Continuation]:
        """Select the beams of the next step; none if the search is over.

        Args:
            rows: For each beam, the chosen token, then its most likely next tokens, the best first.
        """
        self._num_tokens += 1
        candidates = list(islice(self._candidates(rows), self._num_candidates))
        running = [candidate for candidate in candidates if not self._ends(candidate)]
        found = [each for each in candidates[: self._width] if self._ends(each)]
        self._finished += [self._hypothesis(each, rows) for each in found]
        self._finished.sort(key=lambda each: -each.score)  # of equal ones the earlier first
        del self._finished[self._width :]
        running = running[: self._width]
        self._last = [self._token(each, rows) for each in running]
        self._sums = [each.total for each in running]
        self.is_over = not running or not self._can_improve()
        return [] if self.is_over else [Continuation(each.beam, each.token_id) for each in running]

    def hypotheses(self, count: int) -> list[BeamHypothesis]:
        """Return the best hypotheses, the best first."""
        return [self._described(each) for each in self._finished[:count]]

    def _candidates(self, rows: Sequence[TokenLogprobs]) -> Iterator[_Candidate]:
        """Yield the continuations, the best first; of equal ones, those of the first beam."""
        is_too_short = self._num_tokens <= self._min_tokens
        values = np.array([row.logprobs[1:] for row in rows], np.float32)  # [beams, tokens]
        totals = values + np.array(self._sums, np.float32)[:, None]
        for index in np.argsort(-totals, axis=None, kind="stable").tolist():
            beam, place = divmod(index, totals.shape[1])
            token_id = rows[beam].token_ids[1 + place]
            if not (is_too_short and token_id in self._stop_token_ids):
                yield _Candidate(totals[beam, place], beam, place, token_id)

    def _ends(self, candidate: _Candidate) -> bool:
        is_last = self._num_tokens >= self._max_tokens
        return is_last or candidate.token_id in self._stop_token_ids

    def _token(self, candidate: _Candidate, rows: Sequence[TokenLogprobs]) -> _Token:
        """Return the token of a candidate with its log probabilities, its own first."""
        row, place = rows[candidate.beam], candidate.place
        count = 1 + (self._num_logprobs or 0)
        logprobs = TokenLogprobs(
            [candidate.token_id, *row.token_ids[1:count]],
            [row.logprobs[1 + place], *row.logprobs[1:count]],
            rank=place + 1,
        )
        return _Token(candidate.token_id, logprobs, self._last[candidate.beam])

    def _hypothesis(self, candidate: _Candidate, rows: Sequence[TokenLogprobs]) -> _Hypothesis:
        score = self._score(candidate.total, self._num_tokens)
        return _Hypothesis(score, candidate.total, self._token(candidate, rows))

    def _score(self, total: np.float32, num_tokens: int) -> np.float32:
        with np.errstate(over="ignore"):
            return np.float32(total / np.float32(float(num_tokens) ** self._length_penalty))

    def _can_improve(self) -> bool:
        """Whether a hypothesis that is found later can be one of the best."""
        if len(self._finished) < self._width:
            return True
        if self._early_stopping is True:
            return False
        is_longest_best = self._early_stopping == "never" and self._length_penalty > 0
        length = self._max_tokens if is_longest_best else self._num_tokens
        return bool(self._score(self._sums[0], length) > self._finished[-1].score)

    def _described(self, found: _Hypothesis) -> BeamHypothesis:
        tokens, last = found.last.all(), found.last.token_id
        reason: FinishReason = "stop" if last in self._stop_token_ids else "length"
        return BeamHypothesis(
            token_ids=[token.token_id for token in tokens],
            cumulative_logprob=float(found.cumulative_logprob),
            finish_reason=reason,
            stop_reason=last if reason == "stop" and last in self._named_stops else None,
            logprobs=None if self._num_logprobs is None else [each.logprobs for each in tokens],
        )
