"""Content blocks of a message, from the events of a completion's parser.

One block is open at a time. A full response is folded from the same events that a stream sends, so
both have the same content however the completion was cut into pieces. Blanks between two blocks,
such as those between reasoning and a call, are no block.
"""

from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import groupby
from typing import Literal

import msgspec

from quire.frontend.chat.parsing.completion_parser import CompletionEvent
from quire.frontend.chat.parsing.tool_stage import ToolCallCut
from quire.frontend.random_bytes import random_bytes
from quire.interfaces import tool_parsing
from quire.interfaces.reasoning import ReasoningDelta
from quire.server.routes.anthropic.message import (
    Block,
    BlockDelta,
    BlockEvent,
    ContentBlockDelta,
    ContentBlockStart,
    ContentBlockStop,
    InputJsonDelta,
    SignatureDelta,
    TextBlock,
    TextBlockDelta,
    ThinkingBlock,
    ThinkingBlockDelta,
    ToolUseBlock,
)
from quire.server.routes.chat.complete_members import complete_members
from quire.server.routes.chat.strict_arguments import strict_arguments
from quire.server.routes.chat.strict_json import StrictJson

SIGNATURE = "unsigned"  # not empty: some clients do not send a block without one back

Kind = Literal["text", "thinking"]

_NO_INPUT = msgspec.Raw(b"{}")


class ContentBlocks:
    """Converts the events of one completion.

    A call is a block of its own, which is sent as it comes; if the model breaks it off, its text
    follows. A call of a held tool is sent once it is complete, and one that breaks off is text and
    nothing else. A call that is cut has the input that there is; whole, the members that are
    complete.

    Args:
        held: Names of the tools whose calls are sent once they are complete; None: of all.
        shows_thinking: Whether the text of the reasoning is kept.
    """

    def __init__(self, held: Collection[str] | None = (), *, shows_thinking: bool = True) -> None:
        self._held_tools = held
        self._shows_thinking = shows_thinking
        self._index = 0  # of the open block, or else of the next one
        self._open: Kind | int | None = None  # a number is that of a call
        self._held: tuple[Kind, str] | None = None  # blanks that may begin a block
        self._calls: dict[int, tuple[str, list[str]]] = {}  # name and input of held ones
        self._input = StrictJson()  # of the open block of a call
        self._events: list[BlockEvent] = []

    def read(self, events: Iterable[CompletionEvent]) -> list[BlockEvent]:
        """Return the events of blocks that further events of the completion add."""
        for event in events:
            match event:
                case tool_parsing.TextDelta(text):
                    self._read_text("text", text)
                case ReasoningDelta(text):
                    self._read_text("thinking", text)
                case tool_parsing.ToolCallStart(index, name):
                    self._start_call(index, name)
                case tool_parsing.ToolCallArguments(index, piece):
                    self._continue_call(index, piece)
                case tool_parsing.ToolCallEnd(index):
                    self._end_call(index)
                case ToolCallCut(index):
                    self._end_call(index, is_cut=True)
        return self._taken()

    def close(self) -> list[BlockEvent]:
        """Return the events of the end; a completion of blanks alone is a block after all."""
        if self._index == 0 and self._open is None and self._held and self._held[0] == "text":
            self._begin_text(*self._held)
        self._close_block()
        return self._taken()

    def _taken(self) -> list[BlockEvent]:
        events, self._events = self._events, []
        return [*_joined(events)]

    def _read_text(self, kind: Kind, text: str) -> None:
        if not text:
            return
        if self._open == kind:
            self._continue_text(kind, text)
            return
        if self._held is not None and self._held[0] == kind:
            text = self._held[1] + text
        if text.isspace():
            self._held = (kind, text)
        else:
            self._begin_text(kind, text)

    def _begin_text(self, kind: Kind, text: str) -> None:
        block = TextBlock("") if kind == "text" else ThinkingBlock("", "")
        self._begin_block(kind, block)
        self._continue_text(kind, text)

    def _continue_text(self, kind: Kind, text: str) -> None:
        if kind == "text":
            self._add(TextBlockDelta(text))
        elif self._shows_thinking:
            self._add(ThinkingBlockDelta(text))

    def _start_call(self, index: int, name: str) -> None:
        if self._held_tools is None or name in self._held_tools:
            self._calls[index] = (name, [])
        else:
            blanks = self._held
            self._begin_block(index, _tool_use(name))
            self._held = blanks  # if the call breaks off, they are in front of its text
            self._input = StrictJson()

    def _continue_call(self, index: int, piece: str) -> None:
        if index in self._calls:
            self._calls[index][1].append(piece)
        elif self._open == index:
            self._add_input(self._input.feed(piece))

    def _end_call(self, index: int, *, is_cut: bool = False) -> None:
        if index in self._calls:
            name, pieces = self._calls.pop(index)
            text = "".join(pieces)
            self._begin_block(index, _tool_use(name))
            self._add_input(
                complete_members(StrictJson().feed(text)) if is_cut else strict_arguments(text)
            )
        elif self._open == index and not is_cut:
            self._add_input(self._input.close())
        if self._open == index:
            self._close_block()

    def _add_input(self, text: str) -> None:
        if text:
            self._add(InputJsonDelta(text))

    def _begin_block(self, kind: Kind | int, block: Block) -> None:
        self._close_block()
        self._open = kind
        self._events.append(ContentBlockStart(self._index, block))

    def _close_block(self) -> None:
        self._held = None
        if self._open is None:
            return
        if self._open == "thinking":
            self._add(SignatureDelta(SIGNATURE))
        self._events.append(ContentBlockStop(self._index))
        self._index += 1
        self._open = None

    def _add(self, delta: BlockDelta) -> None:
        self._events.append(ContentBlockDelta(self._index, delta))


def _joined(events: Iterable[BlockEvent]) -> Iterator[BlockEvent]:
    """Yield events, deltas of one kind in a row as one: others are between those of two blocks."""
    for kind, run in groupby(events, _kind):
        if kind is None:
            yield from run
            continue
        deltas = [event for event in run if isinstance(event, ContentBlockDelta)]
        pieces = [piece for each in deltas for piece in msgspec.structs.astuple(each.delta)]
        yield ContentBlockDelta(deltas[0].index, kind("".join(pieces)))


def _kind(event: BlockEvent) -> type[BlockDelta] | None:
    return type(event.delta) if isinstance(event, ContentBlockDelta) else None


def folded(events: Sequence[BlockEvent]) -> list[Block]:
    """Return the blocks that events describe, in which calls are held."""
    blocks: list[Block] = []
    for event in events:
        match event:
            case ContentBlockStart(content_block=block):
                blocks.append(block)
            case ContentBlockDelta(index, delta):
                _extend(blocks[index], delta)
    return blocks


def _extend(block: Block, delta: BlockDelta) -> None:
    match block, delta:
        case TextBlock(), TextBlockDelta(text):
            block.text += text
        case ThinkingBlock(), ThinkingBlockDelta(text):
            block.thinking += text
        case ThinkingBlock(), SignatureDelta(signature):
            block.signature = signature
        case ToolUseBlock(), InputJsonDelta(text):
            block.input = msgspec.Raw(text.encode())


def _tool_use(name: str) -> ToolUseBlock:
    return ToolUseBlock(f"toolu_{random_bytes.hex(12)}", name, _NO_INPUT)
