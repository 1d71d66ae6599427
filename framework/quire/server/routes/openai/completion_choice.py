"""Choices of /v1/completions: pieces of a stream, or a whole choice, which is one long piece."""

import msgspec
from msgspec import UNSET

from quire.frontend.intake.prompt import EncodedPrompt
from quire.outputs import CompletionOutput, Delta, PromptLogprobs
from quire.server.routes.generation import Generation
from quire.server.routes.openai.echo import Echo
from quire.server.wire.finish_reason import finish_reason_of
from quire.server.wire.openai_logprobs import TokenSpelling, completion_logprobs, joined
from quire.server.wire.protocol import CompletionChoice, CompletionLogprobs, FinishReason


class ResponseOptions(msgspec.Struct, frozen=True):
    """Optional parts of a response.

    Attributes:
        num_top_logprobs: Candidates per position beside the sampled one; None for no `logprobs`.
        echo: True if the prompt precedes the completion.
        prompt_logprobs: True if the field `prompt_logprobs` is present.
        token_ids: True if the fields `prompt_token_ids` and `token_ids` are present.
        tokens_as_ids: True if log probabilities show tokens by their ids.
    """

    num_top_logprobs: int | None
    echo: bool
    prompt_logprobs: bool
    token_ids: bool = False
    tokens_as_ids: bool = False


class CompletionChoiceBuilder:
    """Builds one choice, from its deltas or from the whole completion; it keeps no text.

    Args:
        index: Index of the choice.
        generation: Generation of the request; it has the encoded prompts once it runs.
        options: Optional parts of the response.
    """

    def __init__(self, index: int, generation: Generation, options: ResponseOptions) -> None:
        self.index = index
        self._generation = generation
        self._options = options
        self._spelling = TokenSpelling(generation.frontend.tokenizer, options.tokens_as_ids)
        self._has_started = False
        self._num_characters = 0
        self._echo: Echo | None = None

    def read(self, delta: Delta) -> CompletionChoice | None:
        """Return the piece that a delta adds; None if it adds nothing visible."""
        piece = self._piece(delta, delta.prompt_logprobs, finish_reason_of(delta))
        fields = piece.text, piece.logprobs, piece.finish_reason, piece.prompt_logprobs
        is_empty = fields == ("", None, None, UNSET) and not piece.token_ids
        return None if is_empty else piece

    def read_whole(
        self, output: CompletionOutput, prompt_logprobs: PromptLogprobs | None
    ) -> CompletionChoice:
        """Return the choice of a whole completion.

        Raises:
            RequestFailedError: The completion is incomplete.
        """
        return self._piece(output, prompt_logprobs, finish_reason_of(output))

    def _piece(
        self,
        part: Delta | CompletionOutput,
        prompt_logprobs: PromptLogprobs | None,
        end: FinishReason | None,
    ) -> CompletionChoice:
        is_first = not self._has_started
        piece = CompletionChoice(
            index=self.index,
            text=self._echoed_prompt() + part.text,
            logprobs=self._logprobs(part, prompt_logprobs),
            finish_reason=end,
            stop_reason=part.stop_reason,
        )
        if self._options.prompt_logprobs and prompt_logprobs is not None:
            piece.prompt_logprobs = prompt_logprobs
        if self._options.token_ids:
            piece.token_ids = part.token_ids
            if is_first:
                piece.prompt_token_ids = self._prompt.token_ids
        return piece

    @property
    def _prompt(self) -> EncodedPrompt:
        return self._generation.encoded[self.index // self._generation.n]

    def _echoed_prompt(self) -> str:
        """Return the prompt's text for the first piece with `echo`, else an empty string."""
        is_first, self._has_started = not self._has_started, True
        if not (is_first and self._options.echo):
            return ""
        self._echo = Echo(self._prompt, self._spelling, self._options.num_top_logprobs or 0)
        self._num_characters = len(self._echo.text)
        return self._echo.text

    def _logprobs(
        self, part: Delta | CompletionOutput, of_prompt: PromptLogprobs | None
    ) -> CompletionLogprobs | None:
        num_top = self._options.num_top_logprobs
        if num_top is None:
            return None
        shown: list[CompletionLogprobs] = []
        if self._echo is not None and of_prompt is not None:
            shown.append(self._echo.logprobs(of_prompt))
        if part.logprobs is not None:
            own, self._num_characters = completion_logprobs(
                part.logprobs, num_top, self._num_characters, self._spelling
            )
            shown.append(own)
        return joined(shown) if shown else None
