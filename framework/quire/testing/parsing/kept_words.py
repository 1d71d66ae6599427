"""Whether the parts that a parser returns have all words of a text, once and in order."""

from collections.abc import Iterable
from itertools import pairwise

from quire.testing.expectation import expect
from quire.testing.parsing.hostile_texts import WORD


def is_subsequence(part: str, text: str) -> bool:
    """Whether a part is what is left of a text of which characters are removed.

    Blanks are not compared, as a parser may separate two parts.
    """
    characters = iter(text)
    return all(character in characters for character in part if not character.isspace())


def check_order(part: str, text: str) -> None:
    """Check that the words of a part are in the order of the text, and none of them is twice.

    Raises:
        AssertionError: They are not; the message has the part and the text.
    """
    places = [text.index(word) for word in WORD.findall(part)]
    expect(
        all(i < j for i, j in pairwise(places)),
        f"words are repeated, or in another order, in {part!r}, which was parsed from {text!r}",
    )


def lost_words(text: str, content: str, call_ends: Iterable[int] = ()) -> list[str]:
    """Return the words that are not in the content, and not in a complete call either.

    Args:
        text: Text that was parsed.
        content: Text that the parser returned.
        call_ends: Places in the text at which calls were complete. What is before such a place, and
            behind the last word that is in the content, may be a part of the call.
    """
    ends = sorted(call_ends)
    kept = set(WORD.findall(content))
    lost: list[str] = []
    behind = len(text)  # start of the next word that is in the content
    for found in reversed(list(WORD.finditer(text))):
        if found.group() in kept:
            behind = found.start()
        elif not any(found.end() <= end <= behind for end in ends):
            lost.insert(0, found.group())
    return lost
