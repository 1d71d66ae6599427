"""Events of a stream: what the changes of the output items are for a client."""

from dataclasses import replace
from typing import get_args

import msgspec

from quire.server.routes.responses.mcp.tool_changes import ToolEvents
from quire.server.routes.responses.open_item import OpenItem
from quire.server.routes.responses.output import Change, Closed, Grown, Opened
from quire.server.routes.responses.store.snapshot_event import SnapshotEvent
from quire.server.wire.mcp_events import McpEvent
from quire.server.wire.protocol import TokenLogprob
from quire.server.wire.response_events import (
    ArgumentsDelta,
    ArgumentsDone,
    ContentPartAdded,
    ContentPartDone,
    CustomInputDelta,
    CustomInputDone,
    OutputItemAdded,
    OutputItemDone,
    OutputTextDelta,
    OutputTextDone,
    ReasoningTextDelta,
    ReasoningTextDone,
    ResponseCompleted,
    ResponseCreated,
    ResponseFailed,
    ResponseIncomplete,
    ResponseInProgress,
)
from quire.server.wire.responses import (
    CustomCallItem,
    FunctionCallItem,
    OutputItem,
    OutputMessage,
    OutputText,
    ReasoningItem,
    ReasoningText,
    Status,
)

ItemEvent = (
    OutputItemAdded
    | OutputItemDone
    | ContentPartAdded
    | ContentPartDone
    | OutputTextDelta
    | OutputTextDone
    | ReasoningTextDelta
    | ReasoningTextDone
    | ArgumentsDelta
    | ArgumentsDone
    | CustomInputDelta
    | CustomInputDone
    | McpEvent
)
_DELTAS: dict[str, type[ReasoningTextDelta | ArgumentsDelta | CustomInputDelta]] = {
    "reasoning": ReasoningTextDelta,
    "function_call": ArgumentsDelta,
    "custom_tool_call": CustomInputDelta,
}
PartEvent = ContentPartAdded | ContentPartDone
_LAST = {"completed": ResponseCompleted, "failed": ResponseFailed}
EVENTS = (
    ResponseCreated,
    ResponseInProgress,
    *get_args(ItemEvent),
    ResponseCompleted,
    ResponseIncomplete,
    ResponseFailed,
)


class ItemEvents:
    """Numbers the events of one response.

    Attributes:
        num_events: Number of events that were made.
    """

    def __init__(self) -> None:
        self.num_events = 0
        self._tools = ToolEvents(self._next)

    def created(self, status: Status) -> SnapshotEvent:
        """Return the first event."""
        return SnapshotEvent(_type_of(ResponseCreated), self._next(), status)

    def in_progress(self, status: Status) -> SnapshotEvent:
        """Return the event of the first token."""
        return SnapshotEvent(_type_of(ResponseInProgress), self._next(), status)

    def last(self, status: Status, number: int) -> SnapshotEvent:
        """Return the event after the last item; that of a cancelled response is incomplete, too."""
        return SnapshotEvent(_type_of(_LAST.get(status, ResponseIncomplete)), number)

    def of(self, change: Change) -> list[ItemEvent]:
        """Return the events of a change."""
        match change:
            case Grown(item, piece, logprobs):
                return [self._grown(item, piece, [*logprobs])]
            case Opened(item):
                return self._opened(item)
            case Closed(item, whole):
                return self._closed(item, whole)
            case _:
                return [*self._tools.of(change)]

    def _opened(self, item: OpenItem) -> list[ItemEvent]:
        added = OutputItemAdded(
            sequence_number=self._next(), output_index=item.index, item=_empty(item)
        )
        if item.call is not None:
            return [added]
        part = OutputText(text="") if item.kind == "message" else ReasoningText(text="")
        return [added, self._part(ContentPartAdded, item, part)]

    def _grown(self, item: OpenItem, piece: str, logprobs: list[TokenLogprob]) -> ItemEvent:
        number, index = self._next(), item.index
        if item.kind == "message":
            return OutputTextDelta(
                sequence_number=number,
                output_index=index,
                item_id=item.id,
                delta=piece,
                logprobs=logprobs,
            )
        kind = _DELTAS[item.kind]
        return kind(sequence_number=number, output_index=index, item_id=item.id, delta=piece)

    def _closed(self, item: OpenItem, whole: OutputItem) -> list[ItemEvent]:
        index = item.index
        events: list[ItemEvent]
        match whole:
            case OutputMessage(content=[part]):
                text = OutputTextDone(
                    sequence_number=self._next(),
                    output_index=index,
                    item_id=item.id,
                    text=part.text,
                    logprobs=part.logprobs,
                )
                events = [text, self._part(ContentPartDone, item, part)]
            case ReasoningItem(content=[thought]):
                reasoning = ReasoningTextDone(
                    sequence_number=self._next(),
                    output_index=index,
                    item_id=item.id,
                    text=thought.text,
                )
                events = [reasoning, self._part(ContentPartDone, item, thought)]
            case FunctionCallItem(status="incomplete") | CustomCallItem(status="incomplete"):
                events = []  # its arguments are never complete
            case CustomCallItem(input=text):
                events = [
                    CustomInputDone(
                        sequence_number=self._next(),
                        output_index=index,
                        item_id=item.id,
                        input=text,
                    )
                ]
            case _:
                call = ArgumentsDone(
                    sequence_number=self._next(),
                    output_index=index,
                    item_id=item.id,
                    name=item.name,
                    arguments=item.text,
                )
                events = [call]
        done = OutputItemDone(sequence_number=self._next(), output_index=index, item=whole)
        return [*events, done]

    def _part(
        self, kind: type[PartEvent], item: OpenItem, part: OutputText | ReasoningText
    ) -> PartEvent:
        return kind(
            sequence_number=self._next(), output_index=item.index, item_id=item.id, part=part
        )

    def _next(self) -> int:
        self.num_events += 1
        return self.num_events - 1


def _type_of(event: type[msgspec.Struct]) -> str:
    return str(event.__struct_config__.tag)


def _empty(item: OpenItem) -> OutputItem:
    """Return an item as it began; by now it may have grown."""
    match item.kind:
        case "message":
            return OutputMessage(id=item.id, status="in_progress", content=[])
        case "reasoning":
            return ReasoningItem(id=item.id, status="in_progress", content=[])
        case _:
            return replace(item, pieces=[]).as_item("in_progress")
