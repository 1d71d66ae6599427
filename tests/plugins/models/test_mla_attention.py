"""Latent attention of DeepSeek on several devices, and in an engine."""

import pytest
import torch
from family_cases import CASES
from family_checkpoints import scene_of, write_family
from safetensors.torch import save_file

from quire import LLM, LoRARequest
from quire.errors import PromptsError
from quire.testing.model.model_checks import check_ranks, check_tokens
from quire.testing.model.model_scene import greedy

NAMES = [
    (family, shape)
    for family in ("DeepseekV3ForCausalLM", "DeepseekV2ForCausalLM")
    for shape in CASES[family]
]


@pytest.fixture(scope="module", params=NAMES, ids="-".join)
def written(request, tmp_path_factory):
    family, shape = request.param
    return write_family(tmp_path_factory.mktemp("latent"), CASES[family][shape])


def test_two_devices_give_the_logits_of_transformers(written):
    check_ranks(scene_of(written), 2)


def test_an_engine_gives_the_tokens_of_transformers(written):
    scene = scene_of(written)
    with scene.llm() as llm:
        check_tokens(scene, llm.generate(scene.prompts, greedy()))


def test_an_adapter_of_the_latent_projection_is_refused_by_name(written, tmp_path):
    module = "model.layers.0.self_attn.kv_b_proj"
    rows, columns = written.theirs.get_submodule(module).weight.shape
    (tmp_path / "adapter_config.json").write_text('{"peft_type": "LORA", "r": 2, "lora_alpha": 2}')
    pair = {"lora_A": torch.ones(2, columns), "lora_B": torch.ones(rows, 2)}
    tensors = {f"base_model.model.{module}.{side}.weight": one for side, one in pair.items()}
    save_file(tensors, tmp_path / "adapter_model.safetensors")
    with (
        LLM(str(written.folder), num_kv_blocks=64, threads=1, enable_lora=True) as llm,
        pytest.raises(PromptsError, match=f"adapters cannot change in this model: {module}; merge"),
    ):
        llm.generate([[5, 6]], lora_request=LoRARequest("latent", lora_path=str(tmp_path)))
