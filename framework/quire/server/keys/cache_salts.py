"""Salts that separate the prefix caches of keys, so that none can probe the prompts of another.

A salt depends on the digest of its key and on a secret of the server, which is derived from all
keys that it starts with: it is the same in all processes of a server and after a restart, and no
client knows it. The derivation is slow on purpose, because readers of KV events see the salts.
"""

import hashlib
import hmac
from collections.abc import Iterable

from quire.server.keys.api_key import ApiKey

_COST = 2**14  # of scrypt: 16 MiB, once per start


class CacheSalts:
    """Salts by keys.

    Args:
        keys: All keys of the server at its start.
        secret: Secret that was derived from them before; None: it is derived now.

    Attributes:
        secret: Secret of the server.
    """

    def __init__(self, keys: Iterable[ApiKey], secret: bytes | None = None) -> None:
        self.secret = _derived(keys) if secret is None else secret

    def of(self, key: ApiKey) -> str:
        """Return the salt of a key; another key has another one, also if it has its name."""
        return hmac.digest(self.secret, key.digest, "sha256").hex()


def _derived(keys: Iterable[ApiKey]) -> bytes:
    """Return the secret of a server with some keys."""
    digests = b"".join(sorted(key.digest for key in keys))
    purpose = b"quire: salts of the prefix cache"
    return hashlib.scrypt(digests, salt=purpose, n=_COST, r=8, p=1)


def combined_salt(of_key: str | None, of_request: str | None) -> str | None:
    """Return the salt of a request with a key: the request's own one divides the key's cache."""
    if of_key is None or of_request is None:
        return of_key or of_request
    return hmac.digest(of_key.encode(), of_request.encode(), "sha256").hex()
