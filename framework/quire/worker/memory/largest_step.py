"""A step of any size before there is a cache, through the real model and the real samplers.

Only attention is replaced, as it needs the cache that such a step is to find the size of: by a
backend that allocates what a real one returns. What real ones allocate for themselves they say
(`KVBackend.workspace_bytes`).
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from quire.interfaces.attention import (
    AttentionBackend,
    AttentionLayerParams,
    AttentionShape,
    KVBackend,
    RotaryStep,
    StepLayout,
)
from quire.interfaces.kv_cache import KVCacheSpec
from quire.interfaces.mla import MLABackend
from quire.interfaces.model import ForwardBatch, Model
from quire.interfaces.sampling import LogitsProcessor, SampledRows, Sampler, SamplerStep
from quire.layers.attention.caching_layer import CachingLayer
from quire.worker.batch.slots import SlotTables
from quire.worker.loading.adapter_manager import AdapterManager
from quire.worker.loading.weight_loading import as_module

FILTERING = {"temperature": 0.7, "top_k": 50, "top_p": 0.9, "min_p": 0.05}  # so that all steps work


class ProfilingBackend(AttentionBackend):
    """Allocates an answer of zeros, and keeps nothing."""

    @classmethod
    def kv_view(cls, raw: Tensor, spec: KVCacheSpec, num_blocks: int) -> Tensor:
        """Return the bytes as they are."""
        del spec, num_blocks
        return raw

    def prepare(self, step: StepLayout) -> None:
        """Prepare nothing."""

    def forward(
        self,
        q: Tensor,  # [T, H, D]
        k: Tensor,
        v: Tensor,
        kv_cache: Tensor,
        metadata: Any,
        layer: AttentionLayerParams,
    ) -> Tensor:  # [T, H, D]
        """Return zeros."""
        del k, v, kv_cache, metadata, layer
        return torch.zeros(q.shape, dtype=q.dtype, device=q.device)

    def forward_rotary(
        self,
        qkv: Tensor,  # [T, H + 2 * K, D]
        rotary: RotaryStep,
        kv_cache: Tensor,
        metadata: Any,
        layer: AttentionLayerParams,
    ) -> Tensor:  # [T, H, D]
        """Return zeros."""
        del rotary
        return self.forward(qkv[:, : self.shape.num_heads], qkv, qkv, kv_cache, metadata, layer)


class FusingProfilingBackend(ProfilingBackend):
    """The same where the real one takes q, k and v as they were projected."""

    fuses_rotary = True


class ProfilingMLABackend(MLABackend):
    """The same for latent attention."""

    @classmethod
    def kv_view(cls, raw: Tensor, spec: KVCacheSpec, num_blocks: int) -> Tensor:
        """Return the bytes as they are."""
        del spec, num_blocks
        return raw

    def prepare(self, step: StepLayout) -> None:
        """Prepare nothing."""

    def forward(
        self,
        q_latent: Tensor,  # [T, H, C]
        q_rope: Tensor,
        latent: Tensor,
        k_rope: Tensor,
        kv_cache: Tensor,
        metadata: Any,
        scale: float,
    ) -> Tensor:  # [T, H, C]
        """Return zeros."""
        del q_rope, latent, k_rope, kv_cache, metadata, scale
        return torch.zeros(q_latent.shape, dtype=q_latent.dtype, device=q_latent.device)


@dataclass(frozen=True, slots=True)
class BackendKind:
    """What a backend of some layers will be built from."""

    backend_class: type[KVBackend]
    shape: AttentionShape


class LargestStep:
    """Steps of any size through a model that has no cache yet.

    Args:
        model: It is not bound to a cache.
        kinds: By the name of each of its layers that keep something.
        samplers: The steps of the pipeline, in order; the last one draws.
        tables: Of all slots, whose sampler columns are written over.
        adapters: What holds LoRA adapters, if any may be used.
        max_model_len: Positions go so far.
        kept: What an engine has beside all that; it takes memory here as it does there.
    """

    def __init__(
        self,
        model: Model,
        kinds: Mapping[str, BackendKind],
        samplers: Sequence[SamplerStep],
        tables: SlotTables,
        adapters: AdapterManager | None,
        max_model_len: int,
        *,
        kept: object = None,
    ) -> None:
        self._model = model
        self._kinds = kinds
        self._samplers = samplers
        self._tables = tables
        self._adapters = adapters
        self._max_model_len = max_model_len
        self._kept = kept

    @torch.inference_mode()
    def forward(self, num_tokens: int, num_requests: int) -> Tensor:  # [R, hidden_size]
        """Compute so many tokens of so many requests, each with an adapter if there can be any.

        Returns:
            A hidden state of each request.
        """
        positions = torch.arange(num_tokens, device=self._tables.device) % self._max_model_len
        with self._attention():
            hidden_states: Tensor = as_module(self._model)(
                torch.zeros_like(positions), positions, self._batch(num_tokens, num_requests)
            )  # [T, hidden_size]
        return hidden_states[:num_requests].clone()

    @torch.inference_mode()
    def decode(self, num_requests: int) -> Tensor:  # [R, V]
        """Compute a token of each request, and its logits: what a CUDA graph captures."""
        return self._model.compute_logits(self.forward(num_requests, num_requests))

    @torch.inference_mode()
    def sample(self, hidden_states: Tensor) -> Tensor:  # [R, hidden_size] -> [R] int64
        """Draw a token a row, with every filter at work, and log probabilities for all."""
        logits = self._model.compute_logits(hidden_states).float()  # [R, V]
        raw = logits.clone()
        rows = self._rows(len(hidden_states))
        token_ids = None
        for step in self._samplers:
            if isinstance(step, Sampler):
                token_ids = step.sample(logits, rows)
            elif isinstance(step, LogitsProcessor):
                logits = step.apply(logits, rows)
        raw.log_softmax(-1)
        if token_ids is None:
            raise RuntimeError("no sampler draws")
        return token_ids

    def _rows(self, num_rows: int) -> SampledRows:
        tables = self._tables
        for name, value in FILTERING.items():
            if name in tables.columns:
                tables.columns[name].fill_(value)
        return SampledRows(
            slots=torch.arange(num_rows, device=tables.device),
            positions=torch.zeros(num_rows, dtype=torch.int64, device=tables.device),
            columns=tables.columns,
            token_ids=tables.token_ids,
            num_prompt_tokens=tables.num_prompt_tokens,
        )

    def _batch(self, num_tokens: int, num_requests: int) -> ForwardBatch:
        adapters = None
        if self._adapters is not None:
            share, rest = divmod(num_tokens, num_requests)
            query_lens = [share + (index < rest) for index in range(num_requests)]
            indexes = [index % self._adapters.max_loras for index in range(num_requests)]
            adapters = self._adapters.batch(indexes, query_lens)
        return ForwardBatch(attention=[None], adapters=adapters)

    @contextmanager
    def _attention(self) -> Iterator[None]:
        """Bind the layers to backends that need no cache, and unbind them afterwards."""
        modules = as_module(self._model).modules()
        layers = [module for module in modules if isinstance(module, CachingLayer)]
        try:
            for layer in layers:
                nothing = torch.empty(0, dtype=torch.uint8, device=self._tables.device)
                layer.bind(_stand_in(self._kinds[layer.name]), nothing, 0)
            yield
        finally:
            for layer in layers:
                layer.unbind()


def _stand_in(kind: BackendKind) -> KVBackend:
    """Return what takes the place of a backend while there is no cache."""
    if issubclass(kind.backend_class, MLABackend):
        return ProfilingMLABackend(kind.shape)
    if issubclass(kind.backend_class, AttentionBackend) and kind.backend_class.fuses_rotary:
        return FusingProfilingBackend(kind.shape)
    return ProfilingBackend(kind.shape)
