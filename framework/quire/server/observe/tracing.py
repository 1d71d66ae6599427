"""Traces for OpenTelemetry: the spans of an HTTP request, made once it is over.

The first is for the HTTP request; its parent is the span in its `traceparent`, if it has one.
Within it is one for the completions, with the attributes of the GenAI conventions, and within that
are, for each completion, the time in the queue, the prefill and the decode. Nothing is done while
tokens are generated.

Conventions: https://opentelemetry.io/docs/specs/semconv/gen-ai/gen-ai-spans/
"""

import threading
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import urlsplit

from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import SERVICE_NAME, Resource
from opentelemetry.sdk.trace import SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.trace import Span, SpanKind, StatusCode, set_span_in_context
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from quire import __version__
from quire.errors import SettingsError
from quire.messages import CompletedRequest
from quire.server.observe.observed_exchange import ObservedExchange, ObservedGeneration

CLOSE_TIMEOUT_S = 1.0
MAX_COMPLETIONS = 32  # of a request, that have spans of their own
OPERATIONS = {"/v1/chat/completions": "chat", "/v1/completions": "text_completion"}
_PROPAGATED = (b"traceparent", b"tracestate")


class Tracing:
    """Makes the spans of HTTP requests, and sends them from a thread.

    Args:
        processor: Processor of the spans.
    """

    def __init__(self, processor: SpanProcessor) -> None:
        resource = Resource.create({SERVICE_NAME: "quire"})  # OTEL_SERVICE_NAME overrides it
        self._provider = TracerProvider(resource=resource, shutdown_on_exit=False)
        self._provider.add_span_processor(processor)
        self._tracer = self._provider.get_tracer("quire", __version__)
        self._propagator = TraceContextTextMapPropagator()

    @classmethod
    def to(cls, endpoint: str) -> "Tracing":
        """Return one that sends to a collector, by OTLP over HTTP.

        Raises:
            SettingsError: The endpoint is not an HTTP URL.
        """
        return cls(BatchSpanProcessor(OTLPSpanExporter(endpoint=traces_url(endpoint))))

    def add(self, exchange: ObservedExchange) -> None:
        """Make the spans of an HTTP request that is over, if it is one that may compute."""
        if exchange.method != "POST":
            return
        start_s = exchange.ended_unix_s - exchange.duration_s
        server = self._tracer.start_span(
            f"{exchange.method} {exchange.route}",
            context=self._propagator.extract(_carrier(exchange)),
            kind=SpanKind.SERVER,
            attributes=_http_attributes(exchange),
            start_time=_ns(start_s),
        )
        if exchange.generation is not None:
            self._add_generation(exchange, exchange.generation, server, start_s)
        _add_error(server, exchange)
        server.end(_ns(exchange.ended_unix_s))

    def close(self) -> None:
        """Send the spans that wait, within a time limit."""
        closing = threading.Thread(target=self._provider.shutdown, daemon=True)
        closing.start()
        closing.join(CLOSE_TIMEOUT_S)

    def _add_generation(
        self,
        exchange: ObservedExchange,
        generation: ObservedGeneration,
        server: Span,
        start_s: float,
    ) -> None:
        operation = OPERATIONS.get(exchange.route, "text_completion")
        span = self._tracer.start_span(
            f"{operation} {generation.model}",
            context=set_span_in_context(server),
            attributes={"gen_ai.operation.name": operation} | _generation_attributes(generation),
            start_time=_ns(start_s),
        )
        epoch_s = start_s - exchange.scope["quire_arrival_s"]  # of the monotonic clock
        for record in generation.records[:MAX_COMPLETIONS]:
            for name, begin_s, end_s in _phases(record):
                phase = self._tracer.start_span(
                    name,
                    context=set_span_in_context(span),
                    attributes={"quire.request_id": record.request_id, "quire.child": record.child},
                    start_time=_ns(epoch_s + begin_s),
                )
                phase.end(_ns(epoch_s + end_s))
        _add_error(span, exchange)
        span.end(_ns(exchange.ended_unix_s))


def traces_url(endpoint: str) -> str:
    """Return the URL to send traces to; one without a path gets that of OTLP.

    Raises:
        SettingsError: The endpoint is not an HTTP URL.
    """
    parts = urlsplit(endpoint)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise SettingsError(
            f"otlp_traces_endpoint must be an http or https URL, such as "
            f"http://localhost:4318/v1/traces, got {endpoint!r}"
        )
    return parts._replace(path="/v1/traces").geturl() if parts.path in ("", "/") else endpoint


def _phases(record: CompletedRequest) -> Iterator[tuple[str, float, float]]:
    """Yield name, begin and end of what a request went through, on the monotonic clock."""
    begin_s = record.arrival_s
    for name, seconds in (
        ("queue", record.queue_s),
        ("prefill", record.prefill_s),
        ("decode", record.decode_s),
    ):
        if seconds is not None:
            yield name, begin_s, begin_s + seconds
            begin_s += seconds


def _add_error(span: Span, exchange: ObservedExchange) -> None:
    """Add the error of an exchange, if it has one; those of the client fail no span."""
    if exchange.error_code is None:
        return
    span.set_attribute("error.type", exchange.error_code)
    if exchange.status >= 500 or exchange.status < 400:  # the latter within a stream
        span.set_status(StatusCode.ERROR)


def _http_attributes(exchange: ObservedExchange) -> dict[str, Any]:
    return {
        "http.request.method": exchange.method,
        "http.route": exchange.route,
        "http.response.status_code": exchange.status,
        "url.path": exchange.path,
        "url.scheme": str(exchange.scope.get("scheme", "http")),
        "quire.http_request_id": exchange.request_id,
        "quire.client": exchange.client,
    }


def _generation_attributes(generation: ObservedGeneration) -> dict[str, Any]:
    params, usage, records = generation.params, generation.usage(), generation.records
    found = {
        "gen_ai.provider.name": "quire",
        "gen_ai.request.model": generation.model,
        "gen_ai.response.model": generation.model,
        "gen_ai.request.choice.count": params.n,
        "gen_ai.request.max_tokens": params.max_tokens,
        "gen_ai.request.temperature": params.temperature,
        "gen_ai.request.top_p": params.top_p,
        "gen_ai.request.top_k": params.top_k,
        "gen_ai.request.frequency_penalty": params.frequency_penalty,
        "gen_ai.request.presence_penalty": params.presence_penalty,
        "gen_ai.request.seed": params.seed,
        "gen_ai.usage.input_tokens": usage.prompt_tokens,
        "gen_ai.usage.output_tokens": usage.completion_tokens,
        "gen_ai.usage.cache_read.input_tokens": usage.prompt_tokens_details.cached_tokens,
        "gen_ai.response.finish_reasons": [record.finish_reason for record in records],
    }
    firsts = [r.time_to_first_token_s for r in records if r.time_to_first_token_s is not None]
    if firsts:
        found["gen_ai.response.time_to_first_chunk"] = min(firsts)
    return {name: value for name, value in found.items() if value is not None}


def _carrier(exchange: ObservedExchange) -> Mapping[str, str]:
    headers = exchange.scope["headers"]
    return {
        name.lower().decode("latin-1"): value.decode("latin-1")
        for name, value in reversed(headers)  # of several, the first counts
        if name.lower() in _PROPAGATED
    }


def _ns(seconds: float) -> int:
    return int(seconds * 1e9)
