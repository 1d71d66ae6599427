"""The clock of a request: from its arrival to its last token, in the metrics of its replica."""

import pytest

from quire.frontend.metrics.engine_metrics import EngineMetrics
from quire.frontend.metrics.request_clock import RequestClock
from quire.messages import BeamHypothesis, EngineOutput, EngineRequest
from quire.sampling_params import SamplingParams

REQUEST = EngineRequest(
    request_id="r", token_ids=[1, 2, 3], params=SamplingParams(), max_tokens=9, seed=0,
    arrival_s=100.0,
)  # fmt: skip


def output(*token_ids, **fields):
    return EngineOutput(request_id="r", token_ids=list(token_ids), **fields)


@pytest.fixture
def metrics():
    return EngineMetrics()


@pytest.fixture
def clock(metrics):
    return RequestClock(REQUEST, metrics)


def test_a_request_that_never_started_has_no_times(clock, metrics):
    clock.take(output(finish_reason="error"), 105.0)
    assert (clock.queue_s, clock.time_to_first_token_s, clock.decode_s) == (None, None, None)
    assert metrics.of(0).num_prompt_tokens == 0


def test_queue_first_token_and_decode_follow_each_other(clock, metrics):
    clock.take(output(5, started_s=101.0, num_cached_tokens=2), 103.0)
    clock.take(output(6), 103.5)
    clock.take(output(7, 8), 104.5)
    assert (clock.queue_s, clock.time_to_first_token_s, clock.decode_s) == (1.0, 3.0, 1.5)
    own = metrics.of(0)
    assert (own.num_prompt_tokens, own.num_cached_tokens, own.num_generated_tokens) == (3, 2, 4)
    assert (own.time_to_first_token_s.count, own.time_to_first_token_s.total) == (1, 3.0)
    assert (own.inter_token_s.count, own.inter_token_s.total) == (2, 1.5)


def test_log_probabilities_of_the_prompt_are_not_the_first_token(clock, metrics):
    clock.take(output(started_s=101.0), 102.0)
    assert clock.time_to_first_token_s is None
    clock.take(output(5), 103.0)
    assert (clock.queue_s, clock.time_to_first_token_s) == (1.0, 3.0)
    assert metrics.of(0).num_generated_tokens == 1


def test_a_request_that_starts_again_after_a_preemption_started_once(clock):
    clock.take(output(started_s=101.0), 102.0)
    clock.take(output(5, started_s=107.0), 108.0)
    assert clock.queue_s == 1.0


def test_the_tokens_count_in_the_replica_that_computed_them(clock, metrics):
    clock.take(output(5, started_s=101.0, replica=2), 103.0)
    clock.take(output(6), 104.0)
    assert clock.replica == 2
    assert [each.num_generated_tokens for each in metrics.replicas] == [0, 0, 2]
    assert metrics.of(2).inter_token_s.count == 1


def test_a_beam_search_has_all_its_tokens_at_once(clock, metrics):
    found = [
        BeamHypothesis(token_ids=ids, cumulative_logprob=0.0, finish_reason="stop")
        for ids in ([1, 2], [3])
    ]
    clock.take(output(hypotheses=found, finish_reason="stop", started_s=101.0), 103.0)
    assert (clock.time_to_first_token_s, clock.decode_s) == (3.0, 0.0)
    assert metrics.of(0).num_generated_tokens == 3


def test_clocks_that_differ_by_a_little_show_no_negative_time(clock):
    clock.take(output(5, started_s=99.9), 100.1)
    assert clock.queue_s == 0.0
