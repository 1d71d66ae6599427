"""The interface of LoRA sources, and the mapping of a batch's tokens to adapters.

A source finds an adapter's files and reads them; quire checks them against the model and loads them
to the device. Module names are those of the checkpoint (`model.layers.0.self_attn.q_proj`).
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
    """One adapter as read from its files.

    Attributes:
        modules: Matrices by the checkpoint's module names.
        base_model: Model that the adapter declares it was trained on, a hub id or a folder's path.
            quire compares it with the served model.
        content_hash: Hash as returned by `LoRASource.content_hash`.
    """

    modules: Mapping[str, AdapterModule]
    base_model: str | None
    content_hash: str


class LoRASource(ABC):
    """Finds adapters by name, and reads them.

    A source is used for adapters that the user names. Adapters that a plugin ships with a
    checkpoint are in PEFT layout, and are always read by quire's own source.
    """

    @classmethod
    def from_options(cls, options: Mapping[str, str]) -> Self:
        """Build a source. Called before anything is loaded, and again in each worker.

        Args:
            options: `--lora-source-options`, by key. The default accepts none.

        Raises:
            SettingsError: An option is unknown or cannot work.
        """
        if options:
            raise SettingsError(
                f"the LoRA source {cls.__module__}.{cls.__qualname__} has no options, but "
                f"lora_source_options sets {', '.join(options)}"
            )
        return cls()

    @abstractmethod
    def resolve(self, name: str) -> Path:
        """Return the adapter's folder for a path, a hub id or a name known to the source.

        Raises:
            AdapterError: No such adapter exists.
        """

    @abstractmethod
    def content_hash(self, folder: Path) -> str:
        """Return a hash over everything that affects the adapter's results; needs no torch.

        It is part of the prefix-cache key. `read` must return the same hash for the folder.

        Raises:
            AdapterError: A file is missing.
        """

    @abstractmethod
    def read(self, folder: Path, max_rank: int) -> Adapter:
        """Read an adapter from its folder to the CPU, from safetensors files only.

        Raises:
            AdapterError: The adapter is damaged, exceeds `max_rank`, or is of an unsupported kind.
        """


@dataclass(frozen=True, slots=True)
class AdapterBatch:
    """The mapping of a step's tokens to adapters.

    Attributes:
        index: `[T]` int64: index of each token's adapter in the layers' stacks, -1 for none. Layers
            that run kernels read nothing else. In a captured step it is a fixed buffer, with -1 for
            padding.
        rows: Pairs of an adapter index and the rows that use it, `[n]` int64. None in a captured
            step, and where the inputs are gathered on the device: kernels read `index`.
        covers_all: Whether one adapter is used by every row, so that no gather is needed.
    """

    index: Tensor
    rows: tuple[tuple[int, Tensor], ...] | None
    covers_all: bool = False
