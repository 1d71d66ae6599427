"""One turn of the assistant as a message: its reasoning, its text and its calls."""

from typing import Any


class AssistantTurn:
    """A message of the assistant, to which the items of its turn are added in order.

    Text after a call continues the text before it, as the model wrote both in one turn. A message
    right after a message, and reasoning after either, belong to a turn of their own.
    """

    def __init__(self) -> None:
        self._reasoning: list[str] = []
        self._texts: list[str] = []
        self._calls: list[dict[str, Any]] = []
        self._results: list[dict[str, Any]] = []
        self._ends_with_text = False

    @property
    def takes_text(self) -> bool:
        """Whether a message may follow in the same turn."""
        return not (self._ends_with_text or self._results)

    @property
    def takes_reasoning(self) -> bool:
        """Whether reasoning may follow in the same turn."""
        return not (self._texts or self._calls)

    def add_reasoning(self, text: str) -> None:
        """Add reasoning."""
        self._reasoning.append(text)

    def add_text(self, text: str) -> None:
        """Add the text of a message."""
        self._texts.append(text)
        self._ends_with_text = True

    def add_call(self, call_id: str, name: str, arguments: str) -> None:
        """Add a call."""
        function = {"name": name, "arguments": arguments}
        self._calls.append({"id": call_id, "type": "function", "function": function})
        self._ends_with_text = False

    def add_result(self, call_id: str, output: str) -> None:
        """Add the result of a call that has been run."""
        self._results.append({"role": "tool", "tool_call_id": call_id, "content": output})

    def messages(self) -> list[dict[str, Any]]:
        """Return the message, and those of the results of its calls."""
        return [self.message(), *self._results]

    def message(self) -> dict[str, Any]:
        """Return the message; what it does not have is left out."""
        made: dict[str, Any] = {"role": "assistant"}
        if self._reasoning:
            made["reasoning_content"] = "".join(self._reasoning)
        if self._texts:
            made["content"] = "".join(self._texts)
        if self._calls:
            made["tool_calls"] = self._calls
        return made
