"""Times of one request on a scripted timeline, with vLLM's definitions."""

import pytest

from quire.cli.bench.serving.outcome import Outcome


def outcome(chunks, end, num_tokens, sent=10.0):
    return Outcome(sent_s=sent, chunks_s=chunks, end_s=end, num_output_tokens=num_tokens)


def test_the_times_of_a_stream():
    one = outcome([10.2, 10.3, 10.7], end=10.8, num_tokens=4)
    assert one.ttft_s == pytest.approx(0.2)
    assert one.e2el_s == pytest.approx(0.8)
    assert one.tpot_s == pytest.approx((0.8 - 0.2) / 3)
    assert one.itls_s == pytest.approx([0.1, 0.4])


def test_a_completion_of_one_token_has_no_time_per_further_token():
    one = outcome([10.2], end=10.2, num_tokens=1)
    assert one.tpot_s is None
    assert list(one.itls_s) == []


def test_a_completion_without_text_has_its_first_token_at_its_end():
    one = outcome([], end=10.5, num_tokens=1)
    assert one.ttft_s == one.e2el_s == pytest.approx(0.5)
