"""What lies in blocks that nobody owns never matters, not-a-number included."""

import random

import pytest
import torch

from quire import LLM, SamplingParams
from quire.testing.checkpoints import write_checkpoint

PARAMS = SamplingParams(temperature=0, max_tokens=24, ignore_eos=True)


@pytest.mark.parametrize("architecture", ["Qwen3ForCausalLM", "Gemma3ForCausalLM"])
def test_answers_are_the_same_with_poison_in_every_free_block(
    tmp_path, on_device, architecture, monkeypatch
):
    checkpoint = write_checkpoint(tmp_path, architecture, seed=1, head_dim=32)
    draw = random.Random(1)
    vocab_size = checkpoint.config["vocab_size"]
    prompts = [[draw.randrange(3, vocab_size) for _ in range(n)] for n in (3, 33, 70, 18)]
    options = {"max_model_len": 128, "max_num_seqs": 4, "dtype": "float32", **on_device}
    with LLM(str(checkpoint.folder), **options) as llm:
        clean = [output.outputs[0].token_ids for output in llm.generate(prompts, PARAMS)]
    zeros = torch.zeros

    def poisoned(*size, **kwargs):
        tensor = zeros(*size, **kwargs)
        return tensor.fill_(255) if kwargs.get("dtype") is torch.uint8 else tensor  # NaN

    monkeypatch.setattr(torch, "zeros", poisoned)
    with LLM(str(checkpoint.folder), **options) as llm:
        monkeypatch.undo()
        for _ in range(2):
            outputs = llm.generate(prompts, PARAMS)
            assert [output.outputs[0].token_ids for output in outputs] == clean
