"""A model without a KV cache is served too: no KV groups, no blocks but the null block."""

import json

import pytest
from installed import sites

from quire import LLM, SamplingParams
from quire.cli.main import main
from quire.testing.checkpoints import write_checkpoint

site = pytest.fixture(sites)

MODEL = '''
    """The next token depends on the last one only, and on how far the request is."""

    from quire import hookimpl
    from quire.interfaces.model import ModelCapabilities, ModelDescription

    @hookimpl
    def register_models(registry):
        there = ModelCapabilities(describe="steps:describe", supports_lora=False)
        registry.add("StepsForCausalLM", "steps_model:StepsForCausalLM", capabilities=there)

    def describe(config):
        return ModelDescription(
            architecture="StepsForCausalLM", config=config, vocab_size=320, hidden_size=320,
            num_layers=1, num_heads=1, max_model_len=128, num_params=102400,
            checkpoint_dtype="float32", kv_layers=(),
        )
'''
CODE = """
    import torch
    from torch import nn
    from quire.interfaces.model import Model

    class StepsForCausalLM(nn.Module, Model):
        def __init__(self, description, context):
            super().__init__()
            self.weight = nn.Parameter(torch.empty(320, 320))

        def forward(self, input_ids, positions, batch, inputs_embeds=None, stage_input=None):
            following = (input_ids * 7 + positions) % 320
            return nn.functional.one_hot(following, 320).float()

        def compute_logits(self, hidden_states):
            return hidden_states * 10
"""
GREEDY = SamplingParams(temperature=0, max_tokens=20, ignore_eos=True)


@pytest.fixture
def folder(site, tmp_path):
    site.install("steps", MODEL)
    site.install("steps_code", CODE, module="steps_model")
    written = write_checkpoint(tmp_path / "m", "StepsForCausalLM", layout="llama")
    return str(written.folder)


def expected(prompt, count):
    tokens = list(prompt)
    for _ in range(count):
        tokens.append((tokens[-1] * 7 + len(tokens) - 1) % 320)
    return tokens[len(prompt) :]


@pytest.mark.parametrize("options", [{}, {"max_num_batched_tokens": 16}, {"num_kv_blocks": 9}])
def test_it_generates_in_batches_and_in_chunks(folder, options):
    with LLM(folder, load_format="dummy", **options) as llm:
        prompts = [[5, 6, 7], list(range(40, 90)), [300]]
        outputs = llm.generate(prompts, GREEDY)
        assert llm.stats().num_blocks == 0
    for prompt, output in zip(prompts, outputs, strict=True):
        assert list(output.outputs[0].token_ids) == expected(prompt, 20)


def test_explain_reports_that_there_is_no_kv_cache(folder, capsys):
    assert main(["explain", folder, "--load-format", "dummy"]) == 0
    assert "none: no layer of this model has a KV cache" in capsys.readouterr().out
    assert main(["explain", folder, "--load-format", "dummy", "--json"]) == 0
    memory = json.loads(capsys.readouterr().out)["memory"]
    assert (memory["cache_bytes"], memory["num_blocks"], memory["groups"]) == (0, 0, [])
    assert memory["fits"] == [{"tokens": 128, "requests": None}]
