"""The interface of a model.

A model has two parts. `describe` reads the checkpoint's config.json and returns, without torch, the
description that the engine plans with. The class is an `nn.Module` built from `quire.layers`: its
forward pass returns hidden states, and `compute_logits` turns selected rows of them into logits.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from quire.interfaces.kv_cache import KVLayer
from quire.interfaces.reference import check_reference
from quire.interfaces.weight_rules import WeightRule

if TYPE_CHECKING:
    from torch import Tensor

    from quire.interfaces.lora import AdapterBatch


@dataclass(frozen=True, slots=True)
class ModelCapabilities:
    """Capabilities of a model, declared at registration.

    Attributes:
        describe: Import string of a torch-free `describe(config) -> ModelDescription`.
        supports_lora: True if all linear layers come from `quire.layers`.
        supports_tensor_parallel: True if all layers come from `quire.layers`.
        supports_pipeline_parallel: True if the model builds only the layers of its stage, and its
            forward pass takes and returns `StageTensors`.
        supports_cpu_graphs: True if native kernels compute all of a decode step, so that it can be
            traced and replayed on a CPU.
        is_fallback: True if the model stands for architectures that no plugin registers. It is
            registered under a name for `--model-impl`, and its `describe` is called as
            `describe(config, code_folder)`, where `code_folder` is the checkpoint's folder if the
            user trusts the code in it (`--trust-remote-code`), else None. It raises
            `UnsupportedModelError` with the reason if it cannot run the model.
    """

    describe: str
    supports_lora: bool = True
    supports_tensor_parallel: bool = True
    supports_pipeline_parallel: bool = False
    supports_cpu_graphs: bool = True
    is_fallback: bool = False

    def __post_init__(self) -> None:
        check_reference(self.describe, "a model's describe")


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelDescription:
    """Properties of a model that the engine plans with.

    Attributes:
        config: The checkpoint's config.json, or its part for the text model if that is nested.
        max_model_len: Longest context. The model is built with that of the engine, which the user
            may have set to less (`--max-model-len`): a size of the checkpoint comes from `config`.
        num_params: Number of parameters of the model.
        kv_layers: Layers that store data in the KV cache, in order.
        quantization: Name of the checkpoint's quantization method, if any.
        has_tied_head: True if the embedding's matrix is also the LM head's.
        is_pooling: True if the model returns hidden states or scores, and never logits.
        sharded_sizes: Sizes that tensor parallelism divides evenly, besides heads, by their names
            in error messages: `{"intermediate_size": 11008}`.
        num_experts: Number of experts of a mixture; 0: there are none.
        expert_sizes: The same as `sharded_sizes`, for sizes that are not divided if whole experts
            are divided over the devices: `{"moe_intermediate_size": 768}`.
        num_table_params: Number of parameters, of `num_params`, in tables besides the embedding
            that are looked up by token id. They are stored like the embedding.
        indivisible_reason: Why the layers cannot be divided into pipeline stages, as the end of a
            sentence; empty: they can, if `ModelCapabilities.supports_pipeline_parallel`.
        left_out: Parts of the checkpoint that are not loaded, for people; empty: none.
        code_folder: Folder of the checkpoint if code in it may be run; None: it may not.
    """

    architecture: str
    config: Mapping[str, Any]
    vocab_size: int
    hidden_size: int
    num_layers: int
    num_heads: int
    max_model_len: int
    num_params: int
    checkpoint_dtype: str
    kv_layers: tuple[KVLayer, ...]
    sliding_window: int | None = None
    logit_soft_cap: float | None = None
    quantization: str | None = None
    has_tied_head: bool = False
    is_pooling: bool = False
    sharded_sizes: Mapping[str, int] = field(default_factory=dict)
    num_experts: int = 0
    expert_sizes: Mapping[str, int] = field(default_factory=dict)
    num_table_params: int = 0
    indivisible_reason: str = ""
    modalities: tuple[str, ...] = ("text",)
    left_out: str = ""
    code_folder: Path | None = None


@dataclass(slots=True, kw_only=True)
class ForwardBatch:
    """Inputs of a model's layers besides hidden states, passed to the layers that take them.

    Attributes:
        attention: Metadata that each attention backend prepared for this step, by backend index.
        adapters: Mapping of rows to LoRA adapters; None if no row uses an adapter.
        captures: Fixed buffers for named hidden states, filled by the layers that offer the name.
    """

    attention: Sequence[Any]
    adapters: AdapterBatch | None = None
    captures: dict[str, Tensor] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class StageTensors:
    """Tensors that one pipeline stage passes to the next."""

    hidden_states: Tensor  # [T, hidden_size]
    residual: Tensor | None  # [T, hidden_size]


class Model(ABC):
    """A decoder-only language model; implementations are also `torch.nn.Module`s.

    They are constructed as `cls(description, context)` with a `quire.layers.LayerContext`, which
    has the dtype, device, tensor-parallel group, quantization, and the layers of this stage.

    With several pipeline stages, each builds its own decoder layers. The first one also has the
    embedding, and the last one the norm, the LM head, and the embedding if the head is tied to it.

    Attributes:
        packed_modules: Name of a merged module -> names of the checkpoint's modules in it, in
            order. LoRA adapters and checkpoints use the checkpoint's names.
        ignored_weights: Regular expressions for names of checkpoint weights that are not loaded.
        weight_prefixes: Prefixes of the checkpoint's names -> those that they have in all that
            follows: `weight_rules`, `tied_weights` and `map_weight_name`. The first that fits
            applies; other names stay. An instance may set its own.
        weight_rules: Rules for checkpoint modules that have other names than the model's, or hold
            several of them. An instance may set its own. Names without a rule are the model's.
        tied_weights: Name of a weight that the model has only as another one -> name of that one,
            both as the rules give them. A checkpoint may have either or both, if they are equal.
            An instance may set its own.
    """

    packed_modules: Mapping[str, tuple[str, ...]] = MappingProxyType({})
    ignored_weights: tuple[str, ...] = ()
    weight_prefixes: Mapping[str, str] = MappingProxyType({})
    weight_rules: Sequence[WeightRule] = ()
    tied_weights: Mapping[str, str] = MappingProxyType({})

    @abstractmethod
    def forward(
        self,
        input_ids: Tensor | None,  # [T] int64
        positions: Tensor,  # [T] int64, or [3, T] for multimodal rotary embeddings
        batch: ForwardBatch,
        inputs_embeds: Tensor | None = None,  # [T, hidden_size], instead of input_ids
        stage_input: StageTensors | None = None,  # of the previous stage, instead of both
    ) -> Tensor | StageTensors:
        """Return hidden states after the last norm, `[T, hidden_size]`, or the stage's tensors.

        The tensors of `stage_input` may be overwritten. Those that are returned must be the same on
        every device of a tensor-parallel group, and nothing may write to them afterwards.
        """

    @abstractmethod
    def compute_logits(self, hidden_states: Tensor) -> Tensor:
        """Return logits `[N, V]` of the selected rows `[N, hidden_size]`.

        With tensor parallelism they are those of this device's shard of the vocabulary, which
        `quire.layers.LMHead` returns; a model that changes them does so for each logit alone.
        Logits may have any floating-point dtype. The worker converts them to float32 for sampling,
        and may write to them in place.
        """

    def map_weight_name(self, name: str) -> str | None:
        """Return the name that `weight_rules` are applied to; by default the name itself.

        Prefixes are replaced before. None skips the weight: the model does not need it, or another
        pipeline stage has it.
        """
        return name
