"""The spans of a request: those of OpenTelemetry's conventions, in order, without any text."""

import asyncio
import json
import sys
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest
from asgi_parts import JSON, Wire, call, scope_of
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from quire.config import ServerSettings
from quire.errors import SettingsError
from quire.messages import ErrorReport
from quire.server.app import create_app
from quire.server.http.lifecycle import Lifecycle
from quire.server.observe.monitor import Monitor, check_outputs
from quire.server.observe.tracing import Tracing, traces_url

CHAT = "/v1/chat/completions"
HI = {"messages": [{"role": "user", "content": "my secret"}]}
PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


class Collector(BaseHTTPRequestHandler):
    """A collector that keeps what it gets."""

    def do_POST(self):
        self.server.paths.append(self.path)
        body = self.rfile.read(int(self.headers["content-length"]))
        self.server.received.append(ExportTraceServiceRequest.FromString(body))
        self.send_response(200)
        self.end_headers()

    def log_message(self, *_):
        pass


@pytest.fixture
def traced(frontend):
    """Send requests; return their spans, in the order in which they ended."""

    def run(*asked, **headers):
        exporter = InMemorySpanExporter()
        lifecycle = Lifecycle()
        monitor = Monitor(frontend, ServerSettings(), lifecycle)
        tracing = Tracing(SimpleSpanProcessor(exporter))
        monitor._sinks.append(tracing.add)
        app = create_app(frontend, ServerSettings(), list, lifecycle, monitor=monitor)

        async def send():
            for path, body in asked:
                wire, scope = (
                    Wire(json.dumps(body).encode()),
                    scope_of(path, headers=JSON | headers),
                )
                await call(app, wire, scope)

        asyncio.run(send())
        tracing.close()
        return exporter.get_finished_spans()

    return run


def test_a_completion_has_a_server_span_a_genai_span_and_its_phases(traced, core):
    core.num_cached_tokens = 1
    spans = traced((CHAT, HI | {"max_tokens": 3, "temperature": 0.5, "seed": 7}))
    by_name = {span.name: span for span in spans}
    server, chat = by_name["POST " + CHAT], by_name["chat demo"]
    assert server.kind is SpanKind.SERVER
    assert (server.parent, chat.parent.span_id) == (None, server.context.span_id)
    assert server.attributes["http.response.status_code"] == 200
    assert server.attributes["quire.client"] == "127.0.0.1"
    assert (server.attributes["url.path"], server.attributes["url.scheme"]) == (CHAT, "http")
    expected = {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "quire",
        "gen_ai.request.model": "demo",
        "gen_ai.request.max_tokens": 3,
        "gen_ai.request.temperature": 0.5,
        "gen_ai.request.seed": 7,
        "gen_ai.usage.output_tokens": 3,
        "gen_ai.usage.cache_read.input_tokens": 1,
        "gen_ai.response.finish_reasons": ("length",),
    }
    assert {name: chat.attributes[name] for name in expected} == expected
    assert chat.attributes["gen_ai.usage.input_tokens"] > 1
    decode = by_name["decode"]
    assert decode.parent.span_id == chat.context.span_id
    assert server.start_time <= decode.start_time <= decode.end_time <= server.end_time
    assert "secret" not in "".join(span.to_json() for span in spans)


def test_no_span_has_a_header_or_a_query(traced):
    sent = {"authorization": "Bearer sk-canary", "x-api-key": "sk-canary", "cookie": "sk-canary"}
    spans = traced((CHAT, HI | {"user": "sk-canary", "cache_salt": "sk-canary"}), **sent)
    assert len(spans) > 2
    assert "canary" not in "".join(span.to_json() for span in spans)


def test_the_caller_is_the_parent(traced):
    spans = traced((CHAT, HI), traceparent=PARENT)
    assert {f"{span.context.trace_id:032x}" for span in spans} == {PARENT.split("-")[1]}
    assert f"{spans[-1].parent.span_id:016x}" == PARENT.split("-")[2]


@pytest.mark.parametrize("parent", ["", "x" * 5000, "00-zz-zz-01", "é"])
def test_a_caller_that_says_nonsense_is_none(traced, parent):
    assert traced((CHAT, HI), traceparent=parent)[-1].parent is None


def test_a_refused_request_has_a_span_with_its_code_and_is_no_error_of_the_server(traced):
    (span,) = traced((CHAT, HI | {"n": 0}))
    assert span.attributes["error.type"] == "invalid_request"
    assert span.attributes["http.response.status_code"] == 400
    assert span.status.status_code is StatusCode.UNSET


def test_a_failure_within_a_stream_is_an_error(traced, core):
    core.script.by_prompt = {"secret": ("red", ErrorReport("request_failed", "it broke"))}
    *_, chat, server = traced((CHAT, HI | {"stream": True}))
    assert chat.name == "chat demo"
    for span in (chat, server):
        assert span.status.status_code is StatusCode.ERROR
        assert span.attributes["error.type"] == "request_failed"


def test_phases_follow_each_other():
    from quire.messages import CompletedRequest
    from quire.server.observe.tracing import _phases

    record = CompletedRequest(
        request_id="r", child=0, client=None, http_request_id=None, model="demo", adapter=None,
        num_prompt_tokens=7, num_cached_tokens=0, num_completion_tokens=5, finish_reason="length",
        error_code=None, arrival_s=10.0, queue_s=0.5, time_to_first_token_s=2.0, decode_s=4.0,
        total_s=6.5, max_tokens=5, n=1,
    )  # fmt: skip
    assert list(_phases(record)) == [
        ("queue", 10.0, 10.5), ("prefill", 10.5, 12.0), ("decode", 12.0, 16.0),
    ]  # fmt: skip


def test_a_server_sends_its_spans_to_the_collector(serve):
    import httpx

    collector = HTTPServer(("127.0.0.1", 0), Collector)
    collector.paths, collector.received = [], []
    thread = threading.Thread(target=collector.serve_forever)
    thread.start()
    try:
        served = serve(otlp_traces_endpoint=f"http://127.0.0.1:{collector.server_port}")
        httpx.post(f"{served.url}{CHAT}", json=HI, timeout=20)
        served.server.stop()
        served.thread.join(20)
    finally:
        collector.shutdown()
        thread.join()
        collector.server_close()
    assert set(collector.paths) == {"/v1/traces"}
    names = [
        span.name
        for request in collector.received
        for resource in request.resource_spans
        for scope in resource.scope_spans
        for span in scope.spans
    ]
    assert {"POST " + CHAT, "chat demo"} <= set(names)


def test_without_the_extra_the_server_does_not_start(frontend, monkeypatch):
    monkeypatch.delitem(sys.modules, "quire.server.observe.tracing")
    monkeypatch.delattr("quire.server.observe.tracing")
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk.trace", None)
    settings = ServerSettings(otlp_traces_endpoint="http://127.0.0.1:4318")
    with pytest.raises(SettingsError, match=r"pip install 'quire\[otel\]'"):
        check_outputs(settings)
    with pytest.raises(SettingsError, match="no module 'opentelemetry"):
        Monitor(frontend, settings, Lifecycle())


@pytest.mark.parametrize(
    ("endpoint", "url"),
    [
        ("http://h:4318", "http://h:4318/v1/traces"),
        ("https://h/", "https://h/v1/traces"),
        ("http://h/otlp/v1/traces", "http://h/otlp/v1/traces"),
    ],
)
def test_an_endpoint_without_a_path_gets_the_usual_one(endpoint, url):
    assert traces_url(endpoint) == url


@pytest.mark.parametrize("endpoint", ["localhost:4317", "grpc://h:4317", "http://", ""])
def test_an_endpoint_that_is_no_url_is_refused(endpoint):
    with pytest.raises(SettingsError, match="must be an http or https URL"):
        traces_url(endpoint)
