"""Latent attention of DeepSeek on several devices, and in an engine."""

from functools import partial

import pytest
import torch
from family_cases import CASES
from family_checkpoints import write_family
from model_parts import make_model, random_tokens

from quire import LLM, SamplingParams
from quire.testing.model.dense_attention import difference, logits_of
from quire.testing.model.threaded_ranks import RankThreads
from quire.worker.loading.weight_loading import load_weights

NAMES = [
    (family, shape)
    for family in ("DeepseekV3ForCausalLM", "DeepseekV2ForCausalLM")
    for shape in CASES[family]
]


@pytest.fixture(scope="module", params=NAMES, ids="-".join)
def checkpoint(request, tmp_path_factory):
    family, shape = request.param
    return write_family(tmp_path_factory.mktemp("latent"), CASES[family][shape])


def test_two_devices_give_the_logits_of_transformers(checkpoint):
    ranks = RankThreads(2, 1)
    models = [make_model(checkpoint.config, tp=group) for group in ranks.groups]
    for model in models:
        load_weights(model, checkpoint.folder)
    token_ids = random_tokens(50)
    try:
        found = ranks.run([partial(logits_of, model, token_ids) for model in models])
    finally:
        ranks.close()
    for logits in found:
        assert difference(logits, checkpoint.logits(token_ids)) < 1e-4


def test_an_engine_gives_the_tokens_of_transformers(checkpoint):
    prompts = [random_tokens(count, seed=count).tolist() for count in (9, 30)]
    params = SamplingParams(temperature=0.0, max_tokens=20, ignore_eos=True)
    with LLM(str(checkpoint.folder), num_kv_blocks=64, threads=1) as llm:
        outputs = llm.generate(prompts, params)
    for prompt, output in zip(prompts, outputs, strict=True):
        tokens = list(output.outputs[0].token_ids)
        whole = torch.tensor([*prompt, *tokens])
        expected = checkpoint.logits(whole)[len(prompt) - 1 : -1].argmax(-1)
        assert tokens == expected.tolist()
