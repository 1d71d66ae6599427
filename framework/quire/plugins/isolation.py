"""Isolated loading of one plugin: any failure becomes a record and affects no other plugin.

This covers errors at import, in the names and arguments of hooks, and in what a plugin registers.
"""

import inspect
import sys
import traceback
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

import pluggy

from quire import hookspecs
from quire.errors import PluginError
from quire.plugins.discovery import Candidate
from quire.plugins.kinds import KINDS
from quire.plugins.registry import Entry, Registrar, Source, did_you_mean

HEAVY_MODULES = ("torch", "transformers", "triton")


@dataclass(frozen=True, slots=True)
class PluginRecord:
    """Result of loading one plugin.

    Attributes:
        source: Source of the plugin: its name, distribution and version.
        reference: Module of its entry point.
        state: "loaded", "failed", "blocked" or "off" (autoload is off and it was not named).
        entries: Entries that it offers, if it is loaded.
        hooks: Hooks that it implements.
        error: Error in one line, if it failed.
        traceback: Traceback of the error, if it failed.
        heavy_imports: Modules that its entry point imported and that make every command slow.
    """

    source: Source
    reference: str
    state: str
    entries: tuple[Entry, ...] = ()
    hooks: tuple[str, ...] = ()
    error: str | None = None
    traceback: str | None = None
    heavy_imports: tuple[str, ...] = ()


def load_candidate(candidate: Candidate) -> tuple[PluginRecord, pluggy.PluginManager | None]:
    """Import one plugin and collect its entries; any failure becomes its record."""
    reference, before = candidate.entry_point.value, set(sys.modules)
    try:
        manager = _manage(candidate.entry_point.load(), candidate.name)
        hooks = tuple(_implemented(manager))
        entries = _collect(manager, candidate.source, hooks)
    except (Exception, SystemExit) as error:  # noqa: BLE001 - the edge of a plugin
        summary = f"{type(error).__name__}: {' '.join(str(error).split())}"
        details = traceback.format_exc()
        record = PluginRecord(candidate.source, reference, "failed", (), (), summary, details)
        return record, None
    heavy = tuple(name for name in HEAVY_MODULES if name in sys.modules and name not in before)
    record = PluginRecord(
        candidate.source, reference, "loaded", entries, hooks, heavy_imports=heavy
    )
    return record, manager


@cache
def known_hooks() -> tuple[str, ...]:
    """Return the names of all hooks, in the order of firing."""
    marker = f"{hookspecs.PROJECT}_spec"
    functions = inspect.getmembers_static(hookspecs, inspect.isfunction)
    found = {name for name, function in functions if marker in vars(function)}
    return tuple(name for name in vars(hookspecs) if name in found)


def _manage(module: object, name: str) -> pluggy.PluginManager:
    """Check the module's hooks with pluggy, in a new plugin manager.

    Raises:
        PluginError: A hook does not exist, lacks its decorator, or takes wrong arguments.
    """
    manager = pluggy.PluginManager(hookspecs.PROJECT)
    manager.add_hookspecs(hookspecs)
    try:
        manager.register(module, name)
    except pluggy.PluginValidationError as error:
        raise PluginError(f"{error}. See docs/hooks.md for each hook's arguments") from None
    callers = manager.get_hookcallers(module) or []
    known = known_hooks()
    for caller in callers:
        if not caller.has_spec():
            hint = did_you_mean(caller.name, known)
            raise PluginError(
                f"there is no hook {caller.name!r}{hint} (known hooks: {', '.join(known)})"
            )
    _check_marked(module, {caller.name for caller in callers})
    return manager


def _check_marked(module: object, implemented: Collection[str]) -> None:
    """Check that every function with the name of a hook is marked as its implementation.

    Raises:
        PluginError: A function is not marked.
    """
    for name, _ in inspect.getmembers_static(module, inspect.isfunction):
        if name in known_hooks() and name not in implemented:
            raise PluginError(f"{name} has the name of a hook, but no @hookimpl above it")


def _implemented(manager: pluggy.PluginManager) -> Iterator[str]:
    for name in known_hooks():
        if getattr(manager.hook, name).get_hookimpls():
            yield name


def _collect(
    manager: pluggy.PluginManager, source: Source, hooks: Collection[str]
) -> tuple[Entry, ...]:
    entries: list[Entry] = []
    for kind in KINDS:
        hook = f"register_{kind.name}"
        if hook in hooks:
            registrar = Registrar[Any](kind, source)
            getattr(manager.hook, hook)(registry=registrar)
            entries += registrar.entries
    return tuple(entries)
