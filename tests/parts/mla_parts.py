"""A tiny model that mixes latent attention with ordinary attention, and a reference of it.

Each device of a group has all weights, and computes some of the heads.

The reference does not attend to latents: it computes keys and values of every head from them, and
attends to those. Both give the same results, because the up-projection of keys can be applied to
the queries instead, and that of values to the output.
"""

import json
import math

import torch
from torch import Tensor, nn

from quire.interfaces.kv_cache import KVLayer
from quire.interfaces.model import Model, ModelDescription, StageTensors
from quire.layers import Attention, LayerContext, MLAAttention
from quire.layers.layer import frozen
from quire.layers.parallel import shard, shard_kv_heads
from quire.testing.checkpoints import write_checkpoint

ARCHITECTURE = "TinyMLAForCausalLM"
HIDDEN, VOCAB, HEADS = 48, 320, 4
LATENT, ROPE, NOPE, VALUE = 32, 16, 12, 10  # elements per head; the latent is per token
HEAD_DIM, KV_HEADS = 12, 2  # of the ordinary layer
SCALE = (NOPE + ROPE) ** -0.5
LAYERS = {"mla.0": "mla_attention", "full.1": "full_attention", "mla.2": "mla_attention"}

PLUGIN = """
    from quire import hookimpl
    from quire.interfaces.model import ModelCapabilities

    @hookimpl
    def register_models(registry):
        registry.add(
            "TinyMLAForCausalLM",
            "mla_parts:TinyMLAForCausalLM",
            capabilities=ModelCapabilities(
                "mla_parts:describe", supports_lora=False, supports_pipeline_parallel=True
            ),
        )
"""


def describe(config):
    latent = (1, LATENT + ROPE, (("latent_dim", LATENT),))
    sizes = {"mla_attention": latent, "full_attention": (KV_HEADS, HEAD_DIM)}
    return ModelDescription(
        architecture=ARCHITECTURE,
        config=config,
        vocab_size=VOCAB,
        hidden_size=HIDDEN,
        num_layers=len(LAYERS),
        num_heads=HEADS,
        max_model_len=256,
        num_params=100_000,
        checkpoint_dtype="float32",
        kv_layers=tuple(
            KVLayer(f"{name}.attn", spec, *sizes[spec]) for name, spec in LAYERS.items()
        ),
    )


def write_tiny_mla(folder):
    """Write a checkpoint's config and tokenizer; load its weights with load_format="dummy"."""
    checkpoint = write_checkpoint(folder, "LlamaForCausalLM", vocab_size=VOCAB)
    config = json.loads((checkpoint.folder / "config.json").read_text())
    config |= {"architectures": [ARCHITECTURE], "max_position_embeddings": 256}
    (checkpoint.folder / "config.json").write_text(json.dumps(config))
    return checkpoint.folder


class LatentBlock(nn.Module):
    def __init__(self, name: str, context: LayerContext) -> None:
        super().__init__()
        sizes = {
            "q": (HEADS * (NOPE + ROPE), HIDDEN), "down": (LATENT + ROPE, HIDDEN),
            "k_up": (HEADS, NOPE, LATENT), "v_up": (HEADS, VALUE, LATENT),
            "out": (HIDDEN, HEADS * VALUE),
        }  # fmt: skip
        for key, size in sizes.items():
            self.register_parameter(key, frozen(size, context.dtype, context.device))
        self.attn = MLAAttention(f"{name}.attn", HEADS, LATENT, ROPE, SCALE, context)
        self.tp = context.tp
        self.heads = slice_of(shard("heads", HEADS, context.tp))
        self.columns = slice_of(shard("columns", HEADS * VALUE, context.tp))

    def projections(self, hidden_states, positions):
        q = (hidden_states @ self.q.T).view(-1, HEADS, NOPE + ROPE)[:, self.heads]
        latent, k_rope = (hidden_states @ self.down.T).split((LATENT, ROPE), 1)
        latent = latent / latent.pow(2).mean(1, keepdim=True).sqrt()
        q_nope, q_rope = q.split((NOPE, ROPE), 2)
        return q_nope, turned(q_rope, positions), latent, turned(k_rope, positions)

    def forward(self, hidden_states, positions, batch):
        q_nope, q_rope, latent, k_rope = self.projections(hidden_states, positions)
        q_latent = torch.einsum("thn,hnc->thc", q_nope, self.k_up[self.heads])
        out = self.attn(q_latent, q_rope, latent, k_rope, batch)
        values = torch.einsum("thc,hvc->thv", out, self.v_up[self.heads]).flatten(1)
        return self.tp.all_reduce(values @ self.out.T[self.columns])

    def by_definition(self, hidden_states, positions):
        q_nope, q_rope, latent, k_rope = self.projections(hidden_states, positions)
        k_nope = torch.einsum("tc,hnc->thn", latent, self.k_up)
        keys = torch.cat((k_nope, k_rope.unsqueeze(1).expand(-1, HEADS, -1)), 2)
        values = torch.einsum("tc,hvc->thv", latent, self.v_up)
        out = attended(torch.cat((q_nope, q_rope), 2), keys, values, SCALE)
        return out.flatten(1) @ self.out.T


class FullBlock(nn.Module):
    def __init__(self, name: str, context: LayerContext) -> None:
        super().__init__()
        q, kv = HEADS * HEAD_DIM, KV_HEADS * HEAD_DIM
        self.sizes = (q, kv, kv)
        self.qkv = frozen((q + 2 * kv, HIDDEN), context.dtype, context.device)
        self.out = frozen((HIDDEN, q), context.dtype, context.device)
        self.attn = Attention(f"{name}.attn", HEADS, KV_HEADS, HEAD_DIM, HEAD_DIM**-0.5, context)
        self.tp = context.tp
        kv_heads = slice_of(shard_kv_heads(KV_HEADS, context.tp))
        self.own_heads = (slice_of(shard("heads", HEADS, context.tp)), kv_heads, kv_heads)
        self.columns = slice_of(shard("columns", q, context.tp))

    def heads(self, hidden_states):
        parts = (hidden_states @ self.qkv.T).split(self.sizes, 1)
        return [part.unflatten(1, (-1, HEAD_DIM)) for part in parts]

    def forward(self, hidden_states, positions, batch):
        parts = zip(self.heads(hidden_states), self.own_heads, strict=True)
        q, k, v = (part[:, own] for part, own in parts)
        return self.tp.all_reduce(self.attn(q, k, v, batch) @ self.out.T[self.columns])

    def by_definition(self, hidden_states, positions):
        q, k, v = self.heads(hidden_states)
        k, v = (x.repeat_interleave(HEADS // KV_HEADS, 1) for x in (k, v))
        return attended(q, k, v, HEAD_DIM**-0.5).flatten(1) @ self.out.T


class TinyMLAForCausalLM(nn.Module, Model):
    def __init__(self, description, context: LayerContext) -> None:
        super().__init__()
        self.vocabulary = slice_of(shard("vocabulary", VOCAB, context.tp))
        self.embedding, self.head = (
            frozen((VOCAB, HIDDEN), context.dtype, context.device) for _ in range(2)
        )
        kinds = {"mla_attention": LatentBlock, "full_attention": FullBlock}
        self.mla, self.full = nn.ModuleDict(), nn.ModuleDict()
        self.names = list(LAYERS)[slice_of(context.layers or range(len(LAYERS)))]
        for name in self.names:
            parent, child = name.split(".")
            self.get_submodule(parent)[child] = kinds[LAYERS[name]](name, context)

    def forward(self, input_ids, positions, batch, inputs_embeds=None, stage_input=None):
        def run(block, hidden_states):
            return block(hidden_states, positions, batch)

        first = self.embed(input_ids) if stage_input is None else stage_input.hidden_states
        hidden_states = self.through(first, run)
        is_last = self.names[-1] == list(LAYERS)[-1]
        return hidden_states if is_last else StageTensors(hidden_states, None)

    def by_definition(self, token_ids: Tensor) -> Tensor:
        """Return the logits of every token of one request, without a cache."""
        positions = torch.arange(len(token_ids))

        def run(block, hidden_states):
            return block.by_definition(hidden_states, positions)

        return self.compute_logits(self.through(self.embed(token_ids), run))

    def embed(self, token_ids):
        return normed(self.embedding[token_ids])

    def through(self, hidden_states, run):
        for name in self.names:
            hidden_states = normed(hidden_states + 2 * run(self.get_submodule(name), hidden_states))
        return hidden_states

    def compute_logits(self, hidden_states):
        return (hidden_states @ self.head[self.vocabulary].T).float()


def slice_of(own: range) -> slice:
    return slice(own.start, own.stop)


def normed(x: Tensor) -> Tensor:
    return x / x.pow(2).mean(1, keepdim=True).sqrt()


def turned(x: Tensor, positions: Tensor) -> Tensor:  # [T, ..., P]
    """Rotate pairs of elements, half a head apart, by angles proportional to the position."""
    half = x.shape[-1] // 2
    angles = positions.unsqueeze(1) * 0.1 ** torch.arange(half)  # [T, P / 2]
    angles = angles.view(len(x), *[1] * (x.dim() - 2), half)
    one, two = x.split(half, -1)
    cos, sin = angles.cos(), angles.sin()
    return torch.cat((one * cos - two * sin, two * cos + one * sin), -1)


def attended(q: Tensor, k: Tensor, v: Tensor, scale: float) -> Tensor:  # [T, H, *]
    """Return the causal attention of one request, with K and V for every query head."""
    scores = torch.einsum("qhd,khd->hqk", q, k) * scale
    later = torch.ones(len(q), len(q), dtype=torch.bool).triu(1)
    weights = scores.masked_fill(later, -math.inf).softmax(-1)
    return torch.einsum("hqk,khv->qhv", weights, v)
