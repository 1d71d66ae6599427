"""A checkpoint's attention sinks and KV cache scales reach the kernels."""

import pytest
import torch
from cpp_compilers import NEEDS_COMPILER
from installed import sites
from sink_parts import LAYERS, PLUGIN, logits_by_definition, write_tiny_sinks

from quire import LLM, SamplingParams

site = pytest.fixture(sites)

PROMPTS = ([5, 77, 130, 9, 211, 64, 300], [12] * 3, list(range(40, 75)))
BACKENDS = ["torch_sdpa", pytest.param("cpu", marks=NEEDS_COMPILER), "triton"]
CLIPPED = (0.002, 0.001)  # so small that large values are clipped: unscaled ones differ
NAMES = ["{}.attn.{}_scale", "{}.{}_scale", "{}.{}_proj.{}_scale"]


@pytest.fixture
def write(site, tmp_path):
    site.install("tiny-sinks", PLUGIN)
    return lambda **extra: write_tiny_sinks(tmp_path / "model", **extra)


def scale_tensors(name="{}.attn.{}_scale", shape=(), scales=CLIPPED):
    return {
        name.format(f"layers.{i}.self_attn", *[side] * (name.count("{}") - 1)): torch.full(
            shape, scale
        )
        for i in range(LAYERS)
        for side, scale in zip("kv", scales, strict=True)
    }


def logprobs(folder, num_new=3, **options):
    """Each prompt's completion, and the log probability of its tokens in the engine."""
    params = SamplingParams(temperature=0, max_tokens=num_new, ignore_eos=True, logprobs=0)
    with LLM(str(folder), dtype="float32", threads=1, block_size=16, **options) as llm:
        completions = llm.generate([{"prompt_token_ids": ids} for ids in PROMPTS], params)
    return [
        [
            (token, row[token].logprob)
            for token, row in zip(out.token_ids, out.logprobs, strict=True)
        ]
        for out in (completion.outputs[0] for completion in completions)
    ]


def differences(completions, scales=None, *, has_sinks=True):
    """How far the engine's log probabilities are from the definition's."""
    found = []
    for prompt, completion in zip(PROMPTS, completions, strict=True):
        every = torch.tensor([*prompt, *(token for token, _ in completion)])
        true = logits_by_definition(every, scales, has_sinks=has_sinks).log_softmax(-1)
        found += [
            abs(float(true[len(prompt) - 1 + i, token]) - logprob)
            for i, (token, logprob) in enumerate(completion)
        ]
    return found


@pytest.mark.parametrize("backend", BACKENDS)
def test_sinks_of_a_checkpoint_take_part_in_attention(write, backend):
    completions = logprobs(write(), attention_backend=backend)
    assert max(differences(completions)) < 1e-4
    assert max(differences(completions, has_sinks=False)) > 0.1


@pytest.mark.parametrize(
    ("backend", "name"),
    [("torch_sdpa", NAMES[0]), ("torch_sdpa", NAMES[1]), ("triton", NAMES[2])]
    + [pytest.param("cpu", name, marks=NEEDS_COMPILER) for name in NAMES],
)
def test_scales_of_a_checkpoint_are_those_of_its_float8_cache(write, backend, name):
    folder = write(**scale_tensors(name))
    completions = logprobs(folder, kv_cache_dtype="fp8", attention_backend=backend)
    assert max(differences(completions, CLIPPED)) < 1e-3
    assert max(differences(completions, (1.0, 1.0))) > 0.1


def test_without_scales_a_float8_cache_has_the_scale_one(write):
    completions = logprobs(write(), kv_cache_dtype="fp8")
    assert max(differences(completions, (1.0, 1.0))) < 1e-3


def test_scales_do_not_matter_to_a_cache_that_is_not_float8(write):
    completions = logprobs(write(**scale_tensors(shape=(1,))))
    assert max(differences(completions)) < 1e-4


def test_a_backend_without_sinks_is_not_taken(write, site):
    site.install("acme-sinkless", SINKLESS)
    with LLM(str(write()), dtype="float32", threads=1) as llm:
        said = {
            other.name: other.reason
            for choice in llm.composition.attention_backends
            for other in choice.rejected
        }
    assert said["sinkless"] == "it does not support attention sinks"


SINKLESS = """
    from quire import hookimpl
    from quire.interfaces.attention import AttentionCapabilities

    @hookimpl
    def register_attention_backends(registry):
        there = AttentionCapabilities(
            devices=frozenset({"cpu"}), dtypes=frozenset({"float32"}),
            kv_dtypes=frozenset({"float32"}), priority=100,
        )
        registry.add("sinkless", "quire.errors:QuireError", capabilities=there)
"""
