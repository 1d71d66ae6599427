"""Selection of parts by name: by setting, by default, or by `auto` from declared capabilities."""

from collections.abc import Sequence
from typing import Any

from quire.compose.composition import Choice, Rejection
from quire.errors import PluginLoadError
from quire.plugins.discovery import locate
from quire.plugins.registry import Entry, Registry, is_suffix

AUTO, NONE = "auto", "none"
ASKED_FOR = "asked for"


def choose_named(
    registry: Registry[Any],
    wanted: str,
    default: str | None = None,
    others: Sequence[str] = (),
) -> Choice:
    """Choose the part with a name.

    Args:
        registry: Registry of the kind.
        wanted: Name in the registry.
        default: Default of the option.
        others: Further words that the option takes, for the error.

    Raises:
        PluginError: No plugin offers the name, or several do and none of them is quire's.
    """
    entry = registry.entry(wanted, others)
    reason = "the default" if wanted == default else "by setting"
    return Choice(registry.kind.title, entry, reason, all_others(registry, wanted))


def all_others(registry: Registry[Any], wanted: str) -> tuple[Rejection, ...]:
    """Return the rejections of all names but the one that was asked for, and makers of files."""
    names = (name for name in registry if name != wanted and not is_suffix(name))
    return tuple(Rejection(name, "not asked for") for name in names)


def find_offer(registry: Registry[Any], name: str, wanted: str = AUTO) -> tuple[Entry, str | None]:
    """Find the part that a name stands for, and why it cannot be used with any model.

    If several plugins offer the name, `Registry.uncontested` decides between them.

    Args:
        registry: Registry of the kind.
        name: Name in the registry.
        wanted: Name that the user asked for, or "auto".

    Returns:
        The entry, and the reason; None: it may be used.

    Raises:
        PluginError: The user asked for this name, and several plugins offer it.
    """
    entry = registry.entry(name) if name == wanted else registry.uncontested(name)
    if entry is None:
        return registry.contested()[name][0], "several plugins offer it"
    if entry.api not in entry.kind.apis:
        return entry, f"interface version {entry.api} is not supported"
    if locate(entry.reference) is None:
        return entry, f"there is no module for {entry.reference!r}"
    return entry, None


def choose_optional(
    registry: Registry[Any], wanted: str, default: str | None = None
) -> Choice | None:
    """Choose the part with a name; None for `none`. Raises as `choose_named` does."""
    return None if wanted == NONE else choose_named(registry, wanted, default)


def check_present(entry: Entry) -> None:
    """Check that an entry's module exists, without importing it.

    Raises:
        PluginLoadError: The module does not exist.
    """
    if entry.code is None and locate(entry.reference) is None:
        raise PluginLoadError(
            f"{entry.kind.title} {entry.name!r} of {entry.source} refers to {entry.reference!r}, "
            "and there is no such module"
        )
