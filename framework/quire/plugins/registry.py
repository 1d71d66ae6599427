"""Registries of the names that plugins offer, with the plugin and the import string of each.

One class serves all kinds of parts. The import string is resolved when the name is selected. So a
plugin with thirty models costs nothing at start, and a missing optional dependency is an error
only if a part that needs it is selected.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from difflib import SequenceMatcher, get_close_matches
from pkgutil import resolve_name
from typing import Any, Generic, TypeVar, cast

from quire.errors import (
    ApiVersionError,
    ContestedNameError,
    PluginError,
    PluginLoadError,
    UnknownNameError,
)
from quire.interfaces.reference import check_reference

T = TypeVar("T")

OWN_DISTRIBUTION = "quire"
FILE = "file"  # in place of a distribution
MAX_LISTED = 30  # names in a message
MAX_NEAR = 3  # similar names that are looked at
MIN_SIMILARITY = 0.5


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind of part that plugins offer.

    Attributes:
        name: Field of `Registries`, and the suffix of the hook `register_<name>`.
        title: Name of the kind in messages: "attention backend".
        api: Version of the kind's interface in this quire; `api - 1` is supported as well.
        oldest_api: Oldest version that may be supported.
        capabilities: Type that an entry must declare at registration, if any.
        interface: Base class of the code behind a name; None: it is a function.
    """

    name: str
    title: str
    api: int = 1
    oldest_api: int = 1
    capabilities: type | None = None
    interface: type | None = None

    @property
    def apis(self) -> range:
        """Interface versions that this quire supports."""
        return range(max(self.oldest_api, self.api - 1), self.api + 1)


@dataclass(frozen=True, slots=True)
class Source:
    """Plugin that an entry comes from."""

    plugin: str
    distribution: str
    version: str

    @property
    def names(self) -> frozenset[str]:
        """Names of the plugin for users: its own, its entry point's and its distribution's."""
        return frozenset({self.plugin, self.plugin.partition("@")[0], self.distribution})

    @property
    def is_table(self) -> bool:
        """Whether it is a user's file without code."""
        return self.distribution == FILE and not self.plugin.endswith(".py")

    @property
    def is_ours(self) -> bool:
        """Whether the plugin ships with quire, by its distribution; plugin names are not unique."""
        return self.distribution == OWN_DISTRIBUTION

    def __str__(self) -> str:
        return f"{self.plugin} ({self.distribution} {self.version})"


@dataclass(frozen=True, slots=True)
class Entry:
    """One name that one plugin offers.

    Attributes:
        reference: Import string, "package.module:attribute".
        passed_over: Other plugins that offer the name, if the user has set no preference; set by
            the registry when it returns the entry.
        code: Code of the entry if a user's file defines it; None: that of `reference`.
    """

    kind: Kind
    name: str
    reference: str
    source: Source
    api: int = 1
    capabilities: Any = None
    passed_over: tuple[Source, ...] = ()
    code: Any = None

    def preference(self, source: Source) -> str:
        """Return the option that selects a plugin for the name."""
        return f"--prefer {self.kind.name}:{self.name}={source.plugin}"


class Registrar(Generic[T]):
    """Argument of a `register_*` hook: collects the entries of one plugin of one kind."""

    def __init__(self, kind: Kind, source: Source) -> None:
        self.kind = kind
        self.source = source
        self.entries: list[Entry] = []

    def add(self, name: str, reference: str, *, api: int = 1, capabilities: Any = None) -> None:
        """Offer `name`; its code is at `reference`, written `package.module:attribute`.

        Args:
            name: Name by which users select it.
            reference: Import string; nothing is imported now.
            api: Version of the kind's interface that the code implements.
            capabilities: Properties that the selection needs without importing the code, in the
                kind's own type (`AttentionCapabilities`, `ModelCapabilities`, ...).

        Raises:
            PluginError: An argument is invalid; the message says which.
        """
        if not name or not isinstance(name, str):
            raise PluginError(f"a {self.kind.title} needs a name, got {name!r}")
        check_reference(reference, f"{self.kind.title} {name!r}: the reference")
        if not isinstance(api, int) or isinstance(api, bool) or api < 1:
            raise PluginError(
                f"{self.kind.title} {name!r}: api must be a whole number from 1, got {api!r}"
            )
        wanted = self.kind.capabilities
        if wanted is not None and not isinstance(capabilities, wanted):
            raise PluginError(
                f"{self.kind.title} {name!r} must be added with capabilities="
                f"{wanted.__name__}(...), got {capabilities!r}"
            )
        if any(entry.name == name for entry in self.entries):
            raise PluginError(f"{self.kind.title} {name!r} is added twice by {self.source}")
        self.entries.append(Entry(self.kind, name, reference, self.source, api, capabilities))


class Registry(Generic[T]):
    """Names of one kind. Lookup errors list the known names."""

    def __init__(self, kind: Kind) -> None:
        self.kind = kind
        self.num_failed_plugins = 0
        self._offers: dict[str, list[Entry]] = {}
        self._preferred: dict[str, str] = {}

    def accept(self, entries: Iterable[Entry]) -> None:
        """Add the entries of one plugin, after the whole plugin has loaded."""
        for entry in entries:
            self._offers.setdefault(entry.name, []).append(entry)

    def prefer(self, name: str, plugin: str) -> None:
        """Set the user's preferred plugin for a name that several plugins offer.

        Args:
            name: Name of the part.
            plugin: Name of the plugin, or another of `Source.names` if it is unambiguous.

        Raises:
            UnknownNameError: That plugin does not offer the name.
            ContestedNameError: Several plugins that offer the name match `plugin`.
        """
        offers = self._offers.get(name, [])
        if not offers:
            raise UnknownNameError(self.unknown(name))
        meant = [entry for entry in offers if entry.source.plugin == plugin]
        meant = meant or [entry for entry in offers if plugin in entry.source.names]
        if not meant:
            raise UnknownNameError(
                f"plugin {plugin!r} offers no {self.kind.title} named {name!r}; it is offered by "
                f"{_listed(offers)}"
            )
        if len(meant) > 1:
            raise ContestedNameError(
                f"{plugin!r} matches {_listed(meant)}, which all offer {self.kind.title} {name!r}; "
                f"{_choice_between(meant)}"
            )
        self._preferred[name] = meant[0].source.plugin

    def entry(self, name: str, others: Sequence[str] = ()) -> Entry:
        """Return the selected entry of a name, without importing it.

        Args:
            name: Name of the entry.
            others: Further words that the option for the name takes, such as auto, for the error.

        Raises:
            UnknownNameError: No plugin offers the name.
            ContestedNameError: Several third-party plugins offer it, quire does not, and the user
                has set no preference.
        """
        offers = self._offers.get(name, [])
        if not offers:
            raise UnknownNameError(self.unknown(name, others))
        entry = self.uncontested(name)
        if entry is None:
            raise ContestedNameError(
                f"{self.kind.title} {name!r} is offered by {_listed(offers)}; "
                f"{_choice_between(offers)}"
            )
        return entry

    def uncontested(self, name: str) -> Entry | None:
        """Return the selected entry of a name that is offered; None if the name is contested.

        Between several plugins the user's preference decides. Without one, quire's own part is
        used: installing a plugin neither replaces nor disables it. If none of them is quire's, the
        name is contested.
        """
        offers = self._offers[name]
        if name in self._preferred:
            return next(e for e in offers if e.source.plugin == self._preferred[name])
        if len(offers) == 1:
            return offers[0]
        ours = next((entry for entry in offers if entry.source.is_ours), None)
        if ours is None:
            return None
        others = tuple(entry.source for entry in offers if entry is not ours)
        return replace(ours, passed_over=others)

    def get(self, name: str) -> T:
        """Import and return the code behind `name`.

        Raises:
            UnknownNameError: No plugin offers the name.
            ContestedNameError: Several third-party plugins offer the name.
            ApiVersionError: The interface version of the code is not supported by this quire.
            PluginLoadError: The import fails (the cause is chained), or the imported object is not
                a subclass of the kind's interface.
        """
        return self.load(self.entry(name))

    def load(self, entry: Entry) -> T:
        """Import and return the code behind one entry; raises as `get` does."""
        check_api(entry)
        if entry.code is not None:
            return cast("T", entry.code)
        what = f"{self.kind.title} {entry.name!r} of {entry.source}"
        found = import_reference(entry.reference, what)
        _check_interface(found, self.kind.interface, f"{what}: {entry.reference}")
        return cast("T", found)

    def contested(self) -> dict[str, list[Entry]]:
        """Return the contested names, each with all its entries."""
        return {
            name: list(offers)
            for name, offers in self._offers.items()
            if self.uncontested(name) is None
        }

    def offers(self) -> Iterator[Entry]:
        """Yield all entries of all plugins, sorted by name, contested or not."""
        for name in sorted(self._offers):
            yield from self._offers[name]

    def __iter__(self) -> Iterator[str]:
        return iter(sorted(self._offers))

    def __contains__(self, name: object) -> bool:
        return name in self._offers

    def __len__(self) -> int:
        return len(self._offers)

    def unknown(self, name: str, others: Sequence[str] = (), hidden: Sequence[str] = ()) -> str:
        """Return the sentence that no plugin offers a name, with the most similar one.

        Args:
            name: Name that is not known.
            others: Further words that the option for the name takes.
            hidden: Names of the registry that do not belong in its place.
        """
        shown = [known for known in self if known not in hidden]
        names = [*(known for known in shown if not is_suffix(known)), *others]
        files = [f"a {suffix} file" for suffix in filter(is_suffix, shown)]
        hint = did_you_mean(name, names)
        known = ", ".join([*names, *files]) or "none"
        if len(names) > MAX_LISTED:
            known = f"{len(names)} names, see `quire plugins list`"
        failed = self.num_failed_plugins
        plugins = "plugin" if failed == 1 else "plugins"
        doctor = (
            f". {failed} {plugins} failed to load, see `quire plugins doctor`" if failed else ""
        )
        return f"unknown {self.kind.title} {name!r}{hint} (known: {known}){doctor}"


def is_suffix(name: str) -> bool:
    """Whether the name is that of the files which its plugin reads."""
    return name.startswith(".")


def check_api(entry: Entry) -> None:
    """Check, before anything is imported, that the entry's interface version is supported.

    Raises:
        ApiVersionError: It is not; the message says which side to upgrade.
    """
    served = entry.kind.apis
    if entry.api in served:
        return
    remedy = "upgrade quire" if entry.api > served[-1] else f"upgrade {entry.source.distribution}"
    raise ApiVersionError(
        f"{entry.kind.title} {entry.name!r} of {entry.source} has interface version {entry.api}; "
        f"this quire supports {' and '.join(map(str, served))}: {remedy}"
    )


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return "; did you mean 'flash'?" if a known name is similar to a wrong one, else ""."""
    by_folded, folded = {other.casefold(): other for other in known}, name.casefold()
    for near in get_close_matches(folded, by_folded, MAX_NEAR, cutoff=MIN_SIMILARITY):
        if _have_similar_starts(name, by_folded[near]):
            return f"; did you mean {by_folded[near]!r}?"
    return ""


def _have_similar_starts(name: str, other: str) -> bool:
    """Return whether names are similar without the words at the end that both have.

    Those of all models' names are alike: `ForCausalLM`.
    """
    words, other_words = (re.findall("^[^A-Z]+|[A-Z][^A-Z]*", text) for text in (name, other))
    while words and other_words and words[-1] == other_words[-1]:
        words.pop()
        other_words.pop()
    start, other_start = ("".join(each).casefold() for each in (words, other_words))
    return SequenceMatcher(None, start, other_start).ratio() >= MIN_SIMILARITY


def import_reference(reference: str, what: str) -> object:
    """Import `package.module:attribute`.

    Raises:
        PluginLoadError: The import fails; the message begins with `what`.
    """
    try:
        return resolve_name(reference)
    except (Exception, SystemExit) as error:
        raise PluginLoadError(
            f"{what} could not be imported from {reference!r}: {type(error).__name__}: {error}"
        ) from error


def _check_interface(found: object, interface: type | None, what: str) -> None:
    if interface is None:
        if not callable(found):
            raise PluginLoadError(
                f"{what} must be a function, but it is of type {type(found).__name__}"
            )
    elif not (isinstance(found, type) and issubclass(found, interface)):
        wanted = f"{interface.__module__}.{interface.__name__}"
        raise PluginLoadError(f"{what} is not a subclass of {wanted}")


def _listed(offers: Iterable[Entry]) -> str:
    return " and ".join(str(offer.source) for offer in offers)


def _choice_between(offers: Iterable[Entry]) -> str:
    """Return the options with which the user selects one of several plugins for a name."""
    options = " or ".join(offer.preference(offer.source) for offer in offers)
    return f"choose with {options}, or leave one out with -p no:PLUGIN"
