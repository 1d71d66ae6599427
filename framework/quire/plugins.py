"""Find the plugins that are installed, load each on its own, and gather what they offer.

There is one way in: an entry point in the group "quire". The plugins of this repository use it too.
pluggy checks the hooks; loading is ours, because a plugin that fails must hurt nobody else: plugins
are taken one at a time in sorted order (ours first), and what one offers is accepted only when all
of it loaded. No plugin manager is kept in a module variable; each process, and each test, has its
own.
"""

import os
import traceback
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, field
from importlib.metadata import Distribution, EntryPoint, distributions
from types import ModuleType
from typing import Any

import pluggy

from quire import hookspecs
from quire.config import PluginSettings
from quire.errors import PluginError, PluginLoadError, SettingsError, UnknownNameError
from quire.interfaces.attention import AttentionBackend
from quire.interfaces.checkpoint import CheckpointSource
from quire.interfaces.executor import Executor
from quire.interfaces.kv_cache import KVCacheSpec
from quire.interfaces.lora import LoRASource
from quire.interfaces.model import Model
from quire.interfaces.quantization import Quantization
from quire.interfaces.reasoning import ReasoningParser
from quire.interfaces.sampling import SamplerStep
from quire.interfaces.structured_output import StructuredOutputBackend
from quire.interfaces.tool_parsing import ToolParser
from quire.registry import Entry, Kind, Registrar, Registry, Source

ENTRY_POINT_GROUP = hookspecs.PROJECT
OWN_DISTRIBUTION = "quire"
AUTOLOAD_OFF = "QUIRE_DISABLE_PLUGIN_AUTOLOAD"


class Registries:
    """All that the plugins offer, one registry a kind."""

    checkpoints: Registry[CheckpointSource]
    models: Registry[type[Model]]
    attention_backends: Registry[type[AttentionBackend]]
    kv_cache_specs: Registry[type[KVCacheSpec]]
    quantizations: Registry[type[Quantization]]
    samplers: Registry[type[SamplerStep]]
    structured_output: Registry[type[StructuredOutputBackend]]
    tool_parsers: Registry[type[ToolParser]]
    reasoning_parsers: Registry[type[ReasoningParser]]
    lora_sources: Registry[type[LoRASource]]
    executors: Registry[type[Executor]]

    def __init__(self, kinds: Iterable[Kind] = hookspecs.KINDS) -> None:
        self._by_name = {kind.name: Registry[Any](kind) for kind in kinds}
        vars(self).update(self._by_name)

    def __getitem__(self, kind: str) -> Registry[Any]:
        return self._by_name[kind]

    def __iter__(self) -> Iterator[Registry[Any]]:
        return iter(self._by_name.values())


@dataclass(frozen=True, slots=True)
class Candidate:
    """An entry point that could be loaded."""

    name: str  # the entry point's; with @distribution behind it where two share one
    entry_point: EntryPoint
    source: Source

    @property
    def is_ours(self) -> bool:
        """Whether it ships with quire."""
        return self.source.distribution == OWN_DISTRIBUTION


@dataclass(frozen=True, slots=True)
class PluginRecord:
    """What became of one plugin.

    Attributes:
        state: "loaded", "failed", "blocked" or "off" (discovery is off and nobody named it).
        entries: What it offers, if it is loaded.
        hooks: The hooks that it implements.
        error: One line, if it failed.
        traceback: The whole story, if it failed.
    """

    source: Source
    reference: str
    state: str
    entries: tuple[Entry, ...] = ()
    hooks: tuple[str, ...] = ()
    error: str | None = None
    traceback: str | None = None


@dataclass(frozen=True, slots=True)
class Plugins:
    """The plugins of one process."""

    registries: Registries
    records: tuple[PluginRecord, ...] = ()
    managers: dict[str, pluggy.PluginManager] = field(default_factory=dict)  # one a loaded plugin

    @property
    def failed(self) -> list[PluginRecord]:
        """Those that could not be loaded."""
        return [record for record in self.records if record.state == "failed"]

    def hooks(self, name: str) -> list[tuple[Source, Callable[..., Any]]]:
        """Return every implementation of a request hook, to be called by keyword."""
        return [
            (record.source, getattr(self.managers[record.source.plugin].hook, name))
            for record in self.records
            if record.state == "loaded" and name in record.hooks
        ]


def load_plugins(
    settings: PluginSettings | None = None, found: Iterable[Candidate] | None = None
) -> Plugins:
    """Load the installed plugins, ours first and then by name.

    Args:
        settings: Which to leave out, and which to prefer.
        found: Candidates in place of the installed ones; for tests.

    Raises:
        SettingsError: `prefer` cannot be read.
        PluginLoadError: A plugin that the user named (`-p NAME`) fails or is not installed.
        UnknownNameError: `prefer` names what nobody offers.
    """
    settings = settings or PluginSettings()
    candidates = sorted(
        discover() if found is None else found, key=lambda c: (not c.is_ours, c.name)
    )
    blocked = {name.removeprefix("no:") for name in settings.plugins if name.startswith("no:")}
    wanted = {name for name in settings.plugins if not name.startswith("no:")}
    only_named = settings.disable_plugin_autoload or os.environ.get(AUTOLOAD_OFF, "0") not in (
        "",
        "0",
    )
    registries = Registries()
    records: list[PluginRecord] = []
    managers: dict[str, pluggy.PluginManager] = {}
    for candidate in candidates:
        names = {candidate.name, candidate.entry_point.name, candidate.source.distribution}
        if names & blocked:
            state = "blocked"
        elif only_named and not candidate.is_ours and not names & wanted:
            state = "off"
        else:
            record, manager = _load(candidate)
            if manager is not None:
                managers[candidate.name] = manager
            records.append(record)
            continue
        records.append(PluginRecord(candidate.source, candidate.entry_point.value, state))
    for record in records:
        for entry in record.entries:
            registries[entry.kind.name].accept([entry])
    num_failed = sum(record.state == "failed" for record in records)
    for registry in registries:
        registry.num_failed_plugins = num_failed
    _check_wanted(wanted, records)
    _apply_preferences(registries, settings.prefer)
    return Plugins(registries, tuple(records), managers)


def discover() -> list[Candidate]:
    """Find the entry points of every installed distribution, without importing one.

    Of a distribution that lies on the path twice, the first counts, as it does for imports.
    """
    found: list[tuple[EntryPoint, Distribution]] = []
    seen = set()
    for distribution in distributions():
        name = distribution.name
        if name in seen:
            continue
        seen.add(name)
        points = distribution.entry_points.select(group=ENTRY_POINT_GROUP)
        found += [(point, distribution) for point in points]
    uses = Counter(point.name for point, _ in found)
    candidates = []
    for point, distribution in found:
        is_unique = uses[point.name] == 1
        name = point.name if is_unique else f"{point.name}@{distribution.name}"
        source = Source(name, distribution.name, distribution.version)
        candidates.append(Candidate(name, point, source))
    return candidates


def shadowed_distributions() -> dict[str, list[str]]:
    """Return distributions that are installed more than once, with their places in path order."""
    places: dict[str, list[str]] = {}
    for distribution in distributions():
        places.setdefault(distribution.name, []).append(str(distribution.locate_file("")))
    return {name: found for name, found in places.items() if len(set(found)) > 1}


def _load(candidate: Candidate) -> tuple[PluginRecord, pluggy.PluginManager | None]:
    """Import one plugin and collect what it offers; any failure becomes its record."""
    reference = candidate.entry_point.value
    try:
        manager = _manage(candidate.entry_point.load(), candidate.name)
        hooks = tuple(_implemented(manager))
        entries = _collect(manager, candidate.source, hooks)
    except Exception as error:  # noqa: BLE001 - the edge of a plugin: whatever it raises is its own
        summary = f"{type(error).__name__}: {error}"
        story = traceback.format_exc()
        record = PluginRecord(candidate.source, reference, "failed", (), (), summary, story)
        return record, None
    return PluginRecord(candidate.source, reference, "loaded", entries, hooks), manager


def _manage(module: ModuleType, name: str) -> pluggy.PluginManager:
    """Let pluggy check the module's hooks, in a manager of its own.

    Raises:
        PluginError: A hook does not exist, or takes arguments that it does not have.
    """
    manager = pluggy.PluginManager(hookspecs.PROJECT)
    manager.add_hookspecs(hookspecs)
    try:
        manager.register(module, name)
        manager.check_pending()
    except pluggy.PluginValidationError as error:
        raise PluginError(f"{error}; known hooks: {', '.join(known_hooks())}") from None
    return manager


def known_hooks() -> list[str]:
    """Return the names of all hooks, in the order of firing."""
    marker = f"{hookspecs.PROJECT}_spec"
    return [
        name for name, value in vars(hookspecs).items() if marker in getattr(value, "__dict__", {})
    ]


def _implemented(manager: pluggy.PluginManager) -> Iterator[str]:
    for name in known_hooks():
        if getattr(manager.hook, name).get_hookimpls():
            yield name


def _collect(
    manager: pluggy.PluginManager, source: Source, hooks: Collection[str]
) -> tuple[Entry, ...]:
    entries: list[Entry] = []
    for kind in hookspecs.KINDS:
        hook = f"register_{kind.name}"
        if hook in hooks:
            registrar = Registrar[Any](kind, source)
            getattr(manager.hook, hook)(registry=registrar)
            entries += registrar.entries
    return tuple(entries)


def _check_wanted(wanted: Collection[str], records: Iterable[PluginRecord]) -> None:
    """Explicit is strict: what was named must have loaded."""
    by_name = {record.source.plugin: record for record in records}
    by_name |= {
        record.source.distribution: record for record in records if record.state == "failed"
    }
    distributions_loaded = {record.source.distribution for record in records}
    for name in sorted(wanted):
        record = by_name.get(name)
        if record is None and name not in distributions_loaded:
            raise PluginLoadError(f"plugin {name!r} is not installed; see `quire plugins list`")
        if record is not None and record.state == "failed":
            raise PluginLoadError(
                f"plugin {name!r} failed to load: {record.error}\n{record.traceback}"
            )


def _apply_preferences(registries: Registries, preferences: Iterable[str]) -> None:
    for preference in preferences:
        kind, _, rest = preference.partition(":")
        name, _, plugin = rest.rpartition("=")
        if not (kind and name and plugin):
            raise SettingsError(f"prefer must read KIND:NAME=PLUGIN, got {preference!r}")
        if kind not in {registry.kind.name for registry in registries}:
            known = ", ".join(registry.kind.name for registry in registries)
            raise UnknownNameError(f"unknown kind {kind!r} in prefer (known: {known})")
        registries[kind].prefer(name, plugin)
