"""The model's reasoning: where a structured-output constraint starts, and its budget of tokens."""

from collections.abc import Collection
from functools import cached_property

from quire.errors import GrammarError, InvalidRequestError
from quire.frontend.chat.completion_parsers import ReasoningParserChoice
from quire.frontend.plugin_failure import plugin_failure
from quire.frontend.text.tokenizer import Tokenizer
from quire.messages import ThinkingBudget

NUM_LAST_TOKENS = 1024  # of a prompt without a template, searched for the start of the reasoning


class Thinking:
    """The reasoning format of a model.

    Args:
        parser: Reasoning parser in use.
        end_marker: Text that ends the reasoning, if the parser declares it.
        tokenizer: Tokenizer of the model.
        start_marker: Text by which a completion opens the reasoning, if the parser declares it.
        markers: All texts with special tokens that the parser reads.
    """

    def __init__(
        self,
        parser: ReasoningParserChoice,
        end_marker: str | None,
        tokenizer: Tokenizer,
        start_marker: str | None = None,
        markers: Collection[str] = (),
    ) -> None:
        self._parser = parser
        self._end_marker = end_marker
        self._tokenizer = tokenizer
        self._start_marker = start_marker
        self._markers = "\n".join(filter(None, (*markers, start_marker, end_marker)))

    @cached_property
    def has_end_token(self) -> bool:
        """Whether one token ends the reasoning, so that a budget can force it."""
        return self._token_id(self._end_marker) is not None

    def end_token_id(self, opening: str | None, token_ids: list[int]) -> int | None:
        """Return the token that ends the reasoning; None if the prompt does not start one.

        Args:
            opening: Text that a chat template wrote behind the conversation, or the text of the
                assistant that is continued; None: unknown.
            token_ids: Token ids of the prompt.

        Raises:
            GrammarError: The prompt starts the reasoning, and no single token ends it.
            RequestFailedError: The parser failed.
        """
        return self._marker_id() if self._is_open(opening, token_ids) else None

    def budget(
        self, max_tokens: int, opening: str | None, token_ids: list[int], *, has_constraint: bool
    ) -> ThinkingBudget:
        """Return the budget of a request.

        Args:
            max_tokens: Number of tokens that it may think.
            opening: The same as of `end_token_id`.
            token_ids: Token ids of the prompt.
            has_constraint: Whether the completion has a constraint. If the prompt does not open the
                reasoning, the constraint applies at once, and the completion cannot open it.

        Raises:
            InvalidRequestError: No single token ends the reasoning.
            RequestFailedError: The parser failed.
        """
        end = self._token_id(self._end_marker)
        if end is None:
            raise InvalidRequestError(
                f"thinking_token_budget needs an end of the model's reasoning that is one token; "
                f"that of the reasoning parser is {self._end_marker!r}",
                param="thinking_token_budget",
            )
        is_open = self._is_open(opening, token_ids)
        can_open = not (is_open or has_constraint)
        start = self._token_id(self._start_marker) if can_open else None
        return ThinkingBudget(max_tokens, end, start, is_open)

    def _is_open(self, opening: str | None, token_ids: list[int]) -> bool:
        text = self._last_turn(token_ids) if opening is None else opening
        try:
            return self._parser.parser(text).is_thinking
        except Exception as error:
            raise plugin_failure(
                error,
                f"plugin {self._parser.source}",
                "while parsing a prompt",
                subject="on this prompt",
            ) from error

    def _last_turn(self, token_ids: list[int]) -> str:
        """Return the end of a prompt, from its last special token that is not a marker on."""
        last = token_ids[-NUM_LAST_TOKENS:]
        start = next((at for at in range(len(last) - 1, -1, -1) if last[at] in self._ends), 0)
        return self._tokenizer.decode(last[start:], skip_special_tokens=False)

    @cached_property
    def _ends(self) -> frozenset[int]:
        """The special tokens that no marker has, which separate turns."""
        tokenizer = self._tokenizer
        token_ids = tokenizer.special_token_ids.union(tokenizer.eos_token_ids)
        return frozenset(i for i in token_ids if tokenizer.token_text(i) not in self._markers)

    def _token_id(self, marker: str | None) -> int | None:
        """Return the token that is a marker; None if none is."""
        if marker is None:
            return None
        token_ids = self._tokenizer.encode(marker, add_special_tokens=False)
        return token_ids[0] if len(token_ids) == 1 else None

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
