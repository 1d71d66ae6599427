"""The checks of the kit notice a wrong model: a model is wrong if its reference is another."""

import pytest
import torch

from quire.outputs import Logprob
from quire.testing.model.dense_attention import MAX_TOKENS, DenseAttention, dense_shape
from quire.testing.model.model_checks import (
    check_chunks,
    check_logits,
    check_preemption,
    check_prefix_hits,
    check_ranks,
    check_same,
    check_tokens,
    check_variety,
)


def test_a_right_model_passes(scene, alone):
    check_tokens(scene, alone)
    check_variety(alone)
    check_logits(scene)
    check_chunks(scene)
    check_ranks(scene, 2)


@pytest.mark.parametrize("shift", [0.01, -0.01])
def test_other_log_probabilities_are_noticed(scene, right, alone, shift):
    def reference(token_ids):
        logits = right.reference(token_ids)
        logits[:, ::2] += shift
        return logits

    scene.reference = reference
    with pytest.raises(AssertionError, match=r"differs from the reference|more likely by"):
        check_tokens(scene, alone)
    with pytest.raises(AssertionError, match="a prompt at once: the logits differ"):
        check_logits(scene)
    with pytest.raises(AssertionError, match="rank 0 of 2: the logits differ"):
        check_ranks(scene, 2)


def test_another_token_is_noticed(scene, right, alone):
    scene.reference = lambda token_ids: right.reference(token_ids).roll(1, -1)
    with pytest.raises(AssertionError, match="more likely by"):
        check_tokens(scene, alone)


def test_a_prompt_without_an_output_is_noticed(scene, alone):
    with pytest.raises(ValueError, match="shorter"):
        check_tokens(scene, alone[:-1])


def test_a_completion_that_ends_early_is_noticed(scene, alone):
    del alone[0].outputs[0].token_ids[-1:]
    with pytest.raises(AssertionError, match="39 tokens instead of 40"):
        check_tokens(scene, alone)


def test_a_batch_that_changes_something_is_noticed(scene, alone):
    with pytest.raises(AssertionError, match="in one batch gives"):
        check_same(scene, alone[1:], alone[:-1], "in one batch")


def test_another_log_probability_of_a_batch_is_noticed(scene, generated, alone):
    candidates = alone[0].outputs[0].logprobs[3]
    candidates.update({token: Logprob(one.logprob - 0.01) for token, one in candidates.items()})
    with pytest.raises(AssertionError, match="in one batch: a log probability is"):
        check_same(scene, generated, alone, "in one batch")


def test_a_model_that_repeats_one_token_is_noticed(alone):
    alone[0].outputs[0].token_ids[:] = [7] * len(alone[0].outputs[0].token_ids)
    with pytest.raises(AssertionError, match="distinct tokens"):
        check_variety(alone[:1])


class Forgetful(DenseAttention):
    """Attention that loses what earlier steps have computed."""

    def forward(self, q, k, v, kv_cache, metadata, layer):
        kv_cache[:, :metadata] = 0
        return super().forward(q, k, v, kv_cache, metadata, layer)


def test_a_model_that_is_wrong_in_chunks_only_is_noticed(scene):
    layer = scene.model.model.layers["0"].self_attn.attention
    cache = torch.zeros(2, MAX_TOKENS, layer.num_kv_heads, layer.head_dim)
    layer.bind(Forgetful(dense_shape(layer)), cache, 0)
    with pytest.raises(AssertionError, match="a prompt in chunks of 17: the logits differ"):
        check_chunks(scene)


def test_a_pool_in_which_all_requests_fit_shows_no_preemption(scene):
    scene.smallest_pool = lambda: 400
    with pytest.raises(AssertionError, match="no request was preempted with 400 to 403 KV blocks"):
        check_preemption(scene)


def test_prompts_without_prefix_hits_are_noticed(scene):
    scene.options = {"enable_prefix_caching": False}
    with pytest.raises(AssertionError, match="0 of 17 tokens are prefix cache hits"):
        check_prefix_hits(scene)


def test_ranks_that_compute_everything_are_noticed(scene):
    whole = scene.loaded_model
    scene.loaded_model = lambda group: whole()
    with pytest.raises(AssertionError, match="rank 0 of 2: no layer is divided"):
        check_ranks(scene, 2)
