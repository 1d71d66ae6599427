"""The interface of a reasoning parser, which separates reasoning from content in a stream."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

from quire.interfaces.declared_fields import check_declared


@dataclass(frozen=True, slots=True)
class ReasoningParserCapabilities:
    """Capabilities of a reasoning parser, declared at registration.

    Raises:
        PluginError: A field has another type or an empty text.

    Attributes:
        template_markers: Texts of the chat template, as in `ToolParserCapabilities`.
        architectures: Architectures of models, as in `ToolParserCapabilities`.
        markers: Texts with special tokens, as in `ToolParserCapabilities`.
        priority: Rank for `auto`, as in `ToolParserCapabilities`.
        end_marker: Text that ends the reasoning. If the prompt has opened the reasoning, a
            structured-output constraint applies to the text behind this marker. Without a marker,
            such requests cannot have a constraint, nor a budget of thinking tokens. Where the place
            of the end matters, as text behind it may be a tool call, the parser is fed up to each
            of its spellings and of `markers`; without a marker, by single characters.
        end_spellings: Further spellings of the end marker. If one of all is a single token of the
            model, that one is looked for.
        forced_end: Text by which a budget of thinking tokens ends the reasoning, if it is more than
            the end marker, with which it ends.
        start_marker: Text by which a completion opens the reasoning, if it can. Reasoning that it
            opens counts against a budget of thinking tokens.
        start_spellings: Further spellings of the start marker.
        is_content: Whether the reasoning stays in the content, markers included. Otherwise text
            behind a tool call in the reasoning is given to a new parser, whose prompt has the text
            before the call, as far as the call before: it is reasoning if that parser finds the end
            of the reasoning.
        tokenizer_config_key: Key in a checkpoint's file, as in `ToolParserCapabilities`.
        alternative_markers: Further sets of template markers, as in `ToolParserCapabilities`.
        excluded_markers: Texts that the chat template must not contain, as there.
    """

    template_markers: tuple[str, ...] = ()
    architectures: tuple[str, ...] = ()
    markers: tuple[str, ...] = ()
    priority: int = 0
    end_marker: str | None = None
    end_spellings: tuple[str, ...] = ()
    forced_end: str | None = None
    start_marker: str | None = None
    start_spellings: tuple[str, ...] = ()
    is_content: bool = False
    tokenizer_config_key: str | None = None
    alternative_markers: tuple[tuple[str, ...], ...] = ()
    excluded_markers: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        check_declared(self)


@dataclass(frozen=True, slots=True)
class ReasoningDelta:
    """Text of the model's reasoning."""

    text: str


@dataclass(frozen=True, slots=True)
class ContentDelta:
    """Text of the content, which a tool parser reads next."""

    text: str


ReasoningEvent = ReasoningDelta | ContentDelta


class ReasoningParser(ABC):
    """Splits model output into reasoning and content. Stateful; one parser per request.

    Args:
        prompt_text: End of the prompt, which may have opened the reasoning: what the chat template
            wrote behind the conversation, or the text of the assistant that is continued. Of a
            prompt without a template, its end from the last special token on.

    Attributes:
        capabilities: Capabilities of a parser that a user's file defines; those of a plugin's
            parser are declared at registration.
    """

    capabilities: ClassVar[ReasoningParserCapabilities] = ReasoningParserCapabilities()

    @classmethod
    def from_file_text(cls, text: str) -> type[ReasoningParser]:
        """Return a parser class that a user's file describes, as `ToolParser.from_file_text` does.

        Args:
            text: Text of the file.

        Raises:
            ValueError: The text describes no parser; the message names the field and the way out.
        """
        raise NotImplementedError(f"{cls.__name__} is not made from files")

    def __init__(self, prompt_text: str = "") -> None:
        self.prompt_text = prompt_text

    @abstractmethod
    def feed(self, delta: str) -> list[ReasoningEvent]:
        """Parse the next piece of output, and return the events that are certain by now."""

    @abstractmethod
    def close(self) -> list[ReasoningEvent]:
        """Return the events of text that was held back."""

    @property
    @abstractmethod
    def is_thinking(self) -> bool:
        """Whether the next text belongs to the reasoning; grammars apply from its end on."""
