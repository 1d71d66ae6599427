"""The page of metrics: read by Prometheus' own parser, with values that requests have caused."""

import asyncio
import json
import time

import pytest
from asgi_parts import JSON, Wire, call, scope_of
from prometheus_client import REGISTRY
from prometheus_client.openmetrics.parser import text_string_to_metric_families as open_families
from prometheus_client.parser import text_string_to_metric_families

from quire.config import ServerSettings
from quire.errors import SettingsError
from quire.frontend.metrics.engine_facts import EngineFacts
from quire.server.app import create_app
from quire.server.keys.accounts import Accounts
from quire.server.keys.api_key import KeyLimits, make_key
from quire.server.keys.key_ring import KeyRing
from quire.server.observe.exposition import METRICS

CHAT = "/v1/chat/completions"
HI = {"messages": [{"role": "user", "content": "Hi"}]}


@pytest.fixture
def scrape(frontend):
    """Send requests, then read the metrics; return them and the page."""

    def run(*asked, accept="", **settings):
        app = create_app(frontend, ServerSettings(**settings), list)

        async def send():
            for path, body in asked:
                await call(app, Wire(json.dumps(body).encode()), scope_of(path, headers=JSON))
            return await call(app, Wire(b""), scope_of("/metrics", "GET", {"accept": accept}))

        wire = asyncio.run(send())
        assert wire.status == 200
        return wire

    return run


def values(wire, name):
    """Return the values of a sample's name by its labels, in the order of their names."""
    return {
        tuple(value for _, value in sorted(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(wire.body.decode())
        for sample in family.samples
        if sample.name == name
    }


def grown(before, after, name, *labels):
    return values(after, name).get(labels, 0.0) - values(before, name).get(labels, 0.0)


@pytest.mark.parametrize("names", METRICS)
def test_every_metric_has_a_family_of_its_type(scrape, names):
    wire = scrape((CHAT, HI), metrics_names=names)
    families = {each.name: each for each in text_string_to_metric_families(wire.body.decode())}
    for metric in METRICS[names]:
        name = metric.name.removesuffix("_total") if metric.kind == "counter" else metric.name
        family = families[name]
        assert (metric.name, family.type) == (metric.name, metric.kind)
        assert family.documentation == metric.help
        for sample in family.samples:
            assert set(sample.labels) - {"le"} == set(metric.labels)


def test_the_page_is_also_openmetrics(scrape):
    wire = scrape((CHAT, HI), accept="application/openmetrics-text; version=1.0.0")
    assert wire.headers["content-type"].startswith("application/openmetrics-text")
    assert len(list(open_families(wire.body.decode()))) > 30


def test_requests_count_where_they_belong(scrape, core):
    core.num_cached_tokens = 1
    before = scrape()
    after = scrape((CHAT, HI | {"max_tokens": 4, "n": 2}), (CHAT, HI | {"max_tokens": 1}))
    assert grown(before, after, "quire_requests_completed_total", "0", "length") == 3
    assert grown(before, after, "quire_generated_tokens_total", "0") == 9
    assert grown(before, after, "quire_cached_prompt_tokens_total", "0") == 3
    assert grown(before, after, "quire_time_to_first_token_seconds_count", "0") == 3
    assert grown(before, after, "quire_inter_token_seconds_count", "0") == 6
    assert grown(before, after, "quire_time_per_output_token_seconds_count", "0") == 2
    assert grown(before, after, "quire_request_n_sum", "0") == 5
    assert grown(before, after, "quire_request_max_tokens_sum", "0") == 9
    assert grown(before, after, "quire_request_generated_tokens_bucket", "0", "2.0") == 1
    assert values(after, "quire_http_requests_total")["POST", CHAT, "200"] == 2
    assert values(after, "quire_http_request_duration_seconds_count") == {(CHAT,): 2}
    assert values(after, "quire_http_requests_in_flight") == {(): 1}  # this one


def test_refusals_count_by_their_code_and_unknown_paths_are_one_route(scrape):
    wire = scrape((CHAT, HI | {"n": 0}), ("/a", {}), ("/b", {}), ("/v1/models/nope", {}))
    assert values(wire, "quire_http_errors_total") == {
        ("invalid_request",): 1, ("method_not_allowed",): 1, ("not_found",): 2,
    }  # fmt: skip
    assert values(wire, "quire_http_requests_total") == {
        ("POST", CHAT, "400"): 1, ("POST", "other", "404"): 2,
        ("POST", "other", "405"): 1,
    }  # fmt: skip


def test_requests_that_the_engine_refuses_count_by_their_code(scrape, core):
    core.max_num_seqs = core.max_queued = 0
    before = scrape()
    after = scrape((CHAT, HI))
    assert grown(before, after, "quire_request_errors_total", "overloaded", "0") == 1
    assert values(after, "quire_http_errors_total") == {("overloaded",): 1}


def test_vllms_names_tell_refusals_sources_and_reasons(scrape, core):
    core.num_cached_tokens = 1
    before = scrape(metrics_names="vllm")
    after = scrape((CHAT, HI | {"max_tokens": 2}), metrics_names="vllm")
    model = next(iter(values(after, "vllm:admission_rejections_total")))[0]
    sources = "local_cache_hit", "local_compute"
    cached, computed = (
        grown(before, after, "vllm:prompt_tokens_by_source_total", "0", model, each)
        for each in sources
    )
    assert cached == 1
    assert computed > 0
    assert cached + computed == grown(before, after, "vllm:prompt_tokens_total", "0", model)
    waiting = values(after, "vllm:num_requests_waiting_by_reason")
    assert waiting == {("0", model, "capacity"): 0, ("0", model, "deferred"): 0}
    core.max_num_seqs = core.max_queued = 0
    refused = scrape((CHAT, HI), metrics_names="vllm")
    assert values(refused, "vllm:admission_rejections_total") == {(model, "overloaded"): 1}


def test_the_state_and_the_build_are_shown(scrape):
    wire = scrape()
    assert values(wire, "quire_engine_state") == {
        ("ready",): 1, ("failing",): 0, ("stalled",): 0, ("draining",): 0, ("dead",): 0,
    }  # fmt: skip
    ((model, version),) = values(wire, "quire_build_info")
    assert (version != "", model) == (True, "demo")
    assert values(wire, "process_resident_memory_bytes")[()] > 0


def test_the_names_of_vllm_have_its_labels(scrape):
    wire = scrape((CHAT, HI | {"max_tokens": 2}), metrics_names="vllm")
    success = values(wire, "vllm:request_success_total")
    assert set(success) == {
        ("0", reason, "demo") for reason in ("stop", "length", "abort", "error", "repetition")
    }
    assert success["0", "length", "demo"] >= 1
    assert values(wire, "vllm:num_requests_running") == {("0", "demo"): 0}
    assert values(wire, "vllm:kv_cache_usage_perc") == {("0", "demo"): 0}
    assert b"quire_" not in wire.body


def test_the_settings_of_the_cache_are_labels(scrape, frontend, monkeypatch):
    facts = EngineFacts(block_size=16, kv_cache_dtype="fp8", gpu_memory_utilization=0.9)
    monkeypatch.setattr(frontend.observer, "facts", facts)
    wire = scrape(metrics_names="vllm")
    (sample,) = [
        sample
        for family in text_string_to_metric_families(wire.body.decode())
        for sample in family.samples
        if sample.name == "vllm:cache_config_info"
    ]
    assert sample.value == 1
    assert sample.labels == {
        "engine": "0", "block_size": "16", "cache_dtype": "fp8", "enable_prefix_caching": "True",
        "gpu_memory_utilization": "0.9", "num_gpu_blocks": "0",
    }  # fmt: skip
    assert values(wire, "vllm:lora_requests_info") == {}, "there are no adapters"


def test_the_adapters_of_open_requests_are_labels(core, frontend, monkeypatch, wait_for):
    monkeypatch.setattr(frontend.observer, "facts", EngineFacts(max_loras=4))
    app = create_app(frontend, ServerSettings(metrics_names="vllm"), list)
    core.step_s = 0.05
    body = HI | {"model": "pirate", "max_tokens": 300, "ignore_eos": True}

    async def adapters():
        wire = await call(app, Wire(b""), scope_of("/metrics", "GET"))
        ((labels, time_s),) = values(wire, "vllm:lora_requests_info").items()
        assert time_s == pytest.approx(time.time(), abs=60)
        return labels

    async def main():
        assert await adapters() == ("4", "", "")
        scope = scope_of(CHAT, headers=JSON)
        chat = asyncio.create_task(call(app, Wire(json.dumps(body).encode()), scope))
        while not (streams := frontend.dispatch.streams()):
            await asyncio.sleep(0.001)
        seen = {await adapters()}
        until = time.monotonic() + 10
        while streams[0].completions.is_waiting and time.monotonic() < until:
            await asyncio.sleep(0.001)
        seen.add(await adapters())
        chat.cancel()
        await asyncio.gather(chat, return_exceptions=True)
        return seen

    seen = asyncio.run(main())
    assert ("4", "pirate", "") in seen
    assert seen <= {("4", "pirate", ""), ("4", "", "pirate")}


def test_an_unknown_set_of_names_is_refused():
    with pytest.raises(SettingsError, match="metrics_names must be one of quire, vllm, both"):
        ServerSettings(metrics_names="sglang")


def test_nothing_is_registered_in_the_global_registry(scrape):
    scrape()
    assert not [family for family in REGISTRY.collect() if family.name.startswith("quire")]


def test_the_usage_of_each_key_is_counted_by_its_name(frontend, core):
    core.num_cached_tokens = 1
    limited = make_key("a", "one", KeyLimits(requests_per_minute=2))
    admin = make_key("admin", "three")
    accounts = Accounts(KeyRing([limited, make_key("b", "two")], [admin]))
    app = create_app(frontend, ServerSettings(), list, accounts=accounts)

    async def send():
        for key in ("one", "one", "one", "two"):
            headers = JSON | {"authorization": f"Bearer {key}"}
            body = json.dumps(HI | {"max_tokens": 2}).encode()
            await call(app, Wire(body), scope_of(CHAT, headers=headers))
        return await scrape_with(app, "three")

    wire = asyncio.run(send())
    assert values(wire, "quire_key_requests_total") == {("a",): 2, ("b",): 1}
    assert values(wire, "quire_key_refused_requests_total") == {("a",): 1, ("b",): 0}
    assert values(wire, "quire_key_completion_tokens_total") == {("a",): 4, ("b",): 2}
    prompts = values(wire, "quire_key_prompt_tokens_total")
    assert prompts[("a",)] == 2 * prompts[("b",)] > 0
    assert values(wire, "quire_key_cached_prompt_tokens_total") == {("a",): 2, ("b",): 1}
    accounts.replace(KeyRing([limited], [admin]))
    wire = asyncio.run(scrape_with(app, "three"))
    assert set(values(wire, "quire_key_requests_total")) == {("a",)}


async def scrape_with(app, key):
    scope = scope_of("/metrics", "GET", {"authorization": f"Bearer {key}"})
    return await call(app, Wire(b""), scope)


def test_without_keys_no_client_is_in_the_metrics(scrape):
    assert values(scrape((CHAT, HI)), "quire_key_requests_total") == {}
