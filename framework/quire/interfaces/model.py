"""The interface of a model.

A model comes in two halves. `describe` reads the checkpoint's config.json and says, without torch,
what the engine must plan for. The class is an `nn.Module` built from `quire.layers`, whose forward
pass gives hidden states, and whose `compute_logits` turns chosen rows of them into logits.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

from quire.interfaces.kv_cache import KVLayer
from quire.interfaces.reference import check_reference

if TYPE_CHECKING:
    from torch import Tensor

    from quire.interfaces.lora import AdapterBatch


@dataclass(frozen=True, slots=True)
class ModelCapabilities:
    """What a model declares at registration.

    Attributes:
        describe: Import string of a torch-free `describe(config) -> ModelDescription`.
        supports_lora: Its linear layers come from `quire.layers`.
        supports_tensor_parallel: Likewise.
    """

    describe: str
    supports_lora: bool = True
    supports_tensor_parallel: bool = True

    def __post_init__(self) -> None:
        check_reference(self.describe, "a model's describe")


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelDescription:
    """What the engine plans with.

    Attributes:
        config: The checkpoint's config.json, as it is.
        num_params: Numbers in all weights.
        kv_layers: The layers that keep something in the cache, in order.
        quantization: Method named by the checkpoint, if any.
        has_tied_head: The embedding's matrix makes the logits as well.
        is_pooling: It gives hidden states or scores, and never logits.
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
    modalities: tuple[str, ...] = ("text",)


@dataclass(slots=True, kw_only=True)
class ForwardBatch:
    """What the layers of a model need besides hidden states; passed to each that asks for it.

    Attributes:
        attention: What each attention backend prepared for this step; a layer knows its backend's
            place.
        adapters: Which rows use which LoRA adapter; None when no row does.
        captures: Fixed buffers for named hidden states, filled by layers that offer the name.
    """

    attention: Sequence[Any]
    adapters: AdapterBatch | None = None
    captures: dict[str, Tensor] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class StageTensors:
    """What one pipeline stage hands to the next."""

    hidden_states: Tensor  # [T, hidden_size]
    residual: Tensor | None  # [T, hidden_size]


class Model(ABC):
    """A decoder-only language model; implementations are also `torch.nn.Module`s.

    They are constructed as `cls(description, context)` with a `quire.layers.LayerContext`, which
    says dtype, device, tensor-parallel group, quantization, and the layers of this stage.

    Attributes:
        packed_modules: Module of ours -> the checkpoint's modules that it merges, in order. LoRA
            adapters and checkpoints use the checkpoint's names.
        ignored_weights: Checkpoint names (regular expressions) that have no place in the model.
    """

    packed_modules: ClassVar[Mapping[str, tuple[str, ...]]] = {}
    ignored_weights: ClassVar[tuple[str, ...]] = ()

    @abstractmethod
    def forward(
        self,
        input_ids: Tensor | None,  # [T] int64
        positions: Tensor,  # [T] int64, or [3, T] for multimodal rotary embeddings
        batch: ForwardBatch,
        inputs_embeds: Tensor | None = None,  # [T, hidden_size], in place of input_ids
        stage_input: StageTensors | None = None,  # from the stage before, in place of both
    ) -> Tensor | StageTensors:
        """Return hidden states after the last norm, `[T, hidden_size]`, or the stage's tensors."""

    @abstractmethod
    def compute_logits(self, hidden_states: Tensor) -> Tensor:
        """Return logits `[N, V]` of the chosen rows `[N, hidden_size]`.

        They may be of any floating type, and are written over: the worker widens them to float32
        on its way to the draw, so a model does not.
        """

    def map_weight_name(self, name: str) -> str | None:
        """Return our name for a checkpoint's weight; None leaves it out. By default the same."""
        return name
