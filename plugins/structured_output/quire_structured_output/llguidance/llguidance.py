"""Structured-output backend on llguidance: JSON schemas and context-free grammars, by a parser.

A grammar is parsed while the completion is generated, so that compiling it is quick whatever the
vocabulary, and a grammar may be recursive. llguidance is lenient in places: what it would read
otherwise than its author, or ignore, is rewritten or refused before it sees a grammar. Every
constraint becomes a grammar in its own dialect of Lark, JSON schemas in normal form.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from ctypes import addressof, c_char
from dataclasses import dataclass
from typing import Any

from llguidance import LLMatcher, LLParserLimits, LLTokenizer, TokenizerWrapper

from quire.errors import GrammarError
from quire.interfaces.structured_output import (
    CompiledGrammar,
    Matcher,
    StructuredOutputBackend,
    Vocabulary,
)
from quire.interfaces.tool_parsing import CallGrammar, CallShape
from quire.sampling_params import StructuredOutputsParams
from quire_structured_output.choices import check_choice
from quire_structured_output.gbnf.gbnf_lark import lark_of_gbnf
from quire_structured_output.llguidance.lark_syntax import check_length, checked_lark, is_gbnf
from quire_structured_output.llguidance.lark_writing import in_slashes, json_part, literal
from quire_structured_output.llguidance.special_tokens import NO_SPECIAL_TOKENS, SpecialTokens
from quire_structured_output.llguidance.structural_tag import lark_of_tag
from quire_structured_output.llguidance.tool_calls import lark_of_calls
from quire_structured_output.regex_syntax import check_regex, check_text, without_anchors
from quire_structured_output.schemas.listed_arrays import with_listed_arrays
from quire_structured_output.schemas.schema_normal_form import normal_form
from quire_structured_output.unique.unique_items import OctetTokenizer, UniqueGrammar, UniqueItems
from quire_structured_output.unique.unique_places import UniqueSchema
from quire_structured_output.unique.unique_tokens import UniqueTokens

PARSER_LIMITS = LLParserLimits(
    max_items_in_row=2_000,
    initial_lexer_fuel=1_000_000,
    step_lexer_fuel=200_000,
    step_max_items=50_000,
    max_lexer_states=250_000,
    max_grammar_size=500_000,
    verbose_errors=False,
)


class LLGuidanceBackend(StructuredOutputBackend):
    """JSON schema, any JSON object, regex, choice, context-free grammars and tool calls."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        super().__init__(vocabulary)
        if not vocabulary.eos_token_ids:
            raise GrammarError(
                "structured output needs an EOS token to end a completion, and the model has none"
            )
        self._tokenizer = LLTokenizer(
            TokenizerWrapper(_Tokens(vocabulary)), eos_token=list(vocabulary.eos_token_ids)
        )
        self._special_tokens = SpecialTokens(vocabulary.special_tokens)
        self._unique_tokens = UniqueTokens(vocabulary.tokens)  # before processes are forked
        self._same = [ids for ids in vocabulary.tokens.values() if len(ids) > 1]

    @classmethod
    def check(cls, params: StructuredOutputsParams) -> None:
        """Check the grammar without compiling it.

        Raises:
            GrammarError: A part of it is not supported; the message names it.
        """
        _grammar_of(params, NO_SPECIAL_TOKENS)

    def compile(self, params: StructuredOutputsParams) -> CompiledGrammar:
        """Compile the grammar; most of the work is done while it is matched.

        Raises:
            GrammarError: The grammar cannot be compiled; the message has the reason.
        """
        grammar = _grammar_of(params, self._special_tokens)
        try:
            matcher = self._start(grammar.text)
        except GrammarError:
            self._check_each(() if params.calls is None else params.calls.shapes)
            raise
        if warnings := matcher.get_grammar_warnings():
            raise GrammarError(f"the grammar is ambiguous: {_first_line('; '.join(warnings))}")
        unique = None if grammar.places is None else self._unique(grammar.text, grammar.places)
        packed = grammar.text.encode() if unique is None else None
        return LLGuidanceGrammar(matcher, self.vocabulary, unique, self._same, packed)

    def load(self, packed: bytes) -> CompiledGrammar:
        """Return a grammar that was compiled elsewhere, from its text."""
        start = self._start(packed.decode())
        return LLGuidanceGrammar(start, self.vocabulary, same=self._same, packed=packed)

    def _check_each(self, shapes: Sequence[CallShape]) -> None:
        """Compile the calls of each tool alone.

        Raises:
            GrammarError: One cannot be compiled; the message names the tool.
        """
        for shape in shapes:
            alone = StructuredOutputsParams(calls=CallGrammar((shape,)))
            try:
                self._start(_grammar_of(alone, self._special_tokens).text)
            except GrammarError as error:
                message = f"the parameters of the tool {shape.tool!r:.80}: {error}"
                raise GrammarError(message) from error

    def _start(self, text: str) -> LLMatcher:
        matcher = LLMatcher(self._tokenizer, text, log_level=0, limits=PARSER_LIMITS)
        if matcher.is_error():
            raise GrammarError(
                f"the grammar cannot be compiled: {_first_line(matcher.get_error())}"
            )
        return matcher

    def _unique(self, text: str, places: UniqueSchema) -> UniqueGrammar:
        def start() -> LLMatcher:
            octets = OctetTokenizer().build()
            return LLMatcher(octets, text, log_level=0, limits=PARSER_LIMITS)

        return UniqueGrammar(places, self._unique_tokens, start)


class LLGuidanceGrammar(CompiledGrammar):
    """A compiled grammar, copied for each matcher.

    Args:
        start: Matcher at the start; never advanced.
        vocabulary: The model's tokens.
        unique: What its unique arrays need; None if it has none.
        same: Ids of tokens that have the same bytes.
        packed: The grammar as `load` reads it. None if an array has unique items: the time of its
            masks depends on the completion, so it is matched alone.
    """

    def __init__(
        self,
        start: LLMatcher,
        vocabulary: Vocabulary,
        unique: UniqueGrammar | None = None,
        same: Sequence[Sequence[int]] = (),
        packed: bytes | None = None,
    ) -> None:
        self._start = start
        self._packed = packed
        self.vocabulary = vocabulary
        self.unique = unique
        self.octets: dict[int, bytes] = {}
        if unique is not None:
            self.octets = {i: token for token, ids in vocabulary.tokens.items() for i in ids}
        self.same = same

    def matcher(self) -> Matcher:
        """Return a matcher at the start."""
        return LLGuidanceMatcher(self, self._start.deep_copy())

    def packed(self) -> bytes | None:
        """Return the grammar's text, from which it compiles anew in milliseconds."""
        return self._packed


class LLGuidanceMatcher(Matcher):
    """State of one completion. EOS tokens are counted here, and not passed on."""

    def __init__(self, grammar: LLGuidanceGrammar, matcher: LLMatcher) -> None:
        self._grammar = grammar
        self._matcher = matcher
        self._num_ends = 0
        self._unique = None if grammar.unique is None else UniqueItems(grammar.unique)

    def accept(self, token_id: int) -> bool:
        """Accept one sampled token; return False if the grammar does not allow it."""
        vocabulary = self._grammar.vocabulary
        if token_id in vocabulary.eos_token_ids:
            may_end = self._num_ends > 0 or self._matcher.is_accepting()
            self._num_ends += may_end
            return may_end
        if self._num_ends or not 0 <= token_id < vocabulary.size:
            return False
        if self._matcher.try_consume_tokens([token_id]) != 1:
            self._check_limits()
            return False
        if self._unique is not None and not self._unique.accept(self._grammar.octets[token_id]):
            self._matcher.rollback(1)
            return False
        return True

    def fill_bitmask(self, words: memoryview) -> None:
        """Write the bitmask of the tokens that may follow.

        Raises:
            GrammarError: The grammar has become too complex for the limits of the parser, or an
                array of unique items needs another item, and each that it may have is a repetition.
        """
        octets = words.cast("B")
        if self._num_ends or self._matcher.is_stopped():
            octets[:] = bytes(words.nbytes)
        else:
            array = (c_char * words.nbytes).from_buffer(words)
            self._matcher.unsafe_compute_mask_ptr(addressof(array), words.nbytes)
        self._check_limits()
        if self._unique is not None and not self._num_ends:
            for token_ids in self._unique.forbidden(octets):
                for token_id in token_ids:
                    _set_bit(octets, token_id, False)
        may_end = self._num_ends > 0 or self._matcher.is_accepting()
        for token_id in self._grammar.vocabulary.eos_token_ids:
            _set_bit(octets, token_id, may_end)
        for ids in self._grammar.same:
            is_allowed = any(octets[i // 8] >> i % 8 & 1 for i in ids)
            for token_id in ids:
                _set_bit(octets, token_id, is_allowed)
        if self._unique is not None and not any(octets):
            raise GrammarError(
                "the grammar cannot be followed: an array with 'uniqueItems' needs another item, "
                "and each that its schema allows would be a repetition"
            )

    def _check_limits(self) -> None:
        if not self._matcher.is_error():
            return
        reason = _first_line(self._matcher.get_error())
        if "NoExtensionBias" in reason:
            reason = "it allows no text here, or the model has no tokens for it, and it may not end"
        raise GrammarError(f"the grammar cannot be followed: {reason}")

    def rollback(self, num_tokens: int) -> None:
        """Undo the last accepted tokens."""
        ends = min(self._num_ends, num_tokens)
        self._num_ends -= ends
        if num_tokens > ends:
            self._matcher.rollback(num_tokens - ends)
            if self._unique is not None:
                self._unique.rollback(num_tokens - ends)

    def is_finished(self) -> bool:
        """Return whether only an EOS token may follow."""
        return self._num_ends > 0 or bool(self._matcher.is_stopped())


class _Tokens:
    """The vocabulary, as llguidance reads it; every id without bytes is a special token."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self.eos_token_id = vocabulary.eos_token_ids[0]
        self.bos_token_id = None
        self.tokens = [b""] * vocabulary.size
        for token, ids in vocabulary.tokens.items():
            for token_id in ids:
                self.tokens[token_id] = token
        for token_id in vocabulary.eos_token_ids:
            self.tokens[token_id] = f"<|eos {token_id}|>".encode()
        for text, token_id in vocabulary.special_tokens.items():
            self.tokens[token_id] = text.encode()
        self.special_token_ids = [*vocabulary.eos_token_ids, *vocabulary.special_tokens.values()]
        self._ids = {token: ids[0] for token, ids in vocabulary.tokens.items()}

    def __call__(self, text: bytes) -> list[int]:
        """Tokenize a text in single bytes; needed to build the tokenizer, not for masks."""
        octets = text if isinstance(text, bytes) else text.encode()
        return [self._ids[bytes([octet])] for octet in octets if bytes([octet]) in self._ids]


@dataclass(frozen=True, slots=True)
class _Grammar:
    """A grammar in llguidance's form, and where its arrays of unique items are."""

    text: str
    places: UniqueSchema | None = None


def _grammar_of(params: StructuredOutputsParams, special_tokens: SpecialTokens) -> _Grammar:
    """Return the grammar of a constraint; quick and safe for any constraint.

    Args:
        params: The constraint.
        special_tokens: Special tokens of the tokenizer, for calls.

    Raises:
        GrammarError: A part of it is not supported; the message names it.
    """
    if params.json is not None:
        schema = normal_form(params.json)
        places = UniqueSchema(schema)
        text = _lark(f"start: {json_part(schema)}")
        return _Grammar(text, None if places.root is None else places)
    return _Grammar(_other_grammar(params, special_tokens))


def _other_grammar(params: StructuredOutputsParams, special_tokens: SpecialTokens) -> str:
    if params.json_object:
        return _lark(f"start: {json_part({'type': 'object'})}")
    if params.regex is not None:
        check_regex(params.regex, "the regex")
        return _lark(f"start: /{in_slashes(without_anchors(params.regex))}/")
    if params.choice is not None:
        check_choice(params.choice)
        return _lark(f"start: {' | '.join(map(literal, params.choice))}")
    if params.calls is not None:
        form = _form_beside_text(Counter())
        return _lark(lark_of_calls(params.calls, form, special_tokens))
    if params.structural_tag is not None:
        return _lark(lark_of_tag(params.structural_tag, _form_beside_text(Counter())))
    return _lark(_context_free(params.grammar or ""))


def _lark(text: str) -> str:
    """Return a grammar that allows every tokenization of its texts, and not only the usual one."""
    return str(LLMatcher.grammar_from_lark(f'%llguidance {{"no_forcing": true}}\n{text}'))


def _context_free(text: str) -> str:
    """Return a grammar of a client in Lark's dialect; GBNF is translated."""
    check_length(text)
    check_text(text, "the grammar")
    if is_gbnf(text):
        return lark_of_gbnf(text)
    return checked_lark(text, _form_beside_text(Counter()))


def _form_beside_text(spent: Counter[str]) -> Callable[[Any], dict[str, Any]]:
    """Return a function for the normal forms of the schemas of one constraint with other text."""

    def normal(schema: dict[str, Any] | str | bool) -> dict[str, Any]:
        found = with_listed_arrays(normal_form(schema, spent), spent)
        if UniqueSchema(found).root is not None:
            raise GrammarError(
                "no backend supports 'uniqueItems' in JSON with text around it, unless the items "
                "are an enum of up to ten values"
            )
        return found

    return normal


def _set_bit(octets: memoryview, token_id: int, is_set: bool) -> None:
    bit = 1 << token_id % 8
    octets[token_id // 8] = octets[token_id // 8] & ~bit | (bit if is_set else 0)


def _first_line(message: str) -> str:
    return next(iter(message.strip().splitlines()), "no reason is given")[:500]
