"""The interface of a structured-output backend: grammars that the answer must follow.

Backends run in a process of their own, which can be killed: a client's regex may take for ever. The
host sends it grammars and the tokens that were drawn, and reads bitmasks from shared memory; limits
of time and memory are the host's. A backend refuses, by name, what it cannot honour: a keyword that
would silently be ignored is an error.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from quire.sampling_params import StructuredOutputsParams


@dataclass(frozen=True, slots=True)
class GrammarCapabilities:
    """What a backend declares at registration.

    Attributes:
        constraints: Any of json, json_object, regex, choice, grammar, calls.
    """

    constraints: frozenset[str]


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """The model's tokens as bytes.

    Attributes:
        tokens: Bytes -> the ids that stand for them; special tokens are left out.
        eos_token_ids: Ids that end an answer; allowed where the grammar may end.
        size: V, the length of a row of logits.
    """

    tokens: Mapping[bytes, Sequence[int]]
    eos_token_ids: tuple[int, ...]
    size: int


class Matcher(ABC):
    """Where one request stands in its grammar."""

    @abstractmethod
    def accept(self, token_id: int) -> bool:
        """Take one drawn token; False if the grammar does not allow it, and nothing changes."""

    @abstractmethod
    def fill_bitmask(self, words: memoryview) -> None:
        """Write which tokens may follow: bit v of int32 word v // 32 says whether token v may."""

    @abstractmethod
    def rollback(self, num_tokens: int) -> None:
        """Take back the last `num_tokens` accepted tokens."""

    @abstractmethod
    def is_finished(self) -> bool:
        """Whether nothing but the end of the answer may follow."""


class CompiledGrammar(ABC):
    """A grammar, ready for any number of requests."""

    @abstractmethod
    def matcher(self) -> Matcher:
        """Return a matcher at the grammar's start."""


class StructuredOutputBackend(ABC):
    """Compiles grammars for one vocabulary."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self.vocabulary = vocabulary

    @classmethod
    @abstractmethod
    def check(cls, params: StructuredOutputsParams) -> None:
        """Look at the grammar without compiling it; quick, safe, no vocabulary.

        Raises:
            GrammarError: A part of it cannot be honoured; the message names it.
        """

    @abstractmethod
    def compile(self, params: StructuredOutputsParams) -> CompiledGrammar:
        """Compile a grammar that `check` let pass.

        Raises:
            GrammarError: It cannot be compiled.
        """
