"""Events of a stream: what the changes of the output items are for a client."""

from typing import get_args

from quire.server.routes.responses.output import Change, Closed, Grown, Opened, OpenItem
from quire.server.wire.protocol import TokenLogprob
from quire.server.wire.response_events import (
    ArgumentsDelta,
    ArgumentsDone,
    ContentPartAdded,
    ContentPartDone,
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
    FunctionCallItem,
    OutputItem,
    OutputMessage,
    OutputText,
    ReasoningItem,
    ReasoningText,
    ResponseObject,
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
)
LastEvent = ResponseCompleted | ResponseIncomplete | ResponseFailed
PartEvent = ContentPartAdded | ContentPartDone
EVENTS = (ResponseCreated, ResponseInProgress, *get_args(ItemEvent), *get_args(LastEvent))
_LAST: dict[str, type[LastEvent]] = {
    "completed": ResponseCompleted,
    "incomplete": ResponseIncomplete,
}


class ItemEvents:
    """Numbers the events of one response."""

    def __init__(self) -> None:
        self._num_events = 0

    def created(self, response: ResponseObject) -> ResponseCreated:
        """Return the first event."""
        return ResponseCreated(sequence_number=self._next(), response=response)

    def in_progress(self, response: ResponseObject) -> ResponseInProgress:
        """Return the event of the first token."""
        return ResponseInProgress(sequence_number=self._next(), response=response)

    def last(self, response: ResponseObject) -> LastEvent:
        """Return the event after the last item."""
        kind = _LAST.get(response.status, ResponseFailed)
        return kind(sequence_number=self._next(), response=response)

    def of(self, change: Change) -> list[ItemEvent]:
        """Return the events of a change."""
        match change:
            case Grown(item, piece, logprobs):
                return [self._grown(item, piece, [*logprobs])]
            case Opened(item):
                return self._opened(item)
            case Closed(item, whole):
                return self._closed(item, whole)

    def _opened(self, item: OpenItem) -> list[ItemEvent]:
        added = OutputItemAdded(
            sequence_number=self._next(), output_index=item.index, item=_empty(item)
        )
        if item.kind == "function_call":
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
        kind = ReasoningTextDelta if item.kind == "reasoning" else ArgumentsDelta
        return kind(sequence_number=number, output_index=index, item_id=item.id, delta=piece)

    def _closed(self, item: OpenItem, whole: OutputItem) -> list[ItemEvent]:
        number, index = self._next(), item.index
        events: list[ItemEvent]
        match whole:
            case OutputMessage(content=[part]):
                text = OutputTextDone(
                    sequence_number=number,
                    output_index=index,
                    item_id=item.id,
                    text=part.text,
                    logprobs=part.logprobs,
                )
                events = [text, self._part(ContentPartDone, item, part)]
            case ReasoningItem(content=[thought]):
                reasoning = ReasoningTextDone(
                    sequence_number=number, output_index=index, item_id=item.id, text=thought.text
                )
                events = [reasoning, self._part(ContentPartDone, item, thought)]
            case _:
                call = ArgumentsDone(
                    sequence_number=number,
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
        self._num_events += 1
        return self._num_events - 1


def _empty(item: OpenItem) -> OutputItem:
    """Return an item as it begins."""
    match item.kind:
        case "message":
            return OutputMessage(id=item.id, status="in_progress", content=[])
        case "reasoning":
            return ReasoningItem(id=item.id, status="in_progress", content=[])
        case _:
            return FunctionCallItem(
                id=item.id,
                status="in_progress",
                call_id=item.call_id,
                name=item.name,
                arguments="",
            )
