"""What the engine did since its start, by replica, as the frontend sees it."""

from collections import Counter

from quire.frontend.metrics.histogram import COUNTS, LONG_TIMES_S, SHORT_TIMES_S, Histogram
from quire.messages import CompletedRequest, StepStats


class ReplicaMetrics:
    """Counters and histograms of one engine. A reader may see an observation half counted.

    Attributes:
        num_prompt_tokens: Number of tokens of prompts that were computed or found in the cache.
        num_cached_tokens: Number of those that were found in the prefix cache.
        num_generated_tokens: Number of generated tokens.
        finish_reasons: Number of requests that ended, by finish reason.
        error_codes: Number of requests that failed, by the code of the error.
        time_to_first_token_s: From the arrival to the first token.
        inter_token_s: Between two outputs of a request.
        time_per_output_token_s: Mean of a request between two tokens.
        total_s: From the arrival to the end.
        queue_s: From the arrival until the request began to be computed.
        prefill_s: From then to the first token.
        decode_s: From the first token to the last.
        inference_s: From the beginning of its computation to the last token.
        prompt_tokens: Tokens of a prompt.
        completion_tokens: Tokens of a completion.
        max_tokens: Limit of a completion.
        n: Completions of a prompt.
        step_s: Time of a step.
        step_requests: Requests in a step.
        step_tokens: Tokens that a step computed.
    """

    def __init__(self) -> None:
        self.num_prompt_tokens = 0
        self.num_cached_tokens = 0
        self.num_generated_tokens = 0
        self.finish_reasons: Counter[str] = Counter()
        self.error_codes: Counter[str] = Counter()
        self.time_to_first_token_s = Histogram(LONG_TIMES_S)
        self.inter_token_s = Histogram(SHORT_TIMES_S)
        self.time_per_output_token_s = Histogram(SHORT_TIMES_S)
        self.total_s = Histogram(LONG_TIMES_S)
        self.queue_s = Histogram(LONG_TIMES_S)
        self.prefill_s = Histogram(LONG_TIMES_S)
        self.decode_s = Histogram(LONG_TIMES_S)
        self.inference_s = Histogram(LONG_TIMES_S)
        self.prompt_tokens = Histogram(COUNTS)
        self.completion_tokens = Histogram(COUNTS)
        self.max_tokens = Histogram(COUNTS)
        self.n = Histogram((1, 2, 5, 10, 20, 50, 100))
        self.step_s = Histogram(SHORT_TIMES_S)
        self.step_requests = Histogram((1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024))
        self.step_tokens = Histogram(COUNTS)

    def add_step(self, step: StepStats) -> None:
        """Count a step."""
        self.step_s.observe(step.duration_s)
        self.step_requests.observe(step.num_requests)
        self.step_tokens.observe(step.num_tokens)

    def add_request(self, record: CompletedRequest) -> None:
        """Count a request that has ended; its first token is counted already."""
        self.finish_reasons[record.finish_reason] += 1
        if record.error_code is not None:
            self.error_codes[record.error_code] += 1
        self.total_s.observe(record.total_s)
        self.prompt_tokens.observe(record.num_prompt_tokens)
        self.completion_tokens.observe(record.num_completion_tokens)
        self.max_tokens.observe(record.max_tokens)
        self.n.observe(record.n)
        for histogram, seconds in (
            (self.queue_s, record.queue_s),
            (self.prefill_s, record.prefill_s),
            (self.decode_s, record.decode_s),
            (self.inference_s, record.inference_s),
            (self.time_per_output_token_s, record.time_per_output_token_s),
        ):
            if seconds is not None:
                histogram.observe(seconds)


class EngineMetrics:
    """The metrics of an engine, or of each of its replicas.

    Attributes:
        replicas: Metrics of each replica; at least one.
    """

    def __init__(self) -> None:
        self.replicas = [ReplicaMetrics()]

    def of(self, replica: int) -> ReplicaMetrics:
        """Return the metrics of a replica, by its index."""
        while len(self.replicas) <= replica:
            self.replicas.append(ReplicaMetrics())
        return self.replicas[replica]

    def add_step(self, step: StepStats) -> None:
        """Count a step of a replica."""
        self.of(step.replica).add_step(step)

    def add_request(self, record: CompletedRequest) -> None:
        """Count a request that has ended."""
        self.of(record.replica).add_request(record)
