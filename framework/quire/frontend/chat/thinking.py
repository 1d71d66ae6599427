"""The start of a structured-output constraint: at once, or after the model's reasoning."""

from quire.errors import GrammarError
from quire.frontend.chat.completion_parser import ParserChoice
from quire.frontend.plugin_failure import plugin_failure
from quire.frontend.text.tokenizer import Tokenizer
from quire.interfaces.reasoning import ReasoningParser

NUM_LAST_TOKENS = 64  # of a prompt given as token ids, searched for the start of the reasoning


class Thinking:
    """The reasoning format of a model.

    Args:
        parser: Reasoning parser in use.
        end_marker: Text that ends the reasoning, if the parser declares it.
        tokenizer: Tokenizer of the model.
    """

    def __init__(
        self, parser: ParserChoice[ReasoningParser], end_marker: str | None, tokenizer: Tokenizer
    ) -> None:
        self._parser = parser
        self._end_marker = end_marker
        self._tokenizer = tokenizer

    def end_token_id(self, text: str | None, token_ids: list[int]) -> int | None:
        """Return the token that ends the reasoning; None if the prompt does not start one.

        Args:
            text: Text of the prompt, if it was given as text.
            token_ids: Token ids of the prompt.

        Raises:
            GrammarError: The prompt starts the reasoning, and no single token ends it.
            RequestFailedError: The parser failed.
        """
        if text is None:
            text = self._tokenizer.decode(token_ids[-NUM_LAST_TOKENS:], skip_special_tokens=False)
        return self._marker_id() if self._is_open(text) else None

    def _is_open(self, text: str) -> bool:
        try:
            return self._parser.parser(text).is_thinking
        except Exception as error:
            raise plugin_failure(
                error,
                f"plugin {self._parser.source}",
                "while parsing a prompt",
                subject="on this prompt",
            ) from error

    def _marker_id(self) -> int:
        if self._end_marker is None:
            raise GrammarError(
                "the prompt starts the model's reasoning, and the reasoning parser declares no end "
                "marker, so the structured output cannot be enforced; disable the reasoning"
            )
        token_ids = self._tokenizer.encode(self._end_marker, add_special_tokens=False)
        if len(token_ids) != 1:
            raise GrammarError(
                f"the prompt starts the model's reasoning, whose end marker {self._end_marker!r} "
                f"is {len(token_ids)} tokens of this model instead of one, so the structured "
                "output cannot be enforced; disable the reasoning"
            )
        return token_ids[0]
