"""Discovery of installed plugins, without importing them.

A plugin is an entry point in the group "quire". If a distribution is on the path twice, the first
one counts, as for imports. `quire plugins doctor` reports it, because the second one is usually
the one that is being edited.
"""

import logging
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from importlib.machinery import PathFinder
from importlib.metadata import Distribution, EntryPoint, distributions
from importlib.util import find_spec
from pathlib import Path

from quire.hookspecs import PROJECT
from quire.plugins.registry import OWN_DISTRIBUTION, Source

ENTRY_POINT_GROUP = PROJECT
_REQUIREMENT = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")  # matches the name of a requirement
_EXTRA_MARKER = re.compile(r"\bextra\b")
_NAME = re.compile(r"^Name:[ \t]*(\S+)", re.MULTILINE)

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Candidate:
    """An entry point that could be loaded."""

    entry_point: EntryPoint
    source: Source

    @property
    def name(self) -> str:
        """Name of the plugin: the entry point's, or `NAME@DISTRIBUTION` if several share it."""
        return self.source.plugin

    @property
    def is_ours(self) -> bool:
        """Whether it ships with quire."""
        return self.source.is_ours


def discover() -> list[Candidate]:
    """Find the plugin entry points of all installed distributions.

    A distribution with unreadable metadata is skipped with a warning.
    """
    found: list[Candidate] = []
    for name, distribution in _first_distributions():
        points, complaint = _read_points(distribution)
        if points:
            found += _candidates(points, distribution.name, distribution.version)
        if complaint:
            logger.warning(
                "the entry points of distribution %s cannot be read, its plugins are skipped: %s",
                name,
                complaint,
            )
    uses = Counter(candidate.name for candidate in found)
    return [_with_own_name(candidate, uses[candidate.name]) for candidate in found]


def shadowed_distributions() -> dict[str, list[str]]:
    """Return distributions with plugins that are installed more than once.

    Returns:
        Their folders by name, in path order: the first one counts.
    """
    folders: dict[str, list[str]] = {}
    with_plugins = set()
    for name, distribution in _named_distributions():
        folder = str(Path(str(distribution.locate_file(""))).resolve())
        if folder not in folders.setdefault(name, []):
            folders[name].append(folder)
        if _read_points(distribution)[0]:
            with_plugins.add(name)
    return {
        name: found for name, found in folders.items() if len(found) > 1 and name in with_plugins
    }


@dataclass(frozen=True, slots=True)
class Stray:
    """A distribution that seems to be meant for quire, but has entry points that quire ignores.

    Attributes:
        module: One of its top-level modules, for an example.
        points: Its entry points in groups with names similar to quire's; empty if it only depends
            on quire.
        has_plugins: Whether it also has entry points in quire's group.
    """

    name: str
    version: str
    module: str
    points: tuple[EntryPoint, ...]
    has_plugins: bool


def stray_distributions() -> list[Stray]:
    """Find distributions that seem to have plugins which quire does not find.

    This reads the metadata of all distributions, which is too slow for every start. A distribution
    that depends on quire only for one of its extras does not count.
    """
    found = []
    for name, distribution in _first_distributions():
        if name == OWN_DISTRIBUTION or (points := _all_points(distribution)) is None:
            continue
        has_plugins = any(point.group == ENTRY_POINT_GROUP for point in points)
        alike = tuple(point for point in points if _looks_like_ours(point.group))
        if alike or (_needs_quire(distribution) and not has_plugins):
            module = (_top_level(distribution) or name).replace("-", "_")
            stray = Stray(distribution.name, distribution.version, module, alike, has_plugins)
            found.append(stray)
    return found


def locate(reference: str) -> str | None:
    """Return the file of the module in `package.module:attribute`; None if it does not exist.

    Nothing is imported, not even parent packages, because they may be heavy or broken.
    """
    top, *rest = reference.partition(":")[0].split(".")
    try:
        spec = find_spec(top)
    except (ImportError, ValueError):
        return None
    name = top
    for part in rest:
        if spec is None or spec.submodule_search_locations is None:
            return None
        name = f"{name}.{part}"
        spec = PathFinder.find_spec(name, list(spec.submodule_search_locations))
    if spec is None:
        return None
    return spec.origin or name  # a namespace package has no file


def unreadable_distributions() -> dict[str, str]:
    """Return the distributions whose entry points cannot be parsed, with the parser's complaint."""
    complaints = {name: _read_points(found)[1] for name, found in _named_distributions()}
    return {name: complaint for name, complaint in complaints.items() if complaint}


def _candidates(points: Sequence[EntryPoint], distribution: str, version: str) -> list[Candidate]:
    return [Candidate(point, Source(point.name, distribution, version)) for point in points]


def _with_own_name(candidate: Candidate, num_uses: int) -> Candidate:
    """Return a candidate with a unique name; quire's own plugins keep theirs in any case."""
    source = candidate.source
    if num_uses == 1 or source.is_ours:
        return candidate
    shared = replace(source, plugin=f"{source.plugin}@{source.distribution}")
    return replace(candidate, source=shared)


def _all_points(distribution: Distribution) -> tuple[EntryPoint, ...] | None:
    """Return the entry points of all groups; None if they cannot be read."""
    try:
        return tuple(distribution.entry_points)
    except (TypeError, ValueError, OSError):
        return None


def _looks_like_ours(group: str) -> bool:
    """Whether a group other than quire's has a word in its name that starts with "quire"."""
    words = re.split(r"[^a-z0-9]+", group.lower())
    return group != ENTRY_POINT_GROUP and any(word.startswith(PROJECT) for word in words)


def _needs_quire(distribution: Distribution) -> bool:
    """Whether a distribution depends on quire, and not only for an extra."""
    for requirement in distribution.requires or ():
        name, marker = _REQUIREMENT.match(requirement), requirement.partition(";")[2]
        is_quire = name is not None and _normalised(name[0]) == OWN_DISTRIBUTION
        if is_quire and not _EXTRA_MARKER.search(marker):
            return True
    return False


def _top_level(distribution: Distribution) -> str:
    """Return the first top-level module of a distribution; empty if its metadata names none."""
    lines = (distribution.read_text("top_level.txt") or "").split()
    return lines[0] if lines else ""


def _read_points(distribution: Distribution) -> tuple[Sequence[EntryPoint], str]:
    """Return a distribution's plugin entry points, and the error if they cannot be read."""
    try:
        return tuple(distribution.entry_points.select(group=ENTRY_POINT_GROUP)), ""
    except (TypeError, ValueError, OSError) as error:
        return (), f"{type(error).__name__}: {error}"


def _first_distributions() -> Iterator[tuple[str, Distribution]]:
    """Yield the first copy of each distribution on the path, with its normalised name."""
    seen = set()
    for name, distribution in _named_distributions():
        if name not in seen:
            seen.add(name)
            yield name, distribution


def _named_distributions() -> Iterator[tuple[str, Distribution]]:
    """Yield installed distributions with their normalised names; skip unreadable metadata."""
    for distribution in distributions():
        try:
            name = _name_of(distribution)
        except (KeyError, TypeError, ValueError, OSError):  # as from a partly removed folder
            continue
        if name:
            yield _normalised(name), distribution


def _name_of(distribution: Distribution) -> str:
    """Return a distribution's name by reading only the line with it.

    A process reads the names of all distributions at start. Parsing the whole metadata would take
    ten times as long.
    """
    line = _NAME.search(distribution.read_text("METADATA") or "")
    return line[1] if line else distribution.name


def _normalised(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()
