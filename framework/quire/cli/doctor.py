"""Problems of installed plugins, and how to fix them. Imports nothing heavy."""

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

from quire.errors import ApiVersionError, ContestedNameError
from quire.interfaces.kv_transfer import KVStoreCapabilities
from quire.interfaces.model import ModelCapabilities
from quire.plugins.discovery import (
    ENTRY_POINT_GROUP,
    Stray,
    locate,
    shadowed_distributions,
    stray_distributions,
    unreadable_distributions,
)
from quire.plugins.loading import Plugins
from quire.plugins.registry import Entry, check_api, did_you_mean


@dataclass(frozen=True, slots=True)
class Problem:
    """One problem, or a note.

    Attributes:
        code: Stable name of the kind of problem, for programs.
        what: Description of the problem, and the plugin that has it.
        way_out: Instructions to fix it.
        is_fatal: True if it breaks something; otherwise it is a note.
        details: Traceback, if there is one.
    """

    code: str
    what: str
    way_out: str
    is_fatal: bool = True
    details: str = ""

    def as_dict(self) -> dict[str, Any]:
        """Return the problem as JSON data."""
        return asdict(self)


def examine(plugins: Plugins) -> list[Problem]:
    """Return all problems, the fatal ones first and the notes last."""
    found = [
        *_failed(plugins),
        *_contested(plugins),
        *_wrong_versions(plugins),
        *_dangling(plugins),
        *_shadowed(),
        *_unreadable(),
        *_stray(),
        *_unknown_blocks(plugins),
        *_passed_over(plugins),
        *_heavy(plugins),
        *_idle(plugins),
    ]
    return sorted(found, key=lambda problem: not problem.is_fatal)


def _failed(plugins: Plugins) -> Iterator[Problem]:
    for record in plugins.failed:
        yield Problem(
            "failed",
            f"plugin {record.source} failed to load: {record.error}",
            f"nothing of it is used; fix or uninstall {record.source.distribution}, or leave it "
            f"out with -p no:{record.source.plugin}",
            details=record.traceback or "",
        )


def _contested(plugins: Plugins) -> Iterator[Problem]:
    for registry in plugins.registries:
        for name in registry.contested():
            try:
                registry.entry(name)
            except ContestedNameError as error:
                what, _, way_out = str(error).partition("; ")
                yield Problem("contested", what, way_out)


def _wrong_versions(plugins: Plugins) -> Iterator[Problem]:
    for entry in _entries(plugins):
        try:
            check_api(entry)
        except ApiVersionError as error:
            what, _, way_out = str(error).rpartition(": ")
            yield _unusable(plugins, entry, "api_version", what, way_out)


def _dangling(plugins: Plugins) -> Iterator[Problem]:
    for entry in _entries(plugins):
        for reference in _references(entry):
            if locate(reference) is None:
                module = reference.partition(":")[0]
                what = (
                    f"{entry.kind.title} {entry.name!r} of {entry.source} points at {reference}, "
                    f"and there is no module {module}"
                )
                way_out = f"fix the reference in {entry.source.plugin}, or install it again"
                yield _unusable(plugins, entry, "no_module", what, way_out)


def _unusable(plugins: Plugins, entry: Entry, code: str, what: str, way_out: str) -> Problem:
    """Return the problem of an entry that cannot be used; a note if another serves its name."""
    served = plugins.registries[entry.kind.name].uncontested(entry.name)
    is_needed = served is None or served.source == entry.source
    if is_needed:
        outcome = f"{entry.kind.title} {entry.name!r} cannot be used"
    else:
        outcome = f"{entry.preference(entry.source)} fails"
    return Problem(code, what, f"{way_out}; until then {outcome}", is_fatal=is_needed)


def _shadowed() -> Iterator[Problem]:
    for name, paths in shadowed_distributions().items():
        hidden = ", ".join(paths[1:])
        yield Problem(
            "shadowed",
            f"distribution {name} is installed more than once: {paths[0]} is used, {hidden} is not",
            "remove the copy that you do not want; a stale .egg-info beside the sources is one too",
        )


def _unreadable() -> Iterator[Problem]:
    for name, complaint in unreadable_distributions().items():
        yield Problem(
            "unreadable",
            f"the entry points of distribution {name} cannot be read: {complaint}",
            "its plugins, if it has any, are not used; install it again",
        )


def _stray() -> Iterator[Problem]:
    for stray in stray_distributions():
        yield _misplaced(stray) if stray.points else _without_points(stray)


def _misplaced(stray: Stray) -> Problem:
    points = ", ".join(f"{p.name} = {p.value} in {p.group!r}" for p in stray.points)
    first = stray.points[0]
    return Problem(
        "wrong_group",
        f"distribution {stray.name} {stray.version} has entry points in groups that quire does "
        f"not read: {points}",
        _line_to_add(first.name, first.value),
        is_fatal=not stray.has_plugins,
    )


def _without_points(stray: Stray) -> Problem:
    example = _line_to_add(stray.module, f"{stray.module}.plugin")
    return Problem(
        "no_entry_point",
        f"distribution {stray.name} {stray.version} depends on quire and has no entry point in "
        f"its group {ENTRY_POINT_GROUP!r}, so it offers nothing",
        f"if it is only a program that uses quire, nothing is wrong; if it has a plugin: {example}",
        is_fatal=False,
    )


def _line_to_add(name: str, reference: str) -> str:
    return (
        f"the group is {ENTRY_POINT_GROUP!r}: write under [project.entry-points."
        f'{ENTRY_POINT_GROUP}] in its pyproject.toml, for example, {name} = "{reference}", and '
        "install it again"
    )


def _unknown_blocks(plugins: Plugins) -> Iterator[Problem]:
    names = {name for record in plugins.records for name in record.source.names}
    for name in plugins.unknown_blocks:
        yield Problem(
            "unknown_block",
            f"-p no:{name} leaves nothing out: no such plugin is installed"
            f"{did_you_mean(name, names)}",
            "see `quire plugins list`",
        )


def _passed_over(plugins: Plugins) -> Iterator[Problem]:
    for registry in plugins.registries:
        for name in registry:
            entry = registry.uncontested(name)
            if entry is None or not entry.passed_over:
                continue
            others = entry.passed_over
            yield Problem(
                "passed_over",
                f"{entry.kind.title} {name!r} of {entry.source} is also offered by "
                f"{' and '.join(map(str, others))}; quire's own is used",
                f"to use another, pass {' or '.join(map(entry.preference, others))}",
                is_fatal=False,
            )


def _heavy(plugins: Plugins) -> Iterator[Problem]:
    for record in plugins.records:
        if record.heavy_imports:
            yield Problem(
                "heavy",
                f"plugin {record.source} imports {', '.join(record.heavy_imports)} when it is "
                "loaded, which makes every command slow",
                f"let {record.reference} import nothing but hookimpl and quire.interfaces, and "
                "register import strings",
                is_fatal=False,
            )


def _idle(plugins: Plugins) -> Iterator[Problem]:
    for record in plugins.records:
        if record.state == "loaded" and not record.hooks:
            yield Problem(
                "idle",
                f"plugin {record.source} implements no hook",
                f"is {record.reference} the module with the functions under @hookimpl?",
                is_fatal=False,
            )


def _entries(plugins: Plugins) -> Iterator[Entry]:
    return (entry for registry in plugins.registries for entry in registry.offers())


def _references(entry: Entry) -> list[str]:
    match entry.capabilities:
        case ModelCapabilities(describe=describe):
            return [entry.reference, describe]
        case KVStoreCapabilities(worker=worker):
            return [entry.reference, worker]
    return [entry.reference]
