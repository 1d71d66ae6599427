"""Attending to latents is multi-head attention, with its up-projections moved to either side."""

import random
from dataclasses import replace

import pytest
import torch
from grid_engine import Grid, grid_engine
from grid_scenarios import check_same, request, tokens
from installed import sites
from mla_parts import PLUGIN, TinyMLAForCausalLM, describe, write_tiny_mla

from quire import LLM, SamplingParams
from quire.errors import RequestFailedError
from quire.interfaces.mla import MLABackend
from quire.interfaces.model import ForwardBatch
from quire.layers import LayerContext, MLAAttention, SingleDevice
from quire.worker.loading.weight_loading import init_dummy_weights

CONTEXT = LayerContext(dtype=torch.float32, device=torch.device("cpu"))
SEED = 15
site = pytest.fixture(sites)


@pytest.fixture
def checkpoint(site, tmp_path):
    site.install("tiny-mla", PLUGIN)
    return write_tiny_mla(tmp_path / "model")


def reference():
    model = TinyMLAForCausalLM(describe({}), CONTEXT)
    init_dummy_weights(model, SEED)
    return model


@torch.inference_mode()
def greedy(model, prompt, num_tokens):
    token_ids = list(prompt)
    while len(token_ids) < len(prompt) + num_tokens:
        token_ids.append(int(model.by_definition(torch.tensor(token_ids))[-1].argmax()))
    return token_ids[len(prompt) :]


@pytest.mark.parametrize(
    "options", [{}, {"max_num_batched_tokens": 16, "block_size": 4}], ids=["whole", "chunked"]
)
def test_the_engine_generates_as_the_definition_does(checkpoint, options):
    """Many requests at once, through latent and ordinary layers with a backend each."""
    check(checkpoint, (3, 20, 41, 70), 24, options)


def test_so_it_does_with_kernels(checkpoint):
    options = {"attention_backend": "triton_mla", "block_size": 16}
    check(checkpoint, (3, 18), 8, options)


@pytest.mark.parametrize("grid", [Grid(2), Grid(4), Grid(1, (0, 1, 2)), Grid(2, (0, 2))], ids=str)
def test_ranks_have_some_of_the_heads_and_the_whole_latent(checkpoint, grid):
    requests = [request("long", tokens(40), prompt_logprobs=1), request("short", tokens(3))]
    options = {"load_format": "dummy", "dummy_seed": SEED, "max_num_batched_tokens": 16}
    outcomes = []
    for each in (Grid(), grid):
        with grid_engine(checkpoint, each, **options) as engine:
            outcomes.append(engine.run(requests))
            pages = {
                spec.layer.name: spec.page_bytes
                for plan in engine.plans
                for group in plan.groups
                for spec in group.layer_specs
            }
            assert pages["mla.0.attn"] == pages["mla.2.attn"] == 4 * 48 * 4, "of every rank"
    check_same(*reversed(outcomes))


def check(checkpoint, lengths, num_tokens, options):
    rng = random.Random(3)
    prompts = [[rng.randrange(3, 320) for _ in range(n)] for n in lengths]
    model = reference()
    expected = [greedy(model, prompt, num_tokens) for prompt in prompts]
    different = {token for token_ids in expected for token in token_ids}
    assert len(different) >= num_tokens, "a model that repeats itself hides mistakes"
    params = SamplingParams(temperature=0, max_tokens=num_tokens, ignore_eos=True)
    always = {"load_format": "dummy", "dummy_seed": SEED, "dtype": "float32", "threads": 1}
    with LLM(str(checkpoint), **always, **options) as llm:
        outputs = llm.generate(prompts, params)
    assert [list(output.outputs[0].token_ids) for output in outputs] == expected


def test_an_unbound_layer_says_so():
    layer = MLAAttention("mla.0.attn", 4, 32, 16, 0.1, CONTEXT)
    with pytest.raises(RuntimeError, match=r"mla\.0\.attn runs before bind"):
        layer(*torch.zeros(4, 1), ForwardBatch(attention=[]))


def test_devices_share_heads_and_not_the_latent():
    class SecondOfTwo(SingleDevice):
        rank, size = 1, 2

    layer = MLAAttention("mla.0.attn", 4, 32, 16, 0.1, replace(CONTEXT, tp=SecondOfTwo()))
    assert (layer.num_heads, layer.num_kv_heads, layer.head_dim) == (2, 1, 48)


class FixedBackend(MLABackend):
    """Returns a given result."""

    def __init__(self, result):
        self.result = result

    @classmethod
    def kv_view(cls, raw, spec, num_blocks):
        return raw

    def prepare(self, step):
        return None

    def forward(self, *args):
        return self.result


@pytest.mark.parametrize(
    "wrong", [torch.zeros(2, 4, 32), torch.zeros(3, 4, 48), torch.zeros(3, 4, 32).half(), None]
)
def test_a_backend_that_returns_something_else_is_blamed_by_name(wrong):
    layer = MLAAttention("mla.0.attn", 4, 32, 16, 0.1, CONTEXT)
    inputs = (torch.zeros(*shape) for shape in ((3, 4, 32), (3, 4, 16), (3, 32), (3, 16)))
    layer.bind(FixedBackend(wrong), torch.zeros(1), 0, "attention backend 'x'")
    message = r"attention backend 'x' of layer mla\.0\.attn returned .*float32 .*\[3, 4, 32\]"
    with pytest.raises(RequestFailedError, match=message):
        layer(*inputs, ForwardBatch(attention=[None]))


class Metadata(FixedBackend):
    """Returns its metadata."""

    def forward(self, q_latent, q_rope, latent, k_rope, kv_cache, metadata, scale):
        return torch.full_like(q_latent, metadata)


def test_it_attends_with_the_metadata_of_its_group():
    layer = MLAAttention("mla.0.attn", 4, 32, 16, 0.1, CONTEXT)
    layer.bind(Metadata(None), torch.zeros(1), 1)
    inputs = (torch.zeros(*shape) for shape in ((3, 4, 32), (3, 4, 16), (3, 32), (3, 16)))
    assert (layer(*inputs, ForwardBatch(attention=[5, 7])) == 7).all()
