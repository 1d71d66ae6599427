"""Small real parts for tests of models: dense attention by the textbook, and a bound model."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from quire.interfaces.attention import AttentionBackend, AttentionShape
from quire.interfaces.lora import AdapterBatch
from quire.interfaces.mla import MLABackend
from quire.interfaces.model import ForwardBatch, Model
from quire.layers import (
    Attention,
    LayerContext,
    MLAAttention,
    SingleDevice,
    TensorParallelGroup,
)
from quire.layers.attention.caching_layer import CachingLayer
from quire.testing.checkpoints import WrittenCheckpoint, write_checkpoint
from quire.worker.loading.weight_loading import load_weights
from quire_models.decoder.decoder_model import DecoderForCausalLM
from quire_models.family_table import describe

CPU = torch.device("cpu")
CONTEXT = LayerContext(dtype=torch.float32, device=CPU)
MAX_TOKENS = 256


class DenseAttention(AttentionBackend):
    """One request, no blocks: K and V lie side by side; scores, mask, softmax, weighted sum.

    The metadata is the number of computed tokens.
    """

    @classmethod
    def kv_view(cls, raw: Tensor, spec: Any, num_blocks: int) -> Tensor:
        raise NotImplementedError("the tests allocate the cache themselves")

    def forward(self, q, k, v, kv_cache, metadata, layer):  # kv_cache: [2, tokens, K, D]
        start, stop = metadata, metadata + len(q)
        kv_cache[0, start:stop], kv_cache[1, start:stop] = k, v
        repeats = q.shape[1] // k.shape[1]
        keys, values = kv_cache[:, :stop].repeat_interleave(repeats, dim=2)
        scores = torch.einsum("thd,chd->htc", q, keys) * layer.scale
        if layer.logit_soft_cap is not None:
            scores = layer.logit_soft_cap * torch.tanh(scores / layer.logit_soft_cap)
        behind = torch.arange(start, stop).unsqueeze(1) - torch.arange(stop)  # [T, context]
        is_hidden = (behind < 0) | (behind >= (layer.sliding_window or MAX_TOKENS))
        if layer.attention_chunk is not None:
            first = torch.arange(start, stop) // layer.attention_chunk * layer.attention_chunk
            is_hidden |= torch.arange(stop) < first.unsqueeze(1)
        if layer.alibi_slopes is not None:
            scores = scores - layer.alibi_slopes.view(-1, 1, 1) * behind
        scores = scores.masked_fill(is_hidden, -torch.inf)
        if layer.sinks is not None:
            sinks = layer.sinks.view(-1, 1, 1).expand(-1, len(q), 1)
            scores = torch.cat((scores, sinks), -1)
        weights = scores.softmax(-1)[..., :stop]
        return torch.einsum("htc,chd->thd", weights, values)


def dense_attention(layer: Attention) -> DenseAttention:
    return DenseAttention(dense_shape(layer))


def dense_shape(layer: CachingLayer[Any]) -> AttentionShape:
    return AttentionShape(
        num_heads=layer.num_heads,
        num_kv_heads=layer.num_kv_heads,
        head_dim=layer.head_dim,
        block_size=1,
        max_num_seqs=1,
        max_num_batched_tokens=MAX_TOKENS,
        max_blocks_per_request=MAX_TOKENS,
        dtype=torch.float32,
        kv_dtype="float32",
        device=CPU,
    )


class DenseLatentAttention(MLABackend):
    """One request, no blocks, as `DenseAttention`; a token's row is its latent and its key."""

    @classmethod
    def kv_view(cls, raw: Tensor, spec: Any, num_blocks: int) -> Tensor:
        raise NotImplementedError("the tests allocate the cache themselves")

    def forward(self, q_latent, q_rope, latent, k_rope, kv_cache, metadata, scale):
        start, stop = metadata, metadata + len(latent)  # kv_cache: [tokens, C + P]
        kv_cache[start:stop] = torch.cat((latent, k_rope), -1)
        rows = kv_cache[:stop]
        queries = torch.cat((q_latent, q_rope), -1)  # [T, H, C + P]
        scores = torch.einsum("thd,cd->htc", queries, rows) * scale
        behind = torch.arange(start, stop).unsqueeze(1) - torch.arange(stop)  # [T, context]
        weights = scores.masked_fill(behind < 0, -torch.inf).softmax(-1)
        return torch.einsum("htc,cl->thl", weights, rows[:, : latent.shape[1]])


def bind_dense_attention(model: Model) -> None:
    for module in model.modules():  # type: ignore[attr-defined]
        if isinstance(module, MLAAttention):
            backend = DenseLatentAttention(module.backend_shape(dense_shape(module)))
            module.bind(backend, torch.zeros(MAX_TOKENS, module.head_dim), 0)
        if isinstance(module, Attention):
            cache = torch.zeros(2, MAX_TOKENS, module.num_kv_heads, module.head_dim)
            module.bind(dense_attention(module), cache, 0)


def make_model(
    config: dict[str, Any],
    *,
    tp: TensorParallelGroup | None = None,
    layers: range | None = None,
    prepack: bool = False,
) -> Model:
    """Build the model that a config.json names, with dense attention and undefined weights."""
    context = replace(CONTEXT, tp=tp or SingleDevice(), layers=layers, prepack=prepack)
    model = DecoderForCausalLM(describe(config), context)
    bind_dense_attention(model)
    return model


def load_model(checkpoint: WrittenCheckpoint, **options: Any) -> Model:
    model = make_model(checkpoint.config, **options)
    load_weights(model, checkpoint.folder)
    return model


def written_model(
    folder: Path, architecture: str, **config: Any
) -> tuple[WrittenCheckpoint, Model]:
    checkpoint = write_checkpoint(folder, architecture, **config)
    return checkpoint, load_model(checkpoint)


def logits_of(
    model: Model, token_ids: Tensor, start: int = 0, adapters: AdapterBatch | None = None
) -> Tensor:
    """Logits of every token of one request, `[T, V]`, computed as one step after `start` tokens."""
    positions = torch.arange(start, start + len(token_ids))
    batch = ForwardBatch(attention=[start], adapters=adapters)
    with torch.inference_mode():
        hidden_states = model.forward(token_ids, positions, batch)
        assert isinstance(hidden_states, Tensor)
        logits = model.compute_logits(hidden_states)
        return model.lm_head.vocabulary.gather(logits)  # type: ignore[attr-defined]


def greedy(model: Model, prompt: Tensor, num_tokens: int) -> list[int]:
    """The likeliest tokens after a prompt, one step each."""
    tokens = [int(logits_of(model, prompt)[-1].argmax())]
    while len(tokens) < num_tokens:
        start = len(prompt) + len(tokens) - 1
        tokens.append(int(logits_of(model, torch.tensor(tokens[-1:]), start)[-1].argmax()))
    return tokens


def random_tokens(num_tokens: int, vocab_size: int = 320, seed: int = 1) -> Tensor:
    return torch.randint(vocab_size, (num_tokens,), generator=torch.Generator().manual_seed(seed))


def difference(ours: Tensor, theirs: Tensor) -> float:
    """Largest difference of logits, in parts of their spread."""
    return float((ours - theirs).abs().max() / (theirs.max() - theirs.min()))
