"""The tokenizer.json that the tokens of a GGUF file stand for.

`gpt2` is byte-level BPE with its merges in order. `llama` is SentencePiece's BPE: a pair is merged
if the whole is a token, that of the highest score first, and characters without a token are bytes.
Its pairs are written as merges in the order of their scores, which is what transformers does when
it converts a `tokenizer.model`, so ids are those of the original tokenizer.json. `gemma4` is the
same with its merges in order.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from quire.compose.gguf.pre_tokenizers import PRE_TOKENIZERS, PreTokenizer
from quire.compose.gguf.vocabulary import (
    CONTROL,
    NORMAL,
    PREFIX,
    UNKNOWN,
    UNUSED,
    USER_DEFINED,
    GgufVocabulary,
)
from quire.errors import CheckpointCorruptError, UnsupportedModelError

BLANK = "▁"
OTHER_TOKENIZER = "give the folder of another tokenizer with --tokenizer"


def tokenizer_json(vocabulary: GgufVocabulary) -> str:
    """Return the content of tokenizer.json.

    Raises:
        UnsupportedModelError: Tokenizers of this kind are not supported.
        CheckpointCorruptError: The merges or scores do not fit the tokens.
    """
    if vocabulary.model == "gpt2":
        return json.dumps(_byte_level(vocabulary), ensure_ascii=False)
    if vocabulary.model == "llama":
        return json.dumps(_sentence_piece(vocabulary, scored_merges), ensure_ascii=False)
    if vocabulary.model == "gemma4":
        return json.dumps(_sentence_piece(vocabulary, _merges), ensure_ascii=False)
    raise UnsupportedModelError(
        f"{str(vocabulary.file)!r} has a tokenizer of the kind {vocabulary.model!r:.40}; quire "
        f"reads gpt2, llama and gemma4 of GGUF files; {OTHER_TOKENIZER}"
    )


def adds_bos(vocabulary: GgufVocabulary) -> bool:
    """Return whether a text begins with the begin-of-text token."""
    pre = PRE_TOKENIZERS.get(vocabulary.values.get("pre", ""), PreTokenizer())
    return vocabulary.flag("add_bos_token", vocabulary.model in ("llama", "gemma4") or pre.adds_bos)


def _byte_level(vocabulary: GgufVocabulary) -> dict[str, Any]:
    pre = _pre_tokenizer(vocabulary)
    return {
        **_common(vocabulary),
        "normalizer": {"type": pre.normalizer} if pre.normalizer else None,
        "pre_tokenizer": pre.as_json(),
        "decoder": {
            "type": "ByteLevel",
            "add_prefix_space": True,
            "trim_offsets": True,
            "use_regex": True,
        },
        "model": _bpe(vocabulary, _merges(vocabulary)) | {"ignore_merges": pre.ignores_merges},
    }


def _merges(vocabulary: GgufVocabulary) -> list[str]:
    """Return the merges that the file lists, in their order."""
    merges = vocabulary.array("merges", str)
    _check_pairs(vocabulary, merges)
    return merges


def _sentence_piece(
    vocabulary: GgufVocabulary, merges: Callable[[GgufVocabulary], Sequence[object]]
) -> dict[str, Any]:
    has_prefix = vocabulary.flag("add_space_prefix", True)
    blanks = {"type": "Replace", "pattern": {"String": " "}, "content": BLANK}
    prefix = [{"type": "Prepend", "prepend": BLANK}] if has_prefix else []
    strip = [{"type": "Strip", "content": " ", "start": 1, "stop": 0}] if has_prefix else []
    decoders = [
        {"type": "Replace", "pattern": {"String": BLANK}, "content": " "},
        {"type": "ByteFallback"},
        {"type": "Fuse"},
        *strip,
    ]
    fallback = {"byte_fallback": True, "fuse_unk": True}
    unknown = vocabulary.special_tokens().get("unk_token")
    return {
        **_common(vocabulary),
        "normalizer": {"type": "Sequence", "normalizers": [*prefix, blanks]},
        "pre_tokenizer": None,
        "decoder": {"type": "Sequence", "decoders": decoders},
        "model": _bpe(vocabulary, merges(vocabulary)) | fallback | {"unk_token": unknown},
    }


def _common(vocabulary: GgufVocabulary) -> dict[str, Any]:
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": list(_added_tokens(vocabulary)),
        "post_processor": _post_processor(vocabulary),
    }


def _bpe(vocabulary: GgufVocabulary, merges: Sequence[object]) -> dict[str, Any]:
    known = zip(vocabulary.tokens, vocabulary.types, strict=True)
    vocab = {token: i for i, (token, kind) in enumerate(known) if kind != UNUSED}
    return {
        "type": "BPE",
        "dropout": None,
        "unk_token": None,
        "continuing_subword_prefix": None,
        "end_of_word_suffix": None,
        "fuse_unk": False,
        "byte_fallback": False,
        "vocab": vocab,
        "merges": merges,
    }


def scored_merges(vocabulary: GgufVocabulary) -> list[tuple[str, str]]:
    """Return the pairs of tokens that are a token together, that of the highest score first.

    Raises:
        CheckpointCorruptError: There is no score for each token.
    """
    scores = vocabulary.array("scores", float)
    if len(scores) != len(vocabulary.tokens):
        raise CheckpointCorruptError(
            f"{str(vocabulary.file)!r} has {len(scores)} {PREFIX}scores for "
            f"{len(vocabulary.tokens)} tokens"
        )
    known = zip(vocabulary.tokens, vocabulary.types, strict=True)
    ids = {token: i for i, (token, kind) in enumerate(known) if kind == NORMAL}
    found = [
        (-scores[i], end, len(token) - end, (token[:end], token[end:]))
        for token, i in ids.items()
        for end in range(1, len(token))
        if token[:end] in ids and token[end:] in ids
    ]
    found.sort(key=lambda item: (item[0], -item[1], -item[2]))
    return [pair for *_, pair in found]


def _pre_tokenizer(vocabulary: GgufVocabulary) -> PreTokenizer:
    name = vocabulary.values.get("pre")
    if name not in PRE_TOKENIZERS:
        what = "no pre-tokenizer" if name is None else f"the pre-tokenizer {name!r:.40}"
        raise UnsupportedModelError(
            f"{str(vocabulary.file)!r} names {what} ({PREFIX}pre); quire knows "
            f"{', '.join(PRE_TOKENIZERS)}; {OTHER_TOKENIZER}"
        )
    return PRE_TOKENIZERS[name]


def _check_pairs(vocabulary: GgufVocabulary, merges: list[str]) -> None:
    """Check that each merge is of two tokens with a blank between them, which are one together."""
    tokens = set(vocabulary.tokens)
    for merge in merges:
        if merge.count(" ") != 1 or merge[0] == " " or merge[-1] == " ":
            raise CheckpointCorruptError(
                f"{PREFIX}merges in {str(vocabulary.file)!r} must be pairs of tokens with a blank "
                f"between them, got {merge!r:.80}"
            )
        left, _, right = merge.partition(" ")
        if lacking := [token for token in (left, right, left + right) if token not in tokens]:
            raise CheckpointCorruptError(
                f"{PREFIX}merges in {str(vocabulary.file)!r} has {merge!r:.80}, but there is no "
                f"token {lacking[0]!r:.40}; convert the model again, or {OTHER_TOKENIZER}"
            )


def _added_tokens(vocabulary: GgufVocabulary) -> Iterator[dict[str, Any]]:
    """Yield the tokens that are found in a text before anything else."""
    for i, (token, kind) in enumerate(zip(vocabulary.tokens, vocabulary.types, strict=True)):
        if kind in (CONTROL, UNKNOWN, USER_DEFINED):
            yield {
                "id": i,
                "content": token,
                "single_word": False,
                "lstrip": False,
                "rstrip": False,
                "normalized": False,
                "special": kind != USER_DEFINED,
            }


def _post_processor(vocabulary: GgufVocabulary) -> dict[str, Any] | None:
    """Return what adds the begin-of-text and end-of-text tokens; None if neither is added."""
    before = vocabulary.token_id("bos_token_id") if adds_bos(vocabulary) else None
    after = vocabulary.token_id("eos_token_id") if vocabulary.flag("add_eos_token", False) else None
    _check_known_id(vocabulary, "bos", before)
    _check_known_id(vocabulary, "eos", after)
    if before is None and after is None:
        return None
    ids = {vocabulary.tokens[i]: i for i in (before, after) if i is not None}

    def single(sequence: str, type_id: int) -> list[dict[str, Any]]:
        around = [
            []
            if i is None
            else [{"SpecialToken": {"id": vocabulary.tokens[i], "type_id": type_id}}]
            for i in (before, after)
        ]
        return [*around[0], {"Sequence": {"id": sequence, "type_id": type_id}}, *around[1]]

    return {
        "type": "TemplateProcessing",
        "single": single("A", 0),
        "pair": [*single("A", 0), *single("B", 1)],
        "special_tokens": {
            token: {"id": token, "ids": [i], "tokens": [token]} for token, i in ids.items()
        },
    }


def _check_known_id(vocabulary: GgufVocabulary, name: str, token_id: int | None) -> None:
    """Check that a token which the file says to add has an id."""
    if vocabulary.flag(f"add_{name}_token", False) and token_id is None:
        raise CheckpointCorruptError(
            f"{PREFIX}add_{name}_token in {str(vocabulary.file)!r} is true, and there is no "
            f"{PREFIX}{name}_token_id; convert the model again, or {OTHER_TOKENIZER}"
        )
