"""Encoding of a text in pieces that no special token spans.

The pieces are not tokenized one by one, which would also end all other tokens at their ends. In a
copy of the tokenizer every special token has a secret spelling, and the spellings within pieces
are replaced by it. So the tokens are those of the whole text, as with `split_special_tokens` of
transformers, but for the special tokens that a piece has.
"""

import json
import re
import secrets
from collections.abc import Sequence
from typing import Any

import tokenizers

BRACKET = "\U000f0000"  # private use: no normalizer changes it, no pre-tokenizer splits there


class PieceEncoder:
    """A copy of a tokenizer whose special tokens have secret spellings.

    Args:
        tokenizer: Tokenizer to copy; its post-processor is left out.
        special_tokens: Special tokens by their ids.
    """

    def __init__(self, tokenizer: tokenizers.Tokenizer, special_tokens: dict[int, str]) -> None:
        key = secrets.token_hex(16)
        self._secret = {
            token: f"{BRACKET}{key}{token_id}{BRACKET}"
            for token_id, token in special_tokens.items()
        }
        self._copy = tokenizers.Tokenizer.from_str(json.dumps(self._renamed(tokenizer)))
        longest_first = sorted(self._secret, key=len, reverse=True)
        self._pattern = re.compile("|".join(map(re.escape, longest_first)) or "(?!)")

    def encode(self, pieces: Sequence[str]) -> list[int]:
        """Return the ids of the joined pieces."""
        text = "".join(self._pattern.sub(self._spell_secretly, piece) for piece in pieces)
        (encoding,) = self._copy.encode_batch_fast([text], add_special_tokens=False)
        ids: list[int] = encoding.ids
        return ids

    def _spell_secretly(self, match: re.Match[str]) -> str:
        return self._secret[match.group()]

    def _renamed(self, tokenizer: tokenizers.Tokenizer) -> dict[str, Any]:
        """Return the description of the tokenizer with the secret spellings."""
        description: dict[str, Any] = json.loads(tokenizer.to_str())
        description["post_processor"] = None
        for token in description["added_tokens"]:
            token["content"] = self._secret.get(token["content"], token["content"])
        model = description["model"]
        model["vocab"] = self._renamed_vocabulary(model["vocab"])
        if model.get("merges"):
            model["merges"] = [pair for pair in model["merges"] if not self._is_special(pair)]
        if model.get("unk_token"):
            model["unk_token"] = self._secret.get(model["unk_token"], model["unk_token"])
        return description

    def _renamed_vocabulary(self, vocabulary: Any) -> Any:
        """Return the model's own tokens: it must not find a special token by itself either."""
        if isinstance(vocabulary, dict):
            return {self._secret.get(token, token): index for token, index in vocabulary.items()}
        return [[self._secret.get(token, token), score] for token, score in vocabulary]

    def _is_special(self, pair: list[str] | str) -> bool:
        """Return whether a merge of BPE makes a special token, or has one as a part."""
        parts = pair if isinstance(pair, list) else pair.split(" ")
        return not self._secret.keys().isdisjoint([*parts, "".join(parts)])
