"""Output items of one response: messages, reasoning and function calls, in the order of the text.

At most one item is open. What belongs to no open item closes it and opens the next, so a whole
completion, read as one long delta, has the same items as a streamed one. A call is an item from its
name on. One that breaks off is an incomplete item, and its text is in the message behind it.
"""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby

from quire.frontend.chat.custom_input import CustomInput
from quire.interfaces.reasoning import ReasoningDelta
from quire.interfaces.tool_parsing import TextDelta, ToolCallArguments, ToolCallEnd, ToolCallStart
from quire.server.routes.responses.message_logprobs import LoggedEvent
from quire.server.routes.responses.open_item import Kind, OpenItem, new_id
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


Change = Opened | Grown | Closed


class Output:
    """Makes items of the events of a completion.

    Args:
        custom: Names of custom tools.

    Attributes:
        items: Items that have ended.
    """

    def __init__(self, custom: Collection[str] = ()) -> None:
        self._custom = custom
        self.items: list[OutputItem] = []
        self._open: OpenItem | None = None
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
                case ToolCallArguments(index, piece):
                    self._grow_call(self._open_call(index), piece)
                case ToolCallEnd(index):
                    self._end_call(self._open_call(index))
        return self._taken_changes()

    def end(self, status: ItemStatus, logprobs: Sequence[TokenLogprob] = ()) -> list[Change]:
        """End the last item; a response without any gets an empty message.

        Args:
            status: Status of the item.
            logprobs: Log probabilities of tokens without a text, as the end of a message.
        """
        if self._open is None and not self.items:
            self._begin("message")
        if logprobs and self._open is not None and self._open.kind == "message":
            self._grow(self._open, "", logprobs)
        self._close_unless_call(status)
        return self._taken_changes()

    def break_off(self) -> None:
        """End the item that is open, if one is: the response failed, or was cancelled."""
        self._close("incomplete")

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

    def _end_call(self, item: OpenItem | None) -> None:
        if item is None:
            return
        if item.input is not None and (text := item.input.close()):
            self._grow(item, text)
        self._close("completed")

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

    def _close(self, status: ItemStatus) -> None:
        if (item := self._open) is not None:
            self._open = None
            self.items.append(item.as_item(status))
            self._changes.append(Closed(item, self.items[-1]))


def _joined(item: OpenItem, changes: Iterable[Change]) -> Grown:
    pieces = [change for change in changes if isinstance(change, Grown)]
    logprobs = [logprob for change in pieces for logprob in change.logprobs]
    return Grown(item, "".join(change.piece for change in pieces), logprobs)
