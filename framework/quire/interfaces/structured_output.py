"""The interface of a structured-output backend: grammars that a completion must follow.

Backends run in separate processes that can be killed, because a client's regex may take forever.
The host sends grammars and sampled tokens to them, reads bitmasks from shared memory, and enforces
limits of time and memory. A backend must refuse what it does not support and name it in the error;
it must not silently ignore a keyword.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from quire.errors import GrammarError

if TYPE_CHECKING:
    from quire.sampling_params import StructuredOutputsParams


@dataclass(frozen=True, slots=True)
class GrammarCapabilities:
    """Capabilities of a backend, declared at registration.

    Attributes:
        constraints: Supported constraints, any of json, json_object, regex, choice, grammar,
            structural_tag, calls, and calls_in_text: calls with `triggers`.
        priority: Place in `auto`, the highest first: the first backend whose `check` accepts a
            constraint compiles it. None: the backend is used only where it is named.
    """

    constraints: frozenset[str]
    priority: int | None = None


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """The model's tokens as bytes.

    Attributes:
        tokens: Bytes -> ids of the tokens with these bytes; special tokens are left out.
        eos_token_ids: Ids of end-of-sequence tokens, allowed where the grammar may end.
        size: V, the length of a row of logits.
        special_tokens: Text -> id of special tokens, EOS tokens aside. Masks allow none, except
            where the text of a tool call contains one: there it is matched by its id.
    """

    tokens: Mapping[bytes, Sequence[int]]
    eos_token_ids: tuple[int, ...]
    size: int
    special_tokens: Mapping[str, int] = field(default_factory=dict)


class Matcher(ABC):
    """State of one request in its grammar."""

    @abstractmethod
    def accept(self, token_id: int) -> bool:
        """Advance by one sampled token; return False, unchanged, if the grammar forbids it."""

    @abstractmethod
    def fill_bitmask(self, words: memoryview) -> None:
        """Write the mask of allowed next tokens: bit v % 32 of int32 word v // 32 is token v's."""

    @abstractmethod
    def rollback(self, num_tokens: int) -> None:
        """Undo the last `num_tokens` accepted tokens."""

    @abstractmethod
    def is_finished(self) -> bool:
        """Return whether only the end of the completion may follow."""


class CompiledGrammar(ABC):
    """A compiled grammar, for any number of requests."""

    @abstractmethod
    def matcher(self) -> Matcher:
        """Return a matcher at the grammar's start."""

    def packed(self) -> bytes | None:
        """Return the grammar as bytes that `load` of its backend reads; None: it cannot be sent.

        A grammar that can be sent, and that compiled with little time and memory, is matched in one
        process with others. So pack only what loads quickly and whose masks take a bounded time.
        """
        return None


class StructuredOutputBackend(ABC):
    """Compiles grammars for one vocabulary."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self.vocabulary = vocabulary

    @classmethod
    @abstractmethod
    def check(cls, params: StructuredOutputsParams) -> None:
        """Validate the grammar without compiling it; must be quick and safe.

        Raises:
            GrammarError: A part of it is not supported; the message names the part.
        """

    @abstractmethod
    def compile(self, params: StructuredOutputsParams) -> CompiledGrammar:
        """Compile a grammar that `check` has accepted.

        Raises:
            GrammarError: It cannot be compiled.
        """

    def load(self, packed: bytes) -> CompiledGrammar:
        """Return the grammar that `packed` wrote, in another process.

        Raises:
            GrammarError: This backend packs no grammars.
        """
        del packed
        raise GrammarError("this backend loads no grammars, because it packs none")
