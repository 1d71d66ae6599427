"""Figures of a load whose outcomes are written by hand."""

import pytest

from quire.cli.bench.serving.load_figures import load_figures, parse_goals, peak_concurrency, values
from quire.cli.bench.serving.outcome import Outcome
from quire.errors import SettingsError


def completed(sent, chunks, end, num_tokens, num_prompt_tokens=10):
    return Outcome(
        sent_s=sent,
        chunks_s=chunks,
        end_s=end,
        num_prompt_tokens=num_prompt_tokens,
        num_output_tokens=num_tokens,
        is_counted=True,
    )


QUICK = completed(0.0, [0.1, 0.2, 0.3], 0.3, 3)  # TTFT 100 ms, TPOT 100 ms
SLOW = completed(1.0, [1.5, 2.5], 2.5, 2)  # TTFT 500 ms, TPOT 1,000 ms
SHORT = completed(1.0, [1.2], 1.2, 1)  # TTFT 200 ms
FAILED = Outcome(sent_s=0.0, end_s=9.0, error="503")
ALL = [QUICK, SLOW, SHORT, FAILED, Outcome(sent_s=0.0, end_s=0.1, error="503")]


def test_throughput_counts_what_was_completed_over_the_whole_time():
    figures = load_figures(ALL, 4.0, {})
    assert (figures["completed"], figures["failed"]) == (3, 2)
    assert figures["errors"] == {"503": 2}
    assert figures["requests_per_s"] == pytest.approx(3 / 4)
    assert figures["output_tokens_per_s"] == pytest.approx(6 / 4)
    assert figures["total_tokens_per_s"] == pytest.approx(36 / 4)
    assert "goodput_requests_per_s" not in figures


def test_times_are_those_of_the_completed_requests():
    figures = load_figures(ALL, 4.0, {})
    assert figures["ttft_ms"]["mean"] == pytest.approx(800 / 3)
    assert figures["ttft_ms"]["p50"] == pytest.approx(200)
    assert figures["tpot_ms"]["mean"] == pytest.approx((100 + 1000) / 2)
    assert figures["itl_ms"]["mean"] == pytest.approx((100 + 100 + 1000) / 3)
    assert figures["e2el_ms"]["p99"] == pytest.approx(300 + 1200 * 0.98)


@pytest.mark.parametrize(
    ("goals", "num_met"),
    [
        ({"ttft": 200}, 2),
        ({"ttft": 199}, 1),
        ({"tpot": 100.1}, 2),  # one token has no time per further token to miss
        ({"ttft": 500, "tpot": 999}, 2),
        ({"ttft": 500, "tpot": 1000.1, "e2el": 1500.1}, 3),
    ],
)
def test_goodput_counts_requests_that_meet_all_goals(goals, num_met):
    figures = load_figures(ALL, 4.0, {name: limit + 1e-6 for name, limit in goals.items()})
    assert figures["met_goals"] == num_met
    assert figures["goodput_requests_per_s"] == pytest.approx(num_met / 4)


def test_a_load_without_a_completed_request_has_no_times():
    figures = load_figures([FAILED], 9.0, {"ttft": 1.0})
    assert figures["ttft_ms"] is None
    assert figures["goodput_requests_per_s"] == 0.0


def test_tokens_that_the_server_does_not_count_are_reported():
    guessed = Outcome(sent_s=0.0, chunks_s=[1.0], end_s=1.0, num_output_tokens=1)
    assert not load_figures([QUICK, guessed], 1.0, {})["tokens_are_counted"]
    assert load_figures(ALL, 1.0, {})["tokens_are_counted"]


def test_values_are_in_order_and_in_milliseconds():
    assert values([SLOW, QUICK], "itl") == pytest.approx([100, 100, 1000])


def test_the_peak_is_of_requests_at_one_time():
    spans = [(0, 2), (1, 3), (2, 4), (5, 6)]
    outcomes = [Outcome(sent_s=start, end_s=end) for start, end in spans]
    assert peak_concurrency(outcomes) == 2


def test_goals_are_read():
    assert parse_goals(["ttft:200", "tpot:0.5"]) == {"ttft": 200.0, "tpot": 0.5}


@pytest.mark.parametrize("text", ["ttft", "ttft:", "itl:3", "ttft:0", "ttft:-1", "ttft:nan", ":3"])
def test_a_goal_that_is_none_is_refused(text):
    with pytest.raises(SettingsError, match="--goodput takes ttft:MILLISECONDS, "):
        parse_goals([text])
