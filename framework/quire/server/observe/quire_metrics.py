"""The metrics under quire's own names."""

from quire import __version__
from quire.messages import ReplicaStats
from quire.server.observe.key_metrics import KEY_METRICS
from quire.server.observe.metric import (
    Buckets,
    Counter,
    Gauge,
    Metric,
    Summary,
    counts_of_engines,
    histogram_of_engines,
    of_engines,
)
from quire.server.observe.readings import ENGINE_STATES, Readings

ENGINE = ("engine",)
FINISH_REASONS = ("stop", "length", "repetition", "abort", "error")


def kv_usage(gauges: ReplicaStats) -> float:
    """Return the fraction of the KV blocks that requests use."""
    return gauges.num_used_blocks / gauges.num_blocks if gauges.num_blocks else 0.0


def _states(readings: Readings) -> list[tuple[tuple[str, ...], float]]:
    current = readings.engine_state
    return [((state,), float(state == current)) for state in ENGINE_STATES]


QUIRE_METRICS: tuple[Metric, ...] = (
    Gauge(
        "quire_build_info",
        "Always 1; the labels are the version of quire and the name of the model.",
        ("version", "model"),
        lambda r: [((__version__, r.model), 1.0)],
        is_shared=True,
    ),
    Gauge(
        "quire_engine_state",
        "1 for the state that the engine is in.",
        ("state",),
        _states,
        is_shared=True,
    ),
    Gauge(
        "quire_engine_up",
        "Whether the engine, or the replica, takes requests.",
        ENGINE,
        of_engines(lambda e: float(e.gauges.is_up)),
        is_shared=True,
    ),
    # -- load
    Gauge(
        "quire_requests_running",
        "Number of requests that are being computed.",
        ENGINE,
        of_engines(lambda e: e.gauges.num_running),
        is_shared=True,
    ),
    Gauge(
        "quire_requests_waiting",
        "Number of requests that wait in the engine.",
        ENGINE,
        of_engines(lambda e: e.gauges.num_waiting),
        is_shared=True,
    ),
    Gauge(
        "quire_kv_blocks",
        "Number of KV blocks.",
        ENGINE,
        of_engines(lambda e: e.gauges.num_blocks),
        is_shared=True,
    ),
    Gauge(
        "quire_kv_blocks_used",
        "Number of KV blocks that requests use.",
        ENGINE,
        of_engines(lambda e: e.gauges.num_used_blocks),
        is_shared=True,
    ),
    Gauge(
        "quire_kv_usage_ratio",
        "Fraction of the KV blocks that requests use, from 0 to 1.",
        ENGINE,
        of_engines(lambda e: kv_usage(e.gauges)),
        is_shared=True,
    ),
    # -- work
    Counter(
        "quire_requests_completed_total",
        "Number of requests that have ended, by finish reason; each completion is a request.",
        ("engine", "finish_reason"),
        counts_of_engines(
            lambda e: {reason: e.metrics.finish_reasons[reason] for reason in FINISH_REASONS}
        ),
    ),
    Counter(
        "quire_request_errors_total",
        "Number of requests that the engine refused, or that failed, by the code of the error.",
        ("engine", "code"),
        counts_of_engines(lambda e: e.metrics.error_codes),
    ),
    Counter(
        "quire_prompt_tokens_total",
        "Number of tokens of prompts that were computed or found in the prefix cache.",
        ENGINE,
        of_engines(lambda e: e.metrics.num_prompt_tokens),
    ),
    Counter(
        "quire_cached_prompt_tokens_total",
        "Number of tokens of those prompts that were found in the prefix cache.",
        ENGINE,
        of_engines(lambda e: e.metrics.num_cached_tokens),
    ),
    Counter(
        "quire_generated_tokens_total",
        "Number of generated tokens.",
        ENGINE,
        of_engines(lambda e: e.metrics.num_generated_tokens),
    ),
    Counter(
        "quire_prefix_cache_queries_total",
        "Number of tokens that were looked up in the prefix cache, repeated lookups included.",
        ENGINE,
        of_engines(lambda e: e.gauges.num_prefix_queries),
        is_shared=True,
    ),
    Counter(
        "quire_prefix_cache_hits_total",
        "Number of tokens that were found in the prefix cache.",
        ENGINE,
        of_engines(lambda e: e.gauges.num_prefix_hits),
        is_shared=True,
    ),
    Counter(
        "quire_preemptions_total",
        "Number of times that a running request had to give up its KV blocks.",
        ENGINE,
        of_engines(lambda e: e.gauges.num_preemptions),
        is_shared=True,
    ),
    Counter(
        "quire_kv_evictions_total",
        "Number of cached KV blocks that were reused for other tokens, in all engines.",
        (),
        lambda r: [((), r.stats.num_evictions)],
        is_shared=True,
    ),
    Counter(
        "quire_kv_store_hit_tokens_total",
        "Number of tokens that were loaded from an external KV store, in all engines.",
        (),
        lambda r: [((), r.stats.num_store_hits)],
        is_shared=True,
    ),
    # -- times of requests
    Buckets(
        "quire_time_to_first_token_seconds",
        "Seconds from the arrival of a request to its first token.",
        ENGINE,
        histogram_of_engines(lambda e: e.metrics.time_to_first_token_s),
    ),
    Buckets(
        "quire_inter_token_seconds",
        "Seconds between two outputs of a request.",
        ENGINE,
        histogram_of_engines(lambda e: e.metrics.inter_token_s),
    ),
    Buckets(
        "quire_time_per_output_token_seconds",
        "Mean seconds per token of a request, after its first.",
        ENGINE,
        histogram_of_engines(lambda e: e.metrics.time_per_output_token_s),
    ),
    Buckets(
        "quire_request_duration_seconds",
        "Seconds from the arrival of a request to its end.",
        ENGINE,
        histogram_of_engines(lambda e: e.metrics.total_s),
    ),
    Buckets(
        "quire_request_queue_seconds",
        "Seconds from the arrival of a request until the engine began to compute it.",
        ENGINE,
        histogram_of_engines(lambda e: e.metrics.queue_s),
    ),
    Buckets(
        "quire_request_prefill_seconds",
        "Seconds from then to its first token.",
        ENGINE,
        histogram_of_engines(lambda e: e.metrics.prefill_s),
    ),
    Buckets(
        "quire_request_decode_seconds",
        "Seconds from its first token to its last.",
        ENGINE,
        histogram_of_engines(lambda e: e.metrics.decode_s),
    ),
    # -- sizes of requests
    Buckets(
        "quire_request_prompt_tokens",
        "Number of tokens of the prompt of a request.",
        ENGINE,
        histogram_of_engines(lambda e: e.metrics.prompt_tokens),
    ),
    Buckets(
        "quire_request_generated_tokens",
        "Number of tokens of the completion of a request.",
        ENGINE,
        histogram_of_engines(lambda e: e.metrics.completion_tokens),
    ),
    Buckets(
        "quire_request_max_tokens",
        "Number of tokens that the completion of a request might have.",
        ENGINE,
        histogram_of_engines(lambda e: e.metrics.max_tokens),
    ),
    Buckets(
        "quire_request_n",
        "Number of completions of the prompt of a request.",
        ENGINE,
        histogram_of_engines(lambda e: e.metrics.n),
    ),
    # -- steps
    Buckets(
        "quire_step_duration_seconds",
        "Seconds that the engine spent on a step.",
        ENGINE,
        histogram_of_engines(lambda e: e.metrics.step_s),
    ),
    Buckets(
        "quire_step_requests",
        "Number of requests in the batch of a step.",
        ENGINE,
        histogram_of_engines(lambda e: e.metrics.step_requests),
    ),
    Buckets(
        "quire_step_tokens",
        "Number of tokens that a step computed.",
        ENGINE,
        histogram_of_engines(lambda e: e.metrics.step_tokens),
    ),
    # -- grammars
    Gauge(
        "quire_grammars_waiting",
        "Number of requests whose grammar is being compiled, or waits for that.",
        (),
        lambda r: [((), r.stats.num_grammars_waiting)],
        is_shared=True,
    ),
    Summary(
        "quire_grammar_wait_seconds",
        "Seconds that a request waited for its grammar, and the number of such requests.",
        (),
        lambda r: [((), r.stats.num_grammars_compiled, r.stats.grammar_wait_s)],
        is_shared=True,
    ),
    # -- HTTP
    Counter(
        "quire_http_requests_total",
        "Number of HTTP requests that are over; 499 stands for a client that left.",
        ("method", "route", "status"),
        lambda r: sorted(r.http.requests.items()),
    ),
    Counter(
        "quire_http_errors_total",
        "Number of HTTP requests that were refused or failed, by the code of the error.",
        ("code",),
        lambda r: [((code,), count) for code, count in sorted(r.http.errors.items())],
    ),
    Buckets(
        "quire_http_request_duration_seconds",
        "Seconds from the head of an HTTP request to the end of its response.",
        ("route",),
        lambda r: [((route,), each) for route, each in sorted(r.http.duration_s.items())],
    ),
    Gauge(
        "quire_http_requests_in_flight",
        "Number of HTTP requests that are not over.",
        (),
        lambda r: [((), r.lifecycle.num_in_flight)],
    ),
    Gauge(
        "quire_http_connections",
        "Number of open connections.",
        (),
        lambda r: [((), len(r.connections))],
    ),
    Counter(
        "quire_http_refused_connections_total",
        "Number of connections that were refused or closed because of a limit or an error, by "
        "kind: crowded (refused, too many), replaced (idle ones, for new ones), protocol (no "
        "valid HTTP), stalled (a client that reads nothing), broken (before it was accepted), "
        "exhausted (out of descriptors).",
        ("kind",),
        lambda r: [((kind,), num) for kind, num in r.lifecycle.num_refused().items()],
    ),
    Gauge(
        "quire_http_received_bytes",
        "Bytes of request bodies that are being received.",
        (),
        lambda r: [((), r.lifecycle.num_received_bytes())],
    ),
    Buckets(
        "quire_event_loop_lag_seconds",
        "Seconds that the event loop of the server was late, measured four times a second.",
        (),
        lambda r: [((), r.loop_lag_s)],
    ),
    Counter(
        "quire_access_log_dropped_lines_total",
        "Number of lines that the access log has lost, because its file was too slow.",
        (),
        lambda r: [((), r.num_lines_dropped())],
    ),
    # -- tool servers
    Counter(
        "quire_tool_server_calls_total",
        "Number of calls of tools of a tool server, by their end: completed, failed or cancelled.",
        ("server", "end"),
        lambda r: sorted(r.tool_calls.calls.items()),
    ),
    Buckets(
        "quire_tool_server_call_duration_seconds",
        "Seconds that a call of a tool server took.",
        ("server",),
        lambda r: [((label,), each) for label, each in sorted(r.tool_calls.duration_s.items())],
    ),
    # -- API keys
    *KEY_METRICS,
)
