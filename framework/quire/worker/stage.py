"""Pipeline stage of a worker: its layers, and its links to the stages before and after it."""

from __future__ import annotations

from dataclasses import dataclass

from quire.layers.parallel import StageLink


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """One pipeline stage of a model, or the whole model.

    Attributes:
        index: Index of the stage, from 0.
        count: Number of stages.
        layers: Decoder layers of the stage; None: all layers of the model.
        previous: Link from the stage before; None on the first stage.
        next: Link to the stage after; None on the last stage.
    """

    index: int = 0
    count: int = 1
    layers: range | None = None
    previous: StageLink | None = None
    next: StageLink | None = None

    def __post_init__(self) -> None:
        if not 0 <= self.index < self.count:
            raise ValueError(f"there is no pipeline stage {self.index} among {self.count}")
        if (self.previous is None) != self.is_first or (self.next is None) != self.is_last:
            raise ValueError(
                f"pipeline stage {self.index} of {self.count} needs a link to each stage beside it"
            )
        if self.layers is None and self.count > 1:
            raise ValueError(f"pipeline stage {self.index} of {self.count} has no layers")

    @property
    def is_first(self) -> bool:
        """Whether it embeds the token ids."""
        return self.index == 0

    @property
    def is_last(self) -> bool:
        """Whether it computes logits and samples."""
        return self.index == self.count - 1


WHOLE_MODEL = Stage()
