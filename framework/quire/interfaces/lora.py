"""The interface of LoRA sources, and what a batch knows of its adapters.

A source finds an adapter's files and reads them; the host checks them against the model and places
them. Names of modules are the checkpoint's own (`model.layers.0.self_attn.q_proj`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Self

from quire.errors import SettingsError

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, slots=True)
class AdapterModule:
    """The two matrices of one adapted linear layer: `y += scale * (x @ a.T) @ b.T`."""

    a: Tensor  # [r, in_features]
    b: Tensor  # [out_features, r]
    scale: float


@dataclass(frozen=True, slots=True)
class Adapter:
    """One adapter, as read.

    Attributes:
        modules: Its matrices, by the checkpoint's names.
        base_model: The model that it says it was trained on, a hub id or a folder's path; the host
            compares it with the one that is served.
        content_hash: As `LoRASource.content_hash` returns it.
    """

    modules: Mapping[str, AdapterModule]
    base_model: str | None
    content_hash: str


class LoRASource(ABC):
    """Find adapters by name, and read them.

    It gets the adapters that the user names. Those that a plugin ships with a checkpoint are in
    peft's layout, and go to quire's own source whichever one is chosen.
    """

    @classmethod
    def from_options(cls, options: Mapping[str, str]) -> Self:
        """Build a source, before anything is loaded and again in each worker.

        Args:
            options: `--lora-source-options`, by key; by default a source has none.

        Raises:
            SettingsError: An option is unknown or cannot work.
        """
        if options:
            raise SettingsError(
                f"the LoRA source {cls.__module__}.{cls.__qualname__} has no options; "
                f"lora_source_options gives it {', '.join(options)}"
            )
        return cls()

    @abstractmethod
    def resolve(self, name: str) -> Path:
        """Return the adapter's folder for a path, a hub id or a name that the source knows.

        Raises:
            AdapterError: There is none.
        """

    @abstractmethod
    def content_hash(self, folder: Path) -> str:
        """Return a hash over all that decides what the adapter computes; needs no torch.

        It is part of the prefix-cache key, and `read` must find the same.

        Raises:
            AdapterError: A file is missing.
        """

    @abstractmethod
    def read(self, folder: Path, max_rank: int) -> Adapter:
        """Read an adapter from its folder, on the CPU, safetensors only.

        Raises:
            AdapterError: It is broken, too large, or uses what cannot be honoured.
        """


@dataclass(frozen=True, slots=True)
class AdapterBatch:
    """Which tokens of a step use which adapter.

    Attributes:
        index: `[T]` int64: the adapter's index in the layers' stacks, -1 for none. Layers that run
            kernels look at nothing else, so in a captured step it is a fixed buffer, and padding is
            -1.
        rows: For each adapter index that occurs, the rows that use it, `[n]` int64. Empty where
            layers run kernels, as in a captured step: only the device knows what `index` holds.
        covers_all: Whether one adapter serves every row, so that no gather is needed.
    """

    index: Tensor
    rows: tuple[tuple[int, Tensor], ...]
    covers_all: bool = False
