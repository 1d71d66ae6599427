"""Tables and charts of loads whose outcomes are written by hand."""

import xml.etree.ElementTree as ET

import pytest

from quire.cli.bench.serving.load_figures import load_figures
from quire.cli.bench.serving.load_report import chart, report_lines
from quire.cli.bench.serving.load_run import LoadResult
from quire.cli.bench.serving.outcome import Outcome


def result(rate=2.0, limit=None, ttft=0.1, complaints=(), error="", goals=None, turn_wait=0.0):
    outcomes = [
        Outcome(
            sent_s=i,
            turn_wait_s=turn_wait if i else 0.0,
            chunks_s=[i + ttft, i + ttft + 0.05],
            end_s=i + ttft + 0.05,
            num_prompt_tokens=8,
            num_output_tokens=2,
            is_counted=True,
        )
        for i in range(4)
    ]
    outcomes += [Outcome(error=error)] if error else []
    about = {"request_rate": rate, "max_concurrency": limit, "complaints": list(complaints)}
    return LoadResult(outcomes, about | load_figures(outcomes, 4.0, goals or {}))


def report(*results, goals=None):
    figures = {
        "url": "http://h",
        "model": "m",
        "endpoint": "chat",
        "num_prompts": 4,
        "goodput_goals_ms": goals or {},
        "loads": [one.figures for one in results],
    }
    return [*report_lines(figures)]


def test_a_load_is_a_row_of_throughput_and_one_of_times():
    lines = report(result(rate=2.0), result(rate="inf", limit=16))
    rows = [line.split() for line in lines]
    assert ["2", "-", "4", "0", "1.00", "2.00", "10.00"] in rows
    assert ["inf", "16", "4", "0", "1.00", "2.00", "10.00"] in rows
    times = next(line for line in lines if line.split()[:3] == ["2", "-", "100.0"])
    assert times.count("100.0 / 100.0 / 100.0 / 100.0") == 1  # time to first token
    assert times.count("50.0 / 50.0 / 50.0 / 50.0") == 2  # per token, between tokens
    assert times.count("150.0 / 150.0 / 150.0 / 150.0") == 1  # in all


def test_goodput_is_a_column_if_there_are_goals():
    goals = {"ttft": 99.0}
    assert not any("goodput" in line for line in report(result()))
    lines = report(result(goals=goals), goals=goals)
    assert any(line.endswith(" goodput/s") for line in lines)
    assert any(line.endswith(" 0.00") for line in lines)


def test_errors_and_doubts_are_named_with_their_load():
    lines = "\n".join(report(result(error="503", complaints=["the client is slow"])))
    assert "rate 2 at once -: failed requests by status: 503: 1" in lines
    assert "rate 2 at once -: NOT TRUSTWORTHY: the client is slow" in lines


def test_an_offered_rate_that_the_limit_of_concurrency_prevents_is_said():
    lines = "\n".join(report(result(rate=2.0, limit=1, turn_wait=0.2)))
    assert "rate 2 at once 1: the offered rate was not reached: 3 of 4 requests waited" in lines
    assert "mean 150.0 ms" in lines
    for load in (result(rate=2.0, limit=1), result(rate="inf", limit=1, turn_wait=0.2)):
        assert "offered rate" not in "\n".join(report(load))


def titles(*results):
    root = ET.fromstring(chart(results))
    return [text.text for text in root.iter("{http://www.w3.org/2000/svg}text")]


def test_loads_are_drawn_over_the_rate():
    shown = titles(result(rate=1.0), result(rate=2.0))
    assert "time to first token (TTFT)" in shown
    assert "offered requests/s" in shown
    assert {"p50", "p99", "output tokens"} <= {*shown}


@pytest.mark.parametrize(
    ("loads", "label"),
    [
        ([("inf", 1), ("inf", 4)], "requests at once"),
        ([(1.0, None), ("inf", None)], "completed requests/s"),
    ],
)
def test_loads_are_drawn_over_what_they_differ_by(loads, label):
    assert label in titles(*(result(rate=rate, limit=limit) for rate, limit in loads))


def test_of_one_load_the_distributions_are_drawn():
    shown = titles(result())
    assert "percent of all" in shown
    assert "inter-token latency (ITL)" in shown


def test_a_load_without_a_completed_request_can_be_shown():
    failed = LoadResult(
        [Outcome(error="503")],
        {"request_rate": 1.0, "max_concurrency": None, "complaints": []}
        | load_figures([Outcome(error="503")], 1.0, {}),
    )
    assert any(line.split()[:4] == ["1", "-", "0", "1"] for line in report(failed))
    ET.fromstring(chart([failed]))
    ET.fromstring(chart([failed, failed]))
