"""A name becomes an entry: one that the user typed must serve, one that nobody typed may not harm.

What is merely installed cannot take the place of what ships with quire, nor stop start-up.
"""

import logging
from typing import Any

from quire.composition import Choice, Rejection
from quire.discovery import OWN_DISTRIBUTION, locate
from quire.errors import PluginLoadError
from quire.registry import Entry, Registry

AUTO, NONE = "auto", "none"
ASKED_FOR = "asked for"

logger = logging.getLogger(__name__)


def choose_named(registry: Registry[Any], wanted: str, default: str | None = None) -> Choice:
    """Choose who serves a name; nobody typed it if it is the default.

    Raises:
        PluginError: Nobody serves it, or several do.
    """
    is_default = wanted == default
    entry = default_entry(registry, wanted) if is_default else registry.entry(wanted)
    rejected = tuple(Rejection(name, "not asked for") for name in registry if name != wanted)
    why = "the default" if is_default else "by setting"
    return Choice(registry.kind.title, entry, why, rejected)


def choose_optional(
    registry: Registry[Any], wanted: str, default: str | None = None
) -> Choice | None:
    """Choose who serves a name, or nobody for `none`; raises as `choose_named` does."""
    return None if wanted == NONE else choose_named(registry, wanted, default)


def choose_parser(registry: Registry[Any], wanted: str, chat_template: str) -> Choice | None:
    """Choose a parser; `auto` takes the one whose markers stand in the chat template.

    Raises:
        PluginError: Nobody serves the name, or several do.
    """
    if wanted != AUTO:
        return choose_optional(registry, wanted)
    matches, rejected = [], []
    for name in registry:
        entry = ours(registry, name)
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


def default_entry(registry: Registry[Any], name: str) -> Entry:
    """Return who serves a default.

    Raises:
        PluginError: Nobody does, or several strangers.
    """
    return ours(registry, name) or registry.entry(name)


def ours(registry: Registry[Any], name: str) -> Entry | None:
    """Return who serves a name that nobody typed; None if only strangers contest it.

    What is merely installed cannot take the place of what ships with quire, nor stop start-up.
    """
    offers = registry.contested().get(name)
    if offers is None:
        return registry.entry(name)
    ours = next((e for e in offers if e.source.distribution == OWN_DISTRIBUTION), None)
    if ours is not None:
        others = ", ".join(str(entry.source) for entry in offers if entry is not ours)
        logger.warning(
            "%s %r is also offered by %s; taking %s. --prefer %s:%s=PLUGIN decides otherwise",
            registry.kind.title, name, others, ours.source, registry.kind.name, name,
        )  # fmt: skip
    return ours


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
