"""What is stored, by content, and in which slot; the least recently used column goes first.

A slot is in one of these states:

    unused ----> written into ----> stored <----> read from
      ^               |               |               |
      |               v               v               v
      +<------ (its write failed:  evicted, or forgotten and not read any more)
                 retired)

Only stored columns are found. One that is read from is never evicted; one that is forgotten while
it moves keeps its slot until it has come to rest.
"""

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass


@dataclass(slots=True, eq=False)
class Column:
    """A slot that is in use.

    Attributes:
        is_written: All its bytes are there.
        num_readers: Loads that are under way.
        is_forgotten: Nobody finds it any more.
    """

    block_hash: bytes
    slot: int
    is_written: bool = False
    num_readers: int = 0
    is_forgotten: bool = False


class ColumnIndex:
    """Columns in at most `num_slots` slots.

    Attributes:
        num_slots: Slots that can be used, retired ones excluded.
        num_evicted: Columns that had to make room, so far.
    """

    def __init__(self, num_slots: int) -> None:
        self.num_slots = num_slots
        self.num_evicted = 0
        self._columns: dict[bytes, Column] = {}
        self._at_rest: OrderedDict[bytes, Column] = OrderedDict()  # least recently used first
        self._leaving: set[int] = set()  # slots of forgotten columns that still move
        self._returned: list[int] = []
        self._first_unused = 0  # slots from here on were never given out
        self._end = num_slots

    @property
    def num_free(self) -> int:
        """Slots that hold nothing."""
        return len(self._returned) + self._end - self._first_unused

    @property
    def num_at_rest(self) -> int:
        """Stored columns that nobody reads at the moment."""
        return len(self._at_rest)

    @property
    def num_moving(self) -> int:
        """Slots that are written into or read from."""
        return len(self._columns) - len(self._at_rest) + len(self._leaving)

    def __contains__(self, block_hash: bytes) -> bool:
        return block_hash in self._columns

    def find(self, block_hash: bytes) -> Column | None:
        """Return the column, if it is stored completely."""
        column = self._columns.get(block_hash)
        return column if column is not None and column.is_written else None

    def claim(self, block_hash: bytes) -> Column | None:
        """Give a new column a slot to be written into; None if everything in the store moves."""
        if not self.num_free and not self._evict():
            return None
        column = Column(block_hash, self._take_slot())
        self._columns[block_hash] = column
        return column

    def touch(self, block_hashes: Sequence[bytes]) -> None:
        """Make these the most recently used, the first of them most of all.

        Nobody finds the end of a prompt without its beginning, so the end is to go first.
        """
        for block_hash in reversed(block_hashes):
            if block_hash in self._at_rest:
                self._at_rest.move_to_end(block_hash)

    def begin_reading(self, columns: Iterable[Column]) -> None:
        """Keep stored columns where they are until `end_reading`."""
        for column in columns:
            column.num_readers += 1
            self._at_rest.pop(column.block_hash, None)

    def end_reading(self, columns: Sequence[Column]) -> None:
        """They were read; they are now the most recently used."""
        for column in reversed(columns):
            column.num_readers -= 1
            self._rest(column)

    def end_writing(self, columns: Sequence[Column]) -> None:
        """They are stored, from now on."""
        for column in reversed(columns):
            column.is_written = True
            self._rest(column)

    def retire(self, columns: Iterable[Column]) -> None:
        """Their writing failed: what was meant to be there is not, and the slot is not trusted."""
        for column in columns:
            self._leaving.discard(column.slot)
            if not column.is_forgotten:
                del self._columns[column.block_hash]
                column.is_forgotten = True
            self.num_slots -= 1

    def forget(self, columns: Iterable[Column]) -> None:
        """Let nobody find these any more."""
        for column in columns:
            if column.is_forgotten:
                continue
            column.is_forgotten = True
            del self._columns[column.block_hash]
            if self._at_rest.pop(column.block_hash, None) is not None:
                self._returned.append(column.slot)
            else:
                self._leaving.add(column.slot)

    def forget_all(self) -> None:
        """Let nobody find anything any more."""
        self.forget(list(self._columns.values()))

    def _rest(self, column: Column) -> None:
        """See what becomes of a column that may have stopped moving."""
        if column.num_readers:
            return
        if column.is_forgotten:
            self._leaving.discard(column.slot)
            self._returned.append(column.slot)
        else:
            self._at_rest[column.block_hash] = column

    def _evict(self) -> bool:
        if not self._at_rest:
            return False
        _, column = next(iter(self._at_rest.items()))
        self.forget([column])
        self.num_evicted += 1
        return True

    def _take_slot(self) -> int:
        """Return a slot that was used before, if there is one: its memory is allocated."""
        if self._returned:
            return self._returned.pop()
        self._first_unused += 1
        return self._first_unused - 1
