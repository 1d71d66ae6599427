"""Dense attention by the textbook, for one request: a model computes logits without an engine."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from quire.interfaces.attention import AttentionBackend, AttentionLayerParams, AttentionShape
from quire.interfaces.kv_cache import KVCacheSpec
from quire.interfaces.lora import AdapterBatch
from quire.interfaces.mla import MLABackend
from quire.interfaces.model import ForwardBatch, Model
from quire.layers import Attention, LMHead, MLAAttention
from quire.layers.attention.caching_layer import CachingLayer
from quire.worker.loading.weight_targets import as_module

MAX_TOKENS = 256
CPU = torch.device("cpu")
NO_BLOCKS = "dense attention has no blocks; `bind_dense_attention` allocates its cache"


class DenseAttention(AttentionBackend):
    """One request, no blocks: K and V lie side by side; scores, mask, softmax, weighted sum.

    The metadata is the number of computed tokens.
    """

    @classmethod
    def kv_view(cls, raw: Tensor, spec: KVCacheSpec, num_blocks: int) -> Tensor:
        """Raise an error: `bind_dense_attention` allocates the cache."""
        raise NotImplementedError(NO_BLOCKS)

    def forward(
        self,
        q: Tensor,  # [T, H, D]
        k: Tensor,  # [T, K, D]
        v: Tensor,  # [T, K, D]
        kv_cache: Tensor,  # [2, tokens, K, D]
        metadata: int,
        layer: AttentionLayerParams,
    ) -> Tensor:
        """Write K and V, and return the output of the queries, `[T, H, D]`."""
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
    """Return the dense backend of a layer."""
    return DenseAttention(dense_shape(layer))


def dense_shape(layer: CachingLayer[Any]) -> AttentionShape:
    """Return the shape that the dense backend of a layer is built with."""
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
    def kv_view(cls, raw: Tensor, spec: KVCacheSpec, num_blocks: int) -> Tensor:
        """Raise an error: `bind_dense_attention` allocates the cache."""
        raise NotImplementedError(NO_BLOCKS)

    def forward(
        self,
        q_latent: Tensor,  # [T, H, C]
        q_rope: Tensor,  # [T, H, P]
        latent: Tensor,  # [T, C]
        k_rope: Tensor,  # [T, P]
        kv_cache: Tensor,  # [tokens, C + P]
        metadata: int,
        scale: float,
    ) -> Tensor:
        """Write the latents, and return the output of the queries, `[T, H, C]`."""
        start, stop = metadata, metadata + len(latent)
        kv_cache[start:stop] = torch.cat((latent, k_rope), -1)
        rows = kv_cache[:stop]
        queries = torch.cat((q_latent, q_rope), -1)  # [T, H, C + P]
        scores = torch.einsum("thd,cd->htc", queries, rows) * scale
        behind = torch.arange(start, stop).unsqueeze(1) - torch.arange(stop)  # [T, context]
        weights = scores.masked_fill(behind < 0, -torch.inf).softmax(-1)
        return torch.einsum("htc,cl->thl", weights, rows[:, : latent.shape[1]])


def bind_dense_attention(model: Model) -> None:
    """Bind dense attention, with a cache of MAX_TOKENS tokens, to all attention layers."""
    for module in as_module(model).modules():
        if isinstance(module, MLAAttention):
            backend = DenseLatentAttention(module.backend_shape(dense_shape(module)))
            module.bind(backend, torch.zeros(MAX_TOKENS, module.head_dim), 0)
        if isinstance(module, Attention):
            cache = torch.zeros(2, MAX_TOKENS, module.num_kv_heads, module.head_dim)
            module.bind(dense_attention(module), cache, 0)


def logits_of(
    model: Model, token_ids: Tensor, start: int = 0, adapters: AdapterBatch | None = None
) -> Tensor:
    """Return the logits of every token of one request, `[T, V]`, without an engine.

    Args:
        model: Model with dense attention.
        token_ids: Tokens of one step, `[T]`.
        start: Number of tokens that are computed already.
        adapters: Adapters of the step.
    """
    positions = torch.arange(start, start + len(token_ids))
    batch = ForwardBatch(attention=[start], adapters=adapters)
    with torch.inference_mode():
        hidden_states = model.forward(token_ids, positions, batch)
        assert isinstance(hidden_states, Tensor)
        logits = model.compute_logits(hidden_states)
    heads = [module for module in as_module(model).modules() if isinstance(module, LMHead)]
    with torch.inference_mode():
        return heads[0].vocabulary.gather(logits) if heads else logits


def difference(ours: Tensor, theirs: Tensor) -> float:
    """Return the largest difference of logits, in parts of their spread."""
    return float((ours - theirs).abs().max() / (theirs.max() - theirs.min()))
