"""The small files of a checkpoint folder that a GGUF file stands for, by their names."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from quire.compose.gguf.header import GgufHeader, StoredArray
from quire.compose.gguf.split_files import read_files
from quire.compose.gguf.tokenizer_json import adds_bos, tokenizer_json
from quire.compose.gguf.vocabulary import GgufVocabulary, read_vocabulary

NAMES = ("tokenizer.json", "tokenizer_config.json", "generation_config.json")
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
    if templates := _templates(header.metadata):
        config["chat_template"] = [
            {"name": name, "template": text} for name, text in templates.items()
        ]
    return config


def _templates(metadata: Mapping[str, Any]) -> dict[str, str]:
    """Return the chat templates by name."""
    named = metadata.get(TEMPLATES)
    names = named.read() if isinstance(named, StoredArray) else []
    keys = {"default": TEMPLATE} | {str(name): f"{TEMPLATE}.{name}" for name in names}
    found = {name: metadata.get(key) for name, key in keys.items()}
    return {name: text for name, text in found.items() if isinstance(text, str)}
