"""The metrics of an engine: each observation counts in the replica that it is of."""

import msgspec

from quire.frontend.metrics.engine_metrics import EngineMetrics
from quire.messages import CompletedRequest, StepStats

RECORD = CompletedRequest(
    request_id="r", child=0, client=None, http_request_id=None, model="demo", adapter=None,
    num_prompt_tokens=7, num_cached_tokens=0, num_completion_tokens=5, finish_reason="length",
    error_code=None, arrival_s=0.0, queue_s=0.5, time_to_first_token_s=2.0, decode_s=4.0,
    total_s=6.5, max_tokens=5, n=2, replica=1,
)  # fmt: skip


def test_a_request_counts_in_each_histogram_of_its_replica():
    metrics = EngineMetrics()
    metrics.add_request(RECORD)
    own = metrics.of(1)
    assert own.finish_reasons == {"length": 1}
    assert own.error_codes == {}
    histograms = {
        "total_s": 6.5, "queue_s": 0.5, "prefill_s": 1.5, "decode_s": 4.0, "inference_s": 5.5,
        "time_per_output_token_s": 1.0, "prompt_tokens": 7, "completion_tokens": 5,
        "max_tokens": 5, "n": 2,
    }  # fmt: skip
    for name, total in histograms.items():
        histogram = vars(own)[name]
        assert (name, histogram.count, histogram.total) == (name, 1, total)
    assert metrics.of(0).total_s.count == 0


def test_what_a_request_does_not_have_is_not_counted():
    metrics = EngineMetrics()
    refused = {"finish_reason": "error", "error_code": "overloaded", "replica": 0}
    without = {"queue_s": None, "time_to_first_token_s": None, "decode_s": None}
    metrics.add_request(msgspec.structs.replace(RECORD, **refused, **without))
    own = metrics.of(0)
    assert own.error_codes == {"overloaded": 1}
    for histogram in (
        own.queue_s, own.prefill_s, own.decode_s, own.inference_s, own.time_per_output_token_s,
    ):  # fmt: skip
        assert histogram.count == 0
    assert own.total_s.count == 1


def test_a_step_counts_in_its_replica():
    metrics = EngineMetrics()
    metrics.add_step(StepStats(3, 40, 0.02, 1))
    own = metrics.of(1)
    assert (own.step_requests.total, own.step_tokens.total, own.step_s.total) == (3, 40, 0.02)
    assert metrics.of(0).step_s.count == 0
