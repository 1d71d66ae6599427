"""Runners of several ranks, each with a shard of the vocabulary, give the results of one."""

from dataclasses import replace

import pytest
from model_parts import load_model
from sharded_pipeline import pipeline_of

from quire.layers import Attention
from quire.messages import ScheduledRequest, StepPlan
from quire.testing.checkpoints import write_checkpoint
from quire.testing.model.dense_attention import DenseAttention, dense_attention
from quire.testing.model.threaded_ranks import run_ranks
from quire.worker.loading.weight_loading import as_module
from quire.worker.model_runner import ModelRunner
from quire_models.family_table import describe

VOCAB_SIZE = 321
NUM_STEPS = 8


class CountingAttention(DenseAttention):
    """Its metadata is the number of computed tokens of the one request."""

    def prepare(self, step):
        return int(step.seq_lens[0]) - step.num_tokens


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    return write_checkpoint(
        tmp_path_factory.mktemp("m"), "Qwen3ForCausalLM", seed=4, vocab_size=VOCAB_SIZE
    )


def results_of(checkpoint, request, group):
    """Compute a prompt and some decode steps of one request; returns all slot results."""
    model = load_model(checkpoint, tp=group)
    layer = next(each for each in as_module(model).modules() if isinstance(each, Attention))
    pipeline = pipeline_of([request], VOCAB_SIZE, "cpu_gumbel, fused", group)
    backend = CountingAttention(replace(dense_attention(layer).shape, block_size=8))
    description = describe(checkpoint.config)
    runner = ModelRunner(model, [backend], pipeline.tables, pipeline, None, description, "a model")
    found = []
    for step in range(NUM_STEPS):
        num_tokens = 3 if step == 0 else 1
        runner.execute(StepPlan(plan_id=step, requests=[ScheduledRequest(0, num_tokens, 1)]))
        runner.sample(step, ())
        found += runner.collect(step).results
    return found


REQUESTS = [
    {"temperature": 0.0},
    {"temperature": 1.0},
    {"temperature": 1.0, "top_p": 0.9},
    {"temperature": 0.0, "num_logprobs": 2},
    {"temperature": 0.7, "num_prompt_logprobs": 1},
]


@pytest.mark.parametrize("request_fields", REQUESTS)
def test_two_ranks_give_the_results_of_one(checkpoint, request_fields):
    (alone,) = run_ranks(1, lambda group: results_of(checkpoint, request_fields, group))
    for found in run_ranks(2, lambda group: results_of(checkpoint, request_fields, group)):
        assert [each.error for each in found] == [None] * NUM_STEPS
        assert [each.token_ids for each in found] == [each.token_ids for each in alone]
        for mine, wanted in zip(logprobs_of(found), logprobs_of(alone), strict=True):
            assert mine.token_ids == wanted.token_ids
            assert mine.logprobs == pytest.approx(wanted.logprobs, abs=1e-4)
    assert len({tuple(each.token_ids) for each in alone}) > 2
    needs = {"num_logprobs": NUM_STEPS, "num_prompt_logprobs": 2}
    assert len(logprobs_of(alone)) == sum(needs.get(name, 0) for name in request_fields)


def logprobs_of(results):
    return [
        row for each in results for row in (*(each.logprobs or ()), *(each.prompt_logprobs or ()))
    ]
