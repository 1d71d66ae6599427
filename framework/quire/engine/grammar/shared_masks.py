"""Shared table of masks, written by grammar processes and read by the engine: a row per request."""

import mmap
from collections.abc import Sequence

from quire.engine.grammar.fork_server_client import anonymous_file
from quire.interfaces.structured_output import Vocabulary


class SharedMasks:
    """Shared memory of `num_rows` masks; the processes inherit its file descriptor.

    Attributes:
        fd: File descriptor of the memory.
        end: A mask that allows only the end of the text.
    """

    def __init__(self, num_rows: int, vocabulary: Vocabulary) -> None:
        self._row_bytes = -(-vocabulary.size // 32) * 4
        self._file = anonymous_file("quire-grammar-masks")
        self._file.truncate(num_rows * self._row_bytes)
        self._table = mmap.mmap(self._file.fileno(), 0)
        self.fd = self._file.fileno()
        self.end = _only(vocabulary.eos_token_ids, self._row_bytes)

    def row(self, index: int) -> bytes:
        """Return a copy of one row, which the next step overwrites."""
        return self._table[index * self._row_bytes : (index + 1) * self._row_bytes]

    def close(self) -> None:
        """Free the memory."""
        self._table.close()
        self._file.close()


def _only(token_ids: Sequence[int], row_bytes: int) -> bytes:
    words = bytearray(row_bytes)
    for token_id in token_ids:
        words[token_id // 8] |= 1 << token_id % 8
    return bytes(words)
