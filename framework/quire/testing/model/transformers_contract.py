"""Conformance kit of models that transformers has: its eager model in float32 is the reference."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from quire.testing.model.model_contract import ModelContract
from quire.testing.model.transformers_checkpoint import (
    EMBEDDING_GAIN,
    TransformersCheckpoint,
    write_transformers_checkpoint,
)

TINY_SIZES: Mapping[str, Any] = {
    "vocab_size": 320,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}


class TransformersContract(ModelContract):
    """Tests of `ModelContract`, with a random checkpoint that transformers writes.

    The architecture and the config.json are those that transformers writes.

    Attributes:
        embedding_gain: Size of the embeddings; the larger, the more tokens are generated.
        attention: Attention implementation of transformers, for models whose eager one is wrong.
    """

    embedding_gain: ClassVar[float] = EMBEDDING_GAIN
    attention: ClassVar[str] = "eager"
    _written: ClassVar[TransformersCheckpoint]
    _weights: ClassVar[Mapping[str, Tensor]]

    def transformers_config(self) -> Any:
        """Return the config of a tiny model, such as `AutoConfig.for_model(...)`."""
        raise NotImplementedError(
            "a test class of TransformersContract defines `transformers_config`"
        )

    @pytest.fixture(scope="class", autouse=True)
    @classmethod
    def reference_checkpoint(cls, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
        """Write the checkpoint of the class."""
        cls._written = write_transformers_checkpoint(
            tmp_path_factory.mktemp("reference"),
            cls().transformers_config(),
            embedding_gain=cls.embedding_gain,
            attention=cls.attention,
        )
        cls._weights = load_file(cls._written.folder / "model.safetensors")
        cls.config = cls._written.config
        (cls.architecture,) = cls.config["architectures"]
        yield
        del cls._written, cls._weights

    def weights(self, config: Mapping[str, Any]) -> Mapping[str, Tensor]:
        """Return the tensors that transformers wrote."""
        del config
        return self._weights

    def reference(
        self,
        config: Mapping[str, Any],
        weights: Mapping[str, Tensor],
        token_ids: Tensor,  # [T] int64
    ) -> Tensor:  # [T, V]
        """Return the logits of transformers' model."""
        del config, weights
        with torch.inference_mode():
            return self._written.logits(token_ids)
