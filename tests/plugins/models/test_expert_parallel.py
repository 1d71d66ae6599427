"""An engine whose experts are divided over two processes gives the tokens of transformers."""

import pytest
import torch
from family_cases import CASES
from family_checkpoints import write_family
from model_parts import random_tokens

from quire import LLM, SamplingParams
from quire.errors import SettingsError


def test_experts_divided_over_two_workers_give_the_tokens_of_transformers(tmp_path):
    checkpoint = write_family(tmp_path, CASES["MixtralForCausalLM"]["2 of 4"])
    prompt = random_tokens(20).tolist()
    params = SamplingParams(temperature=0.0, max_tokens=12, ignore_eos=True)
    options = {"tensor_parallel_size": 2, "enable_expert_parallel": True, "threads": 1}
    with LLM(str(tmp_path), num_kv_blocks=64, **options) as llm:
        tokens = list(llm.generate([prompt], params)[0].outputs[0].token_ids)
    whole = torch.tensor([*prompt, *tokens])
    expected = checkpoint.logits(whole)[len(prompt) - 1 : -1].argmax(-1)
    assert tokens == expected.tolist()


def test_a_model_without_experts_refuses_to_divide_them(tmp_path):
    write_family(tmp_path, CASES["SeedOssForCausalLM"]["biases"])
    with pytest.raises(SettingsError, match="SeedOssForCausalLM has no experts"):
        LLM(str(tmp_path), tensor_parallel_size=2, enable_expert_parallel=True)
