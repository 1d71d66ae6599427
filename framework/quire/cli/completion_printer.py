"""Completions on standard output: as they are generated, or at their end."""

import json
import sys
from collections.abc import Iterable
from typing import TextIO

from quire.frontend.chat.parsing.completion_parser import CompletionEvent
from quire.frontend.chat.parsing.tool_stage import ToolCallCut
from quire.interfaces.reasoning import ReasoningDelta
from quire.interfaces.tool_parsing import TextDelta, ToolCallArguments, ToolCallEnd, ToolCallStart
from quire.outputs import RequestOutput

DIM, PLAIN = "\x1b[2m", "\x1b[0m"


class CompletionPrinter:
    """Prints the events of one completion as they come.

    Args:
        stream: Where to print; reasoning is dim on a terminal.

    Attributes:
        text: Text printed so far, without reasoning and tool calls.
    """

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = sys.stdout if stream is None else stream
        self._is_terminal = self._stream.isatty()
        self._is_reasoning = False
        self._is_line_open = False
        self._calls: dict[int, str] = {}
        self.text = ""

    def show(self, events: Iterable[CompletionEvent]) -> None:
        """Print events; a tool call at its end."""
        for event in events:
            match event:
                case TextDelta(text):
                    self._end_reasoning()
                    self.text += text
                    self._write(text)
                case ReasoningDelta(text):
                    self._is_reasoning = True
                    self._write(f"{DIM}{text}{PLAIN}" if self._is_terminal else text)
                case ToolCallStart(index, name):
                    self._calls[index] = f"[tool call] {name}("
                case ToolCallArguments(index, piece):
                    self._calls[index] += piece
                case ToolCallEnd(index) | ToolCallCut(index):
                    self._end_line()
                    self._write(f"{self._calls[index]})\n")
        self._stream.flush()

    def close(self) -> None:
        """End the last line."""
        self._end_line()
        self._stream.flush()

    def _end_reasoning(self) -> None:
        if self._is_reasoning:
            self._is_reasoning = False
            self._end_line()

    def _end_line(self) -> None:
        if self._is_line_open:
            self._write("\n")

    def _write(self, text: str) -> None:
        if text:
            self._stream.write(text)
            self._is_line_open = not text.endswith("\n")


def print_output(output: RequestOutput) -> None:
    """Print whole completions: reasoning, text and tool calls of each."""
    for completion in output.outputs:
        if completion.reasoning:
            print(f"[thinking] {completion.reasoning}")
        if completion.text:
            print(completion.text)
        for call in completion.tool_calls:
            print(f"[tool call] {call.name}({call.arguments})")


def print_json(output: RequestOutput) -> None:
    """Print a whole output as JSON."""
    import msgspec

    print(json.dumps(msgspec.to_builtins(output), ensure_ascii=False))
