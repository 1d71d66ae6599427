"""Structured-output backend on outlines_core: each grammar is a regular expression with an index.

Two properties of outlines_core need a workaround: a NUL before and after each expression, whose
token ids are the EOS tokens of the model. A matcher starts after the first NUL, and a completion
may end where the second one is allowed. No other token has a NUL in it, and no expression matches
one.

* outlines_core determinizes the automaton for searches, so a match may begin at every byte. If an
  expression can begin again inside itself (a string with an escaped quote), each repetition
  doubles the automaton: minutes and gigabytes for a string of at most 20 characters. With the NUL
  a match begins only once.
* From a state where the text may end, outlines_core drops tokens that lead to a state where it may
  not: after `1`, the `.` of 1.5. With the NUL no text ends before it.

Only `outlines_core` is imported. The `outlines` package is not needed; it would load transformers
and a disk cache that reads pickles.
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
from quire_structured_output.choices import check_choice
from quire_structured_output.outlines.call_regex import calls_regex, check_special_tokens
from quire_structured_output.outlines.json_schema import any_object_regex, schema_regex
from quire_structured_output.regex_syntax import (
    check_regex,
    without_anchors,
    without_nul,
)

MAX_ROLLBACK = 1 << 20  # tokens; more than any completion has
END = r"\x00"  # before and after every expression
NEEDS_ESCAPE = frozenset({*range(1, 0x20), ord('"'), ord("\\")})  # in a JSON string


class OutlinesBackend(StructuredOutputBackend):
    """JSON schema, any JSON object, regex, choice and tool calls."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        super().__init__(vocabulary)
        if not vocabulary.eos_token_ids:
            raise GrammarError(
                "structured output needs an EOS token to end a completion, and the model has none"
            )
        tokens = {token: list(ids) for token, ids in vocabulary.tokens.items() if _is_text(token)}
        tokens[b"\0"] = list(vocabulary.eos_token_ids)
        self._core = CoreVocabulary(vocabulary.size, tokens)

    @classmethod
    def check(cls, params: StructuredOutputsParams) -> None:
        """Check the grammar without compiling it.

        Raises:
            GrammarError: A part of it is not supported; the message names it.
        """
        if params.json is not None:
            schema_regex(params.json)
        elif params.regex is not None:
            check_regex(params.regex, "the regex")
        elif params.choice is not None:
            check_choice(params.choice)
        elif params.calls is not None:
            calls_regex(params.calls)
        elif params.grammar is not None:
            raise GrammarError(
                "the outlines backend does not support context-free grammars; use json or regex"
            )

    def compile(self, params: StructuredOutputsParams) -> CompiledGrammar:
        """Build the index: for each state of the automaton, the tokens that may follow.

        Raises:
            GrammarError: The grammar cannot be compiled; the message has the reason.
        """
        self.check(params)
        return OutlinesGrammar(_index(self._expression(params), self._core), self.vocabulary)

    def _expression(self, params: StructuredOutputsParams) -> str:
        if params.regex is not None:
            return _delimited(without_nul(without_anchors(params.regex)))
        if params.choice is not None:
            return _delimited("|".join(re.escape(choice) for choice in params.choice))
        if params.calls is not None:
            check_special_tokens(params.calls, self.vocabulary.special_tokens)
            translated = calls_regex(params.calls)
        elif params.json is not None:
            translated = schema_regex(params.json)
        else:
            return _delimited(any_object_regex())
        for path, pattern in translated.patterns:
            self._check_pattern(path, pattern)
        return _delimited(translated.expression)

    def _check_pattern(self, path: str, pattern: str) -> None:
        """Refuse a pattern whose automaton accepts characters that a JSON string must escape."""
        index = _index(_delimited(pattern), self._bytes, f"'pattern' at {path}")
        used = {byte for follows in index.get_transitions().values() for byte in follows}
        if used & NEEDS_ESCAPE:
            raise GrammarError(
                f"'pattern' at {path} may match a double quote, a backslash or a control "
                r"character, which JSON must escape; exclude them, as in [^\"\\\x00-\x1f]"
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

    def may_end(self, state: int) -> bool:
        """Return whether the completion may end in a state."""
        return self.index.get_next_state(state, self.eos_token_ids[0]) is not None

    def must_end(self, state: int) -> bool:
        """Return whether only EOS tokens may follow; cached per state."""
        if state not in self._ends:
            num_allowed = len(self.index.get_allowed_tokens(state) or ())
            self._ends[state] = self.may_end(state) and num_allowed == len(self.eos_token_ids)
        return self._ends[state]

    def matcher(self) -> Matcher:
        """Return a matcher at the start."""
        return OutlinesMatcher(self)


class OutlinesMatcher(Matcher):
    """State of one completion in the index. EOS tokens are counted here; the index has only one."""

    def __init__(self, grammar: OutlinesGrammar) -> None:
        self._grammar = grammar
        self._guide = Guide(grammar.index, MAX_ROLLBACK)
        self._guide.advance(grammar.eos_token_ids[0], False)  # after the first NUL
        self._num_ends = 0

    def accept(self, token_id: int) -> bool:
        """Accept one sampled token; return False if the grammar does not allow it."""
        state = self._guide.get_state()
        if token_id in self._grammar.eos_token_ids:
            may_end = self._grammar.may_end(state)
            self._num_ends += may_end
            return may_end
        if self._num_ends or not 0 <= token_id < self._grammar.size:
            return False
        if self._grammar.index.get_next_state(state, token_id) is None:
            return False
        self._guide.advance(token_id, False)
        return True

    def fill_bitmask(self, words: memoryview) -> None:
        """Write the bitmask of the tokens that may follow."""
        array = (c_int32 * (words.nbytes // 4)).from_buffer(words)
        if not self._num_ends:
            self._guide.write_mask_into(addressof(array), len(array), 4)
            return
        words.cast("B")[:] = bytes(words.nbytes)
        for token_id in self._grammar.eos_token_ids:
            array[token_id // 32] |= _signed(1 << token_id % 32)

    def rollback(self, num_tokens: int) -> None:
        """Undo the last accepted tokens."""
        ends = min(self._num_ends, num_tokens)
        self._num_ends -= ends
        if num_tokens > ends:
            self._guide.rollback_state(num_tokens - ends)

    def is_finished(self) -> bool:
        """Return whether only an EOS token may follow."""
        return self._num_ends > 0 or self._grammar.must_end(self._guide.get_state())


def _is_text(token: bytes) -> bool:
    return len(token) > 0 and 0 not in token


def _delimited(expression: str) -> str:
    return f"{END}(?:{expression}){END}"


def _index(expression: str, vocabulary: CoreVocabulary, what: str = "the grammar") -> Index:
    try:
        return Index(expression, vocabulary)
    except ValueError as error:
        raise GrammarError(f"{what} cannot be compiled: {_plain_reason(str(error))}") from None


def _plain_reason(message: str) -> str:
    """Return the reason of an outlines_core error in plain words."""
    if "error building NFA" in message:
        return "it is not a valid regular expression in the syntax of Rust's regex crate"
    if "incompatible with the regex" in message:
        return "nothing matches it, or no sequence of the model's tokens does"
    return message.splitlines()[0]


def _signed(word: int) -> int:
    return word - (1 << 32) if word >= 1 << 31 else word
