"""The interface of a tool-call parser.

A parser is one incremental state machine over text. It never sees HTTP, and the whole answer is
one long delta: feeding it at any split gives the same events, joined. A call may be announced
before its arguments are complete, so its events are a start (with the name), pieces of the
arguments' JSON text, and an end. A call that breaks off after its start has no end: it is void, and
all that the model wrote of it follows as text.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from quire.sampling_params import CallGrammar as CallGrammar
from quire.sampling_params import CallShape as CallShape
from quire.sampling_params import SchemaPiece as SchemaPiece


@dataclass(frozen=True, slots=True)
class ToolParserCapabilities:
    """What a tool parser declares at registration.

    Attributes:
        template_markers: `auto` takes the parser if the model's chat template has all of these.
        priority: Among several that match, the highest wins.
    """

    template_markers: tuple[str, ...] = ()
    priority: int = 0


@dataclass(frozen=True, slots=True)
class TextDelta:
    """Text for the user."""

    text: str


@dataclass(frozen=True, slots=True)
class ToolCallStart:
    """A call begins; `index` counts the answer's calls from 0."""

    index: int
    name: str


@dataclass(frozen=True, slots=True)
class ToolCallArguments:
    """The next piece of a call's arguments, JSON text exactly as it will be joined."""

    index: int
    piece: str


@dataclass(frozen=True, slots=True)
class ToolCallEnd:
    """A call is complete; its pieces joined are one JSON object."""

    index: int


ToolEvent = TextDelta | ToolCallStart | ToolCallArguments | ToolCallEnd


class ToolParser(ABC):
    """Split model output into text and tool calls. One parser a request; it holds state."""

    @abstractmethod
    def feed(self, delta: str) -> list[ToolEvent]:
        """Take the next piece of output; return what is certain by now."""

    @abstractmethod
    def close(self) -> list[ToolEvent]:
        """Return what was held back. Broken calls come back as text, never as an error."""

    @classmethod
    def call_grammar(
        cls, tools: Sequence[dict[str, Any]], *, at_least_one: bool
    ) -> CallGrammar | None:
        """Return the shape of answers that are calls of `tools` and nothing else; None if unable.

        Schemas are passed on as they are: what cannot be honoured is refused by the backend.

        Args:
            tools: OpenAI tool definitions, the `function` objects.
            at_least_one: The answer must be a call; used for `tool_choice` required or named.
        """
        del tools, at_least_one
        return None
