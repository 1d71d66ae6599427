"""What tools of tool servers change in the output of a response, and the events of that."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

import msgspec

from quire.server.wire.mcp_events import (
    McpArgumentsDelta,
    McpArgumentsDone,
    McpCallCompleted,
    McpCallFailed,
    McpCallInProgress,
    McpEvent,
    McpListToolsCompleted,
    McpListToolsFailed,
    McpListToolsInProgress,
)
from quire.server.wire.mcp_items import McpApprovalRequestItem, McpCallItem, McpListToolsItem
from quire.server.wire.response_events import OutputItemAdded, OutputItemDone

E = TypeVar(
    "E",
    McpCallInProgress,
    McpCallCompleted,
    McpCallFailed,
    McpListToolsInProgress,
    McpListToolsCompleted,
    McpListToolsFailed,
)
ToolEvent = McpEvent | OutputItemAdded | OutputItemDone


@dataclass(frozen=True, slots=True)
class ToolsListed:
    """The tools of a server are listed, or could not be."""

    index: int
    item: McpListToolsItem


@dataclass(frozen=True, slots=True)
class CallBegun:
    """The model has written a call, or its beginning if it was cut; its item has no result yet."""

    index: int
    item: McpCallItem
    is_cut: bool = False


@dataclass(frozen=True, slots=True)
class CallEnded:
    """A call has its result."""

    index: int
    item: McpCallItem


@dataclass(frozen=True, slots=True)
class ApprovalRequested:
    """The model has written a call that needs the client's approval."""

    index: int
    item: McpApprovalRequestItem


ToolChange = ToolsListed | CallBegun | CallEnded | ApprovalRequested


class ToolEvents:
    """Makes the events of changes.

    Args:
        next_number: Function that returns the number of the next event.
    """

    def __init__(self, next_number: Callable[[], int]) -> None:
        self._next_number = next_number

    def of(self, change: ToolChange) -> list[ToolEvent]:
        """Return the events of a change."""
        match change:
            case ToolsListed(item=item):
                return self._listed(change, item)
            case CallBegun(item=item):
                return self._begun(change, item)
            case CallEnded(item=item):
                return [self._end_of(change, item), self._done(change)]
            case ApprovalRequested():
                return [self._added(change), self._done(change)]

    def _listed(self, change: ToolsListed, item: McpListToolsItem) -> list[ToolEvent]:
        empty = msgspec.structs.replace(item, tools=[], error=None)
        return [
            OutputItemAdded(
                sequence_number=self._next_number(), output_index=change.index, item=empty
            ),
            self._event(McpListToolsInProgress, change),
            self._event(McpListToolsCompleted, change)
            if item.error is None
            else self._event(McpListToolsFailed, change),
            self._done(change),
        ]

    def _end_of(self, change: CallEnded, item: McpCallItem) -> McpCallCompleted | McpCallFailed:
        if item.status == "completed":
            return self._event(McpCallCompleted, change)
        return self._event(McpCallFailed, change)

    def _begun(self, change: CallBegun, item: McpCallItem) -> list[ToolEvent]:
        empty = msgspec.structs.replace(item, arguments="")
        events: list[ToolEvent] = [
            OutputItemAdded(
                sequence_number=self._next_number(), output_index=change.index, item=empty
            ),
            self._event(McpCallInProgress, change),
            McpArgumentsDelta(
                sequence_number=self._next_number(),
                output_index=change.index,
                item_id=item.id,
                delta=item.arguments,
            ),
        ]
        return events if change.is_cut else [*events, self._arguments_done(change, item)]

    def _arguments_done(self, change: CallBegun, item: McpCallItem) -> McpArgumentsDone:
        return McpArgumentsDone(
            sequence_number=self._next_number(),
            output_index=change.index,
            item_id=item.id,
            arguments=item.arguments,
        )

    def _event(self, kind: type[E], change: ToolChange) -> E:
        return kind(
            sequence_number=self._next_number(), output_index=change.index, item_id=change.item.id
        )

    def _added(self, change: ToolChange) -> OutputItemAdded:
        return OutputItemAdded(
            sequence_number=self._next_number(), output_index=change.index, item=change.item
        )

    def _done(self, change: ToolChange) -> OutputItemDone:
        return OutputItemDone(
            sequence_number=self._next_number(), output_index=change.index, item=change.item
        )
