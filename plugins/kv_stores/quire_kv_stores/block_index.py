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
class StoredBlock:
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


class BlockIndex:
    """Columns in at most `num_slots` slots.

    Attributes:
        num_slots: Slots that can be used, retired ones excluded.
        num_evicted: Columns that had to make room, so far.
    """

    def __init__(self, num_slots: int) -> None:
        self.num_slots = num_slots
        self.num_evicted = 0
        self._cross_blocks: dict[bytes, StoredBlock] = {}
        self._at_rest: OrderedDict[bytes, StoredBlock] = OrderedDict()  # least recently used first
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
        return len(self._cross_blocks) - len(self._at_rest) + len(self._leaving)

    def __contains__(self, block_hash: bytes) -> bool:
        return block_hash in self._cross_blocks

    def find(self, block_hash: bytes) -> StoredBlock | None:
        """Return the column, if it is stored completely."""
        cross_block = self._cross_blocks.get(block_hash)
        return cross_block if cross_block is not None and cross_block.is_written else None

    def claim(self, block_hash: bytes) -> StoredBlock | None:
        """Give a new column a slot to be written into; None if everything in the store moves."""
        if not self.num_free and not self._evict():
            return None
        cross_block = StoredBlock(block_hash, self._take_slot())
        self._cross_blocks[block_hash] = cross_block
        return cross_block

    def touch(self, block_hashes: Sequence[bytes]) -> None:
        """Make these the most recently used, the first of them most of all.

        Nobody finds the end of a prompt without its beginning, so the end is to go first.
        """
        for block_hash in reversed(block_hashes):
            if block_hash in self._at_rest:
                self._at_rest.move_to_end(block_hash)

    def begin_reading(self, cross_blocks: Iterable[StoredBlock]) -> None:
        """Keep stored columns where they are until `end_reading`."""
        for cross_block in cross_blocks:
            cross_block.num_readers += 1
            self._at_rest.pop(cross_block.block_hash, None)

    def end_reading(self, cross_blocks: Sequence[StoredBlock]) -> None:
        """They were read; they are now the most recently used."""
        for cross_block in reversed(cross_blocks):
            cross_block.num_readers -= 1
            self._rest(cross_block)

    def end_writing(self, cross_blocks: Sequence[StoredBlock]) -> None:
        """They are stored, from now on."""
        for cross_block in reversed(cross_blocks):
            cross_block.is_written = True
            self._rest(cross_block)

    def retire(self, cross_blocks: Iterable[StoredBlock]) -> None:
        """Their writing failed: what was meant to be there is not, and the slot is not trusted."""
        for cross_block in cross_blocks:
            self._leaving.discard(cross_block.slot)
            if not cross_block.is_forgotten:
                del self._cross_blocks[cross_block.block_hash]
                cross_block.is_forgotten = True
            self.num_slots -= 1

    def forget(self, cross_blocks: Iterable[StoredBlock]) -> None:
        """Let nobody find these any more."""
        for cross_block in cross_blocks:
            if cross_block.is_forgotten:
                continue
            cross_block.is_forgotten = True
            del self._cross_blocks[cross_block.block_hash]
            if self._at_rest.pop(cross_block.block_hash, None) is not None:
                self._returned.append(cross_block.slot)
            else:
                self._leaving.add(cross_block.slot)

    def forget_all(self) -> None:
        """Let nobody find anything any more."""
        self.forget(list(self._cross_blocks.values()))

    def _rest(self, cross_block: StoredBlock) -> None:
        """See what becomes of a column that may have stopped moving."""
        if cross_block.num_readers:
            return
        if cross_block.is_forgotten:
            self._leaving.discard(cross_block.slot)
            self._returned.append(cross_block.slot)
        else:
            self._at_rest[cross_block.block_hash] = cross_block

    def _evict(self) -> bool:
        if not self._at_rest:
            return False
        _, cross_block = next(iter(self._at_rest.items()))
        self.forget([cross_block])
        self.num_evicted += 1
        return True

    def _take_slot(self) -> int:
        """Return a slot that was used before, if there is one: its memory is allocated."""
        if self._returned:
            return self._returned.pop()
        self._first_unused += 1
        return self._first_unused - 1
