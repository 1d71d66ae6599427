"""Server-sent events of a streamed completion, read as they arrive."""

from typing import Any

import msgspec

from quire.cli.bench.serving.outcome import Outcome

DONE = b"[DONE]"


class ReceivedDelta(msgspec.Struct):
    """New part of a chat completion."""

    content: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    tool_calls: list[Any] | None = None

    @property
    def has_text(self) -> bool:
        """Whether it brings something generated."""
        return bool(self.content or self.reasoning_content or self.reasoning or self.tool_calls)


class ReceivedChoice(msgspec.Struct):
    """New part of one completion, from either route."""

    text: str = ""
    delta: ReceivedDelta | None = None

    @property
    def has_text(self) -> bool:
        """Whether it brings something generated."""
        return bool(self.text) or (self.delta is not None and self.delta.has_text)


class ReceivedUsage(msgspec.Struct):
    """Tokens as the server counts them."""

    prompt_tokens: int = 0
    completion_tokens: int = 0


class ReceivedEvent(msgspec.Struct):
    """One event of a stream."""

    choices: list[ReceivedChoice] = []
    usage: ReceivedUsage | None = None
    error: Any = None


_decoder = msgspec.json.Decoder(ReceivedEvent)


class SSEReader:
    """Reads the events of one stream into an outcome.

    Args:
        outcome: Where times and tokens are written.
    """

    def __init__(self, outcome: Outcome) -> None:
        self._outcome = outcome
        self._rest = b""
        self.is_done = False

    def feed(self, data: bytes, now_s: float) -> None:
        """Read the next bytes, which arrived at a time.

        Raises:
            msgspec.DecodeError: An event is not what OpenAI's routes send.
        """
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            if line.startswith(b"data:"):
                self._read(line[5:].strip(), now_s)

    def _read(self, payload: bytes, now_s: float) -> None:
        outcome = self._outcome
        if payload == DONE:
            self.is_done = True
            return
        chunk = _decoder.decode(payload)
        if chunk.error is not None:
            outcome.error = "error in the stream"
            outcome.detail = str(chunk.error)
        if chunk.choices:
            outcome.end_s = now_s
            if any(choice.has_text for choice in chunk.choices):
                outcome.chunks_s.append(now_s)
        if chunk.usage is not None:
            outcome.is_counted = True
            outcome.num_prompt_tokens = chunk.usage.prompt_tokens
            outcome.num_output_tokens = chunk.usage.completion_tokens
