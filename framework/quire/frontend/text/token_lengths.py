"""How many characters one token can stand for: a text that is far too long need not be tokenized.

It is known where each character of a text becomes tokens, or parts of tokens: of byte-level BPE,
and of BPE that writes unknown characters as bytes. It is not known where a tokenizer drops text, or
has one token for an unknown word of any length.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import tokenizers

from quire.frontend.text.byte_spelling import byte_level_alphabet, flat_steps

SHRINKS = {  # by how much each normalizer may divide the number of characters
    "ByteLevel": 1,
    "Lowercase": 1,
    "Metaspace": 1,
    "NFC": 4,  # a letter and three marks become one character
    "NFD": 1,
    "NFKC": 4,
    "NFKD": 1,
    "Prepend": 1,
}
_WHITE_SPACE = re.compile(r"\s+")
KEEPING = ("ByteLevel", "Digits", "Metaspace", "UnicodeScripts")  # pre-tokenizers that drop nothing


@dataclass(frozen=True, slots=True)
class TokenLengths:
    """How long tokens are.

    Attributes:
        max_characters: How many characters one token can stand for at most; None: it is not known.
        strips: Whether a special token takes the white space beside it, of any length.
    """

    max_characters: int | None
    strips: bool = False

    @classmethod
    def of(cls, tokenizer: tokenizers.Tokenizer) -> TokenLengths:
        """Return the lengths of a tokenizer's tokens."""
        added = tokenizer.get_added_tokens_decoder().values()
        strips = any(token.lstrip or token.rstrip for token in added)
        return cls(_max_characters(tokenizer), strips)

    def least_tokens(self, text: str) -> int:
        """Return a number of tokens that a text has at least; 0 if that is not known."""
        if self.max_characters is None:
            return 0
        num_characters = len(_WHITE_SPACE.sub("", text) if self.strips else text)
        return -(-num_characters // self.max_characters)


def _max_characters(tokenizer: tokenizers.Tokenizer) -> int | None:
    normalizers = _parts(tokenizer.normalizer, "normalizers")
    pre_tokenizers = _parts(tokenizer.pre_tokenizer, "pretokenizers")
    factors = list(map(_shrinks, normalizers))
    if None in factors or not all(map(_keeps_text, pre_tokenizers)):
        return None
    tokens = tokenizer.get_vocab(with_added_tokens=True)
    is_byte_level = any(part["type"] == "ByteLevel" for part in (*normalizers, *pre_tokenizers))
    if not _has_all_bytes(tokenizer.model, tokens, is_byte_level=is_byte_level):
        return None
    return math.prod(factor for factor in factors if factor) * max(map(len, tokens))


def _parts(component: Any, field: str) -> list[dict[str, Any]]:
    """Return the parts of a normalizer or pre-tokenizer, as `tokenizer.json` describes them."""
    if component is None:
        return []
    # Its pickled state is JSON; serializing the whole tokenizer takes 100 ms.
    return list(flat_steps(json.loads(component.__getstate__()), field))


def _shrinks(part: dict[str, Any]) -> int | None:
    if part["type"] != "Replace":
        return SHRINKS.get(part["type"])
    replaced = part["pattern"].get("String")
    return 1 if replaced is not None and len(part["content"]) >= len(replaced) else None


def _keeps_text(part: dict[str, Any]) -> bool:
    if part["type"] in ("Split", "Punctuation"):
        return bool(part["behavior"] != "Removed")
    return part["type"] in KEEPING


def _has_all_bytes(model: Any, tokens: Mapping[str, int], *, is_byte_level: bool) -> bool:
    """Return whether the model has a token for each byte: it never drops or joins unknown text."""
    if not isinstance(model, tokenizers.models.BPE):
        return False
    if is_byte_level:
        return set(byte_level_alphabet()) <= set(tokens)
    has_fallback: bool = model.byte_fallback
    return has_fallback and all(f"<0x{byte:02X}>" in tokens for byte in range(256))
