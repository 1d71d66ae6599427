"""Find what is installed, without importing any of it.

There is one way in: an entry point in the group "quire". Of a distribution that lies on the path
twice the first counts, as it does for imports; the doctor says so, because the second one is
usually the one that somebody is editing.
"""

import logging
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.machinery import PathFinder
from importlib.metadata import Distribution, EntryPoint, distributions
from importlib.util import find_spec
from pathlib import Path

from quire.hookspecs import PROJECT
from quire.registry import Source

ENTRY_POINT_GROUP = PROJECT
OWN_DISTRIBUTION = "quire"

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Candidate:
    """An entry point that could be loaded."""

    entry_point: EntryPoint
    source: Source

    @property
    def name(self) -> str:
        """The plugin's name: the entry point's; `NAME@DISTRIBUTION` where several share one."""
        return self.source.plugin

    @property
    def is_ours(self) -> bool:
        """Whether it ships with quire."""
        return self.source.distribution == OWN_DISTRIBUTION


def discover() -> list[Candidate]:
    """Find the entry points of every installed distribution.

    One whose metadata cannot be read has none; the log says so.
    """
    found: list[tuple[EntryPoint, Distribution]] = []
    seen = set()
    for name, distribution in _named_distributions():
        if name in seen:
            continue
        seen.add(name)
        points, complaint = _read_points(distribution)
        found += [(point, distribution) for point in points]
        if complaint:
            logger.warning("the entry points of %s cannot be read: %s", name, complaint)
    uses = Counter(point.name for point, _ in found)
    candidates = []
    for point, distribution in found:
        is_unique = uses[point.name] == 1
        name = point.name if is_unique else f"{point.name}@{distribution.name}"
        source = Source(name, distribution.name, distribution.version)
        candidates.append(Candidate(point, source))
    return candidates


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
    """Return the distributions whose entry points nobody can parse, with the parser's complaint."""
    complaints = {name: _read_points(found)[1] for name, found in _named_distributions()}
    return {name: complaint for name, complaint in complaints.items() if complaint}


def _read_points(distribution: Distribution) -> tuple[Sequence[EntryPoint], str]:
    """Return a distribution's plugins, or none and what is wrong with its file."""
    try:
        return tuple(distribution.entry_points.select(group=ENTRY_POINT_GROUP)), ""
    except (TypeError, ValueError, OSError) as error:
        return (), f"{type(error).__name__}: {error}"


def _named_distributions() -> Iterator[tuple[str, Distribution]]:
    """Yield what is installed, by normalised name; what has no readable metadata is no plugin."""
    for distribution in distributions():
        try:
            name = distribution.name
        except (KeyError, TypeError, ValueError, OSError):  # what a half-removed folder gives
            continue
        if name:
            yield re.sub(r"[-_.]+", "-", name).lower(), distribution
