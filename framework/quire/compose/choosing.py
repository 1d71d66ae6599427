"""A name becomes a choice: by setting, by default, or by `auto` from what parts declare.

Who serves a name that several plugins offer is decided in one place, `Registry.uncontested`.
"""

from typing import Any

from quire.compose.composition import Choice, Rejection
from quire.errors import PluginLoadError
from quire.plugins.discovery import locate
from quire.plugins.registry import Entry, Registry

AUTO, NONE = "auto", "none"
ASKED_FOR = "asked for"


def choose_named(registry: Registry[Any], wanted: str, default: str | None = None) -> Choice:
    """Choose who serves a name.

    Raises:
        PluginError: No plugin offers the name, or several do and none of them is quire's.
    """
    entry = registry.entry(wanted)
    rejected = tuple(Rejection(name, "not asked for") for name in registry if name != wanted)
    why = "the default" if wanted == default else "by setting"
    return Choice(registry.kind.title, entry, why, rejected)


def choose_optional(
    registry: Registry[Any], wanted: str, default: str | None = None
) -> Choice | None:
    """Choose who serves a name; None for `none`. Raises as `choose_named` does."""
    return None if wanted == NONE else choose_named(registry, wanted, default)


def choose_parser(registry: Registry[Any], wanted: str, chat_template: str) -> Choice | None:
    """Choose a parser; `auto` takes the one whose markers stand in the chat template.

    Raises:
        PluginError: No plugin offers the name, or several do and none of them is quire's.
    """
    if wanted != AUTO:
        return choose_optional(registry, wanted)
    matches, rejected = [], []
    for name in registry:
        entry = registry.uncontested(name)
        if entry is None:
            rejected.append(Rejection(name, "several plugins offer it"))
            continue
        markers = entry.capabilities.template_markers
        missing = [marker for marker in markers if marker not in chat_template]
        if not markers:
            rejected.append(Rejection(name, "it declares no markers for auto"))
        elif missing:
            rejected.append(Rejection(name, f"the chat template has no {missing[0]}"))
        elif entry.api not in entry.kind.apis:
            rejected.append(Rejection(name, f"it speaks version {entry.api} of the interface"))
        else:
            matches.append(entry)
    if not matches:
        return None
    best = max(matches, key=lambda entry: entry.capabilities.priority)
    rejected += [Rejection(e.name, f"{best.name} was preferred") for e in matches if e is not best]
    why = f"auto: the chat template has {' '.join(best.capabilities.template_markers)}"
    return Choice(registry.kind.title, best, why, tuple(rejected))


def check_present(entry: Entry) -> None:
    """Check, without importing it, that an entry's module is there.

    Raises:
        PluginLoadError: It is not.
    """
    if locate(entry.reference) is None:
        raise PluginLoadError(
            f"{entry.kind.title} {entry.name!r} of {entry.source} points at {entry.reference!r}, "
            "and there is no such module"
        )
