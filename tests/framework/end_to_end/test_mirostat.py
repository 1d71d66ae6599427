"""Mirostat through the whole engine: what is sampled follows the definition in plain Python."""

import math

import pytest
from kernel_options import TORCH

from quire import LLM, SamplingParams
from quire.testing.checkpoints import write_checkpoint

NUM_TOKENS = 40
TAU, ETA = 3.0, 0.6


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return str(write_checkpoint(tmp_path_factory.mktemp("m"), "Qwen3ForCausalLM", seed=3).folder)


def completions(folder, num_requests, **options):
    """Token ids and, for each position, the log probabilities of the tokens that are possible."""
    given = {"mirostat_mode": 2, "mirostat_tau": TAU, "mirostat_eta": ETA}
    params = [
        SamplingParams(
            seed=seed, max_tokens=NUM_TOKENS, ignore_eos=True, logprobs=-1, extra_args=given
        )
        for seed in range(num_requests)
    ]
    prompts = [[5 + seed, 9, 11] for seed in range(num_requests)]
    with LLM(
        folder, dtype="float32", max_model_len=64, block_size=8, max_logprobs=-1, **options
    ) as llm:
        outputs = [result.outputs[0] for result in llm.generate(prompts, params)]
        rows = [
            [
                {token: each.logprob for token, each in row.items() if each.logprob > -1000}
                for row in output.logprobs
            ]
            for output in outputs
        ]
        stats = llm.stats()
    return [list(output.token_ids) for output in outputs], rows, stats


def kept_by_reference(token_ids, rows):
    """The tokens that may be sampled at each position, and the surprise of the sampled one."""
    mu, kept, surprises = 2 * TAU, [], []
    for token_id, logprobs in zip(token_ids, rows, strict=True):
        best = max(logprobs, key=logprobs.get)
        own = {t: p for t, p in logprobs.items() if -p / math.log(2) <= mu or t == best}
        total = math.log(sum(math.exp(p) for p in own.values()))
        surprises.append(-(own[token_id] - total) / math.log(2))
        mu -= ETA * (surprises[-1] - TAU)
        kept.append(set(own))
    return kept, surprises


@pytest.mark.parametrize("kernels", [{}, TORCH], ids=["auto", "torch"])
def test_a_completion_follows_the_definition_also_after_preemptions(folder, kernels):
    """The log probabilities of the model give the tokens that may be sampled.

    Those after all steps, of a run with the same tokens, are finite for just these.
    """
    tokens, raw, _ = completions(folder, 6, **kernels)
    again, processed, stats = completions(
        folder, 6, num_kv_blocks=18, logprobs_mode="processed_logprobs", **kernels
    )
    assert stats.num_preemptions > 0
    assert again == tokens
    surprises = []
    for token_ids, raw_rows, processed_rows in zip(tokens, raw, processed, strict=True):
        kept, own = kept_by_reference(token_ids, raw_rows)
        assert [set(row) for row in processed_rows] == kept
        surprises += own
    sizes = {len(row) for rows in processed for row in rows}
    assert len(sizes) > 20
    assert sum(surprises) / len(surprises) == pytest.approx(TAU, abs=0.3)
