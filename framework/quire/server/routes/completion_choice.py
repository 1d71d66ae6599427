"""Builder of the pieces of one completion choice, and the full choice from its pieces."""

from collections.abc import Sequence
from dataclasses import dataclass

from msgspec import UNSET

from quire.errors import RequestFailedError
from quire.outputs import Delta
from quire.server.routes.echo import Echo
from quire.server.routes.generation import Generation
from quire.server.wire.openai_logprobs import completion_logprobs, joined
from quire.server.wire.protocol import CompletionChoice, CompletionLogprobs, FinishReason


@dataclass(frozen=True, slots=True)
class ResponseOptions:
    """Optional parts of a response.

    Attributes:
        num_top_logprobs: Candidates per position beside the sampled one; None for no `logprobs`.
        echo: True if the prompt precedes the completion.
        prompt_logprobs: True if the field `prompt_logprobs` is present.
    """

    num_top_logprobs: int | None
    echo: bool
    prompt_logprobs: bool


class CompletionChoiceBuilder:
    """Builds the pieces of one choice from deltas; it does not keep them.

    Args:
        index: Index of the choice.
        generation: Generation of the request; it has the encoded prompts once it runs.
        options: Optional parts of the response.
    """

    def __init__(self, index: int, generation: Generation, options: ResponseOptions) -> None:
        self.index = index
        self._generation = generation
        self._options = options
        self._tokenizer = generation.frontend.tokenizer
        self._has_started = False
        self._num_characters = 0
        self._echo: Echo | None = None

    def read(self, delta: Delta) -> CompletionChoice | None:
        """Return the piece that a delta adds; None if it adds nothing visible."""
        piece = CompletionChoice(
            index=self.index,
            text=self._echoed_prompt() + delta.text,
            logprobs=self._logprobs(delta),
            finish_reason=_public(delta),
            stop_reason=delta.stop_reason,
        )
        if self._options.prompt_logprobs and delta.prompt_logprobs is not None:
            piece.prompt_logprobs = delta.prompt_logprobs
        fields = piece.text, piece.logprobs, piece.finish_reason, piece.prompt_logprobs
        return None if fields == ("", None, None, UNSET) else piece

    def _echoed_prompt(self) -> str:
        """Return the prompt's text for the first piece with `echo`, else an empty string."""
        is_first, self._has_started = not self._has_started, True
        if not (is_first and self._options.echo):
            return ""
        prompt = self._generation.encoded[self.index // self._generation.n]
        self._echo = Echo(prompt, self._tokenizer, self._options.num_top_logprobs or 0)
        self._num_characters = len(self._echo.text)
        return self._echo.text

    def _logprobs(self, delta: Delta) -> CompletionLogprobs | None:
        if self._options.num_top_logprobs is None:
            return None
        shown, self._num_characters = completion_logprobs(
            delta, self._options.num_top_logprobs, self._num_characters, self._tokenizer
        )
        if self._echo is None or delta.prompt_logprobs is None:
            return shown
        of_prompt = self._echo.logprobs(delta.prompt_logprobs)
        return of_prompt if shown is None else joined([of_prompt, shown])


def full_choice(pieces: Sequence[CompletionChoice]) -> CompletionChoice:
    """Return the full choice of some pieces.

    Raises:
        RequestFailedError: The choice is incomplete.
    """
    if not pieces or pieces[-1].finish_reason is None:
        raise RequestFailedError("the completion ended without a finish reason")
    logprobs = [piece.logprobs for piece in pieces if piece.logprobs is not None]
    of_prompt = [piece.prompt_logprobs for piece in pieces if piece.prompt_logprobs]
    return CompletionChoice(
        index=pieces[-1].index,
        text="".join(piece.text for piece in pieces),
        logprobs=joined(logprobs) if logprobs else None,
        finish_reason=pieces[-1].finish_reason,
        stop_reason=pieces[-1].stop_reason,
        prompt_logprobs=[row for rows in of_prompt for row in rows] if of_prompt else UNSET,
    )


def _public(delta: Delta) -> FinishReason | None:
    return delta.finish_reason if delta.finish_reason in ("stop", "length") else None
