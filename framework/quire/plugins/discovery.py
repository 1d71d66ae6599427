"""Find what is installed, without importing any of it.

There is one way in: an entry point in the group "quire". Of a distribution that lies on the path
twice the first counts, as it does for imports; the doctor says so, because the second one is
usually the one that is being edited.
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
_REQUIREMENT = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")  # the name at its beginning
_OF_AN_EXTRA = re.compile(r"\bextra\b")
_NAME = re.compile(r"^Name:[ \t]*(\S+)", re.MULTILINE)

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Candidate:
    """An entry point that could be loaded."""

    entry_point: EntryPoint
    source: Source

    @property
    def name(self) -> str:
        """The plugin's name: the entry point's, and `NAME@DISTRIBUTION` where that is shared."""
        return self.source.plugin

    @property
    def is_ours(self) -> bool:
        """Whether it ships with quire."""
        return self.source.is_ours


def discover() -> list[Candidate]:
    """Find the entry points of every installed distribution.

    One whose metadata cannot be read has none; the log says so.
    """
    found: list[Candidate] = []
    for name, distribution in _counting_distributions():
        points, complaint = _read_points(distribution)
        if points:
            found += _candidates(points, distribution.name, distribution.version)
        if complaint:
            logger.warning("the entry points of %s cannot be read: %s", name, complaint)
    uses = Counter(candidate.name for candidate in found)
    return [_with_own_name(candidate, uses[candidate.name]) for candidate in found]


def shadowed_distributions() -> dict[str, list[str]]:
    """Return distributions with plugins that are installed more than once.

    Returns:
        Their places by name, in path order: the first one counts.
    """
    places: dict[str, list[str]] = {}
    with_plugins = set()
    for name, distribution in _named_distributions():
        place = str(Path(str(distribution.locate_file(""))).resolve())
        if place not in places.setdefault(name, []):
            places[name].append(place)
        if _read_points(distribution)[0]:
            with_plugins.add(name)
    return {
        name: found for name, found in places.items() if len(found) > 1 and name in with_plugins
    }


@dataclass(frozen=True, slots=True)
class Stray:
    """A distribution that seems to be meant for quire, and whose parts are not found.

    Attributes:
        module: A top-level module of it, for an example.
        points: Its entry points in groups whose names look like ours; none: it only depends on
            quire.
        has_plugins: It has entry points in our group as well.
    """

    name: str
    version: str
    module: str
    points: tuple[EntryPoint, ...]
    has_plugins: bool


def stray_distributions() -> list[Stray]:
    """Find distributions with plugins that quire does not find, or that seem to have some.

    It reads the metadata of all distributions, which is too slow for each start.

    A distribution that depends on quire only for one of its extras does not count.
    """
    found = []
    for name, distribution in _counting_distributions():
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
    """Return the file of the module in `package.module:attribute`; None: there is no such module.

    Nothing is imported, not even the packages above the module: they may be heavy, or broken.
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
    """Return a candidate whose name no other has; quire's own keep theirs in any case."""
    source = candidate.source
    if num_uses == 1 or source.is_ours:
        return candidate
    shared = replace(source, plugin=f"{source.plugin}@{source.distribution}")
    return replace(candidate, source=shared)


def _all_points(distribution: Distribution) -> tuple[EntryPoint, ...] | None:
    """Return the entry points of all groups; None where they cannot be read."""
    try:
        return tuple(distribution.entry_points)
    except (TypeError, ValueError, OSError):
        return None


def _looks_like_ours(group: str) -> bool:
    """Whether a group's name, which is not ours, has a word that begins like ours."""
    words = re.split(r"[^a-z0-9]+", group.lower())
    return group != ENTRY_POINT_GROUP and any(word.startswith(PROJECT) for word in words)


def _needs_quire(distribution: Distribution) -> bool:
    """Whether a distribution depends on quire, and not only for an extra."""
    for requirement in distribution.requires or ():
        name, marker = _REQUIREMENT.match(requirement), requirement.partition(";")[2]
        is_quire = name is not None and _normalised(name[0]) == OWN_DISTRIBUTION
        if is_quire and not _OF_AN_EXTRA.search(marker):
            return True
    return False


def _top_level(distribution: Distribution) -> str:
    """Return the first top-level module that a distribution names; empty if it names none."""
    lines = (distribution.read_text("top_level.txt") or "").split()
    return lines[0] if lines else ""


def _read_points(distribution: Distribution) -> tuple[Sequence[EntryPoint], str]:
    """Return a distribution's plugins, or none and what is wrong with its file."""
    try:
        return tuple(distribution.entry_points.select(group=ENTRY_POINT_GROUP)), ""
    except (TypeError, ValueError, OSError) as error:
        return (), f"{type(error).__name__}: {error}"


def _counting_distributions() -> Iterator[tuple[str, Distribution]]:
    """Yield of each distribution the first on the path, by normalised name."""
    seen = set()
    for name, distribution in _named_distributions():
        if name not in seen:
            seen.add(name)
            yield name, distribution


def _named_distributions() -> Iterator[tuple[str, Distribution]]:
    """Yield what is installed, by normalised name; what has no readable metadata is no plugin."""
    for distribution in distributions():
        try:
            name = _name_of(distribution)
        except (KeyError, TypeError, ValueError, OSError):  # what a half-removed folder gives
            continue
        if name:
            yield _normalised(name), distribution


def _name_of(distribution: Distribution) -> str:
    """Return a distribution's name, by its line alone.

    A process starts with the names of all that is installed, and to parse their metadata takes ten
    times as long.
    """
    line = _NAME.search(distribution.read_text("METADATA") or "")
    return line[1] if line else distribution.name


def _normalised(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()
