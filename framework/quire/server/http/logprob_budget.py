"""All answers together hold so many log probabilities of prompts, whoever reads them or does not.

A few hundred bytes of a request can ask for tens of megabytes. Who comes when the budget is spent
is told to come again, as with a full queue.
"""

from quire.errors import InvalidRequestError, OverloadedError

MAX_OF_AN_ANSWER = 2**19  # candidates; as JSON, each takes about 70 bytes
MAX_IN_FLIGHT = 2**20


class LogprobBudget:
    """Candidates that answers in flight may hold; one event loop."""

    def __init__(self, num_candidates: int = MAX_IN_FLIGHT) -> None:
        self.num_free = self._num_in_all = num_candidates

    def take(self, num_tokens: int, num_candidates: int) -> "LogprobShare":
        """Return room for the log probabilities of so many tokens, with so many candidates each.

        Raises:
            InvalidRequestError: They are too many for any answer.
            OverloadedError: They are too many beside what others hold now.
        """
        num = num_tokens * num_candidates
        if num > MAX_OF_AN_ANSWER:
            raise InvalidRequestError(
                f"log probabilities of {num_tokens} prompt tokens with {num_candidates} "
                f"candidates each are too many for one answer, which holds {MAX_OF_AN_ANSWER}; "
                "ask for fewer candidates, or send fewer or shorter prompts",
                param="prompt_logprobs",
            )
        if num > self.num_free:
            raise OverloadedError(
                f"other answers hold {self._num_in_all - self.num_free} log probabilities of "
                f"prompts, and this one would add {num}; all together may hold {self._num_in_all}. "
                "Try again later",
                param="prompt_logprobs",
            )
        self.num_free -= num
        return LogprobShare(self, num)


class LogprobShare:
    """What one answer holds."""

    def __init__(self, budget: LogprobBudget, num: int) -> None:
        self.num = num
        self._budget = budget

    def give_back(self) -> None:
        """Let others have it. May be called twice."""
        self._budget.num_free += self.num
        self.num = 0
