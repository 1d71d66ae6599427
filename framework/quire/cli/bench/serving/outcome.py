"""What became of one request of a load: times, tokens, or an error."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise


@dataclass(slots=True)
class Outcome:
    """Times and tokens of one request.

    Attributes:
        planned_s: Time at which it should have been sent, its turn under the limit considered.
        turn_wait_s: Seconds that it waited for its turn under the limit of concurrency.
        sent_s: Time at which it was sent; all times are on one clock, in seconds.
        chunks_s: Time of each part of the stream that brought generated text.
        end_s: Time of the last part of the completion.
        num_prompt_tokens: As the server counts them.
        num_output_tokens: As the server counts them; without its count, the number of parts.
        is_counted: Whether the server counted the tokens.
        error: What went wrong, a status or a word; empty: nothing did.
        detail: Message of the error.
    """

    planned_s: float = 0.0
    turn_wait_s: float = 0.0
    sent_s: float = 0.0
    chunks_s: list[float] = field(default_factory=list)
    end_s: float = 0.0
    num_prompt_tokens: int = 0
    num_output_tokens: int = 0
    is_counted: bool = False
    error: str = ""
    detail: str = ""

    @property
    def ttft_s(self) -> float:
        """Time to first token: from sending to the first generated text."""
        return self.chunks_s[0] - self.sent_s if self.chunks_s else self.e2el_s

    @property
    def e2el_s(self) -> float:
        """End-to-end latency: from sending to the last part of the completion."""
        return self.end_s - self.sent_s

    @property
    def tpot_s(self) -> float | None:
        """Time per output token after the first; None for a completion of one token."""
        if self.num_output_tokens < 2:
            return None
        return (self.e2el_s - self.ttft_s) / (self.num_output_tokens - 1)

    @property
    def itls_s(self) -> Sequence[float]:
        """Inter-token latencies: the gaps between the parts of the stream."""
        return [after - before for before, after in pairwise(self.chunks_s)]
