"""The keys of a server, and the comparison of a request's key with all of them."""

import secrets
from collections.abc import Iterable, Sequence
from pathlib import Path

from quire.config import ServerSettings
from quire.errors import SettingsError
from quire.server.keys.api_key import ApiKey, digest_of, make_key
from quire.server.keys.key_file import KeyEntry, read_key_file

DIGITS = 8  # of a digest in a name


class KeyRing:
    """API keys and admin keys.

    Args:
        api: Keys of requests.
        admin: Keys of the control routes.

    Raises:
        SettingsError: Two keys have one name, or are the same.
    """

    def __init__(self, api: Sequence[ApiKey] = (), admin: Sequence[ApiKey] = ()) -> None:
        self.api = tuple(api)
        self.admin = tuple(admin)
        self._all = (*self.api, *self.admin)
        _check_unique(self._all)

    @classmethod
    def load(cls, settings: ServerSettings) -> "KeyRing":
        """Return the keys of the settings and of their files.

        Raises:
            SettingsError: A file or a key is invalid.
        """
        return cls(
            _keys("key", settings.api_key, settings.api_key_file),
            _keys("admin", settings.admin_key, settings.admin_key_file),
        )

    @property
    def has_keys(self) -> bool:
        """Whether there is any key."""
        return bool(self._all)

    def find(self, text: bytes) -> ApiKey | None:
        """Return the key of a text; it is compared with each key, also after one that matches."""
        given, found = digest_of(text), None
        for key in self._all:
            if secrets.compare_digest(given, key.digest):
                found = key
        return found


def _keys(prefix: str, texts: Iterable[str], file: str | None) -> list[ApiKey]:
    """Return keys; those without a name are named by the beginning of their digest."""
    entries = [KeyEntry(text) for text in texts]
    if file is not None:
        entries += read_key_file(Path(file))
    return [make_key(_name_of(prefix, each), each.key, each.limits) for each in entries]


def _name_of(prefix: str, entry: KeyEntry) -> str:
    """Return a name that stays when other keys are added or removed."""
    if entry.name is not None:
        return entry.name
    return f"{prefix}-{digest_of(entry.key.encode()).hex()[:DIGITS]}"


def _check_unique(keys: Iterable[ApiKey]) -> None:
    by_name: dict[str, ApiKey] = {}
    by_digest: dict[bytes, ApiKey] = {}
    for key in keys:
        if key.name in by_name:
            raise SettingsError(f"two keys have the name {key.name!r}")
        if key.digest in by_digest:
            same = by_digest[key.digest].name
            raise SettingsError(f"the keys {same!r} and {key.name!r} are the same")
        by_name[key.name] = by_digest[key.digest] = key
