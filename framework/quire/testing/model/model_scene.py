"""A checkpoint of a model and its reference, with prompts, engines and ranks to compare."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from quire import LLM, SamplingParams
from quire.engine.kv_cache.kv_plan import blocks_held, fixed_plan
from quire.interfaces.model import Model, ModelCapabilities, ModelDescription
from quire.layers import LayerContext, SingleDevice, TensorParallelGroup
from quire.plugins.loading import load_plugins
from quire.testing.checkpoints import write_tokenizer
from quire.testing.model.dense_attention import bind_dense_attention
from quire.worker.loading.weight_loading import load_weights

NUM_TOKENS = 40
TOLERANCE = 1e-3  # of a log probability in float32


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSizes:
    """Sizes of the prompts and engines of a scene.

    Attributes:
        prompt_lengths: Tokens of each prompt.
        block_size: Tokens of a KV block.
        chunk: Tokens of a step in which prompts are computed in chunks.
        spare_tokens: Tokens of the engine's context that no completion needs.
    """

    prompt_lengths: tuple[int, ...] = (1, 5, 16, 17, 33)
    block_size: int = 16
    chunk: int = 7
    spare_tokens: int = 0

    @property
    def max_model_len(self) -> int:
        """Tokens of the engine's context."""
        return max(self.prompt_lengths) + NUM_TOKENS + self.spare_tokens


class ModelScene:
    """A checkpoint of a model and its reference.

    Args:
        config: Content of config.json, with the architecture.
        folder: Path of the checkpoint.
        reference: Function that returns the logits of each token without quire, `[T] -> [T, V]`.
        sizes: Sizes of prompts and engines.
        options: Further options of engines.
        tolerance: Largest difference of a log probability in float32.
    """

    def __init__(
        self,
        config: Mapping[str, Any],
        folder: Path,
        reference: Callable[[Tensor], Tensor],
        *,
        sizes: ModelSizes | None = None,
        options: Mapping[str, Any] | None = None,
        tolerance: float = TOLERANCE,
    ) -> None:
        self.config = config
        self.folder = folder
        self.reference = reference
        self.sizes = sizes or ModelSizes()
        self.options = options or {}
        self.tolerance = tolerance

    @cached_property
    def capabilities(self) -> ModelCapabilities:
        """Capabilities that the model is registered with."""
        (architecture,) = self.config["architectures"]
        found: ModelCapabilities = load_plugins().registries.models.entry(architecture).capabilities
        return found

    @cached_property
    def description(self) -> ModelDescription:
        """Description that the engine plans with."""
        description = resolve_name(self.capabilities.describe)(self.config)
        assert isinstance(description, ModelDescription)
        return description

    @cached_property
    def prompts(self) -> list[list[int]]:
        """Random prompts, one of each length."""
        return self.prompts_of(self.sizes.prompt_lengths)

    def prompts_of(self, lengths: Sequence[int], seed: int = 11) -> list[list[int]]:
        """Return random prompts without the three first tokens, which may be special."""
        generator = torch.Generator().manual_seed(seed)
        vocab_size = self.description.vocab_size
        return [
            torch.randint(3, vocab_size, (length,), generator=generator).tolist()
            for length in lengths
        ]

    def token_ids(self, num_tokens: int, seed: int = 1) -> Tensor:
        """Return random tokens, `[T]`, at most as many as the model has positions."""
        generator = torch.Generator().manual_seed(seed)
        count = min(num_tokens, self.description.max_model_len)
        return torch.randint(self.description.vocab_size, (count,), generator=generator)

    def logits(self, token_ids: Tensor) -> Tensor:
        """Return the logits of the reference, `[T] -> [T, V]`, float32."""
        with torch.inference_mode():
            return self.reference(token_ids).float()

    def write(self, folder: Path, weights: Mapping[str, Tensor]) -> Path:
        """Write a checkpoint with these tensors and the scene's config, and return its folder."""
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "config.json").write_text(json.dumps(self.config), encoding="utf-8")
        whole = {name: tensor.contiguous() for name, tensor in weights.items()}
        save_file(whole, folder / "model.safetensors", metadata={"format": "pt"})
        write_tokenizer(folder, self.description.vocab_size)
        return folder

    def llm(self, folder: Path | None = None, **options: Any) -> LLM:
        """Return an engine in float32 of this checkpoint, or of another one with its config."""
        defaults = {
            "dtype": "float32",
            "block_size": self.sizes.block_size,
            "max_model_len": self.sizes.max_model_len,
        }
        return LLM(str(folder or self.folder), **{**defaults, **self.options, **options})

    def empty_model(self, group: TensorParallelGroup | None = None) -> Model:
        """Return one rank's model with dense attention and undefined weights, without an engine."""
        context = LayerContext(
            dtype=torch.float32, device=torch.device("cpu"), tp=group or SingleDevice()
        )
        model_class = load_plugins().registries.models.get(self.description.architecture)
        model: Model = model_class(self.description, context)  # type: ignore[call-arg]
        bind_dense_attention(model)
        return model

    def loaded_model(self, group: TensorParallelGroup | None = None) -> Model:
        """Return one rank's model with dense attention, without an engine."""
        model = self.empty_model(group)
        load_weights(model, self.folder, config=self.description.config)
        return model

    @cached_property
    def model(self) -> Model:
        """The model on one device, with dense attention."""
        return self.loaded_model()

    def smallest_pool(self) -> int:
        """Return the number of KV blocks that fit one request in chunks."""
        specs = load_plugins().registries.kv_cache_specs
        block_size = self.options.get("block_size", self.sizes.block_size)
        made = [
            specs.get(layer.spec)(layer, block_size, "float32")
            for layer in self.description.kv_layers
        ]
        return 1 + blocks_held(fixed_plan(made, 2), self.sizes.max_model_len, self.sizes.chunk)


def greedy(num_tokens: int = NUM_TOKENS) -> SamplingParams:
    """Return parameters of the likeliest tokens, with their log probabilities."""
    return SamplingParams(temperature=0, max_tokens=num_tokens, ignore_eos=True, logprobs=1)
