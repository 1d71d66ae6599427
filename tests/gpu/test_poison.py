"""The contents of free blocks never matter, not-a-number included."""

import random

import pytest
from recorded_engine import runner_of

from quire import LLM, SamplingParams
from quire.layers.attention.caching_layer import CachingLayer
from quire.testing.checkpoints import write_checkpoint

PARAMS = SamplingParams(temperature=0, max_tokens=24, ignore_eos=True)


@pytest.mark.parametrize("architecture", ["Qwen3ForCausalLM", "Gemma3ForCausalLM"])
def test_completions_are_the_same_with_poison_in_every_free_block(
    tmp_path, on_device, architecture
):
    checkpoint = write_checkpoint(tmp_path, architecture, seed=1, head_dim=32)
    rng = random.Random(1)
    vocab_size = checkpoint.config["vocab_size"]
    prompts = [[rng.randrange(3, vocab_size) for _ in range(n)] for n in (3, 33, 70, 18)]
    options = {"max_model_len": 128, "max_num_seqs": 4, "dtype": "float32", **on_device}
    options["enable_prefix_caching"] = False  # between two calls every block is free
    with LLM(str(checkpoint.folder), **options) as llm:
        clean = tokens(llm.generate(prompts, PARAMS))
        for _ in range(2):
            poison(llm)
            assert tokens(llm.generate(prompts, PARAMS)) == clean


def tokens(outputs):
    return [output.outputs[0].token_ids for output in outputs]


def poison(llm):
    """Fill the whole cache: every block, the null block, remains of old completions."""
    runner = runner_of(llm)
    layers = [each for each in runner.model.modules() if isinstance(each, CachingLayer)]
    assert layers
    for layer in layers:
        layer._kv_cache.fill_(float("nan"))
    for backend in runner.backends:
        backend.forget_context()
