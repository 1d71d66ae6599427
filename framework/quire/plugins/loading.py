"""Loading of the installed plugins into registries, each plugin in isolation.

pluggy checks the hooks, but plugins are loaded here, so that a failing one does not affect others:
they are loaded one at a time in sorted order (quire's own first), and the entries of a plugin are
accepted only if all of it loaded. There is no global plugin manager; each process, and each test,
has its own.
"""

import logging
import os
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pluggy

from quire.config import ENVIRONMENT_PREFIX, PluginSettings, parse_truth
from quire.errors import PluginLoadError, SettingsError, UnknownNameError
from quire.interfaces.attention import KVBackend
from quire.interfaces.checkpoint import CheckpointSource
from quire.interfaces.executor import Executor
from quire.interfaces.http_route import HTTPRoute
from quire.interfaces.kv_cache import KVCacheSpec
from quire.interfaces.kv_transfer import KVStoreScheduler
from quire.interfaces.lora import LoRASource
from quire.interfaces.model import Model
from quire.interfaces.quantization import Quantization
from quire.interfaces.reasoning import ReasoningParser
from quire.interfaces.sampling import SamplerStep
from quire.interfaces.scheduling import SchedulingPolicy
from quire.interfaces.structured_output import StructuredOutputBackend
from quire.interfaces.tool_parsing import ToolParser
from quire.plugins.discovery import Candidate, discover
from quire.plugins.isolation import PluginRecord, load_candidate
from quire.plugins.kinds import KINDS
from quire.plugins.registry import Kind, Registry, Source, did_you_mean

AUTOLOAD_OFF = f"{ENVIRONMENT_PREFIX}DISABLE_PLUGIN_AUTOLOAD"

logger = logging.getLogger(__name__)


class Registries:
    """Registries of the parts that plugins offer, one per kind."""

    checkpoints: Registry[CheckpointSource]
    models: Registry[type[Model]]
    attention_backends: Registry[type[KVBackend]]
    kv_cache_specs: Registry[type[KVCacheSpec]]
    quantizations: Registry[type[Quantization]]
    samplers: Registry[type[SamplerStep]]
    structured_output: Registry[type[StructuredOutputBackend]]
    tool_parsers: Registry[type[ToolParser]]
    reasoning_parsers: Registry[type[ReasoningParser]]
    lora_sources: Registry[type[LoRASource]]
    scheduling_policies: Registry[type[SchedulingPolicy]]
    kv_stores: Registry[type[KVStoreScheduler]]
    executors: Registry[type[Executor]]
    routes: Registry[type[HTTPRoute]]

    def __init__(self, kinds: Iterable[Kind] = KINDS) -> None:
        self._by_name = {kind.name: Registry[Any](kind) for kind in kinds}
        vars(self).update(self._by_name)

    def __getitem__(self, kind: str) -> Registry[Any]:
        return self._by_name[kind]

    def __iter__(self) -> Iterator[Registry[Any]]:
        return iter(self._by_name.values())


@dataclass(frozen=True, slots=True)
class Plugins:
    """Plugins of one process.

    Attributes:
        registries: Registries of the parts that they offer.
        records: Results of loading, in the order of loading.
        managers: Plugin managers of the loaded plugins, by plugin name.
        unknown_blocks: Names in `-p no:NAME` that no installed plugin has.
    """

    registries: Registries
    records: tuple[PluginRecord, ...] = ()
    managers: dict[str, pluggy.PluginManager] = field(default_factory=dict)
    unknown_blocks: tuple[str, ...] = ()

    @property
    def failed(self) -> list[PluginRecord]:
        """Records of the plugins that failed to load."""
        return [record for record in self.records if record.state == "failed"]

    def hooks(self, name: str) -> list[tuple[Source, Callable[..., Any]]]:
        """Return all implementations of a request hook, which take keyword arguments."""
        return [
            (record.source, getattr(self.managers[record.source.plugin].hook, name))
            for record in self.records
            if record.state == "loaded" and name in record.hooks
        ]


@dataclass(frozen=True, slots=True)
class Selection:
    """Selection of the installed plugins to load.

    Attributes:
        blocked: Names of plugins to leave out: `-p no:NAME`.
        wanted: Names of plugins that the user named: `-p NAME`.
        only_named: Whether autoload is off: third-party plugins are loaded only if wanted.
    """

    blocked: frozenset[str]
    wanted: frozenset[str]
    only_named: bool

    @classmethod
    def of(cls, settings: PluginSettings) -> "Selection":
        """Read the settings, with the environment variable as the default of autoload.

        Raises:
            SettingsError: The variable is not a boolean, or a name is both wanted and blocked.
        """
        only_named = settings.disable_plugin_autoload
        if only_named is None:
            only_named = parse_truth(os.environ.get(AUTOLOAD_OFF, "0"), AUTOLOAD_OFF)
        names = settings.plugins
        blocked = frozenset(name.removeprefix("no:") for name in names if name.startswith("no:"))
        wanted = frozenset(name for name in names if not name.startswith("no:"))
        if both := sorted(blocked & wanted):
            raise SettingsError(f"-p {both[0]} and -p no:{both[0]} contradict each other")
        return cls(blocked, wanted, only_named)

    def exclusion(self, candidate: Candidate) -> str | None:
        """Return why a plugin is not loaded, "blocked" or "off"; None if it is loaded."""
        names = candidate.source.names
        if names & self.blocked:
            return "blocked"
        if self.only_named and not candidate.is_ours and not names & self.wanted:
            return "off"
        return None


def load_plugins(
    settings: PluginSettings | None = None, found: Iterable[Candidate] | None = None
) -> Plugins:
    """Load the installed plugins, quire's own first and then by name.

    Args:
        settings: Settings with the plugins to leave out and to prefer.
        found: Candidates to load instead of the installed ones.

    Raises:
        SettingsError: The settings are invalid, or contradict each other.
        PluginLoadError: A plugin that the user named (`-p NAME`) fails or is not installed.
        UnknownNameError: `prefer` has a kind, a name or a plugin that does not exist.
    """
    settings = settings or PluginSettings()
    selection = Selection.of(settings)
    records: list[PluginRecord] = []
    managers: dict[str, pluggy.PluginManager] = {}
    for candidate in _in_order(discover() if found is None else found):
        if state := selection.exclusion(candidate):
            records.append(PluginRecord(candidate.source, candidate.entry_point.value, state))
            continue
        record, manager = load_candidate(candidate)
        records.append(record)
        if manager is not None:
            managers[candidate.name] = manager
    _check_wanted(selection.wanted, records)
    registries = _gather(records)
    _apply_preferences(registries, settings.prefer)
    unknown = _unknown_blocks(selection.blocked, records)
    return Plugins(registries, tuple(records), managers, unknown)


def _in_order(candidates: Iterable[Candidate]) -> list[Candidate]:
    """Return the candidates in an order that does not depend on the order of installation."""
    return sorted(candidates, key=lambda candidate: (not candidate.is_ours, candidate.name))


def _gather(records: Iterable[PluginRecord]) -> Registries:
    """Fill the registries with the entries of the loaded plugins."""
    registries = Registries()
    num_failed = 0
    for record in records:
        num_failed += record.state == "failed"
        for entry in record.entries:
            registries[entry.kind.name].accept([entry])
    for registry in registries:
        registry.num_failed_plugins = num_failed
    return registries


def _check_wanted(wanted: Collection[str], records: Collection[PluginRecord]) -> None:
    """Check that all plugins that the user named were loaded."""
    for name in sorted(wanted):
        meant = [record for record in records if name in record.source.names]
        if not meant:
            hint = did_you_mean(name, _all_names(records))
            raise PluginLoadError(
                f"plugin {name!r} is not installed (`quire plugins list` shows all){hint}"
            )
        for record in meant:
            if record.state == "failed":
                raise PluginLoadError(
                    f"plugin {record.source} failed to load: {record.error}\n{record.traceback}"
                )
            if record.state == "blocked":
                raise SettingsError(f"plugin {record.source} is both named and left out by -p")


def _unknown_blocks(blocked: Collection[str], records: Collection[PluginRecord]) -> tuple[str, ...]:
    names = _all_names(records)
    unknown = tuple(sorted(name for name in blocked if name not in names))
    for name in unknown:
        logger.warning(
            "-p no:%s has no effect: no such plugin is installed%s", name, did_you_mean(name, names)
        )
    return unknown


def _all_names(records: Iterable[PluginRecord]) -> set[str]:
    return {name for record in records for name in record.source.names}


def _apply_preferences(registries: Registries, preferences: Iterable[str]) -> None:
    kinds = [registry.kind.name for registry in registries]
    for preference in preferences:
        kind, _, rest = preference.partition(":")
        name, _, plugin = rest.rpartition("=")
        if not (kind and name and plugin):
            raise SettingsError(f"prefer must be KIND:NAME=PLUGIN, got {preference!r}")
        if kind not in kinds:
            raise UnknownNameError(
                f"unknown kind {kind!r} in prefer{did_you_mean(kind, kinds)} "
                f"(known: {', '.join(kinds)})"
            )
        registries[kind].prefer(name, plugin)
