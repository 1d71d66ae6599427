"""Whole models with kernels and a backend that fuses rotation, against models with torch only."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from kernel_device import ONLY_INTERPRETED
from model_parts import CONTEXT, load_model, random_tokens
from rotating_attention import RotatingAttention
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from quire.interfaces.lora import AdapterBatch, AdapterModule
from quire.interfaces.model import ForwardBatch, Model
from quire.layers import Attention
from quire.layers.linear.linear_layers import ParallelLinear
from quire.testing.checkpoints import WrittenCheckpoint, write_checkpoint
from quire.testing.model.dense_attention import MAX_TOKENS, dense_attention, difference, logits_of
from quire.worker.loading.weight_loading import load_weights
from quire_models.decoder.decoder_model import DecoderForCausalLM
from quire_models.decoder.layer_step import LayerStep
from quire_models.family_table import describe

pytestmark = ONLY_INTERPRETED
TOKENS = random_tokens(11)
SHAPES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("LlamaForCausalLM", {}),
    "llama-biases": ("LlamaForCausalLM", {"attention_bias": True, "mlp_bias": True}),
    "qwen2": ("Qwen2ForCausalLM", {}),
    "qwen3": ("Qwen3ForCausalLM", {"head_dim": 32}),
    "gemma3": ("Gemma3ForCausalLM", {}),
}


class Counted(RotatingAttention):
    """Says how often a layer asked it."""

    num_calls = 0

    def forward_rotary(self, *args: Any) -> Tensor:
        self.num_calls += 1
        return super().forward_rotary(*args)


def fused_model(
    checkpoint: WrittenCheckpoint, dtype: torch.dtype = torch.float32, kernels: str = "triton"
) -> tuple[Model, list[Counted]]:
    """Build a model that runs kernels, with attention that norms and rotates."""
    context = replace(CONTEXT, kernels=kernels, dtype=dtype)
    model: Any = DecoderForCausalLM(describe(checkpoint.config), context)
    backends = []
    for layer in model.modules():
        if isinstance(layer, Attention):
            backends.append(Counted(dense_attention(layer).shape))
            cache = torch.zeros(2, MAX_TOKENS, layer.num_kv_heads, layer.head_dim)
            layer.bind(backends[-1], cache, 0)
    load_weights(model, checkpoint.folder)
    return model, backends


@pytest.fixture(params=SHAPES)
def checkpoint(request: Any, tmp_path: Path) -> WrittenCheckpoint:
    architecture, config = SHAPES[request.param]
    return write_checkpoint(tmp_path, architecture, **config)


@pytest.mark.parametrize("kernels", ["triton", "native"])
def test_in_float32_the_logits_are_the_same(checkpoint, kernels):
    model, backends = fused_model(checkpoint, kernels=kernels)
    expected = logits_of(load_model(checkpoint), TOKENS)
    assert difference(logits_of(model, TOKENS), expected) < 1e-5
    assert [backend.num_calls for backend in backends] == [1] * len(backends)


def test_a_prompt_in_two_steps_has_the_same_logits(checkpoint):
    model, _ = fused_model(checkpoint)
    expected = logits_of(load_model(checkpoint), TOKENS)
    logits_of(model, TOKENS[:7])
    assert difference(logits_of(model, TOKENS[7:], start=7), expected[7:]) < 1e-5


def test_in_half_precision_the_logits_are_close(checkpoint):
    expected = logits_of(load_model(checkpoint), TOKENS)
    for dtype, tolerance in ((torch.bfloat16, 0.06), (torch.float16, 0.006)):
        model, _ = fused_model(checkpoint, dtype)
        logits = logits_of(model, TOKENS)
        assert logits.isfinite().all()
        assert difference(logits, expected) < tolerance, dtype


def test_adapters_change_both_alike(checkpoint):
    model, _ = fused_model(checkpoint)
    plain = load_model(checkpoint)
    index = torch.tensor([0, 1, -1] * 3 + [1, 0])
    rows = tuple((adapter, (index == adapter).nonzero().squeeze(1)) for adapter in (0, 1))
    for each in (model, plain):
        load_adapters(each)
    expected = logits_of(plain, TOKENS, adapters=AdapterBatch(index, rows))
    logits = logits_of(model, TOKENS, adapters=AdapterBatch(index, None))
    assert difference(logits, expected) < 1e-5
    assert difference(expected, logits_of(plain, TOKENS)) > 0.01


def load_adapters(model: Any) -> None:
    """Adapt every linear layer, with two adapters of different ranks."""
    generator = torch.Generator().manual_seed(3)
    for layer in model.modules():
        if isinstance(layer, ParallelLinear):
            layer.enable_lora(2, 4)
            for adapter, rank in ((0, 4), (1, 1)):
                matrices = {
                    name: AdapterModule(
                        torch.randn(rank, layer.num_columns, generator=generator) * 0.1,
                        torch.randn(part.num_rows, rank, generator=generator) * 0.1,
                        1.0,
                    )
                    for name, part in layer.slices.items()
                }
                layer.set_adapter(adapter, matrices)


MAX_OPERATORS = 4  # of torch in a decoder layer: the products with its four weights
ALLOCATIONS = {"empty", "empty_like", "new_empty"}
INTERPRETER = {"set_", "copy_"}  # Triton's interpreter brings its arguments to the host


class Launches(TorchDispatchMode):
    """Counts operators of torch that compute: on a GPU each of them is a launch."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        name = function.overloadpacket.__name__
        self.count += not function.is_view and name not in ALLOCATIONS | INTERPRETER
        return function(*args, **(kwargs or {}))


class Idle(RotatingAttention):
    """Returns its metadata, so that its launches are not counted."""

    def forward_rotary(self, qkv, rotary, kv_cache, metadata, layer):
        return metadata


@pytest.mark.parametrize("has_biases", [False, True])
def test_beside_kernels_a_decoder_layer_launches_its_products_and_biases_cost_nothing(
    tmp_path, has_biases
):
    biases = {"attention_bias": has_biases, "mlp_bias": has_biases}
    checkpoint = write_checkpoint(tmp_path, "LlamaForCausalLM", **biases)
    model: Any = fused_model(checkpoint)[0]
    layer = model.model.layers["0"]
    attention = layer.self_attn.attention
    attention.bind(Idle(dense_attention(attention).shape), torch.empty(0), 0)
    rotation = model.model.rotaries[0](torch.arange(3))
    x, residual = torch.zeros(2, 3, 64)
    batch = ForwardBatch(attention=[torch.zeros(3, attention.num_heads, attention.head_dim)])
    step = LayerStep(positions=torch.arange(3), batch=batch, rotation=rotation)
    with torch.no_grad(), Launches() as launches:
        layer(x, residual, step)
    assert 0 < launches.count <= MAX_OPERATORS
