"""Selection of the structured-output backends: one by name, or all that `auto` tries."""

from typing import Any

from quire.compose.choices.choosing import AUTO, NONE, choose_named, find_offer
from quire.compose.composition import Choice, Rejection
from quire.plugins.registry import Registry


def choose_structured_output(registry: Registry[Any], wanted: str) -> tuple[Choice, ...]:
    """Return the backends of requests that name none, in the order in which they are tried.

    Args:
        registry: Registry of the backends.
        wanted: Name of one, "none", or "auto": those that declare a priority.

    Raises:
        PluginError: No plugin offers the name, or several do and none of them is quire's.
    """
    if wanted == NONE:
        return ()
    if wanted != AUTO:
        return (choose_named(registry, wanted, others=(AUTO, NONE)),)
    found, rejected = [], []
    for name in registry:
        entry, reason = find_offer(registry, name)
        if reason is None and entry.capabilities.priority is None:
            reason = "it declares no priority for auto"
        if reason is None:
            found.append(entry)
        else:
            rejected.append(Rejection(name, reason))
    found.sort(key=lambda entry: (-entry.capabilities.priority, entry.name))
    return tuple(
        Choice(
            registry.kind.title,
            entry,
            "auto: tried first" if index == 0 else f"auto: tried after {found[index - 1].name}",
            tuple(rejected) if index == 0 else (),
        )
        for index, entry in enumerate(found)
    )
