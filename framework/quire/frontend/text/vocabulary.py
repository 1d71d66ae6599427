"""The model's vocabulary as bytes for grammars, read from tokenizer.json.

A tokenizer encodes bytes in one of two ways, as its decoder describes. A byte-level one has a
printable character for each byte; a SentencePiece one has text with a mark for the space, and
`<0x0A>` for single bytes. Special tokens are listed apart: only the texts of tool calls may require
one. Added tokens that are not special, such as <tool_call>, stand for their own text.
"""

import json
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

from quire.errors import UnsupportedModelError
from quire.frontend.text.byte_spelling import byte_level_bytes, flat_steps, single_byte
from quire.interfaces.structured_output import Vocabulary

if TYPE_CHECKING:
    from tokenizers import Tokenizer

TokenToBytes = Callable[[str], bytes]


def read_vocabulary(tokenizer: "Tokenizer", eos_token_ids: Iterable[int], size: int) -> Vocabulary:
    """Return the vocabulary of a tokenizer.

    Args:
        tokenizer: Tokenizer of the model.
        eos_token_ids: Ids that end a completion.
        size: V, the length of a row of logits; it may be larger than the tokenizer's vocabulary.

    Raises:
        UnsupportedModelError: The tokenizer's encoding of bytes is not supported.
    """
    return parse_vocabulary(tokenizer.to_str(), eos_token_ids, size)


def parse_vocabulary(
    tokenizer_json: str | bytes, eos_token_ids: Iterable[int], size: int
) -> Vocabulary:
    """Return the vocabulary of a tokenizer.json's text; raises as `read_vocabulary` does."""
    spec = json.loads(tokenizer_json)
    ends = tuple(dict.fromkeys(eos_token_ids))
    added = {token["id"]: token for token in spec.get("added_tokens") or ()}
    to_bytes = _token_to_bytes(spec)
    tokens: dict[bytes, list[int]] = {}
    for text, token_id in _model_tokens(spec["model"]):
        if token_id not in added and token_id not in ends and token_id < size:
            tokens.setdefault(to_bytes(text), []).append(token_id)
    special_tokens: dict[str, int] = {}
    for token_id, token in added.items():
        if token_id in ends or token_id >= size:
            continue
        if token.get("special"):
            special_tokens.setdefault(token["content"], token_id)
        else:
            tokens.setdefault(token["content"].encode(), []).append(token_id)
    tokens.pop(b"", None)
    special_tokens.pop("", None)
    return Vocabulary(tokens, ends, size, special_tokens)


def _model_tokens(model: dict[str, Any]) -> Iterator[tuple[str, int]]:
    vocabulary = model["vocab"]
    if isinstance(vocabulary, dict):  # BPE, WordPiece, WordLevel: token -> id
        yield from vocabulary.items()
    else:  # Unigram: [token, score], in the order of ids
        yield from ((token, token_id) for token_id, (token, _) in enumerate(vocabulary))


def _token_to_bytes(spec: dict[str, Any]) -> TokenToBytes:
    """Return the function that converts the text of a token to bytes."""
    decoders = list(flat_steps(spec.get("decoder"), "decoders"))
    splitters = list(flat_steps(spec.get("pre_tokenizer"), "pretokenizers"))
    if any(step["type"] == "ByteLevel" for step in decoders + splitters):
        return byte_level_bytes
    space_marks = [step["replacement"] for step in decoders if step["type"] == "Metaspace"]
    space_marks += [
        step["pattern"]["String"]
        for step in decoders
        if step["type"] == "Replace" and step["content"] == " " and "String" in step["pattern"]
    ]
    if not space_marks:
        kinds = ", ".join(step["type"] for step in decoders) or "none"
        raise UnsupportedModelError(
            f"structured output needs the bytes of each token, and this tokenizer's decoder "
            f"({kinds}) is neither byte-level nor SentencePiece's"
        )
    has_bytes = any(step["type"] == "ByteFallback" for step in decoders)
    return lambda text: _sentencepiece_bytes(text, space_marks[0], has_bytes=has_bytes)


def _sentencepiece_bytes(text: str, space_mark: str, *, has_bytes: bool) -> bytes:
    byte = single_byte(text) if has_bytes else None
    return text.replace(space_mark, " ").encode() if byte is None else byte
