"""Budgets of thinking tokens: a request that has used up its budget samples the end of thinking.

Its last allowed token is followed by the end marker, whose tokens are the only ones that masks
leave. A mask needs all tokens before it, so a step in flight is waited for, but only where the
budget may end.

A tool call that begins in the thinking ends the budget: the end of thinking would cut it.

A grammar may have room for the thinking. It binds: the end is forced only as far as it allows.
"""

from collections.abc import Sequence

from quire.engine.marker_matcher import MarkerMatcher
from quire.engine.row_masks import only
from quire.messages import EngineOutput, MarkerTokens, RowBitmask, ThinkingBudget

MAX_LEADING_TOKENS = 4  # of a completion, before the token that opens its thinking


class ThinkingState:
    """How far a request has thought.

    Args:
        budget: Its budget.
        call_openers: Markers by which a tool call begins in the thinking; None: none may be there.
    """

    def __init__(self, budget: ThinkingBudget, call_openers: MarkerTokens | None = None) -> None:
        self.is_over = False
        self._max_tokens = budget.max_tokens
        self._end_ids = budget.end.token_ids
        self._shorter = _shorter_beginnings(budget.end.token_ids)
        self._end = MarkerMatcher(budget.end)
        self._call_openers = None if call_openers is None else MarkerMatcher(call_openers)
        self._start = None if budget.start is None else MarkerMatcher(budget.start)
        num_start = 0 if budget.start is None else len(budget.start.token_ids)
        self._max_leading = MAX_LEADING_TOKENS + max(0, num_start - 1)
        self._is_open = budget.is_open
        self._num_tokens = 0  # of the thinking, or of the completion before it
        self._num_of_end = 0  # last tokens that are the beginning of the end marker

    @property
    def forced_token_id(self) -> int:
        """Next token of the end marker."""
        return self._end_ids[self._num_of_end]

    def accept(self, token_ids: Sequence[int]) -> None:
        """Read sampled tokens."""
        for token_id in token_ids:
            if self.is_over:
                return
            if not self._is_open:
                self._look_for_start(token_id)
            elif self._end.accept(token_id) or self._begins_call(token_id):
                self.is_over = True
            else:
                self._num_tokens += 1
                self._follow_end(token_id)

    def may_be_used_up(self, num_unknown: int) -> bool:
        """Whether the budget may be used up after this many unknown tokens."""
        if not self._is_open:
            return num_unknown > self._max_tokens  # the first of them may open the thinking
        return self._num_tokens + num_unknown >= self._max_tokens

    def _begins_call(self, token_id: int) -> bool:
        """Whether the marker of a call is complete with the next token of the thinking."""
        return self._call_openers is not None and self._call_openers.accept(token_id)

    def _follow_end(self, token_id: int) -> None:
        """Count the tokens of the end marker that the completion has by now."""
        while self._num_of_end and token_id != self.forced_token_id:
            self._num_of_end = self._shorter[self._num_of_end]
        self._num_of_end += token_id == self.forced_token_id
        if self._num_of_end == len(self._end_ids):
            self._num_of_end = self._shorter[self._num_of_end]

    def _look_for_start(self, token_id: int) -> None:
        self._num_tokens += 1
        if self._start is not None and self._start.accept(token_id):
            self._is_open, self._num_tokens = True, 0
        elif self._num_tokens >= self._max_leading:
            self.is_over = True  # the completion does not think


class ThinkingBudgets:
    """The requests that have a budget and have not stopped thinking.

    Args:
        vocab_size: V.
    """

    def __init__(self, vocab_size: int) -> None:
        self._vocab_size = vocab_size
        self._states: dict[str, ThinkingState] = {}

    def __bool__(self) -> bool:
        return bool(self._states)

    def add(
        self, request_id: str, budget: ThinkingBudget, call_openers: MarkerTokens | None = None
    ) -> None:
        """Add a request."""
        self._states[request_id] = ThinkingState(budget, call_openers)

    def release(self, request_id: str) -> None:
        """Remove a request; nothing happens if it has no budget."""
        self._states.pop(request_id, None)

    def accept(self, outputs: Sequence[EngineOutput]) -> None:
        """Read the tokens of a step."""
        for output in outputs:
            state = self._states.get(output.request_id)
            if state is None:
                continue
            state.accept(output.token_ids)
            if state.is_over or output.finish_reason is not None:
                del self._states[output.request_id]

    def may_be_used_up(self, request_id: str, num_unknown: int) -> bool:
        """Whether a request's budget may be used up after this many unknown tokens."""
        state = self._states.get(request_id)
        return state is not None and state.may_be_used_up(num_unknown)

    def mask(self, request_id: str, slot: int) -> RowBitmask | None:
        """Return the mask that ends a request's thinking; None if it may go on.

        All tokens before the masked one are known.
        """
        if not self.may_be_used_up(request_id, 0):
            return None
        return only(self._states[request_id].forced_token_id, slot, self._vocab_size)


def _shorter_beginnings(token_ids: Sequence[int]) -> list[int]:
    """Return, for each beginning of some tokens, the longest shorter one by which it ends."""
    shorter = [0, 0]
    for token_id in token_ids[1:]:
        length = shorter[-1]
        while length and token_ids[length] != token_id:
            length = shorter[length]
        shorter.append(length + (token_ids[length] == token_id))
    return shorter
