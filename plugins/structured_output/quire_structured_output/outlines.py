"""Every grammar is a regular expression, and outlines_core's index says which tokens may follow.

outlines_core determinizes for searches as well: it lets a match begin at every byte of the text.
Where the expression can begin again inside itself (a string that holds an escaped quote), that
doubles the automaton with each repetition: minutes and gigabytes for a string of at most 20
characters. So each expression begins with a NUL, which nothing behind it can match, and a matcher
starts behind that NUL: then there is one place to begin.

Only `outlines_core` is imported. The `outlines` package would load transformers and its disk
cache, which reads pickles; nothing of it is needed here.
"""

import re
from ctypes import addressof, c_int32
from functools import cached_property

from outlines_core import Guide, Index
from outlines_core import Vocabulary as CoreVocabulary

from quire.errors import GrammarError
from quire.interfaces.structured_output import (
    CompiledGrammar,
    Matcher,
    StructuredOutputBackend,
    Vocabulary,
)
from quire.sampling_params import StructuredOutputsParams
from quire_structured_output.json_schema import any_object_regex, schema_regex
from quire_structured_output.regex_syntax import (
    check_regex,
    check_text,
    without_anchors,
    without_nul,
)

MAX_CHOICES = 2_000
MAX_CHOICE_LENGTH = 128 * 1024  # of all choices together
MAX_ROLLBACK = 1 << 20  # tokens; as long as any answer
START = r"\x00"  # begins every expression; the token that spells it is no token of the model
NEEDS_ESCAPE = frozenset({*range(0x20), ord('"'), ord("\\")})  # in a JSON string


class OutlinesBackend(StructuredOutputBackend):
    """JSON schema, any JSON object, regex and choice."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        super().__init__(vocabulary)
        if not vocabulary.eos_token_ids:
            raise GrammarError("the model has no end-of-text token, so no grammar could ever end")
        tokens = {token: list(ids) for token, ids in vocabulary.tokens.items() if token}
        tokens.setdefault(b"\0", []).append(vocabulary.size)
        self._core = CoreVocabulary(vocabulary.eos_token_ids[0], tokens)

    @classmethod
    def check(cls, params: StructuredOutputsParams) -> None:
        """Look at the grammar without compiling it.

        Raises:
            GrammarError: A part of it cannot be honoured; the message names it.
        """
        if params.json is not None:
            schema_regex(params.json)
        elif params.regex is not None:
            check_regex(params.regex, "the regex")
        elif params.choice is not None:
            _check_choice(params.choice)
        elif params.grammar is not None:
            raise GrammarError("the outlines backend has no context-free grammars: use json, regex")

    def compile(self, params: StructuredOutputsParams) -> CompiledGrammar:
        """Build the index: for each state of the automaton, the tokens that may follow.

        Raises:
            GrammarError: It cannot be built; the message says why.
        """
        self.check(params)
        return OutlinesGrammar(_index(self._expression(params), self._core), self.vocabulary)

    def _expression(self, params: StructuredOutputsParams) -> str:
        """Return an expression that begins with `START`."""
        if params.regex is not None:
            return _started(without_anchors(params.regex))
        if params.choice is not None:
            return f"{START}(?:{'|'.join(re.escape(choice) for choice in params.choice)})"
        if params.json is None:
            return START + any_object_regex()
        translated = schema_regex(params.json)
        for path, pattern in translated.patterns:
            self._check_pattern(path, pattern)
        return START + translated.expression

    def _check_pattern(self, path: str, pattern: str) -> None:
        """Refuse a pattern that matches what a JSON string must escape, by its own automaton."""
        index = _index(_started(pattern), self._bytes, f"'pattern' at {path}")
        start = index.get_initial_state()
        transitions = index.get_transitions().items()
        used = {byte for state, follows in transitions if state != start for byte in follows}
        if used & NEEDS_ESCAPE:
            raise GrammarError(
                f"'pattern' at {path} may match a double quote, a backslash or a control "
                r"character, which JSON would have to escape; rule them out, as in [^\"\\\x00-\x1f]"
            )

    @cached_property
    def _bytes(self) -> CoreVocabulary:
        return CoreVocabulary(256, {bytes([byte]): [byte] for byte in range(256)})


class OutlinesGrammar(CompiledGrammar):
    """An index, shared by all its matchers."""

    def __init__(self, index: Index, vocabulary: Vocabulary) -> None:
        self.index = index
        self.eos_token_ids = vocabulary.eos_token_ids
        self.size = vocabulary.size
        self._ends: dict[int, bool] = {}

    def is_end(self, state: int) -> bool:
        """Whether a state is final and nothing leads on from it; looked up once a state."""
        if state not in self._ends:
            is_final = self.index.is_final_state(state)
            self._ends[state] = is_final and len(self.index.get_allowed_tokens(state) or ()) <= 1
        return self._ends[state]

    def matcher(self) -> Matcher:
        """Return a matcher at the start."""
        return OutlinesMatcher(self)


class OutlinesMatcher(Matcher):
    """A walk over the index. End-of-text tokens are counted here; the index knows only one."""

    def __init__(self, grammar: OutlinesGrammar) -> None:
        self._grammar = grammar
        self._guide = Guide(grammar.index, MAX_ROLLBACK)
        self._guide.advance(grammar.size, False)  # behind START
        self._num_ends = 0

    def accept(self, token_id: int) -> bool:
        """Take one drawn token; False if the grammar does not allow it."""
        if token_id in self._grammar.eos_token_ids:
            if not self._guide.is_finished():
                return False
            self._num_ends += 1
            return True
        if self._num_ends or not 0 <= token_id < self._grammar.size:
            return False
        state = self._guide.get_state()
        if self._grammar.index.get_next_state(state, token_id) is None:
            return False
        self._guide.advance(token_id, False)
        return True

    def fill_bitmask(self, words: memoryview) -> None:
        """Write which tokens may follow."""
        array = (c_int32 * (words.nbytes // 4)).from_buffer(words)
        if self._num_ends:
            words.cast("B")[:] = bytes(words.nbytes)
        else:
            self._guide.write_mask_into(addressof(array), len(array), 4)
        if self._guide.is_finished():
            for token_id in self._grammar.eos_token_ids:
                array[token_id // 32] |= _signed(1 << token_id % 32)
        if self._grammar.size < 32 * len(array):  # the token of START, in a grammar with NUL
            array[self._grammar.size // 32] &= ~_signed(1 << self._grammar.size % 32)

    def rollback(self, num_tokens: int) -> None:
        """Take back the last accepted tokens."""
        ends = min(self._num_ends, num_tokens)
        self._num_ends -= ends
        if num_tokens > ends:
            self._guide.rollback_state(num_tokens - ends)

    def is_finished(self) -> bool:
        """Whether nothing but the end of the answer may follow."""
        return self._num_ends > 0 or self._grammar.is_end(self._guide.get_state())


def _check_choice(choices: tuple[str, ...]) -> None:
    if not choices:
        raise GrammarError("choice is empty; give at least one string")
    if not all(isinstance(choice, str) for choice in choices):
        raise GrammarError("choice takes strings only")
    if len(choices) > MAX_CHOICES or sum(map(len, choices)) > MAX_CHOICE_LENGTH:
        raise GrammarError(
            f"choice takes at most {MAX_CHOICES} strings of {MAX_CHOICE_LENGTH} characters together"
        )
    for choice in choices:
        check_text(choice, "choice")


def _started(expression: str) -> str:
    return f"{START}(?:{without_nul(expression)})"


def _index(expression: str, vocabulary: CoreVocabulary, what: str = "the grammar") -> Index:
    try:
        return Index(expression, vocabulary)
    except ValueError as error:
        raise GrammarError(f"{what} cannot be compiled: {_reason(str(error))}") from None


def _reason(message: str) -> str:
    """Say in plain words what outlines_core means."""
    if "anchored universal start state" in message:
        return "^, $ and other anchors are possible only at its two ends"
    if "error building NFA" in message:
        return "it is not a valid regular expression in the syntax of Rust's regex crate"
    if "incompatible with the regex" in message:
        return "nothing matches it, or the model's tokens cannot spell what does"
    return message.splitlines()[0]


def _signed(word: int) -> int:
    return word - (1 << 32) if word >= 1 << 31 else word
