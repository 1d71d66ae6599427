"""A tiny model whose heads have sinks, its checkpoint, and a reference implementation."""

import json

import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from quire.interfaces.kv_cache import KVLayer
from quire.interfaces.model import Model, ModelDescription
from quire.layers import Attention, LayerContext
from quire.layers.layer import frozen
from quire.testing.checkpoints import write_checkpoint

ARCHITECTURE = "TinySinkForCausalLM"
HIDDEN, VOCAB, HEADS, KV_HEADS, HEAD_DIM, LAYERS = 48, 320, 4, 2, 32, 2
SCALE = HEAD_DIM**-0.5
FLOAT8_MAX = 448.0
CONTEXT = LayerContext(dtype=torch.float32, device=torch.device("cpu"))

PLUGIN = """
    from quire import hookimpl
    from quire.interfaces.model import ModelCapabilities

    @hookimpl
    def register_models(registry):
        registry.add(
            "TinySinkForCausalLM",
            "sink_parts:TinySinkForCausalLM",
            capabilities=ModelCapabilities("sink_parts:describe", supports_lora=False),
        )
"""


def describe(config):
    return ModelDescription(
        architecture=ARCHITECTURE,
        config=config,
        vocab_size=VOCAB,
        hidden_size=HIDDEN,
        num_layers=LAYERS,
        num_heads=HEADS,
        max_model_len=256,
        num_params=50_000,
        checkpoint_dtype="float32",
        kv_layers=tuple(
            KVLayer(
                f"layers.{i}.self_attn.attn", "full_attention", KV_HEADS, HEAD_DIM, has_sinks=True
            )
            for i in range(LAYERS)
        ),
    )


def write_tiny_sinks(folder, **extra: Tensor):
    """Write a whole checkpoint, with extra tensors."""
    write_checkpoint(folder, "LlamaForCausalLM", vocab_size=VOCAB)
    config = json.loads((folder / "config.json").read_text())
    config |= {"architectures": [ARCHITECTURE], "max_position_embeddings": 256}
    (folder / "config.json").write_text(json.dumps(config))
    save_file(sink_weights() | extra, folder / "model.safetensors")
    return folder


def sink_weights() -> dict[str, Tensor]:
    """Return the checkpoint's tensors, by the checkpoint's names."""
    generator = torch.Generator().manual_seed(4)

    def random_tensor(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator)

    q, kv = HEADS * HEAD_DIM, KV_HEADS * HEAD_DIM
    weights = {"embedding": random_tensor(VOCAB, HIDDEN), "head": random_tensor(VOCAB, HIDDEN)}
    for i in range(LAYERS):
        name = f"layers.{i}.self_attn"
        weights[f"{name}.qkv"] = random_tensor(q + 2 * kv, HIDDEN) * HIDDEN**-0.5
        weights[f"{name}.out"] = random_tensor(HIDDEN, q) * q**-0.5
        weights[f"{name}.sinks"] = random_tensor(HEADS) + 2.0
    return weights


class SinkBlock(nn.Module):
    def __init__(self, name: str, context: LayerContext) -> None:
        super().__init__()
        q, kv = HEADS * HEAD_DIM, KV_HEADS * HEAD_DIM
        self.sizes = (q, kv, kv)
        self.qkv = frozen((q + 2 * kv, HIDDEN), context.dtype, context.device)
        self.out = frozen((HIDDEN, q), context.dtype, context.device)
        sizes = (HEADS, KV_HEADS, HEAD_DIM, SCALE)
        self.attn = Attention(f"{name}.attn", *sizes, context, has_sinks=True)

    def heads(self, hidden_states):
        parts = (hidden_states @ self.qkv.T).split(self.sizes, 1)
        return [part.unflatten(1, (-1, HEAD_DIM)) for part in parts]

    def forward(self, hidden_states, batch):
        return self.attn(*self.heads(hidden_states), batch) @ self.out.T


class TinySinkForCausalLM(nn.Module, Model):
    def __init__(self, description, context: LayerContext) -> None:
        super().__init__()
        sizes = ((VOCAB, HIDDEN), context.dtype, context.device)
        self.embedding, self.head = frozen(*sizes), frozen(*sizes)
        self.layers = nn.ModuleDict()
        for i in range(LAYERS):
            block = SinkBlock(f"layers.{i}.self_attn", context)
            self.layers[str(i)] = nn.ModuleDict({"self_attn": block})

    def map_weight_name(self, name):
        return name.replace(".self_attn.sinks", ".self_attn.attn.sinks")

    def forward(self, input_ids, positions, batch, inputs_embeds=None, stage_input=None):
        hidden_states = normed(self.embedding[input_ids])
        for layer in self.layers.values():
            hidden_states = normed(hidden_states + 2 * layer["self_attn"](hidden_states, batch))
        return hidden_states

    def compute_logits(self, hidden_states):
        return hidden_states @ self.head.T


def logits_by_definition(
    token_ids: Tensor, scales: tuple[float, float] | None = None, *, has_sinks: bool = True
) -> Tensor:
    """Return the logits of every token of one request, without a cache and without quire.

    `scales` are those of K and V in a float8 cache; None: no rounding.
    """
    weights = sink_weights()
    hidden_states = normed(weights["embedding"][token_ids])
    kv = KV_HEADS * HEAD_DIM
    for i in range(LAYERS):
        own = {key: weights[f"layers.{i}.self_attn.{key}"] for key in ("qkv", "out", "sinks")}
        parts = (hidden_states @ own["qkv"].T).split((HEADS * HEAD_DIM, kv, kv), 1)
        q, k, v = (part.unflatten(1, (-1, HEAD_DIM)) for part in parts)
        if scales is not None:
            k, v = as_float8(k, scales[0]), as_float8(v, scales[1])
        sinks = own["sinks"] if has_sinks else torch.full((HEADS,), -torch.inf)
        out = attended(q, k, v, sinks).flatten(1) @ own["out"].T
        hidden_states = normed(hidden_states + 2 * out)
    return hidden_states @ weights["head"].T


def attended(q: Tensor, k: Tensor, v: Tensor, sinks: Tensor) -> Tensor:  # [T, H, D]
    """Return the causal attention of one request, with a sink for each head in the softmax."""
    k, v = (x.repeat_interleave(HEADS // KV_HEADS, 1) for x in (k, v))
    scores = torch.einsum("qhd,khd->hqk", q, k) * SCALE
    later = torch.ones(len(q), len(q), dtype=torch.bool).triu(1)
    powers = scores.masked_fill(later, -torch.inf).exp()
    weights = powers / (powers.sum(-1, keepdim=True) + sinks.exp()[:, None, None])
    return torch.einsum("hqk,khd->qhd", weights, v)


def as_float8(x: Tensor, scale: float) -> Tensor:
    """Return `x` after a round trip through a float8 cache."""
    codes = (x / scale).clamp(-FLOAT8_MAX, FLOAT8_MAX).to(torch.float8_e4m3fn)
    return codes.float() * scale


def normed(x: Tensor) -> Tensor:
    return x / x.pow(2).mean(1, keepdim=True).sqrt()
