"""One key: a name for logs and usage, a digest for comparison, and the limits of its requests."""

import hashlib
import re
from dataclasses import dataclass, field

import msgspec

from quire.errors import SettingsError

MAX_KEY_CHARACTERS = 1024
_NAME = re.compile(r"[A-Za-z0-9._-]{1,64}")


class KeyLimits(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Limits of the requests with one key; None is no limit.

    Attributes:
        requests_per_minute: Number of requests, which may come at once.
        tokens_per_minute: Number of tokens of prompts and completions together.
        max_concurrent: Number of requests at the same time.
        priority: Smallest priority of a request, which is also the default: smaller goes first.
        models: Names of the models and adapters that requests may use.
    """

    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None
    max_concurrent: int | None = None
    priority: int | None = None
    models: tuple[str, ...] | None = None

    def check(self, name: str) -> None:
        """Check the limits of the key called `name`.

        Raises:
            SettingsError: A limit lets no request through.
        """
        for limit in ("requests_per_minute", "tokens_per_minute", "max_concurrent"):
            value: int | None = getattr(self, limit)  # a field of our own struct
            if value is not None and value < 1:
                raise SettingsError(f"{limit} of the key {name!r} must be at least 1, got {value}")
        if self.models == ():
            raise SettingsError(f"models of the key {name!r} is empty; leave it out for all models")


NO_LIMITS = KeyLimits()


@dataclass(frozen=True, slots=True)
class ApiKey:
    """A key without its text.

    Attributes:
        name: Name, unique on this server.
        digest: SHA-256 of the text.
        limits: Limits of the requests with this key.
    """

    name: str
    digest: bytes = field(repr=False)
    limits: KeyLimits = NO_LIMITS


def make_key(name: str, text: str, limits: KeyLimits = NO_LIMITS) -> ApiKey:
    """Return the key of a name and its text; no error shows the text.

    Raises:
        SettingsError: A part is invalid.
    """
    if not _NAME.fullmatch(name):
        raise SettingsError(
            "the name of a key must have 1 to 64 letters, digits, '.', '_' or '-', got "
            f"{name!r:.80}"
        )
    if not text:
        raise SettingsError(f"the key {name!r} is empty")
    if len(text) > MAX_KEY_CHARACTERS or not text.isprintable() or " " in text:
        raise SettingsError(
            f"the key {name!r} must have at most {MAX_KEY_CHARACTERS} characters, without spaces "
            "and control characters"
        )
    limits.check(name)
    return ApiKey(name, digest_of(text.encode()), limits)


def digest_of(text: bytes) -> bytes:
    """Return the SHA-256 digest of a key; all digests have one length, whatever the key's is."""
    return hashlib.sha256(text).digest()
