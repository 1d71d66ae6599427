"""Selection of the tool-call parser and of the reasoning parser: by name, or by the model."""

from dataclasses import dataclass
from typing import Any

from quire.compose.choices.choosing import AUTO, choose_optional, find_offer
from quire.compose.choices.parser_file import choose_file, is_file
from quire.compose.composition import Choice, Rejection
from quire.errors import UnknownNameError
from quire.plugins.registry import Entry, Registry


@dataclass(frozen=True, slots=True)
class ParsedModel:
    """What `auto` knows of the model whose completions are parsed.

    Attributes:
        architecture: Architecture of the model.
        chat_template: Text of its chat template; empty if it has none.
    """

    architecture: str
    chat_template: str


def choose_parser(registry: Registry[Any], wanted: str, model: ParsedModel) -> Choice | None:
    """Choose a parser: that of a file, or the one with a name.

    `auto` takes the one of the highest priority of those for the model.

    Raises:
        PluginError: No plugin offers the name, or several do and none of them is quire's; or a file
            defines no parser.
    """
    if is_file(registry, wanted):
        return choose_file(registry, wanted)
    if wanted in registry and wanted.startswith("."):
        raise UnknownNameError(f"{wanted!r} is the suffix of files; name a file, ./NAME{wanted}")
    return _choose_named(registry, wanted, model)


def _choose_named(registry: Registry[Any], wanted: str, model: ParsedModel) -> Choice | None:
    """Choose a parser; `auto` takes the one of the highest priority of those for the model.

    Raises:
        PluginError: No plugin offers the name, or several do and none of them is quire's.
    """
    if wanted != AUTO:
        return choose_optional(registry, wanted)
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
    best = max(matches, key=lambda entry: entry.capabilities.priority)
    rejected += [Rejection(e.name, f"{best.name} has priority") for e in matches if e is not best]
    return Choice(registry.kind.title, best, _match(best, model), tuple(rejected))


def _mismatch(entry: Entry, model: ParsedModel) -> str | None:
    """Return why a parser is not for the model; None if it is."""
    markers, architectures = entry.capabilities.template_markers, entry.capabilities.architectures
    if not markers and not architectures:
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
    if markers := entry.capabilities.template_markers:
        reasons.append(f"the chat template has {' '.join(markers)}")
    if entry.capabilities.architectures:
        reasons.append(f"the model is a {model.architecture}")
    return f"{AUTO}: {' and '.join(reasons)}"
