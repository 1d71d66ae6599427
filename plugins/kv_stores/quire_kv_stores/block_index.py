"""LRU index of stored cross-group blocks by content hash, and the slots that hold them.

A slot is in one of these states:

    unused ----> written into ----> stored <----> read from
      ^               |               |               |
      |               v               v               v
      +<------ (its write failed:  evicted, or forgotten and not read any more)
                 retired)

Only stored blocks are found. A block that is read from is never evicted. A block that is forgotten
during a transfer keeps its slot until the transfer ends.
"""

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass


@dataclass(slots=True, eq=False)
class StoredBlock:
    """A cross-group block and its slot.

    Attributes:
        block_hash: Content hash of the block.
        slot: Index of its slot.
        is_written: Whether all its bytes are written.
        num_readers: Number of open loads of it.
        is_forgotten: Whether it was removed from the index.
    """

    block_hash: bytes
    slot: int
    is_written: bool = False
    num_readers: int = 0
    is_forgotten: bool = False


class BlockIndex:
    """Index of cross-group blocks in at most `num_slots` slots.

    Attributes:
        num_slots: Number of usable slots, without retired ones.
        num_evicted: Number of blocks evicted so far.
    """

    def __init__(self, num_slots: int) -> None:
        self.num_slots = num_slots
        self.num_evicted = 0
        self._cross_blocks: dict[bytes, StoredBlock] = {}
        self._idle: OrderedDict[bytes, StoredBlock] = OrderedDict()  # least recently used first
        self._forgotten_slots: set[int] = set()  # slots of forgotten blocks in a transfer
        self._free_slots: list[int] = []
        self._first_unused = 0  # slots from here on were never used
        self._end = num_slots

    @property
    def num_free(self) -> int:
        """Number of free slots."""
        return len(self._free_slots) + self._end - self._first_unused

    @property
    def num_moving(self) -> int:
        """Number of slots in a transfer."""
        return len(self._cross_blocks) - len(self._idle) + len(self._forgotten_slots)

    def __contains__(self, block_hash: bytes) -> bool:
        return block_hash in self._cross_blocks

    def find(self, block_hash: bytes) -> StoredBlock | None:
        """Return the block with this hash if it is stored completely, else None."""
        cross_block = self._cross_blocks.get(block_hash)
        return cross_block if cross_block is not None and cross_block.is_written else None

    def claim(self, block_hash: bytes) -> StoredBlock | None:
        """Allocate a slot for a new block; return None if all slots are in transfers."""
        if not self.num_free and not self._evict():
            return None
        cross_block = StoredBlock(block_hash, self._take_slot())
        self._cross_blocks[block_hash] = cross_block
        return cross_block

    def touch(self, block_hashes: Sequence[bytes]) -> None:
        """Make these the most recently used, the first of them most recently.

        The end of a prompt is useless without its beginning, so the end must be evicted first.
        """
        for block_hash in reversed(block_hashes):
            if block_hash in self._idle:
                self._idle.move_to_end(block_hash)

    def begin_reading(self, cross_blocks: Iterable[StoredBlock]) -> None:
        """Protect stored blocks from eviction until `end_reading`."""
        for cross_block in cross_blocks:
            cross_block.num_readers += 1
            self._idle.pop(cross_block.block_hash, None)

    def end_reading(self, cross_blocks: Sequence[StoredBlock]) -> None:
        """End a read of blocks, and make them the most recently used."""
        for cross_block in reversed(cross_blocks):
            cross_block.num_readers -= 1
            self._update_idle(cross_block)

    def end_writing(self, cross_blocks: Sequence[StoredBlock]) -> None:
        """Mark blocks as stored."""
        for cross_block in reversed(cross_blocks):
            cross_block.is_written = True
            self._update_idle(cross_block)

    def retire(self, cross_blocks: Iterable[StoredBlock]) -> None:
        """Remove blocks whose write failed, and never use their slots again."""
        for cross_block in cross_blocks:
            self._forgotten_slots.discard(cross_block.slot)
            if not cross_block.is_forgotten:
                del self._cross_blocks[cross_block.block_hash]
                cross_block.is_forgotten = True
            self.num_slots -= 1

    def forget(self, cross_blocks: Iterable[StoredBlock]) -> None:
        """Remove blocks from the index."""
        for cross_block in cross_blocks:
            if cross_block.is_forgotten:
                continue
            cross_block.is_forgotten = True
            del self._cross_blocks[cross_block.block_hash]
            if self._idle.pop(cross_block.block_hash, None) is not None:
                self._free_slots.append(cross_block.slot)
            else:
                self._forgotten_slots.add(cross_block.slot)

    def forget_all(self) -> None:
        """Remove all blocks from the index."""
        self.forget(list(self._cross_blocks.values()))

    def _update_idle(self, cross_block: StoredBlock) -> None:
        """Make a block idle, or free its slot if forgotten, unless it is still read."""
        if cross_block.num_readers:
            return
        if cross_block.is_forgotten:
            self._forgotten_slots.discard(cross_block.slot)
            self._free_slots.append(cross_block.slot)
        else:
            self._idle[cross_block.block_hash] = cross_block

    def _evict(self) -> bool:
        if not self._idle:
            return False
        _, cross_block = next(iter(self._idle.items()))
        self.forget([cross_block])
        self.num_evicted += 1
        return True

    def _take_slot(self) -> int:
        """Return a free slot, preferably a used one, whose memory is allocated already."""
        if self._free_slots:
            return self._free_slots.pop()
        self._first_unused += 1
        return self._first_unused - 1
