"""Parsers that users bring in a file, or checkpoints in theirs: a class, or a description."""

import json
from collections.abc import Mapping
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import Any

from quire.compose.choices.choosing import all_others
from quire.compose.composition import Choice
from quire.errors import PluginLoadError
from quire.plugins.python_file import load_class
from quire.plugins.registry import FILE, Entry, Registry, Source

PYTHON = ".py"
MAX_FILE_BYTES = 2**20


def is_file(registry: Registry[Any], wanted: str) -> bool:
    """Whether the name of a parser is the path of a file."""
    path, _ = _split(wanted)
    is_read = path.suffix == PYTHON or (path.suffix in registry and path.stem != "")
    is_of_no_reader = path.suffix != "" and wanted not in registry and path.is_file()
    return "/" in wanted or is_read or is_of_no_reader


def choose_file(registry: Registry[Any], wanted: str) -> Choice:
    """Choose the parser that a file defines.

    Args:
        registry: Registry of the parsers, which has a reader for each suffix.
        wanted: Path of the file, and behind a colon the name of a class in a Python file.

    Raises:
        PluginLoadError: The file defines no parser; the message names it, and what is wrong.
    """
    path, name = _split(wanted)
    kind, content = registry.kind, _content(registry, path)
    if kind.interface is None or kind.capabilities is None:
        raise PluginLoadError(f"a {kind.title} cannot be a file, as {wanted!r} is")
    if path.suffix == PYTHON:
        parser: Any = load_class(path, name, kind.interface)
        reference = f"{path.stem}:{parser.__name__}"
    else:
        reader = _reader(registry, path)
        parser, reference = _made(registry, reader, path, content), reader.reference
    if not isinstance(parser.capabilities, kind.capabilities):
        raise PluginLoadError(
            f"{path}: capabilities of {parser.__name__} must be {kind.capabilities.__name__}(...), "
            f"got {parser.capabilities!r}"
        )
    source = Source(path.name, FILE, sha256(content).hexdigest()[:12])
    entry = Entry(kind, wanted, reference, source, capabilities=parser.capabilities, code=parser)
    return Choice(kind.title, entry, "by setting", all_others(registry, wanted))


def of_tokenizer_config(
    registry: Registry[Any], choice: Choice, tokenizer_config: Mapping[str, Any]
) -> Choice:
    """Return the choice of a parser, made from what the checkpoint says if it depends on that.

    Args:
        registry: Registry of the parsers.
        choice: Choice by name.
        tokenizer_config: Content of the checkpoint's tokenizer_config.json.

    Raises:
        PluginLoadError: The checkpoint describes no such parser.
    """
    key = choice.entry.capabilities.tokenizer_config_key
    if key is None:
        return choice
    described = tokenizer_config.get(key)
    if described is None:
        raise PluginLoadError(
            f"the {registry.kind.title} {choice.name!r} is described by the checkpoint's "
            f"tokenizer_config.json, and this one has no {key}"
        )
    text = json.dumps(described, ensure_ascii=False)
    if len(text) > MAX_FILE_BYTES:
        raise PluginLoadError(f"{key} of tokenizer_config.json is longer than {MAX_FILE_BYTES}")
    parser = _described(registry, choice.entry, text, f"{key} of tokenizer_config.json")
    return replace(
        choice, entry=replace(choice.entry, capabilities=parser.capabilities, code=parser)
    )


def _split(wanted: str) -> tuple[Path, str | None]:
    """Return the path of a file, and the name of a class behind it."""
    path, colon, name = wanted.rpartition(":")
    if colon and path.endswith(PYTHON) and name.isidentifier():
        return Path(path), name
    return Path(wanted), None


def _content(registry: Registry[Any], path: Path) -> bytes:
    try:
        content = path.read_bytes()
    except OSError as error:
        raise PluginLoadError(
            f"the {registry.kind.title} {str(path)!r} is a path, and the file cannot be read: "
            f"{error.strerror}; names of parsers are listed by `quire plugins list`"
        ) from error
    if len(content) > MAX_FILE_BYTES:
        raise PluginLoadError(f"{path} has {len(content)} bytes; the limit is {MAX_FILE_BYTES}")
    return content


def _reader(registry: Registry[Any], path: Path) -> Entry:
    """Return the entry whose code reads files with the suffix of a path."""
    if path.suffix not in registry:
        known = ", ".join([PYTHON, *(name for name in registry if name.startswith("."))])
        raise PluginLoadError(
            f"a {registry.kind.title} cannot be read from {str(path)!r}; files may have the suffix "
            f"{known}"
        )
    return registry.entry(path.suffix)


def _made(registry: Registry[Any], reader: Entry, path: Path, content: bytes) -> Any:
    try:
        text = content.decode("utf-8")
    except ValueError as error:
        raise PluginLoadError(f"{path}: {error}") from error
    return _described(registry, reader, text, str(path))


def _described(registry: Registry[Any], reader: Entry, text: str, place: str) -> Any:
    """Return the parser class that a text from a place describes."""
    try:
        return registry.load(reader).from_file_text(text)
    except ValueError as error:
        raise PluginLoadError(f"{place}: {error}") from error
