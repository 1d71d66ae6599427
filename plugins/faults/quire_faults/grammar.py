"""Structured-output backend for choices that injects faults into checks, compiling and masks."""

from bisect import bisect_left

from quire.errors import GrammarError
from quire.interfaces.structured_output import (
    CompiledGrammar,
    Matcher,
    StructuredOutputBackend,
    Vocabulary,
)
from quire.sampling_params import StructuredOutputsParams
from quire_faults.injection import injection


class FaultyGrammars(StructuredOutputBackend):
    """Backend that compiles a choice to the sorted list of its strings."""

    @classmethod
    def check(cls, params: StructuredOutputsParams) -> None:
        """Check that the constraint is a choice.

        Raises:
            GrammarError: It is another one, or it has no strings.
        """
        injection().reach("grammar.check")
        if not params.choice:
            raise GrammarError("the backend 'faults' supports choice, with at least one string")

    def compile(self, params: StructuredOutputsParams) -> CompiledGrammar:
        """Return the choice as bytes."""
        injection().reach("grammar.compile")
        return Choice(self.vocabulary, [text.encode() for text in params.choice or ()])


class Choice(CompiledGrammar):
    """The strings of a choice."""

    def __init__(self, vocabulary: Vocabulary, choices: list[bytes]) -> None:
        self.vocabulary = vocabulary
        self.choices = sorted(set(choices))
        self.bytes_of = {i: text for text, ids in vocabulary.tokens.items() for i in ids}

    def matcher(self) -> Matcher:
        """Return a matcher in front of the first byte."""
        return ChoiceMatcher(self)


class ChoiceMatcher(Matcher):
    """The bytes of one request, which are the beginning of a choice.

    Args:
        choice: The choice.
    """

    def __init__(self, choice: Choice) -> None:
        self._choice = choice
        self._texts = [b""]  # after each accepted token
        self._has_ended = [False]

    def accept(self, token_id: int) -> bool:
        """Advance by a token."""
        injection().reach("grammar.accept")
        text = self._texts[-1]
        if token_id in self._choice.vocabulary.eos_token_ids:
            if text not in self._choice.choices:
                return False
            self._push(text, has_ended=True)
            return True
        longer = text + self._choice.bytes_of.get(token_id, b"")
        if self._has_ended[-1] or longer == text or not self._begins(longer):
            return False
        self._push(longer, has_ended=False)
        return True

    def fill_bitmask(self, words: memoryview) -> None:
        """Allow the tokens that continue a choice, and the end after a whole one."""
        fault = injection().reach("grammar.mask")
        octets = words.cast("B")  # little-endian words: bit v is bit v % 8 of byte v // 8
        octets[:] = bytes(words.nbytes)
        if fault == "corrupt":
            return
        for token_id in self._allowed():
            octets[token_id // 8] |= 1 << token_id % 8

    def rollback(self, num_tokens: int) -> None:
        """Undo accepted tokens."""
        length = len(self._texts) - num_tokens
        del self._texts[length:], self._has_ended[length:]

    def is_finished(self) -> bool:
        """Return whether only the end may follow."""
        text = self._texts[-1]
        longer = [c for c in self._choice.choices if c.startswith(text) and c != text]
        return text in self._choice.choices and not longer

    def _push(self, text: bytes, *, has_ended: bool) -> None:
        self._texts.append(text)
        self._has_ended.append(has_ended)

    def _allowed(self) -> list[int]:
        vocabulary, text = self._choice.vocabulary, self._texts[-1]
        if self._has_ended[-1]:
            return list(vocabulary.eos_token_ids)
        allowed = [
            token_id
            for token, ids in vocabulary.tokens.items()
            if token and self._begins(text + token)
            for token_id in ids
        ]
        if text in self._choice.choices:
            allowed += vocabulary.eos_token_ids
        return allowed

    def _begins(self, text: bytes) -> bool:
        """Return whether a choice begins with these bytes."""
        choices = self._choice.choices
        index = bisect_left(choices, text)
        return index < len(choices) and choices[index].startswith(text)
