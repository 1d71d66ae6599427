"""Ids of calls in a conversation, as the model's chat template needs them."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from quire.frontend.chat.templates.conversation import Message

PromptCallId = Callable[[str, str, int], str]  # see `ToolParser.prompt_call_id`


def as_sent(call_id: str, name: str, number: int) -> str:
    """Return an id as the client sent it."""
    del name, number
    return call_id


def with_prompt_ids(messages: Sequence[Message], new_id: PromptCallId) -> list[Message]:
    """Return messages whose calls and tool messages have the ids that the template needs.

    Args:
        messages: Messages in the format of chat templates.
        new_id: Function that returns an id from the one in the conversation, which is empty if
            there is none, the name of the tool, and the number of calls before.
    """
    renaming = _Renaming(new_id)
    return [*renaming.renamed(messages)]


class _Renaming:
    def __init__(self, new_id: PromptCallId) -> None:
        self._new_id = new_id
        self._ids: dict[str, str] = {}
        self._num_calls = 0

    def renamed(self, messages: Sequence[Message]) -> Iterator[Message]:
        """Yield the messages in order; a tool message has the id of the last such call."""
        for message in messages:
            if calls := message.get("tool_calls"):
                yield message | {"tool_calls": [self._call(call) for call in calls]}
            elif (call_id := message.get("tool_call_id")) in self._ids:
                yield message | {"tool_call_id": self._ids[call_id]}
            else:
                yield message

    def _call(self, call: dict[str, Any]) -> dict[str, Any]:
        given = call.get("id") or ""
        call_id = self._new_id(given, call["function"]["name"], self._num_calls)
        self._num_calls += 1
        self._ids[given] = call_id
        return call | {"id": call_id} if call_id else call
