"""Steps of any size without a KV cache, through the real model and the real samplers.

Only attention is replaced, because it needs the KV cache whose size such a step determines. The
replacement backend allocates a result like that of the real one. The memory that a real backend
allocates for itself comes from `KVBackend.workspace_bytes`.
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
from quire.layers.vocabulary import VocabularyShard
from quire.worker.batch.slots import SlotTables
from quire.worker.loading.weight_targets import as_module
from quire.worker.lora.adapter_manager import AdapterManager
from quire.worker.stage_forward import Forward

FILTERING = {"temperature": 0.7, "top_k": 50, "top_p": 0.9, "min_p": 0.05}  # activates all samplers


class ProfilingBackend(AttentionBackend):
    """Backend that returns a tensor of zeros and has no KV cache."""

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
    """Profiling backend in place of one that fuses the rotary embedding."""

    fuses_rotary = True


class ProfilingMLABackend(MLABackend):
    """Profiling backend for multi-head latent attention."""

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
    """Backend class and shape from which the backend of some layers will be built."""

    backend_class: type[KVBackend]
    shape: AttentionShape


class LargestStep:
    """Steps of any size through a model that has no KV cache yet.

    Args:
        model: Model that is not bound to a KV cache.
        kinds: Backend class and shape of each layer that has a KV cache, by layer name.
        samplers: Steps of the sampling pipeline, in order; the last one is the sampler.
        tables: Slot tables; their sampler fields are overwritten.
        adapters: Manager of the LoRA adapters; None if LoRA is off.
        max_model_len: Maximum number of positions.
        vocabulary: This device's shard of the vocabulary.
        forward: Forward pass of the model; with several pipeline stages, that of its stage.
        resident: Objects that the engine will also keep; held here so that their memory counts.
    """

    def __init__(
        self,
        model: Model,
        kinds: Mapping[str, BackendKind],
        samplers: Sequence[SamplerStep],
        tables: SlotTables,
        adapters: AdapterManager | None,
        max_model_len: int,
        vocabulary: VocabularyShard,
        *,
        forward: Forward,
        resident: object = None,
    ) -> None:
        self._model = model
        self._kinds = kinds
        self._samplers = samplers
        self._tables = tables
        self._adapters = adapters
        self._max_model_len = max_model_len
        self._vocabulary = vocabulary
        self._forward_pass = forward
        self._resident = resident

    @torch.inference_mode()
    def forward(self, num_tokens: int, num_requests: int) -> Tensor:  # [R, hidden_size]
        """Run the model on `num_tokens` tokens of `num_requests` requests, with adapters if any.

        Returns:
            One hidden state per request.
        """
        positions = torch.arange(num_tokens, device=self._tables.device) % self._max_model_len
        with self._attention():
            hidden_states = self._forward_pass(
                torch.zeros_like(positions), positions, self._batch(num_tokens, num_requests)
            )  # [T, hidden_size]
        return hidden_states[:num_requests].clone()

    @torch.inference_mode()
    def decode(self, num_requests: int) -> Tensor:  # [R, M], of this device's shard
        """Run the model on one token per request, with logits: the part that is captured."""
        return self._model.compute_logits(self.forward(num_requests, num_requests))

    @torch.inference_mode()
    def sample(self, hidden_states: Tensor) -> Tensor:  # [R, hidden_size] -> [R] int64
        """Sample one token per row, with all filters active and log probabilities for each."""
        logits = self._model.compute_logits(hidden_states)
        logits = self._vocabulary.gather(logits).float()  # [R, V]
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
            raise RuntimeError("the sampling pipeline has no Sampler")
        return token_ids

    def _rows(self, num_rows: int) -> SampledRows:
        tables = self._tables
        for name, value in FILTERING.items():
            if name in tables.slot_fields:
                tables.slot_fields[name].fill_(value)
        slots = torch.arange(num_rows, device=tables.device)
        return tables.sampled_rows(slots, torch.zeros_like(slots))

    def _batch(self, num_tokens: int, num_requests: int) -> ForwardBatch:
        adapters = None
        if self._adapters is not None:
            quotient, rest = divmod(num_tokens, num_requests)
            query_lens = [quotient + (index < rest) for index in range(num_requests)]
            indexes = [index % self._adapters.max_loras for index in range(num_requests)]
            adapters = self._adapters.batch(indexes, query_lens)
        return ForwardBatch(attention=[None], adapters=adapters)

    @contextmanager
    def _attention(self) -> Iterator[None]:
        """Bind the layers to backends that need no KV cache, and unbind them afterwards."""
        modules = as_module(self._model).modules()
        layers = [module for module in modules if isinstance(module, CachingLayer)]
        try:
            for layer in layers:
                no_cache = torch.empty(0, dtype=torch.uint8, device=self._tables.device)
                layer.bind(_profiling_backend(self._kinds[layer.name]), no_cache, 0)
            yield
        finally:
            for layer in layers:
                layer.unbind()


def _profiling_backend(kind: BackendKind) -> KVBackend:
    """Return the profiling backend that replaces a real one while there is no KV cache."""
    if issubclass(kind.backend_class, MLABackend):
        return ProfilingMLABackend(kind.shape)
    if issubclass(kind.backend_class, AttentionBackend) and kind.backend_class.fuses_rotary:
        return FusingProfilingBackend(kind.shape)
    return ProfilingBackend(kind.shape)
