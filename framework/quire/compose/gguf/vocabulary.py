"""The tokens of a GGUF file: their texts, types and scores, and the special ones among them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from quire.compose.gguf.header import GgufHeader, StoredArray
from quire.errors import CheckpointCorruptError

PREFIX = "tokenizer.ggml."
NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(1, 7)
SPECIAL_IDS = {
    "bos_token": "bos_token_id",
    "eos_token": "eos_token_id",
    "pad_token": "padding_token_id",
    "unk_token": "unknown_token_id",
}
ENDS = ("eos_token_id", "eot_token_id", "eom_token_id")
# Control tokens that end a turn, by their texts: most files name only one of them by its id.
END_TEXTS = frozenset(
    {"<|eot_id|>", "<|eom_id|>", "<|im_end|>", "<|end|>", "<end_of_turn>", "<|endoftext|>",
     "<|end_of_text|>", "<EOT>", "<end_of_utterance>", "<turn|>", "<|return|>",
     "<|call|>", "<｜end▁of▁sentence｜>"}  # noqa: RUF001
)  # fmt: skip
# In the vocabulary of gpt-oss, which has these, <|end|> ends a part of a completion only.
HARMONY_ENDS, END_OF_PART = frozenset({"<|return|>", "<|call|>"}), "<|end|>"
LLAMA_IDS = {"bos_token_id": 1, "eos_token_id": 2, "unknown_token_id": 0}  # where no ids are given


@dataclass(frozen=True, slots=True)
class GgufVocabulary:
    """The tokens of a file.

    Attributes:
        file: Path of the file.
        model: Kind of the tokenizer: "gpt2", "llama" and others.
        tokens: Texts by id.
        types: Types by id.
        values: Values of `tokenizer.ggml`, by what follows that.
    """

    file: Path
    model: str
    tokens: list[str]
    types: list[int]
    values: Mapping[str, Any]

    def token_id(self, key: str) -> int | None:
        """Return the id of a special token, such as `bos_token_id`; None if there is none."""
        default = LLAMA_IDS.get(key) if self.model == "llama" else None
        found = self.values.get(key, default)
        if found is None or found == 2**32 - 1:  # written for none
            return None
        if type(found) is not int or not 0 <= found < len(self.tokens):
            raise CheckpointCorruptError(
                f"{PREFIX}{key} in {str(self.file)!r} must be the id of one of its "
                f"{len(self.tokens)} tokens, got {found!r:.40}"
            )
        return found

    def special_tokens(self) -> dict[str, str]:
        """Return the texts of the begin, end, padding and unknown tokens that there are."""
        ids = {name: self.token_id(key) for name, key in SPECIAL_IDS.items()}
        return {name: self.tokens[i] for name, i in ids.items() if i is not None}

    def end_ids(self) -> list[int]:
        """Return the ids of the tokens that end a completion, that of the end of a text first."""
        named = [i for i in map(self.token_id, ENDS) if i is not None]
        ids = {
            text: i
            for i, (text, kind) in enumerate(zip(self.tokens, self.types, strict=True))
            if kind in (CONTROL, USER_DEFINED) and text in END_TEXTS
        }
        if ids.keys() >= HARMONY_ENDS:
            ids.pop(END_OF_PART, None)
        by_text = ids.values()
        return list(dict.fromkeys([*named, *by_text]))

    def flag(self, key: str, default: bool) -> bool:
        """Return a truth value.

        Raises:
            CheckpointCorruptError: It is something else.
        """
        found = self.values.get(key, default)
        if not isinstance(found, bool):
            raise CheckpointCorruptError(
                f"{PREFIX}{key} in {str(self.file)!r} must be true or false, got {found!r:.40}"
            )
        return found

    def array(self, key: str, kind: type) -> list[Any]:
        """Return an array; an empty one if there is none.

        Raises:
            CheckpointCorruptError: It is no array of that type.
        """
        return _array(self.file, self.values, key, kind)


@lru_cache(maxsize=1)  # several of the small files need it
def read_vocabulary(header: GgufHeader) -> GgufVocabulary | None:
    """Read the tokens; None if the file has no tokenizer.

    Args:
        header: Header of the file, or of the first one of a set.

    Raises:
        CheckpointCorruptError: A value is missing or wrong.
    """
    file = header.file
    values = {
        key.removeprefix(PREFIX): value
        for key, value in header.metadata.items()
        if key.startswith(PREFIX)
    }
    model = values.get("model", "none")
    if model == "none":
        return None
    if not isinstance(model, str):
        raise CheckpointCorruptError(
            f"{PREFIX}model in {str(file)!r} must be a text, got {model!r:.40}"
        )
    tokens = _array(file, values, "tokens", str)
    types = _array(file, values, "token_type", int) or [NORMAL] * len(tokens)
    if not tokens or len(types) != len(tokens):
        raise CheckpointCorruptError(
            f"{str(file)!r} has {len(tokens)} {PREFIX}tokens and {len(types)} types of "
            "tokens; a tokenizer needs tokens, and a type of each"
        )
    _check_different(file, tokens, types)
    return GgufVocabulary(file, model, tokens, types, values)


def _check_different(file: Path, tokens: list[str], types: list[int]) -> None:
    """Check that no two tokens in use have the same text, of which one could never be found.

    Raises:
        CheckpointCorruptError: Two have.
    """
    ids: dict[str, int] = {}
    for i, (token, kind) in enumerate(zip(tokens, types, strict=True)):
        if kind == UNUSED:
            continue
        if token in ids:
            raise CheckpointCorruptError(
                f"{PREFIX}tokens in {str(file)!r} has {token!r:.40} twice, as ids {ids[token]} and "
                f"{i}; convert the model again, or give the folder of another tokenizer with "
                "--tokenizer"
            )
        ids[token] = i


def _array(file: Path, values: Mapping[str, Any], key: str, kind: type) -> list[Any]:
    found = values.get(key)
    if found is None:
        return []
    elements = found.read() if isinstance(found, StoredArray) else [None]
    if not all(type(element) is kind for element in elements):
        raise CheckpointCorruptError(
            f"{PREFIX}{key} in {str(file)!r} must be an array of {kind.__name__}"
        )
    return elements
