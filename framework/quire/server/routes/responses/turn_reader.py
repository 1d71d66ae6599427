"""Reads the deltas of one turn as changes of the output."""

from collections.abc import Sequence
from functools import cached_property

from quire.outputs import Delta
from quire.server.routes.chat.chat_turn import ChatTurn
from quire.server.routes.responses.message_logprobs import MessageLogprobs
from quire.server.routes.responses.output import Change, Output
from quire.server.wire.openai_logprobs import Positions, TokenSpelling, chat_logprobs
from quire.server.wire.protocol import FinishReason, TokenLogprob
from quire.server.wire.responses import ItemStatus


class TurnReader:
    """Reads one turn.

    Args:
        turn: The turn.
        output: Output that its items are added to.
    """

    def __init__(self, turn: ChatTurn, output: Output) -> None:
        self._generation = turn.generation
        self._output = output
        self._parts = turn.events()[0]
        self._spelling = TokenSpelling(turn.generation.frontend.tokenizer)

    @property
    def finish_reason(self) -> FinishReason | None:
        """Finish reason in OpenAI's terms; None while the turn is incomplete."""
        return self._parts.finish_reason

    @property
    def is_complete(self) -> bool:
        """Whether the model has ended the turn."""
        return self.finish_reason in ("stop", "tool_calls")

    def read(self, delta: Delta, logprobs: Sequence[TokenLogprob] | None) -> list[Change]:
        """Return what a delta changes.

        Args:
            delta: The delta.
            logprobs: Log probabilities of its tokens; None if the response has none.
        """
        reader = None if logprobs is None else self._message_logprobs
        if logprobs is None or reader is None:
            changes = self._output.read((event, ()) for event in self._parts.read(delta))
        else:
            changes = self._output.read(reader.read(delta, logprobs))
        if self.finish_reason is None:
            return changes
        status: ItemStatus = "completed" if self.is_complete else "incomplete"
        return changes + self._output.end(status, () if reader is None else reader.end)

    def logprobs(self, rows: Positions) -> Sequence[TokenLogprob]:
        """Return the log probabilities of tokens."""
        return chat_logprobs(rows, self._generation.num_top_logprobs or 0, self._spelling).content

    @cached_property
    def _message_logprobs(self) -> MessageLogprobs:
        generation = self._generation
        (encoded,), params = generation.encoded, generation.params
        stream = generation.frontend.tokenizer.text_stream(
            encoded.token_ids, params.skip_special_tokens, encoded.shown_special_tokens
        )
        return MessageLogprobs(self._parts, stream)
