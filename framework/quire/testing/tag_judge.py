"""Judge of completions by a structural tag: a direct reading of its formats, without a grammar.

For each format it computes where texts of it that begin at a position may end. It is slow, knows
nothing of tokens, and is for tests only.
"""

import re
from collections.abc import Callable
from typing import Any

Format = dict[str, Any]
Validator = Callable[[Any], Callable[[str], bool]]  # of JSON text, by a schema


def follows_tag(text: str, tag: Format, satisfies: Validator) -> bool:
    """Return whether a whole text follows a structural tag of either notation.

    Args:
        text: The completion.
        tag: The structural tag.
        satisfies: Function that returns a validator of JSON text by a schema.
    """
    given = tag.get("format") or {
        "type": "triggered_tags",
        "triggers": tag["triggers"],
        "tags": [
            {**each, "content": {"type": "json_schema", "json_schema": each["schema"]}}
            for each in tag["structures"]
        ],
    }
    return len(text) in _Judge(text, satisfies).ends(given, 0)


class _Judge:
    """Positions in one text."""

    def __init__(self, text: str, satisfies: Validator) -> None:
        self._text = text
        self._satisfies = satisfies

    def ends(self, given: Format, start: int, stops: tuple[str, ...] = ()) -> set[int]:
        """Return where texts of a format may end, and one of `stops` after them."""
        text = self._text
        rest = range(start, len(text) + 1)
        match given["type"]:
            case "const_string":
                ends = {start + len(given["value"])} if self._has(given["value"], start) else set()
            case "json_schema":
                is_valid = self._satisfies(given["json_schema"])
                ends = {end for end in rest if _is_json(text[start:end], is_valid)}
            case "regex":
                found = re.compile(given["pattern"])
                return self._stopped({e for e in rest if found.fullmatch(text, start, e)}, stops,
                                     start)  # fmt: skip
            case "any_text":
                excludes = given.get("excludes", ())
                free = {e for e in rest if not any(word in text[start:e] for word in excludes)}
                return self._stopped(free, stops, start)
            case "sequence":
                ends = {start}
                *first, last = given["elements"]
                for element in first:
                    ends = {e for begin in ends for e in self.ends(element, begin)}
                return {e for begin in ends for e in self.ends(last, begin, stops)}
            case "or":
                return {e for each in given["elements"] for e in self.ends(each, start, stops)}
            case "tag":
                ends = self._tag(given, start)
            case "tags_with_separator":
                ends = self._separated(given, start)
            case "triggered_tags":
                return self._triggered(given, start, stops)
            case kind:
                raise ValueError(f"the judge does not know the format {kind!r}")
        return self._stopped(ends, stops)

    def _has(self, word: str, at: int) -> bool:
        return self._text.startswith(word, at)

    def _stopped(
        self, ends: set[int], stops: tuple[str, ...], start: int | None = None
    ) -> set[int]:
        """Return the ends behind a stop; of text that begins at `start` it must be the first."""
        if not stops:
            return ends
        found = {end + len(stop) for end in ends for stop in stops if self._has(stop, end)}
        if start is None:
            return found
        return {end for end in found if not any(stop in self._text[start : end - 1]
                                                for stop in stops)}  # fmt: skip

    def _tag(self, tag: Format, start: int) -> set[int]:
        if not self._has(tag["begin"], start):
            return set()
        own = tag["end"]
        stops = (own,) if isinstance(own, str) else tuple(own)
        return self.ends(tag["content"], start + len(tag["begin"]), tuple(filter(None, stops)))

    def _tags(self, given: Format, start: int) -> set[int]:
        return {end for tag in given["tags"] for end in self._tag(tag, start)}

    def _separated(self, given: Format, start: int) -> set[int]:
        found = set() if given.get("at_least_one") else {start}
        waiting = list(self._tags(given, start))
        while waiting:
            end = waiting.pop()
            if end in found and end != start:
                continue
            found.add(end)
            if self._has(given["separator"], end) and not given.get("stop_after_first"):
                waiting += self._tags(given, end + len(given["separator"]))
        return found

    def _triggered(self, given: Format, start: int, stops: tuple[str, ...]) -> set[int]:
        """Read free text up to the first trigger or stop, a tag, and so on."""
        if given.get("at_least_one"):
            waiting, found = list(self._tags(given, start)), set[int]()
            if given.get("stop_after_first"):
                return self._stopped(set(waiting), stops)
        else:
            waiting, found = [start], set[int]()
        while waiting:
            found_ends, tags = self._chunk(given, waiting.pop(), stops)
            found |= found_ends
            if given.get("stop_after_first"):
                found |= self._stopped(tags, stops)
            else:
                waiting += tags
        return found

    def _chunk(
        self, given: Format, start: int, stops: tuple[str, ...]
    ) -> tuple[set[int], set[int]]:
        """Return where free text may end for good, and where a tag after it may end."""
        text, words = self._text, (*given["triggers"], *stops)
        hits = [
            (text.find(word, start) + len(word), word) for word in words if word in text[start:]
        ]
        end, word = min(hits, default=(len(text) + 1, ""))
        free = text[start : end - len(word)]
        if any(each in free for each in given.get("excludes", ())):
            return set(), set()
        if word in stops:
            return {end}, set()
        finals = set() if stops else set(range(start, min(end, len(text) + 1)))
        return finals, self._tags(given, end - len(word)) if word else set()


def _is_json(text: str, is_valid: Callable[[str], bool]) -> bool:
    try:
        return text == text.strip() and is_valid(text)
    except ValueError:
        return False
