"""A draw knows which side of the split it is on: names and wordings kept for evaluation, or not.

Every generator takes one `Draw` and asks it for names and wordings; no generator can reach a
held-out name or wording by accident, because the draw never hands one out while training.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from random import Random
from typing import TypeVar
from zlib import crc32

from recipe.words import words

T = TypeVar("T")

_NAMES_HELD_OUT_ONE_IN = 4
_WORDINGS_HELD_OUT_ONE_IN = 6
LAST_STAGE = 4


def is_held_out_name(name: str) -> bool:
    """Whether a made-up word is kept for evaluation; upper and lower case fall together."""
    return crc32(name.lower().encode()) % _NAMES_HELD_OUT_ONE_IN == 0


def is_held_out_wording(index: int) -> bool:
    """Whether the wording at this place of its list is kept for evaluation: every sixth is."""
    return index % _WORDINGS_HELD_OUT_ONE_IN == _WORDINGS_HELD_OUT_ONE_IN - 1


@dataclass(frozen=True)
class Draw:
    """Random choices from one side of the split."""

    rng: Random
    held_out_names: bool = False
    held_out_wordings: bool = False
    stage: int = LAST_STAGE  # of the training; the earlier ones have fewer wordings and skills
    kept_words: list[str] = field(default_factory=list)  # the held-out words handed out so far

    def chance(self, probability: float) -> bool:
        """True with this probability."""
        return self.rng.random() < probability

    def one(self, options: Sequence[T]) -> T:
        """Any option, with no regard to the split."""
        return options[int(self.rng.random() * len(options))]

    def some(self, options: Sequence[T], count: int) -> list[T]:
        """Distinct options in random order."""
        return self.rng.sample(options, count)

    def integer(self, low: int, high: int) -> int:
        """An integer between the two, both included."""
        return self.rng.randint(low, high)

    def wording(self, options: Sequence[str]) -> str:
        """A wording from this draw's side of the split."""
        return self.one(self.side(options))

    def side(self, options: Sequence[str]) -> list[str]:
        """The wordings of this draw's side of the split."""
        return [
            o for i, o in enumerate(options) if is_held_out_wording(i) == self.held_out_wordings
        ]

    def word(self, max_syllables: int = 3) -> str:
        """A made-up lower-case word from this draw's side of the split."""
        if self.stage >= 3 and max_syllables == 3 and self.chance(0.15):
            max_syllables = 5
        while True:
            word = "".join(self._syllable() for _ in range(self.integer(2, max_syllables)))
            word += self._part("codas") if self.chance(0.5) else ""
            if is_held_out_name(word) != self.held_out_names:
                continue
            if self.held_out_names:
                self.kept_words.append(word)
            return word

    def name(self) -> str:
        """A made-up name; while training sometimes letters in any order."""
        if not self.held_out_names and self.chance(0.08):
            return self._letters().capitalize()
        return self.word().capitalize()

    def person(self) -> str:
        """A person's name, while training sometimes a real one."""
        if not self.held_out_names and self.chance(0.2):
            return self.one(words("real", "people"))
        return self.name()

    def place(self) -> str:
        """A city's name, while training sometimes a real one."""
        if not self.held_out_names and self.chance(0.2):
            return self.one(words("real", "places"))
        return self.name()

    def _syllable(self) -> str:
        onset = self._part("clusters" if self.chance(0.15) else "onsets")
        vowel = self._part("diphthongs" if self.chance(0.1) else "vowels")
        return onset + vowel + (self._part("codas") if self.chance(0.12) else "")

    def _part(self, kind: str) -> str:
        return self.one(words("syllables", kind))

    def _letters(self) -> str:
        while True:
            letters = "".join(
                self.one("abcdefghijklmnopqrstuvwxyzaeiouéüöñç") for _ in range(self.integer(3, 8))
            )
            if not is_held_out_name(letters):
                return letters
