"""The core metrics of vLLM under its names, for dashboards and autoscalers that know them.

The bounds of the histograms are quire's own.
"""

import time
from collections.abc import Callable, Iterable

from quire.frontend.metrics.histogram import Histogram
from quire.server.observe.metric import Buckets, Counter, Gauge, Labels, Metric, Rows
from quire.server.observe.quire_metrics import FINISH_REASONS, kv_usage
from quire.server.observe.readings import EngineReading, Readings

LABELS = ("model_name", "engine")


def _values(read: Callable[[EngineReading], float]) -> Callable[[Readings], Rows]:
    return lambda r: [((r.model, each.label), read(each)) for each in r.engines()]


def _histograms(
    read: Callable[[EngineReading], Histogram],
) -> Callable[[Readings], Iterable[tuple[Labels, Histogram]]]:
    return lambda r: [((r.model, each.label), read(each)) for each in r.engines()]


def _finished(readings: Readings) -> Rows:
    return [
        ((readings.model, each.label, reason), each.metrics.finish_reasons[reason])
        for each in readings.engines()
        for reason in FINISH_REASONS
    ]


def _cache_config(readings: Readings) -> Rows:
    facts = readings.facts
    return [
        (
            (
                each.label,
                str(facts.block_size),
                facts.kv_cache_dtype,
                str(facts.has_prefix_cache),
                f"{facts.gpu_memory_utilization:g}",
                str(each.gauges.num_blocks),
            ),
            1.0,
        )
        for each in readings.engines()
    ]


def _adapters(readings: Readings) -> Rows:
    if not readings.facts.max_loras:
        return []
    running, waiting = map(",".join, readings.adapters())
    return [((str(readings.facts.max_loras), running, waiting), time.time())]


def _waiting_by_reason(readings: Readings) -> Rows:
    if readings.stats.replicas:  # which do not say how many of their requests wait for a grammar
        return []
    [engine] = readings.engines()
    num_deferred = min(readings.stats.num_grammars_waiting, engine.gauges.num_waiting)
    labels = readings.model, engine.label
    return [
        ((*labels, "capacity"), engine.gauges.num_waiting - num_deferred),
        ((*labels, "deferred"), num_deferred),
    ]


def _prompt_tokens_by_source(readings: Readings) -> Rows:
    rows: list[tuple[Labels, float]] = []
    for each in readings.engines():
        num_cached = each.metrics.num_cached_tokens
        num_computed = each.metrics.num_prompt_tokens - num_cached
        rows.append(((readings.model, each.label, "local_compute"), num_computed))
        rows.append(((readings.model, each.label, "local_cache_hit"), num_cached))
    return rows


VLLM_METRICS: tuple[Metric, ...] = (
    Gauge(
        "vllm:cache_config_info",
        "Always 1; the labels are settings of the KV cache.",
        (
            "engine",
            "block_size",
            "cache_dtype",
            "enable_prefix_caching",
            "gpu_memory_utilization",
            "num_gpu_blocks",
        ),
        _cache_config,
    ),
    Gauge(
        "vllm:lora_requests_info",
        "Time of the scrape; the labels are the adapters of requests with output and of those "
        "that wait for their first, joined by commas. Only if adapters are served.",
        ("max_lora", "running_lora_adapters", "waiting_lora_adapters"),
        _adapters,
    ),
    Gauge(
        "vllm:num_requests_running",
        "Number of requests that are being computed.",
        LABELS,
        _values(lambda e: e.gauges.num_running),
        is_shared=True,
    ),
    Gauge(
        "vllm:num_requests_waiting",
        "Number of requests that wait in the engine.",
        LABELS,
        _values(lambda e: e.gauges.num_waiting),
        is_shared=True,
    ),
    Gauge(
        "vllm:num_requests_waiting_by_reason",
        "Number of requests that wait in the engine for room (capacity), or for their grammar "
        "(deferred); not with replicas.",
        (*LABELS, "reason"),
        _waiting_by_reason,
        is_shared=True,
    ),
    Counter(
        "vllm:admission_rejections_total",
        "Number of requests that were refused because the queue was full or too long.",
        ("model_name", "reason"),
        lambda r: [((r.model, "overloaded"), r.http.errors["overloaded"])],
    ),
    Gauge(
        "vllm:kv_cache_usage_perc",
        "Fraction of the KV blocks that requests use, from 0 to 1.",
        LABELS,
        _values(lambda e: kv_usage(e.gauges)),
        is_shared=True,
    ),
    Counter(
        "vllm:prefix_cache_queries_total",
        "Number of tokens that were looked up in the prefix cache.",
        LABELS,
        _values(lambda e: e.gauges.num_prefix_queries),
        is_shared=True,
    ),
    Counter(
        "vllm:prefix_cache_hits_total",
        "Number of tokens that were found in the prefix cache.",
        LABELS,
        _values(lambda e: e.gauges.num_prefix_hits),
        is_shared=True,
    ),
    Counter(
        "vllm:num_preemptions_total",
        "Number of times that a running request had to give up its KV blocks.",
        LABELS,
        _values(lambda e: e.gauges.num_preemptions),
        is_shared=True,
    ),
    Counter(
        "vllm:prompt_tokens_total",
        "Number of tokens of prompts that were computed or found in the prefix cache.",
        LABELS,
        _values(lambda e: e.metrics.num_prompt_tokens),
    ),
    Counter(
        "vllm:prompt_tokens_by_source_total",
        "Number of tokens of prompts, by whether they were computed (local_compute) or found in "
        "the prefix cache (local_cache_hit).",
        (*LABELS, "source"),
        _prompt_tokens_by_source,
    ),
    Counter(
        "vllm:prompt_tokens_cached_total",
        "Number of tokens of those prompts that were found in the prefix cache.",
        LABELS,
        _values(lambda e: e.metrics.num_cached_tokens),
    ),
    Counter(
        "vllm:generation_tokens_total",
        "Number of generated tokens.",
        LABELS,
        _values(lambda e: e.metrics.num_generated_tokens),
    ),
    Counter(
        "vllm:request_success_total",
        "Number of requests that have ended, by finish reason.",
        (*LABELS, "finished_reason"),
        _finished,
    ),
    Buckets(
        "vllm:time_to_first_token_seconds",
        "Seconds from the arrival of a request to its first token.",
        LABELS,
        _histograms(lambda e: e.metrics.time_to_first_token_s),
    ),
    Buckets(
        "vllm:inter_token_latency_seconds",
        "Seconds between two outputs of a request.",
        LABELS,
        _histograms(lambda e: e.metrics.inter_token_s),
    ),
    Buckets(
        "vllm:request_time_per_output_token_seconds",
        "Mean seconds per token of a request, after its first.",
        LABELS,
        _histograms(lambda e: e.metrics.time_per_output_token_s),
    ),
    Buckets(
        "vllm:e2e_request_latency_seconds",
        "Seconds from the arrival of a request to its end.",
        LABELS,
        _histograms(lambda e: e.metrics.total_s),
    ),
    Buckets(
        "vllm:request_queue_time_seconds",
        "Seconds from the arrival of a request until the engine began to compute it.",
        LABELS,
        _histograms(lambda e: e.metrics.queue_s),
    ),
    Buckets(
        "vllm:request_prefill_time_seconds",
        "Seconds from then to its first token.",
        LABELS,
        _histograms(lambda e: e.metrics.prefill_s),
    ),
    Buckets(
        "vllm:request_decode_time_seconds",
        "Seconds from its first token to its last.",
        LABELS,
        _histograms(lambda e: e.metrics.decode_s),
    ),
    Buckets(
        "vllm:request_inference_time_seconds",
        "Seconds from the moment the engine began to compute a request to its last token.",
        LABELS,
        _histograms(lambda e: e.metrics.inference_s),
    ),
    Buckets(
        "vllm:request_prompt_tokens",
        "Number of tokens of the prompt of a request.",
        LABELS,
        _histograms(lambda e: e.metrics.prompt_tokens),
    ),
    Buckets(
        "vllm:request_generation_tokens",
        "Number of tokens of the completion of a request.",
        LABELS,
        _histograms(lambda e: e.metrics.completion_tokens),
    ),
    Buckets(
        "vllm:iteration_tokens_total",
        "Number of tokens that a step computed.",
        LABELS,
        _histograms(lambda e: e.metrics.step_tokens),
    ),
    Buckets(
        "vllm:request_params_max_tokens",
        "Number of tokens that the completion of a request might have.",
        LABELS,
        _histograms(lambda e: e.metrics.max_tokens),
    ),
    Buckets(
        "vllm:request_params_n",
        "Number of completions of the prompt of a request.",
        LABELS,
        _histograms(lambda e: e.metrics.n),
    ),
)
