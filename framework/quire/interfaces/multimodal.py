"""The interface of multimodal input: from an image, video or audio clip to embeddings in a prompt.

The frontend side turns media into tensors and placeholder tokens; the model side encodes them.
quire computes the content hashes over the bytes; they are part of the prefix-cache key.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, slots=True)
class MediaItem:
    """One image, video or audio clip, decoded and hashed by quire."""

    modality: str  # "image", "video", "audio"
    data: Any
    content_hash: str


@dataclass(frozen=True, slots=True)
class Placeholder:
    """Position of an item's embeddings in the prompt."""

    item: int
    position: int
    length: int


@dataclass(frozen=True, slots=True)
class ProcessedPrompt:
    """A prompt with placeholder tokens, and the encoder inputs of its media."""

    token_ids: list[int]
    placeholders: tuple[Placeholder, ...]
    features: tuple[Mapping[str, Any], ...]  # per item, arrays for the encoder
    positions: Any = None  # [3, T] for models with multimodal rotary embeddings


class MediaProcessor(ABC):
    """The frontend side; no torch, no network (quire fetches media, with its limits)."""

    @abstractmethod
    def process(self, token_ids: list[int], items: Sequence[MediaItem]) -> ProcessedPrompt:
        """Insert placeholder tokens into the prompt, and prepare each item for the encoder."""


class MediaEncoder(ABC):
    """The model side."""

    @abstractmethod
    def encode(self, features: Sequence[Mapping[str, Any]]) -> list[Tensor]:
        """Return the embeddings of each item, `[length, hidden_size]`."""
