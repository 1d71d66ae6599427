"""The metrics of several processes as those of one."""

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.exposition import generate_latest
from prometheus_client.openmetrics.exposition import generate_latest as openmetrics_text
from prometheus_client.openmetrics.parser import text_string_to_metric_families

from quire.server.observe.merged_families import MergedFamilies, samples_of


def registry(requests, busy, seconds, blocks):
    made = CollectorRegistry()
    counter = Counter("requests", "Requests.", ["route"], registry=made)
    for route, num in requests.items():
        counter.labels(route).inc(num)
    Gauge("busy", "Busy.", registry=made).set(busy)
    Gauge("blocks", "Blocks.", registry=made).set(blocks)
    histogram = Histogram("seconds", "Seconds.", ["route"], buckets=(1, 2), registry=made)
    for route, values in seconds.items():
        for value in values:
            histogram.labels(route).observe(value)
    return made


OWN = registry({"/a": 1}, 0, {"/a": [0.5]}, 100)
OTHERS = [registry({"/a": 2, "/b": 3}, 4, {"/b": [1.5, 9]}, 7), registry({}, 5, {}, 8)]
ENDED = [registry({"/a": 10}, 6, {"/a": [1.5]}, 9)]


def merged():
    others = [samples_of(each.collect()) for each in OTHERS]
    ended = [samples_of(each.collect()) for each in ENDED]
    return MergedFamilies(OWN.collect(), others, ended, frozenset({"blocks"}))


def values():
    return {(name, labels): value for _, name, labels, value in samples_of(merged().collect())}


def test_counters_are_added_with_those_of_processes_that_are_gone():
    found = values()
    assert found["requests_total", (("route", "/a"),)] == 1 + 2 + 10
    assert found["requests_total", (("route", "/b"),)] == 3


def test_gauges_are_added_for_the_living_and_shared_ones_are_there_once():
    found = values()
    assert found["busy", ()] == 4 + 5
    assert found["blocks", ()] == 100


def test_histograms_are_added_bucket_by_bucket():
    found = values()
    for bound, num in (("1.0", 1), ("2.0", 2), ("+Inf", 2)):
        assert found["seconds_bucket", (("route", "/a"), ("le", bound))] == num
    assert found["seconds_sum", (("route", "/b"),)] == 10.5
    assert found["seconds_count", (("route", "/b"),)] == 2


def test_both_formats_can_be_written_and_the_strict_one_read():
    assert b"requests_total" in generate_latest(merged())
    families = text_string_to_metric_families(openmetrics_text(merged()).decode())
    assert {family.name for family in families} == {"requests", "busy", "blocks", "seconds"}
