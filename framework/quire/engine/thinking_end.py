"""The end of a request's thinking, for which its structured-output constraint waits.

A completion that ended while it thinks would never meet the constraint. So a token that would end
it uses up its budget of thinking tokens instead: the end marker follows. Not where a tool call has
begun in the thinking: that may end the completion.
"""

from collections.abc import Iterable

from quire.engine.marker_matcher import MarkerMatcher
from quire.messages import MarkerTokens, ThinkingBudget


class ThinkingEnd:
    """Looks for the end of the thinking, token by token.

    Args:
        end: Marker that ends the thinking.
        call_openers: Markers by which a tool call begins in the thinking; None: none may be there.
        stop_token_ids: Tokens that end a completion. Those of the marker end it here as well.
    """

    def __init__(
        self,
        end: MarkerTokens,
        call_openers: MarkerTokens | None = None,
        stop_token_ids: Iterable[int] = (),
    ) -> None:
        self.used_up_budget = ThinkingBudget(0, end, None, is_open=True)
        self._end = MarkerMatcher(end)
        self._call_openers = None if call_openers is None else MarkerMatcher(call_openers)
        self._stop_token_ids = frozenset(stop_token_ids).difference(end.token_ids)

    def is_in(self, token_ids: Iterable[int]) -> bool:
        """Read the next tokens up to the end of the thinking; return whether it is complete."""
        return any(map(self._accept, token_ids))

    def is_due_at(self, token_id: int) -> bool:
        """Whether the end must follow a token, which would end the completion otherwise."""
        return token_id in self._stop_token_ids

    def overrunning(self) -> list[int]:
        """Return the tokens that would complete the end and go on behind it, blanks aside.

        What they have behind it would be lost to the constraint.
        """
        return self._end.overrunning()

    def _accept(self, token_id: int) -> bool:
        if self._end.accept(token_id):
            return True
        if self._call_openers is not None and self._call_openers.accept(token_id):
            self._stop_token_ids = frozenset()
        return False
