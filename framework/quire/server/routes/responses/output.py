"""Output items of one response: messages, reasoning and calls, in the order of the text.

At most one item is open. What belongs to no open item closes it and opens the next, so a whole
completion, read as one long delta, has the same items as a streamed one. A call is an item from its
name on. One that is cut is an incomplete item, and so is one that the model breaks off: its text is
in the message behind it.

A call of a tool of a tool server is an item once its arguments are complete. When it has a result,
it is replaced by one with the result.
"""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby

import msgspec

from quire.frontend.chat.custom_input import CustomInput
from quire.frontend.chat.parsing.tool_stage import ToolCallCut
from quire.frontend.random_bytes import random_bytes
from quire.interfaces.reasoning import ReasoningDelta
from quire.interfaces.tool_parsing import TextDelta, ToolCallArguments, ToolCallEnd, ToolCallStart
from quire.server.routes.responses.mcp.approvals import ApprovedCall
from quire.server.routes.responses.mcp.offered_tools import (
    NO_OFFERED_TOOLS,
    OfferedTool,
    OfferedTools,
)
from quire.server.routes.responses.mcp.tool_calls import RunnableCall, new_call
from quire.server.routes.responses.mcp.tool_changes import (
    ApprovalRequested,
    CallBegun,
    CallEnded,
    ToolChange,
    ToolsListed,
)
from quire.server.routes.responses.message_logprobs import LoggedEvent
from quire.server.routes.responses.open_item import Kind, OpenItem, new_id
from quire.server.tool_servers.tool_outcome import ToolOutcome
from quire.server.wire.mcp_items import McpApprovalRequestItem, McpCallItem, McpListToolsItem
from quire.server.wire.protocol import TokenLogprob
from quire.server.wire.responses import ItemStatus, OutputItem, ReasoningItem


@dataclass(frozen=True, slots=True)
class Opened:
    """A new item, which is still empty."""

    item: OpenItem


@dataclass(frozen=True, slots=True)
class Grown:
    """A piece of an item's text or arguments."""

    item: OpenItem
    piece: str
    logprobs: Sequence[TokenLogprob] = ()


@dataclass(frozen=True, slots=True)
class Closed:
    """An item that has ended."""

    item: OpenItem
    whole: OutputItem


Change = Opened | Grown | Closed | ToolChange


class Output:
    """Makes items of the events of one or more completions.

    Args:
        custom: Names of custom tools.
        offered: Tools of tool servers that the model may call; None for none.

    Attributes:
        items: Items that have ended, and calls that have no result yet.
        calls: Calls that have no result yet.
        awaits_client: Whether the client must go on: it has a function to call, or to approve a
            call.
    """

    def __init__(self, custom: Collection[str] = (), offered: OfferedTools | None = None) -> None:
        self._custom = custom
        self._offered = NO_OFFERED_TOOLS if offered is None else offered
        self.items: list[OutputItem] = []
        self.calls: list[RunnableCall] = []
        self.awaits_client = False
        self._turns = [0]  # index at which each turn begins
        self._open: OpenItem | None = None
        self._tool_calls: dict[int, tuple[OfferedTool, list[str]]] = {}  # incomplete ones
        self._changes: list[Change] = []

    @property
    def reasoning(self) -> str:
        """Text of all reasoning items that have ended."""
        items = [item for item in self.items if isinstance(item, ReasoningItem)]
        return "".join(part.text for item in items for part in item.content)

    def read(self, events: Iterable[LoggedEvent]) -> list[Change]:
        """Add events, each with the log probabilities of the tokens of its text, if it is text."""
        for event, logprobs in events:
            match event:
                case TextDelta(text) if text:
                    self._grow(self._opened("message"), text, logprobs)
                case ReasoningDelta(text) if text:
                    self._grow(self._opened("reasoning"), text)
                case ToolCallStart():
                    self._begin_call(event)
                case ToolCallArguments(index, piece) if index in self._tool_calls:
                    self._tool_calls[index][1].append(piece)
                case ToolCallArguments(index, piece):
                    self._grow_call(self._open_call(index), piece)
                case ToolCallEnd(index) if index in self._tool_calls:
                    tool, pieces = self._tool_calls.pop(index)
                    self._add_tool_call(tool, "".join(pieces))
                case ToolCallEnd(index):
                    self._end_call(self._open_call(index))
                case ToolCallCut(index) if index in self._tool_calls:
                    tool, pieces = self._tool_calls.pop(index)
                    self._add_cut_call(tool, "".join(pieces))
                case ToolCallCut(index):
                    self._end_call(self._open_call(index), "incomplete")
        return self._taken_changes()

    def end(self, status: ItemStatus, logprobs: Sequence[TokenLogprob] = ()) -> list[Change]:
        """End the last item; a response without any gets an empty message.

        Args:
            status: Status of the item.
            logprobs: Log probabilities of tokens without a text, as the end of a message.
        """
        if self._open is None and all(isinstance(item, McpListToolsItem) for item in self.items):
            self._begin("message")
        if logprobs and self._open is not None and self._open.kind == "message":
            self._grow(self._open, "", logprobs)
        self._close_unless_call(status)
        return self._taken_changes()

    def break_off(self) -> list[Change]:
        """End what is open: the response failed, or was cancelled."""
        self._close("incomplete")
        return self.drop_calls()

    @property
    def turns(self) -> list[list[OutputItem]]:
        """The items of each turn; those before the first turn are one, too."""
        ends = [*self._turns[1:], len(self.items)]
        return [self.items[begin:end] for begin, end in zip(self._turns, ends, strict=True)]

    def begin_turn(self) -> None:
        """Begin a turn of the model, after results of calls."""
        self._turns.append(len(self.items))
        self._tool_calls.clear()  # the next turn numbers its calls from the beginning

    def list_tools(self, lists: Iterable[McpListToolsItem]) -> list[Change]:
        """Add lists of tools."""
        for item in lists:
            self.items.append(item)
            self._changes.append(ToolsListed(len(self.items) - 1, item))
        return self._taken_changes()

    def begin_call(self, approved: ApprovedCall) -> list[Change]:
        """Add a call that the client has approved, and that has no result yet."""
        self._add_runnable(
            new_call(approved.label, approved.name, approved.arguments, approved.request_id)
        )
        return self._taken_changes()

    def end_call(self, call: RunnableCall, outcome: ToolOutcome) -> Change:
        """Give a call its result."""
        has_failed = outcome.error is not None
        self.calls.remove(call)
        item = msgspec.structs.replace(
            call.item,
            status="failed" if has_failed else "completed",
            output=None if has_failed else outcome.text,
            error=outcome.error,
        )
        self.items[call.index] = item
        return CallEnded(call.index, item)

    def drop_calls(self) -> list[Change]:
        """End the calls that have no result, which are not run."""
        for call in self.calls:
            item = msgspec.structs.replace(call.item, status="incomplete")
            self.items[call.index] = item
            self._changes.append(CallEnded(call.index, item))
        self.calls = []
        return self._taken_changes()

    def _taken_changes(self) -> list[Change]:
        """Return the changes, those of one item in a row as one."""
        changes, self._changes = self._changes, []
        found: list[Change] = []
        for item, group in groupby(changes, lambda c: c.item if isinstance(c, Grown) else c):
            found += [_joined(item, group)] if isinstance(item, OpenItem) else [item]
        return found

    def _opened(self, kind: Kind) -> OpenItem:
        """Return the open item if it is of this kind, or a new one."""
        if self._open is not None and self._open.kind == kind:
            return self._open
        return self._begin(kind)

    def _open_call(self, index: int) -> OpenItem | None:
        """Return the open item if it is this call; another one has broken off."""
        return self._open if self._open is not None and self._open.call == index else None

    def _begin(self, kind: Kind) -> OpenItem:
        """Begin an item behind those that there are."""
        return self._added(OpenItem(kind, new_id(kind)))

    def _begin_call(self, start: ToolCallStart) -> None:
        if (tool := self._offered.by_function(start.name)) is not None:
            self._tool_calls[start.index] = (tool, [])
            return
        kind: Kind = "custom_tool_call" if start.name in self._custom else "function_call"
        item = OpenItem(kind, new_id(kind), call=start.index, name=start.name)
        item.call_id = start.id or ""
        item.input = CustomInput() if kind == "custom_tool_call" else None
        self._added(item)

    def _grow_call(self, item: OpenItem | None, piece: str) -> None:
        if item is None:
            return
        if text := piece if item.input is None else item.input.feed(piece):
            self._grow(item, text)

    def _end_call(self, item: OpenItem | None, status: ItemStatus = "completed") -> None:
        if item is None:
            return
        if item.input is not None and (text := item.input.close()):
            self._grow(item, text)
        self.awaits_client |= status == "completed"
        self._close(status)

    def _added(self, item: OpenItem) -> OpenItem:
        self._close_unless_call("completed")
        item.index, self._open = len(self.items), item
        self._changes.append(Opened(item))
        return item

    def _grow(self, item: OpenItem, piece: str, logprobs: Sequence[TokenLogprob] = ()) -> None:
        item.pieces.append(piece)
        item.logprobs += logprobs
        self._changes.append(Grown(item, piece, logprobs))

    def _close_unless_call(self, status: ItemStatus) -> None:
        """Close the open item; a call that is still open has broken off."""
        is_call = self._open is not None and self._open.call is not None
        self._close("incomplete" if is_call else status)

    def _add_tool_call(self, offered: OfferedTool, arguments: str) -> None:
        label, name = offered.label, offered.tool.name
        self._close_unless_call("completed")
        if offered.needs_approval:
            request = McpApprovalRequestItem(
                id=f"mcpr_{random_bytes.hex(16)}",
                server_label=label,
                name=name,
                arguments=arguments,
            )
            self.awaits_client = True
            self.items.append(request)
            self._changes.append(ApprovalRequested(len(self.items) - 1, request))
            return
        self._add_runnable(new_call(label, name, arguments))

    def _add_cut_call(self, offered: OfferedTool, arguments: str) -> None:
        """Add a call that was cut; the client is not asked to approve it, as it is not run."""
        self._close_unless_call("completed")
        item = new_call(offered.label, offered.tool.name, arguments)
        self._add_runnable(item, is_cut=True)

    def _add_runnable(self, item: McpCallItem, *, is_cut: bool = False) -> None:
        call = RunnableCall(len(self.items), item)
        self.items.append(item)
        self.calls.append(call)
        self._changes.append(CallBegun(call.index, item, is_cut))

    def _close(self, status: ItemStatus) -> None:
        if (item := self._open) is not None:
            self._open = None
            self.items.append(item.as_item(status))
            self._changes.append(Closed(item, self.items[-1]))


def _joined(item: OpenItem, changes: Iterable[Change]) -> Grown:
    pieces = [change for change in changes if isinstance(change, Grown)]
    logprobs = [logprob for change in pieces for logprob in change.logprobs]
    return Grown(item, "".join(change.piece for change in pieces), logprobs)
