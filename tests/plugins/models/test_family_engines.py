"""Every family in a whole engine, and on two ranks, against transformers."""

from collections.abc import Sequence
from functools import cache
from typing import Any

import pytest
from family_cases import CASES
from family_checkpoints import scene_of, write_family

from quire.native.availability import native_unavailable_reason
from quire.testing.model.model_checks import (
    check_preemption,
    check_prefix_hits,
    check_ranks,
    check_tokens,
)
from quire.testing.model.model_scene import ModelScene, ModelSizes, greedy

# Prompts are longer than the windows, and than what positions are scaled from.
SIZES = ModelSizes(prompt_lengths=(21, 34, 47), block_size=8, chunk=17, spare_tokens=9)
SHORT_LENGTHS = (2, 3, 4, 5, 6)  # of requests that still grow where layers have windows
# Quick ones have different traits; each family has a case.
QUICK = {
    "Gemma2ForCausalLM": "caps",
    "Gemma4ForCausalLM": "shared, double wide",
    "GPT2LMHeadModel": "scaled by layer",
    "GPTNeoXForCausalLM": "parallel",
    "Phi3ForCausalLM": "longrope",
    "GptOssForCausalLM": "yarn",
    "OPTForCausalLM": "350m",
}
QUICK_GRIDS = ("GPTNeoXForCausalLM", "GptOssForCausalLM")
SHAPES = {family: QUICK.get(family, next(iter(shapes))) for family, shapes in CASES.items()}


def marked(quick: Sequence[str]) -> list[Any]:
    return [
        family if family in quick else pytest.param(family, marks=pytest.mark.slow)
        for family in CASES
    ]


@pytest.fixture(scope="module")
def scenes(tmp_path_factory):
    """The scene of each family, made on first use."""

    def made(family: str) -> ModelScene:
        case = CASES[family][SHAPES[family]]
        return scene_of(write_family(tmp_path_factory.mktemp("family"), case), SIZES)

    return cache(made)


@pytest.mark.parametrize("family", marked(list(QUICK)))
def test_prompts_in_one_step_and_prefix_hits_give_the_tokens_of_transformers(
    scenes, family, caplog
):
    caplog.set_level("INFO", "quire")
    check_prefix_hits(scenes(family))
    if native_unavailable_reason() is None:
        assert "have no CPU graph" not in caplog.text


@pytest.mark.parametrize("family", marked(list(QUICK)))
def test_chunks_and_preempted_requests_give_the_tokens_of_transformers(scenes, family):
    check_preemption(scenes(family), SHORT_LENGTHS)


@pytest.mark.slow
@pytest.mark.parametrize("family", CASES)
def test_operators_of_torch_give_the_tokens_of_transformers(scenes, family):
    scene = scenes(family)
    is_latent = any(layer.spec == "mla_attention" for layer in scene.description.kv_layers)
    backend = "torch_mla" if is_latent else "torch_sdpa"
    with scene.llm(kernels="torch", attention_backend=backend) as llm:
        check_tokens(scene, llm.generate(scene.prompts, greedy()))


@pytest.mark.parametrize("family", CASES)
def test_two_ranks_compute_the_logits_of_transformers(scenes, family):
    check_ranks(scenes(family), 2)


@pytest.mark.parametrize("family", marked(QUICK_GRIDS))
def test_two_processes_give_the_tokens_of_transformers(scenes, family):
    scene = scenes(family)
    with scene.llm(tensor_parallel_size=2) as llm:
        check_tokens(scene, llm.generate(scene.prompts, greedy()))
