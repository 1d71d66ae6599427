"""Selection of parts by name: by setting, by default, or by `auto` from declared capabilities.

If several plugins offer a name, `Registry.uncontested` decides between them.
"""

from typing import Any

from quire.compose.composition import Choice, Rejection
from quire.errors import PluginLoadError
from quire.plugins.discovery import locate
from quire.plugins.registry import Entry, Registry

AUTO, NONE = "auto", "none"
ASKED_FOR = "asked for"


def choose_named(registry: Registry[Any], wanted: str, default: str | None = None) -> Choice:
    """Choose the part with a name.

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
    """Choose the part with a name; None for `none`. Raises as `choose_named` does."""
    return None if wanted == NONE else choose_named(registry, wanted, default)


def choose_parser(registry: Registry[Any], wanted: str, chat_template: str) -> Choice | None:
    """Choose a parser; `auto` takes one with all its markers in the chat template.

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
            rejected.append(Rejection(name, f"interface version {entry.api} is not supported"))
        else:
            matches.append(entry)
    if not matches:
        return None
    best = max(matches, key=lambda entry: entry.capabilities.priority)
    rejected += [Rejection(e.name, f"{best.name} has priority") for e in matches if e is not best]
    why = f"auto: the chat template has {' '.join(best.capabilities.template_markers)}"
    return Choice(registry.kind.title, best, why, tuple(rejected))


def check_present(entry: Entry) -> None:
    """Check that an entry's module exists, without importing it.

    Raises:
        PluginLoadError: The module does not exist.
    """
    if locate(entry.reference) is None:
        raise PluginLoadError(
            f"{entry.kind.title} {entry.name!r} of {entry.source} refers to {entry.reference!r}, "
            "and there is no such module"
        )
