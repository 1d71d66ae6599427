"""Texts that no model should generate, made of the fragments of a format, and repeatable.

A text has words that occur nowhere else, so that a word that is lost, repeated or out of order is
seen whatever the format is.
"""

import random
import re
from collections.abc import Iterator, Sequence

# What breaks readers of JSON, of Python values and of tags. No lone surrogates: a tokenizer has
# none, but escapes of them.
COMMON = (
    "{", "}", "[", "]", "(", ")", "<", ">", "</", "/>", "|", "<|", "|>", ":", ",", ";", "=",
    '"', "'", '"""', "```", "```json", "\\", '\\"', "\\n", "\\u00", "\\u00e9", "\\ud800",
    "\\ud83d\\ude00", '{"name": "f"', '"arguments": ', '"parameters": {', "{}", "{}}", '{"a": 1}',
    '{"a": 1, "a": 2}', "null", "None", "True", "true", "NaN", "Infinity", "1e999", "-1", "01",
    "f(", "f(a=1)", "f(a='", "=x)", "from=1", "\n", "\n\n", "\r\n", " ", "\t", "\x00", "\x1b[0m",
    "\x7f", "\u2028", "\ufeff", "\u202e", "\u00a0", "é", "e\u0301", "\U0001f469\u200d\U0001f467",
    "\uff5c", "[" * 60, "{" * 60, '{"a":' * 70, "[[" * 120, "n" * 700, "9" * 400, "<![CDATA[",
)  # fmt: skip
WORD = re.compile(r"wörd\d+x")


class HostileTexts:
    """A repeatable sequence of texts.

    Args:
        texts: Completions of the format, of which parts are taken.
        fragments: Fragments of the format.
        seed: Number of the sequence.
    """

    def __init__(self, texts: Sequence[str], fragments: Sequence[str], seed: int = 0) -> None:
        self._texts = [text for text in texts if text] or [""]
        self._fragments = fragments or COMMON
        self._chance = random.Random(seed)
        self._num_words = 0

    def first(self, count: int) -> Iterator[str]:
        """Yield the next texts."""
        for _ in range(count):
            yield self._text()

    def _text(self) -> str:
        self._num_words = 0
        return "".join(self._part() for _ in range(self._chance.randint(1, 14)))

    def _part(self) -> str:
        chance = self._chance
        kind = chance.random()
        if kind < 0.2:
            return self._word()
        if kind < 0.4:
            return self._piece_of_a_text()
        return chance.choice(self._fragments if kind < 0.8 else COMMON)

    def _word(self) -> str:
        self._num_words += 1
        blank = self._chance.choice(["", " ", "\n"])
        return f"{blank}wörd{self._num_words}x{self._chance.choice(['', ' '])}"

    def _piece_of_a_text(self) -> str:
        """Return a completion, its beginning, its end, or all of it but a part."""
        text = self._chance.choice(self._texts)
        start, end = sorted(self._chance.randint(0, len(text)) for _ in range(2))
        return self._chance.choice([text, text[:end], text[start:], text[:start] + text[end:]])
