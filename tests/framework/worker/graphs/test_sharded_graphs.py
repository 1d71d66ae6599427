"""Ranks that share layers, and pipeline stages, replay their decode steps."""

import pytest
from cpp_compilers import NEEDS_COMPILER

from quire import LLM, SamplingParams
from quire.testing.checkpoints import write_checkpoint

PARAMS = SamplingParams(temperature=0, max_tokens=24, ignore_eos=True, logprobs=0)
PROMPTS = [list(range(5, 30)), [7, 8, 9], [300, 4]]


SAMPLED = [
    SamplingParams(temperature=0.8 * (i % 2), seed=i, max_tokens=24, ignore_eos=True)
    for i in range(len(PROMPTS))
]


def run(folder, **options):
    """Tokens and their log probabilities, of all prompts together and of each alone.

    The last tokens are sampled by the graphs, without log probabilities.
    """
    with LLM(str(folder), max_model_len=128, dtype="float32", threads=1, **options) as llm:
        together = llm.generate(PROMPTS, PARAMS)
        alone = [llm.generate([prompt], PARAMS)[0] for prompt in PROMPTS]
        sampled = [output.outputs[0] for output in llm.generate(PROMPTS, SAMPLED)]
    found = [output.outputs[0] for output in (*together, *alone)]
    tokens = [list(each.token_ids) for each in (*found, *sampled)]
    return tokens, [next(iter(row.values())).logprob for each in found for row in each.logprobs]


@NEEDS_COMPILER
@pytest.mark.parametrize("divided", ["tensor_parallel_size", "pipeline_parallel_size"])
def test_two_processes_replay_what_one_computes(tmp_path, caplog, capfd, divided):
    caplog.set_level("INFO", "quire")  # of the workers too
    folder = write_checkpoint(tmp_path / "m", "Qwen3ForCausalLM", vocab_size=321).folder
    tokens, logprobs = run(folder, enforce_eager=True)
    assert len({token for each in tokens for token in each}) > 20
    sharded, sharded_logprobs = run(folder, **{divided: 2})
    assert sharded == tokens
    assert sharded_logprobs == pytest.approx(logprobs, abs=1e-4)
    logged = capfd.readouterr().err
    assert "INFO worker 1" in logged
    assert "have no CPU graph" not in logged
    assert "traced 8 decode steps as CPU graphs" in logged
