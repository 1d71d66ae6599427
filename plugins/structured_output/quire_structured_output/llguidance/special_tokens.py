"""Special tokens in the texts of a grammar, which are matched by their ids."""

import re
from collections.abc import Mapping


class SpecialTokens:
    """Special tokens of a tokenizer.

    Args:
        ids: Text of each token -> its id.
    """

    def __init__(self, ids: Mapping[str, int]) -> None:
        self.ids = dict(ids)
        longest_first = sorted(map(re.escape, self.ids), key=len, reverse=True)
        self._pattern = re.compile(f"({'|'.join(longest_first)})") if self.ids else None

    def split(self, text: str) -> list[str | int]:
        """Return a text in parts: texts that are not empty, and ids of special tokens."""
        if self._pattern is None:
            return [text] if text else []
        return [self.ids.get(part, part) for part in self._pattern.split(text) if part]

    def others(self, used: set[int]) -> str:
        """Return the expression of one special token that is not used; empty: there is none."""
        rest = sorted(set(self.ids.values()) - used)
        return f"<[{','.join(map(str, rest))}]>" if rest else ""


NO_SPECIAL_TOKENS = SpecialTokens({})
