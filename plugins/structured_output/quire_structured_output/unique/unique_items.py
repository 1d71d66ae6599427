"""`uniqueItems`: what no grammar can say, a reader of the text adds.

A parser of grammars does not compare one item with another. So the completion is read along, and a
token is taken out of the mask if it would complete an item that the array has already, or if
nothing but such items could follow. What could follow is asked of the same grammar, over single
bytes: as long as a text goes along the beginning of an earlier item, some byte must lead off it.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from ctypes import addressof, c_char
from functools import cached_property

from llguidance import LLMatcher, LLTokenizer, TokenizerWrapper

from quire.errors import GrammarError
from quire_structured_output.unique.unique_places import UniqueSchema
from quire_structured_output.unique.unique_text import (
    BLANK,
    NAME_STRING,
    NUMBER,
    STRING,
    VALUE,
    Frame,
    TextState,
    UniqueText,
    digits,
)
from quire_structured_output.unique.unique_tokens import (
    ESCAPED,
    IN_STRING,
    NUMBER_STARTS,
    OUTSIDE,
    UniqueTokens,
)

NUM_OCTETS = 256
MASK_BYTES = 36  # of the bytes and an EOS token
MIN_BUDGET = 200  # bytes that a search for a way out reads
MAX_BUDGET = 5_000
NEW = b"\x01"  # no string of JSON has it
MAX_WAYS = 4  # that are remembered of an array


class OctetTokenizer:
    """A vocabulary of the single bytes, in which a grammar is asked what may follow."""

    eos_token_id = NUM_OCTETS
    bos_token_id = None
    special_token_ids = (NUM_OCTETS,)

    def __init__(self) -> None:
        self.tokens = [*(bytes([octet]) for octet in range(NUM_OCTETS)), b"<|eos|>"]

    def __call__(self, text: bytes | str) -> list[int]:
        """Tokenize a text; needed to build the tokenizer."""
        return list(text if isinstance(text, bytes) else text.encode())

    def build(self) -> LLTokenizer:
        """Return the tokenizer of the parser."""
        return LLTokenizer(TokenizerWrapper(self), eos_token=[NUM_OCTETS])


class UniqueGrammar:
    """What a grammar with unique arrays has in common for all completions.

    Args:
        schema: The places of its arrays.
        tokens: The tokens by what they may do.
        build: Function that returns the grammar over single bytes, at the start.
    """

    def __init__(
        self, schema: UniqueSchema, tokens: UniqueTokens, build: Callable[[], LLMatcher]
    ) -> None:
        self.schema = schema
        self.tokens = tokens
        self._build = build

    @cached_property
    def start(self) -> LLMatcher:
        """The grammar over single bytes, at the start; never advanced."""
        return self._build()


class UniqueItems:
    """The state of one completion whose arrays may have unique items."""

    def __init__(self, grammar: UniqueGrammar) -> None:
        self._tokens = grammar.tokens
        self._text = UniqueText()
        self._states = [TextState(None, grammar.schema.root)]  # after each token
        self._lengths = [0]  # of the completion, in bytes
        self._parser = _OctetParser(grammar)
        self._harmless: set[bytes] = set()  # tails of tokens, after the current string
        self._string: tuple[Frame | None, int] = None, VALUE  # to which they belong

    def accept(self, token: bytes) -> bool:
        """Read a token that the grammar allows; return False if no unique items could follow."""
        state = self._state_after(token)
        if state is None:
            return False
        self._states.append(state)
        self._parser.text += token
        self._lengths.append(len(self._parser.text))
        return True

    def rollback(self, num_tokens: int) -> None:
        """Undo the last accepted tokens."""
        kept = len(self._states) - num_tokens
        del self._states[kept:]
        del self._lengths[kept:]
        self._parser.cut(self._lengths[-1])

    def forbidden(self, octets: memoryview) -> Iterator[Sequence[int]]:
        """Yield the ids of tokens in a bitmask that repeat an item, or after which one must."""
        state = self._states[-1]
        found: set[bytes] = set()
        if state.mode in (STRING, NAME_STRING) and not state.is_escaped and _is_recorded(state):
            found.update(self._with_harmful_tails(state, octets))
        for token in itertools.chain(found, self._candidates(state)):
            ids = self._tokens.ids[token]
            if _is_allowed(octets, ids) and self._state_after(token) is None:
                yield ids

    def _state_after(self, token: bytes) -> TextState | None:
        """Return the state after a token; None: it cannot become a text with unique items."""
        state = self._text.feed(self._states[-1], token)
        if state is None or not self._is_at_risk(state) or self._has_known_way(state):
            return state
        self._parser.read(token)
        has_way = self._find_way(state)
        self._parser.undo(len(token))
        return self._text.feed(self._states[-1], token) if has_way else None

    # --- what may do harm ---------------------------------------------------------------------

    def _candidates(self, state: TextState) -> Iterator[bytes]:
        """Yield tokens to look at, beside those with tails."""
        if not _is_recorded(state):
            yield from self._tokens.whole
        elif state.mode in (STRING, NAME_STRING):
            yield from self._in_string(state)
        elif state.mode == NUMBER:
            yield from self._tokens.in_number
            yield from self._number_tokens(state)
        else:
            yield from self._tokens.outside
            yield from self._number_tokens(state)
            for frame in state.open_items():
                texts = self._like(frame, state)
                yield from self._tokens.along(texts, state.length - frame.start, OUTSIDE)

    def _in_string(self, state: TextState) -> Iterator[bytes]:
        """Yield the tokens that go along an earlier item, a string in one, or a way out."""
        mode = ESCAPED if state.is_escaped else IN_STRING
        if state.is_escaped:  # so that a quote does not end the string
            yield from self._tokens.odd
            for tokens in self._tokens.tails.values():
                yield from tokens
        for frame in state.open_items():
            begun = self._text.recorded(frame, state)
            if frame.items is not None:
                strings = frame.items.strings_beginning_with(state.raw, frame.count)
                yield from self._tokens.along(strings, len(state.raw), mode)
                ways = {way for way in frame.items.ways if way.startswith(begun)} - {begun}
                yield from self._tokens.along(sorted(ways), len(begun), mode)
            yield from self._tokens.along(self._like(frame, state), len(begun), mode)

    def _number_tokens(self, state: TextState) -> Iterator[bytes]:
        """Yield the tokens of digits that go along the numbers of earlier items."""
        if state.mode in (NUMBER, VALUE):
            for frame in state.open_items():
                depth = state.length - frame.start
                numbers = {digits(text[depth:]) for text in self._like(frame, state)}
                yield from self._tokens.digits_along(state.raw, numbers)

    def _with_harmful_tails(self, state: TextState, octets: memoryview) -> Iterator[bytes]:
        """Yield the allowed tokens that end a string, and whose rest may do harm.

        What the rest does is the same for all strings but those that go along earlier ones or along
        a way out; so it is found out once a string, for a string that is new.
        """
        ways = [way for frame in state.open_items() if frame.items for way in frame.items.ways]
        text = b"".join(self._text.recorded(frame, state) for frame in state.open_items())
        is_on_way = any(way in text for way in ways)
        if self._string[0] is not state.frame or self._string[1] != state.mode or is_on_way:
            self._harmless = set()
            self._string = state.frame, state.mode
        for tail, tokens in self._tokens.tails.items():
            if tail in self._harmless:
                continue
            allowed = [token for token in tokens if _is_allowed(octets, self._tokens.ids[token])]
            depends_on_name = state.mode == NAME_STRING and b"[" in tail
            if allowed and not depends_on_name and self._is_harmless(state, allowed[0], tail):
                self._harmless.add(tail)
            else:
                yield from allowed

    def _is_harmless(self, state: TextState, token: bytes, tail: bytes) -> bool:
        """Return whether a tail does no harm after a new string.

        Args:
            state: State in a string.
            token: Token with the tail that the grammar allows.
            tail: What the token has after the end of the string.
        """
        end = NEW + b'"' + tail
        following = self._text.feed(state, end)
        if following is None:
            return False
        if not self._is_at_risk(following) or self._has_known_way(following):
            return True
        self._parser.read(token)
        has_way = self._find_way(following)
        self._parser.undo(len(token))
        following = self._text.feed(state, end)
        return has_way and following is not None and self._has_known_way(following)

    def _like(self, frame: Frame, state: TextState) -> list[bytes]:
        """Return the earlier items that begin like the current one."""
        if frame.items is None:
            return []
        return frame.items.beginning_with(self._text.recorded(frame, state), frame.count)

    def _is_at_risk(self, state: TextState) -> bool:
        """Return whether a current item may still become an earlier one."""
        return any(self._may_repeat(frame, state) for frame in state.open_items())

    def _may_repeat(self, frame: Frame, state: TextState) -> bool:
        texts = self._like(frame, state)
        if state.mode != NUMBER:
            return bool(texts)
        depth, begun = state.length - frame.start, digits(state.raw)
        return any(
            text[depth] in NUMBER_STARTS and digits(text[depth:]).startswith(begun)
            for text in texts
        )

    # --- ways out -----------------------------------------------------------------------------

    def _has_known_way(self, state: TextState) -> bool:
        """Return whether a way that was found before leads from here to an item that is new."""
        risks = [frame for frame in state.open_items() if self._may_repeat(frame, state)]
        frame = risks[0]
        if len(risks) > 1 or state.mode == NUMBER or frame.items is None:
            return False
        begun = self._text.recorded(frame, state)
        return any(
            way.startswith(begun) and not frame.items.beginning_with(way, frame.count)
            for way in frame.items.ways
        )

    def _find_way(self, state: TextState) -> bool:
        """Return whether some text leads to a state without risk, as far as a search can tell."""
        risks = [frame for frame in state.open_items() if self._may_repeat(frame, state)]
        lengths = sum(len(text) for frame in risks for text in self._like(frame, state))
        budget = min(MAX_BUDGET, MIN_BUDGET + lengths)
        stack = [(state, self._step(state, risks))]
        while stack:
            at, octets = stack[-1]
            if octets is None:
                self._parser.undo(len(stack) - 1)
                return True
            if not octets or budget == 0:
                stack.pop()
                self._parser.undo(1 if stack else 0)
                continue
            octet = bytes([octets.pop()])
            following = self._text.feed(at, octet)
            if following is not None:
                budget -= 1
                self._parser.read(octet)
                stack.append((following, self._step(following, risks)))
        return False

    def _step(self, state: TextState, risks: list[Frame]) -> list[int] | None:
        """Return the bytes after which a risk remains; None: after one there is none."""
        is_string = state.mode in (STRING, NAME_STRING)
        risky = []
        for octet in reversed(self._parser.allowed()):  # the first are those of usual texts
            if octet == BLANK and not is_string:
                continue
            following = self._text.feed(state, bytes([octet]))
            if following is None:
                continue
            if not self._is_at_risk(following):
                self._remember(risks, following)
                return None
            risky.append(octet)
        return risky

    def _remember(self, risks: list[Frame], state: TextState) -> None:
        """Remember how an item begins that is not among the earlier ones."""
        if len(risks) > 1 or state.mode == NUMBER:
            return
        for frame in state.open_items():
            is_same = frame.items is risks[0].items and frame.count == risks[0].count
            is_plain = frame.is_array and frame.place is not None and frame.place.is_plain
            if is_same and is_plain and frame.items is not None:
                ways = frame.items.ways
                ways.append(self._text.recorded(frame, state))
                del ways[:-MAX_WAYS]


def _is_recorded(state: TextState) -> bool:
    return state.frame is not None and state.frame.is_recorded


def _is_allowed(octets: memoryview, ids: Sequence[int]) -> bool:
    for i in ids:  # noqa: SIM110 - the usual case is one id, and this is called for many tokens
        if octets[i >> 3] >> (i & 7) & 1:
            return True
    return False


class _OctetParser:
    """The grammar over single bytes, which is advanced only when it is asked.

    Attributes:
        text: The completion.
    """

    def __init__(self, grammar: UniqueGrammar) -> None:
        self._grammar = grammar
        self._matcher: LLMatcher | None = None
        self._num_read = 0  # of the text
        self._mask = bytearray(MASK_BYTES)
        self.text = bytearray()

    def cut(self, length: int) -> None:
        """Forget the end of the completion."""
        if self._matcher is not None and self._num_read > length:
            self._matcher.rollback(self._num_read - length)
            self._num_read = length
        del self.text[length:]

    def read(self, octets: bytes) -> None:
        """Read bytes that may follow the completion, until they are undone.

        Raises:
            GrammarError: The grammar has become too complex for the limits of the parser.
        """
        matcher = self._following()
        if matcher.try_consume_tokens(list(octets)) != len(octets):
            raise GrammarError(f"the grammar cannot be followed: {matcher.get_error()[:500]}")

    def undo(self, num_octets: int) -> None:
        """Undo the last bytes that were read."""
        if num_octets:
            self._following().rollback(num_octets)

    def allowed(self) -> list[int]:
        """Return the bytes that may follow."""
        array = (c_char * MASK_BYTES).from_buffer(self._mask)
        self._following().unsafe_compute_mask_ptr(addressof(array), MASK_BYTES)
        mask = int.from_bytes(self._mask[: NUM_OCTETS // 8], "little")
        return [octet for octet in range(NUM_OCTETS) if mask >> octet & 1]

    def _following(self) -> LLMatcher:
        """Return the parser after the completion; what was read ahead is kept."""
        if self._matcher is None:
            self._matcher = self._grammar.start.deep_copy()
        behind = self.text[self._num_read :]
        if behind:
            self._matcher.try_consume_tokens(list(behind))
            self._num_read = len(self.text)
        return self._matcher
