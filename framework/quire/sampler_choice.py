"""Sampler steps are ordered by stage; exactly one draws, and no field means two things."""

from collections.abc import Iterable

from quire.choosing import default_entry
from quire.composition import Choice
from quire.config import DEFAULT_SAMPLERS
from quire.errors import SettingsError
from quire.interfaces.sampling import STAGES, RequestField
from quire.plugins import Registries
from quire.registry import Entry


def choose_samplers(registries: Registries, wanted: Iterable[str]) -> tuple[Choice, ...]:
    """Expand `default`, and order the steps by stage and name.

    Raises:
        PluginError: Nobody offers a step, or several do.
        SettingsError: Not exactly one of them draws, or two mean different things by one field.
    """
    names: dict[str, str] = {}
    for name in wanted:
        if name == "default":
            names |= dict.fromkeys(DEFAULT_SAMPLERS, "built in")
        else:
            names[name] = "asked for"
    entries = [
        default_entry(registries.samplers, name)
        if why == "built in"
        else registries.samplers.entry(name)
        for name, why in names.items()
    ]
    entries.sort(key=lambda entry: (STAGES.index(entry.capabilities.stage), entry.name))
    draws = [entry.name for entry in entries if entry.capabilities.stage == "draw"]
    if len(draws) != 1:
        raise SettingsError(
            f"samplers need exactly one step that draws, got {', '.join(draws) or 'none'}; "
            "write `--samplers default NAME` to add NAME to the built-in ones"
        )
    _check_fields(entries)
    return tuple(Choice("sampler", entry, names[entry.name]) for entry in entries)


def _check_fields(entries: Iterable[Entry]) -> None:
    """Check that steps which read the same request field mean the same by it."""
    owners: dict[str, tuple[RequestField, Entry]] = {}
    for entry in entries:
        for field in entry.capabilities.fields:
            known, owner = owners.setdefault(field.name, (field, entry))
            if (field.type, field.default) != (known.type, known.default):
                raise SettingsError(
                    f"samplers {owner.name!r} of {owner.source} and {entry.name!r} of "
                    f"{entry.source} both read the request field {field.name!r}, but with another "
                    "type or default; leave one of them out"
                )
