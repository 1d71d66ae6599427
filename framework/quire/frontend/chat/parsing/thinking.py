"""The model's reasoning: where a structured-output constraint starts, and its budget of tokens."""

from collections.abc import Sequence
from functools import cached_property

from quire.errors import GrammarError, InvalidRequestError
from quire.frontend.chat.parsing.completion_parsers import ReasoningParserChoice, ToolParserChoice
from quire.frontend.chat.parsing.marker_tokens import any_marker_tokens, marker_tokens
from quire.frontend.plugin_failure import plugin_failure
from quire.frontend.text.tokenizer import Tokenizer
from quire.messages import MarkerTokens, ThinkingBudget

NUM_LAST_TOKENS = 1024  # of a prompt without a template, searched for the start of the reasoning


class Thinking:
    """The reasoning format of a model.

    Args:
        parser: Reasoning parser in use.
        tokenizer: Tokenizer of the model.
        tools: Tool parser in use, if any.

    Attributes:
        call_openers: Markers by which calls in the reasoning begin; None: the tool parser reads
            none there, or declares no markers.
    """

    def __init__(
        self,
        parser: ReasoningParserChoice,
        tokenizer: Tokenizer,
        tools: ToolParserChoice | None = None,
    ) -> None:
        self._parser = parser
        self._tokenizer = tokenizer
        declared = parser.capabilities
        ends = _spellings(declared.end_marker, declared.end_spellings)
        starts = _spellings(declared.start_marker, declared.start_spellings)
        self._end = marker_tokens(ends, tokenizer, declared.forced_end) if ends else None
        self._start = marker_tokens(starts, tokenizer) if starts else None
        self._markers = "\n".join((*declared.markers, *starts, *ends))
        openers = () if tools is None else _openers_in_reasoning(tools)
        self.call_openers = any_marker_tokens(openers, tokenizer) if openers and ends else None

    @property
    def has_end(self) -> bool:
        """Whether the parser declares the end of the reasoning, so that a budget can force it."""
        return self._end is not None

    def end(self, opening: str | None, token_ids: list[int]) -> MarkerTokens | None:
        """Return the marker that ends the reasoning; None if the prompt does not start one.

        Args:
            opening: Text that a chat template wrote behind the conversation, or the text of the
                assistant that is continued; None: unknown.
            token_ids: Token ids of the prompt.

        Raises:
            GrammarError: The prompt starts the reasoning, and the parser declares no end of it.
            RequestFailedError: The parser failed.
        """
        if not self._is_open(opening, token_ids):
            return None
        if self._end is None:
            raise GrammarError(
                "the prompt starts the model's reasoning, and the reasoning parser declares no end "
                "marker, so the structured output cannot be enforced; disable the reasoning"
            )
        return self._end

    def budget(
        self,
        max_tokens: int,
        opening: str | None,
        token_ids: list[int],
        *,
        has_constraint: bool,
    ) -> ThinkingBudget:
        """Return the budget of a request.

        Args:
            max_tokens: Number of tokens that it may think.
            opening: The same as of `end`.
            token_ids: Token ids of the prompt.
            has_constraint: Whether the completion has a constraint without free text. If the prompt
                does not open the reasoning, it applies at once, and the completion cannot open it.

        Raises:
            InvalidRequestError: The parser declares no end of the reasoning.
            RequestFailedError: The parser failed.
        """
        if self._end is None:
            raise InvalidRequestError(
                "thinking_token_budget needs a reasoning parser that declares by which marker the "
                "model's reasoning ends",
                param="thinking_token_budget",
            )
        is_open = self._is_open(opening, token_ids)
        can_open = not (is_open or has_constraint)
        start = self._start if can_open else None
        return ThinkingBudget(max_tokens, self._end, start, is_open)

    def _is_open(self, opening: str | None, token_ids: list[int]) -> bool:
        text = self._last_turn(token_ids) if opening is None else opening
        try:
            return self._parser.parser(text).is_thinking
        except Exception as error:
            raise plugin_failure(
                error,
                self._parser.origin.part,
                "while parsing a prompt",
                subject="on this prompt",
                logged_part=self._parser.origin.logged_part,
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


def _openers_in_reasoning(tools: ToolParserChoice) -> tuple[str, ...]:
    """Return the texts by which calls in the reasoning begin."""
    declared = tools.capabilities
    return declared.call_openers if declared.calls_end_reasoning else ()


def _spellings(marker: str | None, others: Sequence[str]) -> tuple[str, ...]:
    return () if marker is None else (marker, *others)
