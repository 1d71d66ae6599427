"""Names of requests, of which no two may be equal; they are kept on disk, not in memory."""

import sqlite3
from hashlib import blake2b
from types import TracebackType
from typing import Self

ID_BYTES = 16  # of a digest; two names of a file have the same by chance once in 2**64 files or so
CACHE_KIB = 32 * 1024


class CustomIds:
    """A context with the names that were seen, and where; its file is removed at the end."""

    def __init__(self) -> None:
        self._table = sqlite3.connect("", isolation_level=None)  # a temporary file, used when full

    def __enter__(self) -> Self:
        self._table.execute(f"PRAGMA cache_size = -{CACHE_KIB}")
        self._table.execute("PRAGMA journal_mode = OFF")
        self._table.execute("BEGIN")
        self._table.execute("CREATE TABLE seen (id BLOB PRIMARY KEY, line INTEGER) WITHOUT ROWID")
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._table.close()

    def add(self, custom_id: str, line: int) -> int | None:
        """Note a name and its line; return the line that has it already, if there is one."""
        digest = blake2b(custom_id.encode(errors="surrogatepass"), digest_size=ID_BYTES).digest()
        added = self._table.execute("INSERT OR IGNORE INTO seen VALUES (?, ?)", (digest, line))
        if added.rowcount:
            return None
        found = self._table.execute("SELECT line FROM seen WHERE id = ?", (digest,)).fetchone()
        return int(found[0])
