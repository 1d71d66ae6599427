"""Where a form begins: at once, or behind the thinking that the prompt has opened."""

import logging

from quire.errors import GrammarError, RequestFailedError
from quire.frontend.chat.completion_parser import ParserChoice
from quire.frontend.text.tokenizer import Tokenizer
from quire.interfaces.reasoning import ReasoningParser

logger = logging.getLogger(__name__)

NUM_LAST_TOKENS = 64  # of a prompt that came as tokens: what opens the thinking is at its end


class Thinking:
    """How a model thinks.

    Args:
        parser: The reasoning parser in use.
        end_marker: The text that ends the thinking, if the parser says so.
        tokenizer: The model's.
    """

    def __init__(
        self, parser: ParserChoice[ReasoningParser], end_marker: str | None, tokenizer: Tokenizer
    ) -> None:
        self._parser = parser
        self._end_marker = end_marker
        self._tokenizer = tokenizer

    def end_token_id(self, text: str | None, token_ids: list[int]) -> int | None:
        """Return the token behind which a form begins; None if the prompt opened no thinking.

        Args:
            text: The prompt, if it came as text.
            token_ids: The prompt.

        Raises:
            GrammarError: The thinking is open, and nothing says where it ends.
            RequestFailedError: The parser failed.
        """
        if text is None:
            text = self._tokenizer.decode(token_ids[-NUM_LAST_TOKENS:], skip_special_tokens=False)
        return self._marker_id() if self._is_open(text) else None

    def _is_open(self, text: str) -> bool:
        try:
            return self._parser.parser(text).is_thinking
        except Exception as error:
            logger.exception("plugin %s failed to look at a prompt", self._parser.source)
            raise RequestFailedError(
                f"plugin {self._parser.source} failed on this prompt; the log says how"
            ) from error

    def _marker_id(self) -> int:
        if self._end_marker is None:
            raise GrammarError(
                "the prompt opens the model's thinking, and the reasoning parser does not say what "
                "ends it, so no form can be kept; switch the thinking off"
            )
        token_ids = self._tokenizer.encode(self._end_marker, add_special_tokens=False)
        if len(token_ids) != 1:
            raise GrammarError(
                f"the prompt opens the model's thinking, and {self._end_marker!r}, which ends it, "
                f"is {len(token_ids)} tokens of this model instead of one, so no form can be kept; "
                "switch the thinking off"
            )
        return token_ids[0]
