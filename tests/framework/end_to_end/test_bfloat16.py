"""The default of a bfloat16 checkpoint on a CPU that multiplies bfloat16, in whole engines."""

import logging

import pytest
import torch
from family_cases import CASES
from family_checkpoints import write_family
from grid_scenarios import write_random_adapter
from safetensors.torch import load_file, save_file

from quire import LLM, SamplingParams
from quire.machine.machine import Machine
from quire.native.availability import native_unavailable_reason
from quire.testing.checkpoints import write_checkpoint

HERE = Machine.here(native_unavailable_reason=native_unavailable_reason())
pytestmark = pytest.mark.skipif(
    HERE.native_refusal("bfloat16") is not None, reason=str(HERE.native_refusal("bfloat16"))
)

GREEDY = SamplingParams(temperature=0, max_tokens=6, ignore_eos=True, prompt_logprobs=0)
PROMPTS = [[3 + (7 * i * length) % 300 for i in range(length)] for length in (5, 37, 70)]


def in_bfloat16(folder):
    """Round the weights of a checkpoint to bfloat16, as its config then says."""
    path = folder / "model.safetensors"
    tensors = {name: tensor.bfloat16() for name, tensor in load_file(path).items()}
    save_file(tensors, path, metadata={"format": "pt"})
    config = folder / "config.json"
    config.write_text(config.read_text().replace('"float32"', '"bfloat16"'))
    return str(folder)


@pytest.fixture(scope="module")
def wide_folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("float32")
    return write_checkpoint(folder, "Qwen3ForCausalLM", head_dim=32, seed=3).folder


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A checkpoint in bfloat16, with a random adapter."""
    folder = tmp_path_factory.mktemp("bfloat16")
    written = write_checkpoint(folder, "Qwen3ForCausalLM", head_dim=32, seed=3)
    write_random_adapter(written, 0)
    return in_bfloat16(folder)


def logprobs_of_prompts(folder, adapter=None, **options):
    """Return the dtypes of an engine, and the log probabilities of the tokens of prompts."""
    with LLM(str(folder), max_model_len=128, **options) as llm:
        chosen = llm.composition
        found = [
            next(iter(row.values())).logprob
            for output in llm.generate(PROMPTS, GREEDY, lora_request=adapter)
            for row in output.prompt_logprobs[1:]
        ]
    return (chosen.dtype.value, chosen.hidden_dtype, chosen.kv_dtype), torch.tensor(found)


@pytest.fixture(scope="module")
def default(folder):
    types, logprobs = logprobs_of_prompts(folder)
    assert types == ("bfloat16", "float32", "bfloat16")
    return logprobs


def test_rounding_is_what_is_missed(folder, default):
    types, exact = logprobs_of_prompts(folder, dtype="float32")
    assert types == ("float32", "float32", "float32")
    assert 1e-4 < (default - exact).abs().median() < 0.05
    _, cached = logprobs_of_prompts(folder, dtype="float32", kv_cache_dtype="bfloat16")
    assert not torch.equal(default, cached), "products are rounded as well"
    _, multiplied = logprobs_of_prompts(folder, kv_cache_dtype="float32")
    assert not torch.equal(default, multiplied), "the cache is rounded as well"


def test_its_name_is_bfloat16_and_was_bf16_dot(folder, default, caplog):
    assert torch.equal(logprobs_of_prompts(folder, dtype="bfloat16")[1], default)
    with caplog.at_level(logging.INFO, "quire"):
        assert torch.equal(logprobs_of_prompts(folder, quantization="bf16_dot")[1], default)
    (warning,) = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert warning == (
        "quantization method 'bf16_dot' is deprecated and will be removed: --dtype bfloat16 "
        "multiplies as it does"
    )
    (line,) = [each.getMessage() for each in caplog.records if " on cpu in " in each.getMessage()]
    assert line.endswith("--dtype float32 computes without rounding")


def test_bfloat16_that_is_asked_for_rounds_the_weights_of_other_checkpoints(wide_folder):
    _, rounded = logprobs_of_prompts(wide_folder, dtype="bfloat16")
    _, named = logprobs_of_prompts(wide_folder, dtype="bfloat16", quantization="bf16")
    _, kept = logprobs_of_prompts(wide_folder, dtype="bfloat16", quantization="float32")
    assert torch.equal(rounded, named)
    assert not torch.equal(rounded, kept)


@pytest.mark.parametrize("method", ["int8", "int4"])
def test_a_method_of_fewer_bits_has_a_cache_in_bfloat16(folder, method):
    types, found = logprobs_of_prompts(folder, quantization=method)
    assert types == ("bfloat16", "float32", "bfloat16")
    _, exact = logprobs_of_prompts(folder, quantization=method, dtype="float32")
    assert 1e-5 < (found - exact).abs().median() < 0.3, "codes of inputs change with the cache"


def test_pipeline_stages_pass_hidden_states_without_rounding(folder, default):
    _, found = logprobs_of_prompts(folder, pipeline_parallel_size=2)
    assert torch.equal(found, default)


@pytest.mark.slow
def test_devices_that_share_layers_add_up_in_float32(folder, default):
    _, found = logprobs_of_prompts(folder, tensor_parallel_size=2)
    assert (found - default).abs().median() < 0.05


def test_chunks_and_graphs_give_the_same_within_rounding(folder, default):
    _, found = logprobs_of_prompts(folder, max_num_batched_tokens=16, num_kv_blocks=24)
    assert (found - default).abs().median() < 1e-2


def test_an_adapter_is_added_to_products_in_bfloat16(folder, default):
    options = {"enable_lora": True, "lora_modules": [f"one={folder}/adapter-0"]}
    found, exact = (
        logprobs_of_prompts(folder, "one", dtype=dtype, **options)[1]
        for dtype in ("auto", "float32")
    )
    assert 1e-5 < (found - exact).abs().median() < 0.05
    assert (found - default).abs().median() > 0.05


@pytest.mark.parametrize(
    ("family", "case"), [("MixtralForCausalLM", "2 of 4"), ("DeepseekV2ForCausalLM", "groups")]
)
def test_experts_and_latents_are_computed_in_bfloat16(tmp_path, family, case):
    written = in_bfloat16(write_family(tmp_path, CASES[family][case]).folder)
    types, found = logprobs_of_prompts(written)
    assert types == ("bfloat16", "float32", "bfloat16")
    _, exact = logprobs_of_prompts(written, dtype="float32")
    assert 1e-5 < (found - exact).abs().median() < 0.3, "random routers take other experts at times"
