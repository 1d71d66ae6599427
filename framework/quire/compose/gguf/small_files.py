"""The small files of a checkpoint folder that a GGUF file stands for, by their names."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from quire.compose.gguf.header import GgufHeader, StoredArray
from quire.compose.gguf.split_files import read_files
from quire.compose.gguf.tokenizer_json import adds_bos, tokenizer_json
from quire.compose.gguf.vocabulary import GgufVocabulary, read_vocabulary
from quire.errors import CheckpointCorruptError

NAMES = ("tokenizer.json", "tokenizer_config.json", "generation_config.json")
OTHER_TEMPLATE = "give the file of a template with --chat-template"
TEMPLATE, TEMPLATES = "tokenizer.chat_template", "tokenizer.chat_templates"


def small_file(file: Path, name: str) -> str | None:
    """Return the text of one of the files beside the weights; None if the file says nothing of it.

    Args:
        file: Path of the GGUF file.
        name: Name that the text has in the layout of Hugging Face, such as "tokenizer.json".

    Raises:
        CheckpointCorruptError: The file is damaged.
        UnsupportedModelError: The file, or what is asked for, is of a kind that is not supported.
    """
    if name not in NAMES:
        return None
    header = read_files(file).headers[0]
    vocabulary = read_vocabulary(header)
    if name == "tokenizer_config.json":
        return json.dumps(_tokenizer_config(header, vocabulary))
    if vocabulary is None:
        return None
    if name == "tokenizer.json":
        return tokenizer_json(vocabulary)
    return json.dumps({"eos_token_id": vocabulary.end_ids()})


def _tokenizer_config(header: GgufHeader, vocabulary: GgufVocabulary | None) -> dict[str, Any]:
    config: dict[str, Any] = {}
    if vocabulary is not None:
        config |= {**vocabulary.special_tokens(), "add_bos_token": adds_bos(vocabulary)}
    if templates := _templates(header):
        config["chat_template"] = [
            {"name": name, "template": text} for name, text in templates.items()
        ]
    return config


def _templates(header: GgufHeader) -> dict[str, str]:
    """Return the chat templates by name.

    Raises:
        CheckpointCorruptError: One is missing, or is no text.
    """
    named = header.metadata.get(TEMPLATES)
    names = named.read() if isinstance(named, StoredArray) else [] if named is None else [None]
    if not all(isinstance(name, str) for name in names):
        raise CheckpointCorruptError(
            f"{TEMPLATES} in {str(header.file)!r} must be an array of names; {OTHER_TEMPLATE}"
        )
    keys = {str(name): f"{TEMPLATE}.{name}" for name in names}
    if TEMPLATE in header.metadata:
        keys = {"default": TEMPLATE, **keys}
    return {name: _template(header, key) for name, key in keys.items()}


def _template(header: GgufHeader, key: str) -> str:
    text = header.metadata.get(key)
    if isinstance(text, str):
        return text
    problem = "is missing" if text is None else "must be a text"
    raise CheckpointCorruptError(f"{key} in {str(header.file)!r} {problem}; {OTHER_TEMPLATE}")
