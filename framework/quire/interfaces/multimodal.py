"""The interface of multimodal input: from an image, video or audio clip to embeddings in a prompt.

The frontend's half turns media into tensors and placeholder tokens; the model's half encodes them.
Content hashes are ours, computed over the bytes, and part of the prefix-cache key.
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
    """One piece of media, decoded and measured by the host."""

    modality: str  # "image", "video", "audio"
    data: Any
    content_hash: str


@dataclass(frozen=True, slots=True)
class Placeholder:
    """Where an item's embeddings stand in the prompt."""

    item: int
    position: int
    length: int


@dataclass(frozen=True, slots=True)
class ProcessedPrompt:
    """A prompt with its media in place."""

    token_ids: list[int]
    placeholders: tuple[Placeholder, ...]
    features: tuple[Mapping[str, Any], ...]  # per item, arrays for the encoder
    positions: Any = None  # [3, T] where the model wants it


class MediaProcessor(ABC):
    """The frontend's half; no torch, no network (the host fetches, with its limits)."""

    @abstractmethod
    def process(self, token_ids: list[int], items: Sequence[MediaItem]) -> ProcessedPrompt:
        """Put placeholders into the prompt and prepare each item for the encoder."""


class MediaEncoder(ABC):
    """The model's half."""

    @abstractmethod
    def encode(self, features: Sequence[Mapping[str, Any]]) -> list[Tensor]:
        """Return embeddings `[length, hidden_size]` for each item."""
