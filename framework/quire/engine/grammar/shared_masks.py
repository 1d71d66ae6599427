"""Shared table of masks, written by grammar processes and read by the engine: a row per request."""

import mmap
from collections.abc import Sequence

from quire.engine.grammar.fork_server_client import anonymous_file
from quire.engine.grammar.grammar_wire import RUNNING
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
        self._running_offset = num_rows * self._row_bytes
        self._file.truncate(self._running_offset + RUNNING.size)
        self._table = mmap.mmap(self._file.fileno(), 0)
        self.fd = self._file.fileno()
        self.end = _only(vocabulary.eos_token_ids, self._row_bytes)

    def row(self, index: int) -> bytes:
        """Return a copy of one row, which the next step overwrites."""
        return self._table[index * self._row_bytes : (index + 1) * self._row_bytes]

    def take_running(self) -> int:
        """Return the number of the grammar at which the shared process stopped, and forget it.

        0: it was between two turns. Must not be called while that process may write.
        """
        (number,) = RUNNING.unpack_from(self._table, self._running_offset)
        RUNNING.pack_into(self._table, self._running_offset, 0)
        return int(number)

    def close(self) -> None:
        """Free the memory."""
        self._table.close()
        self._file.close()


def _only(token_ids: Sequence[int], row_bytes: int) -> bytes:
    words = bytearray(row_bytes)
    for token_id in token_ids:
        words[token_id // 8] |= 1 << token_id % 8
    return bytes(words)
