"""The memory under the blocks, as contents instead of numbers: whoever reads another's is seen."""

from collections.abc import Sequence

from kv_contents import KVContents

from quire.interfaces.kv_cache import KVCacheSpec
from quire_kv_cache_specs.chunked_local import ChunkedLocalAttentionSpec
from quire_kv_cache_specs.recurrent_state import RecurrentStateSpec
from quire_kv_cache_specs.sliding_window import SlidingWindowSpec

GARBAGE = -1  # what a failed load or a failed step leaves behind


class KVMemory:
    """What was written where, in every block of the pool.

    Args:
        specs: Of the KV groups.
        num_blocks: The null block included.
        contents: Beginnings by number.

    Attributes:
        cells: For each block the group that wrote it, and the beginning at each of its offsets;
            of a recurrent state the one beginning whose state it holds.
        epochs: For each block, how many resets its owner had seen when it began.
    """

    def __init__(self, specs: Sequence[KVCacheSpec], num_blocks: int, contents: KVContents) -> None:
        self.specs = specs
        self.contents = contents
        self.block_size = contents.block_size
        self.cells: list[tuple[int, list[int]]] = [(GARBAGE, []) for _ in range(num_blocks)]
        self.epochs = [0] * num_blocks

    def is_state(self, group: int) -> bool:
        """Whether the group's blocks hold one state instead of tokens."""
        return isinstance(self.specs[group], RecurrentStateSpec)

    def first_seen(self, group: int, position: int) -> int:
        """Return the first position that a query at this one reads."""
        spec = self.specs[group]
        if isinstance(spec, SlidingWindowSpec):
            return max(0, position - spec.window + 1)
        if isinstance(spec, ChunkedLocalAttentionSpec):
            return position - position % spec.chunk
        if self.is_state(group):
            return max(0, position - 1)
        return 0

    def blocks_used(self, group: int, table: list[int], start: int, end: int) -> list[int]:
        """Return the blocks that computing the positions `start` to `end` - 1 touches.

        Raises:
            AssertionError: The table is too short or names the null block.
        """
        if isinstance(spec := self.specs[group], RecurrentStateSpec) and not spec.has_snapshots:
            indices = range(1)
        else:
            first = self.first_seen(group, start) // self.block_size
            indices = range(first, (end - 1) // self.block_size + 1)
        blocks = table[indices.start : indices.stop]
        if len(blocks) != len(indices) or 0 in blocks:
            raise AssertionError(f"group {group} computes {start} to {end} in {table}")
        return blocks

    def write(
        self, group: int, table: list[int], path: list[int], start: int, end: int, epoch: int
    ) -> None:
        """Compute positions: `path[p + 1]` is the beginning that ends with position p."""
        if self.is_state(group):
            self._write_states(group, table, path, start, end, epoch)
            return
        size = self.block_size
        for position in range(start, end):
            block, offset = table[position // size], position % size
            if not offset or self.cells[block][0] != group:
                self.cells[block] = (group, [GARBAGE] * size)
                self.epochs[block] = epoch
            self.cells[block][1][offset] = path[position + 1]

    def check_read(
        self, group: int, table: list[int], path: list[int], start: int, end: int, epoch: int
    ) -> None:
        """See that all that a request reads of the positions before `start` is its own content.

        Raises:
            AssertionError: It reads what another request wrote, or from before a reset.
        """
        if start == 0:
            return
        if self.is_state(group):
            block = self._state_block(group, table, start - 1)
            self._check(block, group, [path[start]], self.cells[block][1], epoch)
            return
        size, first = self.block_size, self.first_seen(group, start)
        for index in range(first // size, (start - 1) // size + 1):
            low = max(first - index * size, 0)
            high = min(start - index * size, size)
            expected = path[index * size + low + 1 : index * size + high + 1]
            block = table[index]
            self._check(block, group, expected, self.cells[block][1][low:high], epoch)

    def spoil(self, block_ids: Sequence[int]) -> None:
        """Leave garbage in blocks."""
        for block in block_ids:
            if block:
                self.cells[block] = (GARBAGE, [])

    def name_of(self, block: int) -> tuple[int, bytes]:
        """Return the group and the name that a full block must have, from its content.

        Raises:
            AssertionError: It is not one full block of one beginning.
        """
        group, cells = self.cells[block]
        if group == GARBAGE or GARBAGE in cells:
            raise AssertionError(f"block {block} can be found and holds garbage")
        if not self.is_state(group) and cells != self.contents.block(cells[-1]):
            raise AssertionError(f"block {block} can be found and is mixed: {cells}")
        return group, self.contents.name(cells[-1])

    def _write_states(
        self, group: int, table: list[int], path: list[int], start: int, end: int, epoch: int
    ) -> None:
        size = self.block_size
        ends = [p for p in range(start, end) if p == end - 1 or (p + 1) % size == 0]
        for position in ends:
            block = self._state_block(group, table, position)
            self.cells[block] = (group, [path[position + 1]])
            self.epochs[block] = epoch

    def _state_block(self, group: int, table: list[int], position: int) -> int:
        spec = self.specs[group]
        has_snapshots = isinstance(spec, RecurrentStateSpec) and spec.has_snapshots
        return table[position // self.block_size if has_snapshots else 0]

    def _check(
        self, block: int, group: int, expected: list[int], found: list[int], epoch: int
    ) -> None:
        if self.cells[block][0] != group or found != expected:
            raise AssertionError(
                f"block {block} of group {group} holds {self.cells[block]} and not {expected}"
            )
        if self.epochs[block] < epoch:
            raise AssertionError(f"block {block} was computed before the prefix cache was reset")
