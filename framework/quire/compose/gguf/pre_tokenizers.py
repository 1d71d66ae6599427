"""Pre-tokenizers of byte-level BPE, by their names in `tokenizer.ggml.pre`.

A name stands for the regular expression of a family's tokenizer.json, and for what else that file
has and GGUF does not: its normalizer, and whether whole words of the vocabulary skip the merges.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
BEHIND_NUMBERS = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
WORD = r"[^\r\n\p{L}\p{N}]?\p{L}+"
LLAMA3 = rf"{CONTRACTIONS}|{WORD}|\p{{N}}{{1,3}}|{BEHIND_NUMBERS}"
QWEN2 = rf"{CONTRACTIONS}|{WORD}|\p{{N}}|{BEHIND_NUMBERS}"
UPPER, LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
TEKKEN = (
    rf"[^\r\n\p{{L}}\p{{N}}]?{UPPER}*{LOWER}+|[^\r\n\p{{L}}\p{{N}}]?{UPPER}+{LOWER}*|\p{{N}}|"
    r" ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
ENDED = f"{CONTRACTIONS}?"
O200K = (
    rf"[^\r\n\p{{L}}\p{{N}}]?{UPPER}*{LOWER}+{ENDED}|[^\r\n\p{{L}}\p{{N}}]?{UPPER}+{LOWER}*{ENDED}|"
    r"\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


@dataclass(frozen=True, slots=True)
class PreTokenizer:
    """What a name of `tokenizer.ggml.pre` stands for.

    Attributes:
        pattern: Regular expression whose matches are words; None: that of GPT-2.
        splits_digits: Whether each digit is a word, before the pattern counts.
        ignores_merges: Whether a word that is a token is that token, whatever the merges say.
        adds_bos: Whether a text begins with the begin-of-text token, unless the file says it.
        normalizer: Type of the normalizer; None: none.
    """

    pattern: str | None = None
    splits_digits: bool = False
    ignores_merges: bool = False
    adds_bos: bool = False
    normalizer: str | None = None

    def as_json(self) -> dict[str, Any]:
        """Return the pre-tokenizer as tokenizer.json describes it."""
        byte_level = {
            "type": "ByteLevel",
            "add_prefix_space": False,
            "trim_offsets": True,
            "use_regex": self.pattern is None,
        }
        steps = []
        if self.splits_digits:
            steps.append({"type": "Digits", "individual_digits": True})
        if self.pattern is not None:
            pattern = {"Regex": self.pattern}
            steps.append(
                {"type": "Split", "pattern": pattern, "behavior": "Isolated", "invert": False}
            )
        return {"type": "Sequence", "pretokenizers": [*steps, byte_level]}


_LLAMA3 = PreTokenizer(LLAMA3, ignores_merges=True, adds_bos=True)
_DIGITS = PreTokenizer(splits_digits=True)
PRE_TOKENIZERS = {
    "llama-bpe": _LLAMA3,
    "llama3": _LLAMA3,
    "llama-v3": _LLAMA3,
    "falcon3": _LLAMA3,
    "dbrx": PreTokenizer(LLAMA3),
    "smaug-bpe": PreTokenizer(LLAMA3),
    "glm4": PreTokenizer(LLAMA3),
    "gpt-4o": PreTokenizer(O200K, ignores_merges=True),
    "qwen2": PreTokenizer(QWEN2, normalizer="NFC"),
    "deepseek-r1-qwen": PreTokenizer(QWEN2),
    "stablelm2": PreTokenizer(QWEN2),
    "tekken": PreTokenizer(TEKKEN, ignores_merges=True, adds_bos=True),
    "smollm": _DIGITS,
    "starcoder": _DIGITS,
    "refact": _DIGITS,
    "command-r": PreTokenizer(splits_digits=True, normalizer="NFC"),
    "gpt-2": PreTokenizer(),
}
