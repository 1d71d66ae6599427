"""Reports of the installed plugins and their entries as JSON data."""

from dataclasses import fields, is_dataclass
from typing import Any

from quire.interfaces.sampling import RequestField
from quire.plugins.discovery import locate
from quire.plugins.isolation import PluginRecord
from quire.plugins.loading import Plugins, Registries
from quire.plugins.registry import Entry


def plugins_report(plugins: Plugins, *, detailed: bool = False) -> list[dict[str, Any]]:
    """Return a report of each plugin as JSON data, in the order of loading.

    Args:
        plugins: Plugins of this process.
        detailed: Whether to add files and tracebacks, which must not be public.
    """
    return [_report(record, plugins.registries, detailed) for record in plugins.records]


def entry_report(entry: Entry, registries: Registries, *, detailed: bool = False) -> dict[str, Any]:
    """Return a report of one offered name as JSON data.

    `served_by` is the plugin that is selected for the name; None if the name is contested.
    """
    served = registries[entry.kind.name].uncontested(entry.name)
    report = {
        "kind": entry.kind.name,
        "name": entry.name,
        "reference": entry.reference,
        "api": entry.api,
        "served_apis": list(entry.kind.apis),
        "is_contested": served is None,
        "served_by": None if served is None else served.source.plugin,
        "capabilities": _as_json(entry.capabilities),
    }
    return report | {"file": locate(entry.reference)} if detailed else report


def _report(record: PluginRecord, registries: Registries, detailed: bool) -> dict[str, Any]:
    source = record.source
    report = {
        "name": source.plugin,
        "state": record.state,
        "distribution": source.distribution,
        "version": source.version,
        "reference": record.reference,
        "hooks": list(record.hooks),
        "offers": [entry_report(entry, registries, detailed=detailed) for entry in record.entries],
        "error": record.error,
    }
    if not detailed:
        return report
    return report | {"file": locate(record.reference), "traceback": record.traceback}


def _as_json(value: Any) -> Any:
    """Convert capabilities: frozen dataclasses of simple values, sets of them, and types.

    A request field is its name and its JSON schema.
    """
    if isinstance(value, RequestField):
        return {"name": value.name, **value.json_schema()}
    if is_dataclass(value) and not isinstance(value, type):
        return {f.name: _as_json(getattr(value, f.name)) for f in fields(value)}
    if isinstance(value, frozenset | set):
        return sorted(value, key=str)
    if isinstance(value, tuple | list):
        return [_as_json(item) for item in value]
    if isinstance(value, type):
        return value.__name__
    if isinstance(value, float) and value in (float("inf"), float("-inf")):
        return None  # JSON has no infinity, which means no limit here
    return value if isinstance(value, str | int | float | bool | None) else str(value)
