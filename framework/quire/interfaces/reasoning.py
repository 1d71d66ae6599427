"""The interface of a reasoning parser: split thinking from the answer, while it streams."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ReasoningParserCapabilities:
    """What a reasoning parser declares at registration.

    Attributes:
        template_markers: As in `ToolParserCapabilities`.
        priority: As in `ToolParserCapabilities`.
        end_marker: The text that ends the thinking. Where a prompt has opened it, a form begins
            behind this; without it such requests cannot have one.
    """

    template_markers: tuple[str, ...] = ()
    priority: int = 0
    end_marker: str | None = None


@dataclass(frozen=True, slots=True)
class ReasoningDelta:
    """Text of the model's thinking."""

    text: str


@dataclass(frozen=True, slots=True)
class ContentDelta:
    """Text of the answer; what a tool parser reads next."""

    text: str


ReasoningEvent = ReasoningDelta | ContentDelta


class ReasoningParser(ABC):
    """Split model output into thinking and answer. One parser a request; it holds state.

    Args:
        prompt_text: The rendered prompt: it may have opened the thinking already.
    """

    def __init__(self, prompt_text: str = "") -> None:
        self.prompt_text = prompt_text

    @abstractmethod
    def feed(self, delta: str) -> list[ReasoningEvent]:
        """Take the next piece of output; return what is certain by now."""

    @abstractmethod
    def close(self) -> list[ReasoningEvent]:
        """Return what was held back."""

    @property
    @abstractmethod
    def is_thinking(self) -> bool:
        """Whether the next text belongs to the thinking: grammars wait until it does not."""
