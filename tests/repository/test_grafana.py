"""The dashboard for Grafana is complete, and asks only for metrics that a server exports."""

import json
import re
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry, ProcessCollector

from quire.server.observe.quire_metrics import QUIRE_METRICS

DASHBOARD = Path(__file__).parents[2] / "examples" / "grafana" / "quire.json"
SAMPLES = {
    "gauge": ("",),
    "counter": ("",),
    "summary": ("_count", "_sum"),
    "histogram": ("_bucket", "_count", "_sum"),
}
WORDS = {
    "sum", "max", "by", "rate", "histogram_quantile", "le", "label_values", "__rate_interval",
    "job", "instance",
}  # fmt: skip


@pytest.fixture(scope="module")
def dashboard():
    return json.loads(DASHBOARD.read_text())


@pytest.fixture(scope="module")
def panels(dashboard):
    return [panel for panel in dashboard["panels"] if panel["type"] != "row"]


def labels_by_sample():
    """Return the labels of each name that a query may use."""
    found = {
        metric.name + suffix: set(metric.labels)
        for metric in QUIRE_METRICS
        for suffix in SAMPLES[metric.kind]
    }
    registry = CollectorRegistry()
    ProcessCollector(registry=registry)
    return found | {s.name: set() for family in registry.collect() for s in family.samples}


def names_in(query):
    return set(re.findall(r"[a-zA-Z_]\w*", re.sub(r'"[^"]*"|{{.*?}}', "", query)))


def test_queries_name_only_metrics_and_labels_that_exist(panels):
    known = labels_by_sample()
    for panel in panels:
        for target in panel["targets"]:
            names = names_in(target["expr"])
            metrics = names & set(known)
            assert metrics, target
            allowed = WORDS.union(*(known[metric] for metric in metrics))
            assert names - metrics <= allowed, target
            shown = set(re.findall(r"{{(\w+)}}", target["legendFormat"]))
            assert shown <= allowed - {"le"}, target
            assert target["expr"].count("(") == target["expr"].count(")")


def test_variables_come_from_a_metric_that_exists(dashboard):
    queries = [v["query"]["query"] for v in dashboard["templating"]["list"] if v["type"] == "query"]
    assert len(queries) == 2
    for query in queries:
        assert names_in(query) - WORDS <= set(labels_by_sample())


def test_every_family_of_quire_is_shown_or_left_out_on_purpose(panels):
    shown = set().union(*(names_in(t["expr"]) for panel in panels for t in panel["targets"]))
    missing = {
        metric.name
        for metric in QUIRE_METRICS
        if not shown & {metric.name + suffix for suffix in SAMPLES[metric.kind]}
    }
    assert missing == {
        "quire_access_log_dropped_lines_total", "quire_engine_up", "quire_grammars_waiting",
        "quire_http_request_duration_seconds", "quire_kv_blocks", "quire_kv_blocks_used",
        "quire_kv_store_hit_tokens_total", "quire_request_generated_tokens",
        "quire_request_max_tokens", "quire_request_n", "quire_request_prompt_tokens",
        "quire_time_per_output_token_seconds",
    }  # fmt: skip


def test_panels_have_ids_of_their_own_and_do_not_overlap(dashboard):
    panels = dashboard["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    cells = [
        (x, y)
        for panel in panels
        for place in [panel["gridPos"]]
        for x in range(place["x"], place["x"] + place["w"])
        for y in range(place["y"], place["y"] + place["h"])
    ]
    assert len(cells) == len(set(cells))
    assert max(x for x, _ in cells) < 24
