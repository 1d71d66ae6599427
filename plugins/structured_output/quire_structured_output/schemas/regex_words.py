"""Words of a regex, where they are so few that all of them are listed names."""

from __future__ import annotations

from collections.abc import Callable, Collection

from quire.errors import GrammarError
from quire_structured_output.schemas.ecma_regex import CharacterClass, Group, Item, Parser, merged

MAX_PAIRS = 40_000  # of words that are joined for one regex
PAIRS_CHARGED = 16  # for which one unit of work is charged
OPENING, CLOSING = "^(?:", ")$"


def listed_words(
    regex: str, names: Collection[str], charge: Callable[[int], None]
) -> list[str] | None:
    """Return the names that a regex matches if it matches no other text.

    Args:
        regex: Regex as `anchored_match` writes it.
        names: Listed names, each once; the words have their order.
        charge: Function that is called with the work; it may raise.

    Returns:
        The words of the regex; None if it matches other texts, too, or if that takes too much work
        to find out.
    """
    if not names:
        return None
    inner = regex.removeprefix(OPENING).removesuffix(CLOSING).replace("\\x{", "\\u{")
    words = _Words(len(names), max(map(len, names)))
    try:
        found = words.group(Parser(inner, "a written expression").parse())
    except _OtherWordsError:
        return None
    finally:
        charge(1 + words.num_pairs // PAIRS_CHARGED)
    listed = [name for name in names if name in found]
    return listed if len(listed) == len(found) else None


class _OtherWordsError(GrammarError):
    """A regex has more words than there are names, or longer ones."""

    def __init__(self) -> None:
        super().__init__("a regular expression matches other names than those that are listed")


class _Words:
    """Words of the parts of a regex: at most `most`, and none longer than `longest`.

    The words of a sequence are no fewer and no shorter than those of its parts, so that the limits
    hold for these, too.

    Attributes:
        num_pairs: Number of words that were joined.
    """

    def __init__(self, most: int, longest: int) -> None:
        self._most = most
        self._longest = longest
        self.num_pairs = 0

    def group(self, group: Group) -> set[str]:
        """Return the words of a group.

        Raises:
            _OtherWordsError: There are too many, or too long ones.
        """
        found: set[str] = set()
        for items in group.alternatives:
            words = {""}
            for item in items:
                words = self._joined(words, self._item(item))
            found |= words
            if len(found) > self._most:
                raise _OtherWordsError
        return found

    def _item(self, item: Item) -> set[str]:
        if item.high == 0:
            return {""}
        once = self._once(item.what)
        if once == {""}:
            return once
        if item.high is None:
            raise _OtherWordsError
        found = {""}
        for _ in range(item.low):
            found = self._joined(found, once)
        for _ in range(item.high - item.low):
            found |= self._joined(found, once)
        return found

    def _once(self, what: CharacterClass | Group | str) -> set[str]:
        if isinstance(what, Group):
            return self.group(what)
        if isinstance(what, str) or what.categories:
            raise _OtherWordsError
        ranges = merged(what.ranges)
        if sum(high - low + 1 for low, high in ranges) > self._most:
            raise _OtherWordsError
        return {chr(code) for low, high in ranges for code in range(low, high + 1)}

    def _joined(self, befores: set[str], afters: set[str]) -> set[str]:
        self.num_pairs += len(befores) * len(afters)
        if self.num_pairs > MAX_PAIRS:
            raise _OtherWordsError
        found = {before + after for before in befores for after in afters}
        if len(found) > self._most or max(map(len, found)) > self._longest:
            raise _OtherWordsError
        return found
