"""An output item that grows, and the item that it becomes."""

from dataclasses import dataclass, field
from typing import Literal

from quire.frontend.chat.custom_input import CustomInput
from quire.frontend.random_bytes import random_bytes
from quire.server.wire.protocol import TokenLogprob
from quire.server.wire.responses import (
    CustomCallItem,
    FunctionCallItem,
    ItemStatus,
    OutputItem,
    OutputMessage,
    OutputText,
    ReasoningItem,
    ReasoningText,
)

Kind = Literal["message", "reasoning", "function_call", "custom_tool_call"]
_PREFIXES: dict[Kind, str] = {
    "message": "msg",
    "reasoning": "rs",
    "function_call": "fc",
    "custom_tool_call": "ctc",
}


@dataclass(slots=True)
class OpenItem:
    """An item that grows.

    Attributes:
        kind: Its type.
        id: Its id.
        index: Position among the items of the response.
        name: Name of the called function.
        call_id: Id of the call.
        call: Number of the call in the completion; None: it is no call.
        input: Reader of the arguments, whose pieces are those of the input; None: it is no call of
            a custom tool.
        pieces: Pieces of its text, or of its arguments.
        logprobs: Log probabilities of a message's tokens.
    """

    kind: Kind
    id: str
    index: int = 0
    name: str = ""
    call_id: str = ""
    call: int | None = None
    input: CustomInput | None = None
    pieces: list[str] = field(default_factory=list)
    logprobs: list[TokenLogprob] = field(default_factory=list)

    @property
    def text(self) -> str:
        """Text or arguments so far."""
        return "".join(self.pieces)

    def as_item(self, status: ItemStatus) -> OutputItem:
        """Return the item with what it has so far."""
        match self.kind:
            case "message":
                part = OutputText(text=self.text, logprobs=self.logprobs)
                return OutputMessage(id=self.id, status=status, content=[part])
            case "reasoning":
                thought = ReasoningText(text=self.text)
                return ReasoningItem(id=self.id, status=status, content=[thought])
            case "custom_tool_call":
                return CustomCallItem(
                    id=self.id,
                    status=status,
                    call_id=self.call_id,
                    name=self.name,
                    input=self.text,
                )
            case _:
                return FunctionCallItem(
                    id=self.id,
                    status=status,
                    call_id=self.call_id,
                    name=self.name,
                    arguments=self.text,
                )


def new_id(kind: Kind) -> str:
    """Return a new id of an item."""
    return f"{_PREFIXES[kind]}_{random_bytes.hex(16)}"
