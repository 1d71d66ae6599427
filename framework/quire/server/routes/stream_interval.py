"""The option `stream_interval`: an event of a stream for several tokens of its choice."""

from collections.abc import Sequence
from typing import TypeVar

import msgspec

from quire.errors import InvalidRequestError
from quire.outputs import Delta
from quire.server.wire.protocol import SamplingBody

T = TypeVar("T")


class StreamInterval:
    """Joins the deltas of each choice; the first and the last one are not held back.

    Args:
        num_tokens: Least number of tokens of a delta between them.
    """

    def __init__(self, num_tokens: int) -> None:
        self._num_tokens = num_tokens
        self._held: dict[int, Delta | None] = {}  # by choice, from its first delta on

    @classmethod
    def of(cls, body: SamplingBody) -> "StreamInterval | None":
        """Return the interval that a request asks for; None if each delta is sent.

        Raises:
            InvalidRequestError: It is less than one token.
        """
        num_tokens = body.stream_interval
        if num_tokens is not None and num_tokens < 1:
            raise InvalidRequestError(
                f"stream_interval must be at least 1 token, got {num_tokens}",
                param="stream_interval",
            )
        return (
            cls(num_tokens) if body.stream and num_tokens is not None and num_tokens > 1 else None
        )

    def joined(self, choice: int, delta: Delta) -> Delta | None:
        """Return what to send of a choice with its next delta; None if it is held back."""
        if choice not in self._held:
            self._held[choice] = None
            return delta
        held = self._held[choice]
        whole = delta if held is None else _joined(held, delta)
        is_sent = whole.finish_reason is not None or len(whole.token_ids) >= self._num_tokens
        self._held[choice] = None if is_sent else whole
        return whole if is_sent else None


def _joined(first: Delta, second: Delta) -> Delta:
    """Return two deltas as one; the rest of it is the second's."""
    return msgspec.structs.replace(
        second,
        text=first.text + second.text,
        token_ids=[*first.token_ids, *second.token_ids],
        logprobs=_concatenated(first.logprobs, second.logprobs),
        prompt_logprobs=_concatenated(first.prompt_logprobs, second.prompt_logprobs),
    )


def _concatenated(first: Sequence[T] | None, second: Sequence[T] | None) -> list[T] | None:
    return None if first is None and second is None else [*(first or ()), *(second or ())]
