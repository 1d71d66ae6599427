"""The times of one request: when the engine began it, its first token and its last."""

from quire.frontend.metrics.engine_metrics import EngineMetrics
from quire.messages import EngineOutput, EngineRequest


class RequestClock:
    """Times of a request, and the observations that do not wait for its end.

    Args:
        request: The request.
        metrics: Metrics to count its tokens in.

    Attributes:
        replica: Index of the engine that runs it.
    """

    __slots__ = (
        "_arrival_s", "_first_s", "_last_s", "_metrics", "_num_prompt_tokens", "_own", "_started_s",
        "replica",
    )  # fmt: skip

    def __init__(self, request: EngineRequest, metrics: EngineMetrics) -> None:
        self.replica = 0
        self._metrics = metrics
        self._own = metrics.of(0)
        self._arrival_s = request.arrival_s
        self._num_prompt_tokens = len(request.token_ids)
        self._started_s = self._first_s = self._last_s = 0.0

    def take(self, output: EngineOutput, now_s: float) -> None:
        """Take the times of an output, which arrived at `now_s` on the monotonic clock."""
        if output.started_s and not self._started_s:
            self._started_s = output.started_s
            self.replica = output.replica
            self._own = self._metrics.of(output.replica)
        num_tokens = len(output.token_ids)
        if num_tokens == 0 and output.hypotheses is None:
            return
        own, last_s = self._own, self._last_s
        if output.hypotheses is not None:
            num_tokens += sum(len(each.token_ids) for each in output.hypotheses)
        self._last_s = now_s
        own.num_generated_tokens += num_tokens
        if last_s:
            own.inter_token_s.observe(now_s - last_s)
        else:
            self._take_first(output, now_s)

    @property
    def is_waiting(self) -> bool:
        """Whether no output has come yet."""
        return not self._started_s and not self._first_s

    @property
    def queue_s(self) -> float | None:
        """Seconds from the arrival until the engine began it; None: it never did."""
        return max(0.0, self._started_s - self._arrival_s) if self._started_s else None

    @property
    def time_to_first_token_s(self) -> float | None:
        """Seconds from the arrival to the first token; None: there is none."""
        return self._first_s - self._arrival_s if self._first_s else None

    @property
    def decode_s(self) -> float | None:
        """Seconds from the first token to the last; None: there is none."""
        return self._last_s - self._first_s if self._first_s else None

    def _take_first(self, output: EngineOutput, now_s: float) -> None:
        self._first_s = now_s
        own = self._own
        own.num_prompt_tokens += self._num_prompt_tokens
        own.num_cached_tokens += output.num_cached_tokens
        own.time_to_first_token_s.observe(now_s - self._arrival_s)
