"""Limit on the log probabilities that all responses together hold in memory.

A request of a few hundred bytes can ask for tens of megabytes of them: for each token of its
prompts, or for the whole vocabulary. While the budget is used up, further requests for them get
503, as with a full queue.
"""

from quire.errors import InvalidRequestError, OverloadedError

MAX_PER_RESPONSE = 2**19  # candidates; as JSON, each takes about 70 bytes
MAX_IN_FLIGHT = 2**20
MAX_UNCOUNTED = 20  # candidates of a sampled token that need no reservation


class LogprobBudget:
    """Candidates that responses in flight may hold; used in one event loop."""

    def __init__(self, num_candidates: int = MAX_IN_FLIGHT) -> None:
        self.num_free = self._capacity = num_candidates

    @classmethod
    def share(cls, num_processes: int) -> "LogprobBudget":
        """Return the budget of one of several processes; one response always fits into it."""
        return cls(max(MAX_PER_RESPONSE, MAX_IN_FLIGHT // num_processes))

    def reserve(
        self, num_tokens: int, num_candidates: int, param: str = "prompt_logprobs"
    ) -> "LogprobReservation":
        """Reserve the log probabilities of `num_tokens` tokens, with `num_candidates` each.

        Args:
            num_tokens: Number of tokens of prompts or, at most, of completions.
            num_candidates: Number of candidates of each.
            param: Field that asks for them, `prompt_logprobs` or `logprobs`.

        Raises:
            InvalidRequestError: They are too many for one response.
            OverloadedError: They are too many beside those that other responses hold.
        """
        num = num_tokens * num_candidates
        if num > MAX_PER_RESPONSE:
            kind, way_out = "prompt tokens", "send fewer or shorter prompts"
            if param == "logprobs":
                kind, way_out = "tokens of completions", "set a smaller max_tokens"
            raise InvalidRequestError(
                f"log probabilities of {num_tokens} {kind} with {num_candidates} "
                f"candidates each are too many for one response, which may hold "
                f"{MAX_PER_RESPONSE}; ask for fewer candidates, or {way_out}",
                param=param,
            )
        if num > self.num_free:
            raise OverloadedError(
                f"other responses hold {self._capacity - self.num_free} log probabilities, and "
                f"this one would add {num}; all together may hold {self._capacity}. Try again "
                "later",
                param=param,
            )
        self.num_free -= num
        return LogprobReservation(self, num)


class LogprobReservation:
    """Candidates reserved for one response."""

    def __init__(self, budget: LogprobBudget, num: int) -> None:
        self.num = num
        self._budget = budget

    def release(self) -> None:
        """Return the candidates to the budget. May be called twice."""
        self._budget.num_free += self.num
        self.num = 0
