"""Selection of the tool-call parser and of the reasoning parser: by name, or by the model."""

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from quire.compose.choices.choosing import AUTO, choose_optional, find_offer
from quire.compose.choices.parser_file import choose_file, is_file, of_tokenizer_config
from quire.compose.composition import Choice, Rejection
from quire.errors import PluginLoadError, UnknownNameError
from quire.plugins.registry import Entry, Registry

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ParsedModel:
    """What `auto` knows of the model whose completions are parsed.

    Attributes:
        architecture: Architecture of the model.
        chat_template: Text of its chat template; empty if it has none.
        tokenizer_config: Content of its tokenizer_config.json.
    """

    architecture: str
    chat_template: str
    tokenizer_config: Mapping[str, Any] = field(default_factory=dict)


def choose_parser(registry: Registry[Any], wanted: str, model: ParsedModel) -> Choice | None:
    """Choose a parser: that of a file, or the one with a name.

    `auto` takes the one of the highest priority of those for the model.

    Raises:
        PluginError: No plugin offers the name, or several do and none of them is quire's; or a file
            or the checkpoint defines no parser.
    """
    if is_file(registry, wanted):
        return choose_file(registry, wanted)
    if wanted in registry and wanted.startswith("."):
        raise UnknownNameError(f"{wanted!r} is the suffix of files; name a file, ./NAME{wanted}")
    return _choose_named(registry, wanted, model)


def _choose_named(registry: Registry[Any], wanted: str, model: ParsedModel) -> Choice | None:
    """Choose a parser; `auto` takes the one of the highest priority of those for the model.

    Raises:
        PluginError: No plugin offers the name, or several do and none of them is quire's; or the
            checkpoint does not describe it.
    """
    if wanted != AUTO:
        choice = choose_optional(registry, wanted)
        return choice and of_tokenizer_config(registry, choice, model.tokenizer_config)
    matches, rejected = [], []
    for name in registry:
        entry, reason = find_offer(registry, name)
        reason = reason or _mismatch(entry, model)
        if reason is None:
            matches.append(entry)
        else:
            rejected.append(Rejection(name, reason))
    if not matches:
        return None
    best = max(matches, key=_rank)
    rejected += [Rejection(e.name, f"{best.name} has priority") for e in matches if e is not best]
    choice = Choice(registry.kind.title, best, _match(best, model), tuple(rejected))
    try:
        return of_tokenizer_config(registry, choice, model.tokenizer_config)
    except PluginLoadError as error:
        logger.warning("there is no %s for this model: %s", registry.kind.title, error)
        return None


def _rank(entry: Entry) -> tuple[bool, int]:
    """Return the rank for `auto`; parsers of families come before what a checkpoint describes."""
    return entry.capabilities.tokenizer_config_key is None, entry.capabilities.priority


def _mismatch(entry: Entry, model: ParsedModel) -> str | None:
    """Return why a parser is not for the model; None if it is."""
    markers, architectures = entry.capabilities.template_markers, entry.capabilities.architectures
    key = entry.capabilities.tokenizer_config_key
    if key is not None and model.tokenizer_config.get(key) is None:
        return f"the checkpoint's tokenizer_config.json has no {key}"
    if key is None and not markers and not architectures:
        return "it declares no markers for auto"
    missing = [marker for marker in markers if marker not in model.chat_template]
    if missing:
        return f"the chat template has no {missing[0]}"
    if architectures and model.architecture not in architectures:
        return f"it is for {' and '.join(architectures)}"
    return None


def _match(entry: Entry, model: ParsedModel) -> str:
    """Return why a parser is for the model."""
    reasons = []
    if key := entry.capabilities.tokenizer_config_key:
        reasons.append(f"the checkpoint's tokenizer_config.json has {key}")
    if markers := entry.capabilities.template_markers:
        reasons.append(f"the chat template has {' '.join(markers)}")
    if entry.capabilities.architectures:
        reasons.append(f"the model is a {model.architecture}")
    return f"{AUTO}: {' and '.join(reasons)}"
