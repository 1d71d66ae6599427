"""Ways to cut a text into deltas."""

import random
from collections.abc import Iterator, Sequence

Deltas = list[str]


def pairs(text: str) -> Iterator[Deltas]:
    """Yield every split of a text in two."""
    for cut in range(1, len(text)):
        yield [text[:cut], text[cut:]]


def cut_at(text: str, places: Sequence[int]) -> Deltas:
    """Return a text cut at places in ascending order; a place twice gives an empty delta."""
    return [text[i:j] for i, j in zip([0, *places], [*places, len(text)], strict=True)]


def random_cuts(text: str, chance: random.Random) -> Deltas:
    """Return a text cut at random places: a few of them, or many."""
    num_cuts = chance.choice([1, 2, 3, chance.randint(0, len(text))])
    return cut_at(text, sorted(chance.randint(0, len(text)) for _ in range(num_cuts)))


def in_groups(deltas: Sequence[str], chance: random.Random) -> Deltas:
    """Return deltas of which some are joined with the next ones: several tokens a delta."""
    groups: list[str] = []
    start = 0
    while start < len(deltas):
        end = start + chance.randint(1, 5)
        groups.append("".join(deltas[start:end]))
        start = end
    return groups


def of_length(text: str, length: int) -> Deltas:
    """Return a text in deltas of one length."""
    return [text[start : start + length] for start in range(0, len(text), length)]
