"""Families through the fallback: the tokens and logits of transformers' own eager model."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache
from typing import Any

import msgspec
import pytest
import torch
from adapter_parts import peft_model, save_adapter
from cpp_compilers import NEEDS_COMPILER
from grid_engine import Grid, grid_engine
from grid_scenarios import request
from safetensors.torch import load_file, save_file
from transformers_families import FAMILIES, Family, write_family
from transformers_model import greedy_tokens, one_thread

from quire import LLM, RequestOutput, SamplingParams
from quire.errors import CheckpointCorruptError, RefusedError
from quire.outputs import LoRARequest

NUM_TOKENS = 40
TOLERANCE = 1e-4  # of the spread of the logits
MIN_DISTINCT = 16
BLOCK_SIZE = 8
PROMPT_LENGTHS = (1, 5, 17, 23)
# One each of: transposed matrices and learned positions; experts stacked while loading; soft caps,
# windows and a scaled embedding; sinks and experts with biases; values narrower than keys.
QUICK = ("gpt2", "mixtral", "gemma2", "gpt_oss", "deepseek_v3")
# One key/value head on two ranks: with a plan, without one, and with whole norms of projections.
WIDE = ("mixtral", "gpt_bigcode", "olmo2", "deepseek_v3", "gemma2", "phi3")
GREEDY = SamplingParams(temperature=0, max_tokens=NUM_TOKENS, ignore_eos=True, logprobs=4)


def families(quick: Sequence[str], every: Sequence[str], *others: Any) -> list[Any]:
    """Return a parameter for each family, with other values behind it; most are slow."""
    slow = {name: pytest.mark.slow for name in every if name not in quick}
    return [
        pytest.param(name, *others, marks=slow.get(name, ()))
        for name in dict.fromkeys((*quick, *every))
    ]


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """The checkpoint of each family, made on first use."""
    return cache(lambda name: write_family(tmp_path_factory.mktemp(name), name))


def prompts() -> list[list[int]]:
    generator = torch.Generator().manual_seed(11)
    return [
        torch.randint(3, 320, (length,), generator=generator).tolist() for length in PROMPT_LENGTHS
    ]


def engine(family: Family, **options: Any) -> LLM:
    sizes = {"dtype": "float32", "block_size": BLOCK_SIZE, "max_model_len": 64, "threads": 1}
    return LLM(str(family.folder), **{"model_impl": "transformers", **sizes, **options})


def check(family: Family, prompt: Sequence[int], output: RequestOutput) -> None:
    """Compare greedy tokens, and the log probabilities of the best ones, with transformers."""
    completion = output.outputs[0]
    token_ids = list(completion.token_ids)
    with one_thread():
        expected = family.logprobs([*prompt, *token_ids[:-1]])[len(prompt) - 1 :]
    bound = TOLERANCE * float(expected.max() - expected.min())
    for row, token_id, found in zip(expected, token_ids, completion.logprobs, strict=True):
        assert float(row.max() - row[token_id]) <= bound
        for candidate, logprob in found.items():
            assert abs(float(row[candidate]) - logprob.logprob) <= bound


@pytest.mark.parametrize("name", families(QUICK, tuple(FAMILIES)))
def test_completions_are_those_of_transformers(written, name):
    """Prompts of several lengths in steps of 9 tokens: in chunks, and beside each other."""
    family = written(name)
    with engine(family, max_num_batched_tokens=9, enable_prefix_caching=False) as llm:
        outputs = llm.generate(prompts(), GREEDY)
    for prompt, output in zip(prompts(), outputs, strict=True):
        check(family, prompt, output)
    distinct = {token for output in outputs for token in output.outputs[0].token_ids}
    assert len(distinct) >= MIN_DISTINCT


@pytest.mark.parametrize("name", families(QUICK[:2], tuple(FAMILIES)))
def test_preemption_and_prefix_hits_change_nothing(written, name):
    """Few blocks, so that requests are preempted; then the same prompts again."""
    family = written(name)
    num_groups = len(family.reference.config.to_dict().get("layer_types") or [None])
    num_blocks = num_groups * math.ceil((max(PROMPT_LENGTHS) + NUM_TOKENS) / BLOCK_SIZE) + 2
    with engine(family, num_kv_blocks=num_blocks, max_num_batched_tokens=9) as llm:
        for _ in range(2):
            for prompt, output in zip(prompts(), llm.generate(prompts(), GREEDY), strict=True):
                check(family, prompt, output)


SHARDED = [
    *families((*QUICK[:2], "olmo2"), tuple(FAMILIES), 2),
    *families(WIDE[:1], WIDE, 4),
]


@pytest.mark.parametrize(("name", "tp_size"), SHARDED)
def test_ranks_of_a_group_give_the_tokens_of_transformers(written, name, tp_size):
    """With four ranks and two key/value heads, two ranks have the same head."""
    family = written(name)
    params = {"temperature": 0, "max_tokens": 12, "ignore_eos": True}
    given = {f"prompt {i}": prompt for i, prompt in enumerate(prompts())}
    options = {"model_impl": "transformers", "max_num_batched_tokens": 9}
    with grid_engine(family.folder, Grid(tp_size), **options) as running:
        asked = [request(key, prompt, **params) for key, prompt in given.items()]
        found = running.run([msgspec.structs.replace(each, stop_token_ids=()) for each in asked])
    for key, prompt in given.items():
        token_ids = found[key].token_ids
        assert len(token_ids) == 12, found[key].error
        with one_thread():
            expected = family.logprobs([*prompt, *token_ids[:-1]])[len(prompt) - 1 :]
        bound = TOLERANCE * float(expected.max() - expected.min())
        for row, token_id in zip(expected, token_ids, strict=True):
            assert float(row.max() - row[token_id]) <= bound


ADAPTED = {"gpt2": ["c_attn", "c_fc"], "mixtral": ["q_proj", "o_proj"]}


@pytest.mark.parametrize("name", ADAPTED)
def test_adapters_generate_like_peft_beside_requests_without(written, tmp_path, name):
    family = written(name)
    model = peft_model(family, "first", target_modules=ADAPTED[name])
    saved = save_adapter(model, "first", tmp_path)
    adapter = LoRARequest("first", 1, str(saved))
    uses = [True, False, True, False]
    with engine(family, enable_lora=True, max_num_batched_tokens=9) as llm:
        outputs = llm.generate(
            prompts(), GREEDY, lora_request=[adapter if u else None for u in uses]
        )
    for is_adapted, prompt, output in zip(uses, prompts(), outputs, strict=True):
        if is_adapted:
            found = output.outputs[0].token_ids
            assert list(found) == greedy_tokens(model, prompt, NUM_TOKENS)
        else:
            check(family, prompt, output)


@NEEDS_COMPILER
@pytest.mark.parametrize("name", ["gpt2", "gpt_oss"])
def test_weights_packed_in_the_checkpoints_dtype_are_those_of_transformers(tmp_path, name):
    family = write_family(tmp_path, name, dtype=torch.bfloat16)
    with engine(family, quantization="bf16") as llm:
        for prompt, output in zip(prompts(), llm.generate(prompts(), GREEDY), strict=True):
            check(family, prompt, output)


@NEEDS_COMPILER
@pytest.mark.parametrize("method", ["int8_weight_only", "int4_weight_only"])
def test_quantized_layers_are_those_of_quires_own_model(tmp_path, method):
    sizes = {"hidden_size": 128, "intermediate_size": 128, "head_dim": 32}
    family = write_family(tmp_path, "llama", rope_parameters={"rope_theta": 777.0}, **sizes)
    found = []
    for implementation in ("quire", "transformers"):
        options = {"quantization": method, "model_impl": implementation}
        with engine(family, **options) as llm:
            (output,) = llm.generate([prompts()[-1]], GREEDY)
        completion = output.outputs[0]
        found.append([row[token].logprob for token, row in zip(
            completion.token_ids, completion.logprobs, strict=True)])  # fmt: skip
    assert found[1] == pytest.approx(found[0], abs=1e-3)
    exact = family.logprobs(prompts()[-1])[-1].max()
    assert abs(found[1][0] - float(exact)) > 1e-3


def test_batch_invariant_mode_is_refused(written):
    with pytest.raises(RefusedError, match="that transformers computes"):
        engine(written("gpt2"), batch_invariant=True)


def test_a_missing_matrix_of_an_expert_is_named(tmp_path):
    family = write_family(tmp_path, "mixtral")
    file = tmp_path / "model.safetensors"
    tensors = load_file(file)
    del tensors["model.layers.2.block_sparse_moe.experts.3.w3.weight"]
    save_file(tensors, file, metadata={"format": "pt"})
    with pytest.raises(CheckpointCorruptError, match=r"layers\.2\.mlp\.experts\.3\.w3\.weight"):
        engine(family)


@pytest.mark.parametrize("name", ["mixtral", "deepseek_v3", "gpt_oss"])
def test_experts_that_the_checkpoint_has_stacked_are_read(tmp_path, name):
    """The tensors are those of transformers' own model, which stacks the matrices."""
    family = write_family(tmp_path, name)
    tensors = {key: each.contiguous() for key, each in family.reference.state_dict().items()}
    assert any(each.dim() == 3 for each in tensors.values())
    save_file(tensors, tmp_path / "model.safetensors", metadata={"format": "pt"})
    with engine(family) as llm:
        check(family, prompts()[1], llm.generate([prompts()[1]], GREEDY)[0])


@NEEDS_COMPILER
def test_quantized_experts_are_those_of_quires_own_model(tmp_path):
    sizes = {"hidden_size": 128, "intermediate_size": 128, "head_dim": 32}
    family = write_family(tmp_path, "mixtral", **sizes)
    first = []
    for options in ({}, {"quantization": "int8"}, {"quantization": "int8", "model_impl": "quire"}):
        with engine(family, **options) as llm:
            completion = llm.generate([prompts()[-1]], GREEDY)[0].outputs[0]
        first.append({token: each.logprob for token, each in completion.logprobs[0].items()})
    exact, found, own = first
    assert found.keys() == own.keys()
    assert [found[token] for token in own] == pytest.approx(list(own.values()), abs=1e-3)
    assert any(abs(found.get(token, 0.0) - exact[token]) > 1e-4 for token in exact)


@pytest.mark.parametrize("name", ["mixtral", "gpt_oss"])
def test_whole_experts_are_divided_over_ranks(written, name):
    family = written(name)
    options = {"model_impl": "transformers", "enable_expert_parallel": True}
    with grid_engine(family.folder, Grid(2), **options) as running:
        asked = request("r", prompts()[2], temperature=0, max_tokens=12, ignore_eos=True)
        found = running.run([msgspec.structs.replace(asked, stop_token_ids=())])["r"]
    assert len(found.token_ids) == 12, found.error
    with one_thread():
        expected = family.logprobs([*prompts()[2], *found.token_ids[:-1]])[len(prompts()[2]) - 1 :]
    assert expected.argmax(-1).tolist() == list(found.token_ids)


def test_tensors_that_are_not_in_the_model_are_named(tmp_path):
    family = write_family(tmp_path, "gpt2")
    file = tmp_path / "model.safetensors"
    save_file({**load_file(file), "acme.weight": torch.ones(2)}, file, metadata={"format": "pt"})
    with pytest.raises(CheckpointCorruptError, match=r"not in the model: acme\.weight"):
        engine(family)


@pytest.mark.parametrize("name", ["bert", "bert-generation"])
@pytest.mark.parametrize("which", ["stored", "other", "both"])
def test_a_heads_bias_may_have_either_of_its_names(tmp_path, name, which):
    """transformers stores one of the two that BERT has for it."""
    family = write_family(tmp_path, name, is_decoder=True)
    file = tmp_path / "model.safetensors"
    tensors = load_file(file)
    (stored,) = [key for key in tensors if key in ("cls.predictions.bias", "lm_head.bias")]
    other = stored.replace("bias", "decoder.bias")
    tensors[other] = tensors[stored].clone()
    if which == "other":
        del tensors[stored]
    if which != "stored":
        save_file(tensors, file, metadata={"format": "pt"})
    with engine(family) as llm:
        check(family, prompts()[1], llm.generate([prompts()[1]], GREEDY)[0])


def test_a_tied_heads_own_copy_is_left_out(tmp_path):
    family = write_family(tmp_path, "gpt2")
    file = tmp_path / "model.safetensors"
    tensors = load_file(file)
    copied = tensors["transformer.wte.weight"].clone()
    save_file({**tensors, "lm_head.weight": copied}, file, metadata={"format": "pt"})
    with engine(family) as llm:
        check(family, prompts()[1], llm.generate([prompts()[1]], GREEDY)[0])
