"""One answer of a completion: deltas in, OpenAI's pieces out; joined, they are the whole."""

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
class Shows:
    """What an answer shows besides what was generated.

    Attributes:
        num_top_logprobs: Candidates a position beside the chosen one; None: no `logprobs`.
        echo: The prompt before the answer.
        prompt_logprobs: The field `prompt_logprobs`.
    """

    num_top_logprobs: int | None
    echo: bool
    prompt_logprobs: bool


class CompletionChoiceBuilder:
    """Reads one choice; what was read is its reader's, and not kept here.

    Args:
        index: Which of the choices.
        generation: Knows the prompts, once it runs.
        shows: What is asked for.
    """

    def __init__(self, index: int, generation: Generation, shows: Shows) -> None:
        self.index = index
        self._generation = generation
        self._shows = shows
        self._tokenizer = generation.frontend.tokenizer
        self._has_begun = False
        self._num_characters = 0
        self._echo: Echo | None = None

    def read(self, delta: Delta) -> CompletionChoice | None:
        """Take one delta; return what it adds, if anything is to be seen."""
        piece = CompletionChoice(
            index=self.index,
            text=self._begin() + delta.text,
            logprobs=self._logprobs(delta),
            finish_reason=_public(delta),
            stop_reason=delta.stop_reason,
        )
        if self._shows.prompt_logprobs and delta.prompt_logprobs is not None:
            piece.prompt_logprobs = delta.prompt_logprobs
        says = piece.text, piece.logprobs, piece.finish_reason, piece.prompt_logprobs
        return None if says == ("", None, None, UNSET) else piece

    def _begin(self) -> str:
        """Return the prompt's text before the first piece, if it was asked for."""
        is_first, self._has_begun = not self._has_begun, True
        if not (is_first and self._shows.echo):
            return ""
        prompt = self._generation.encoded[self.index // self._generation.n]
        self._echo = Echo(prompt, self._tokenizer, self._shows.num_top_logprobs or 0)
        self._num_characters = len(self._echo.text)
        return self._echo.text

    def _logprobs(self, delta: Delta) -> CompletionLogprobs | None:
        if self._shows.num_top_logprobs is None:
            return None
        shown, self._num_characters = completion_logprobs(
            delta, self._shows.num_top_logprobs, self._num_characters, self._tokenizer
        )
        if self._echo is None or delta.prompt_logprobs is None:
            return shown
        of_prompt = self._echo.logprobs(delta.prompt_logprobs)
        return of_prompt if shown is None else joined([of_prompt, shown])


def whole_choice(pieces: Sequence[CompletionChoice]) -> CompletionChoice:
    """Return the whole of an answer.

    Raises:
        RequestFailedError: It has not ended.
    """
    if not pieces or pieces[-1].finish_reason is None:
        raise RequestFailedError("the answer has no end")
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
