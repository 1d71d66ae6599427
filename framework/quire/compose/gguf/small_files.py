"""The small files of a checkpoint folder that a GGUF file stands for, by their names."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from quire.compose.gguf.header import StoredArray
from quire.compose.gguf.split_files import GgufFiles, read_files
from quire.compose.gguf.tokenizer_json import adds_bos, tokenizer_json
from quire.compose.gguf.vocabulary import read_vocabulary

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
    files = read_files(file)
    if name == "tokenizer_config.json":
        return json.dumps(_tokenizer_config(files))
    vocabulary = read_vocabulary(files)
    if vocabulary is None:
        return None
    if name == "tokenizer.json":
        return tokenizer_json(vocabulary)
    if name == "generation_config.json":
        return json.dumps({"eos_token_id": vocabulary.end_ids()})
    return None


def _tokenizer_config(files: GgufFiles) -> dict[str, Any]:
    vocabulary = read_vocabulary(files)
    config: dict[str, Any] = {}
    if vocabulary is not None:
        config |= {**vocabulary.special_tokens(), "add_bos_token": adds_bos(vocabulary)}
    if templates := _templates(files):
        config["chat_template"] = [
            {"name": name, "template": text} for name, text in templates.items()
        ]
    return config


def _templates(files: GgufFiles) -> dict[str, str]:
    """Return the chat templates by name."""
    metadata = files.metadata
    named = metadata.get(TEMPLATES)
    names = named.read() if isinstance(named, StoredArray) else []
    keys = {"default": TEMPLATE} | {str(name): f"{TEMPLATE}.{name}" for name in names}
    found = {name: metadata.get(key) for name, key in keys.items()}
    return {name: text for name, text in found.items() if isinstance(text, str)}
