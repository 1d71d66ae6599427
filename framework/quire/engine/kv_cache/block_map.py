"""Map of the KV blocks for people: which running request holds each block, and which are cached.

Requests appear as the numbers of their slots, so a map names no request. The cost is linear in the
cells of the map and in the blocks of running requests, and independent of the size of the pool.
"""

import time
from array import array
from collections.abc import Callable, Sequence

from quire.engine.kv_cache.block_pool import NULL_BLOCK, BlockPool
from quire.engine.request import Request
from quire.messages import FIRST_OWNER, BlockMap, BlockState

MIN_INTERVAL_S = 0.2
MAX_SHARE = 0.01  # of the engine's time, for the maps of all readers together
NUM_OWNERS = 2**15 - FIRST_OWNER  # a code has 16 bits


class BlockMapReader:
    """Makes maps for any number of readers; a map that is recent enough is returned again.

    Args:
        pool: Pool of the blocks.
        running: Function that returns the running requests.
        clock: Monotonic clock, in seconds.
    """

    def __init__(
        self,
        pool: BlockPool,
        running: Callable[[], Sequence[Request]],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._pool = pool
        self._running = running
        self._clock = clock
        self._last: BlockMap | None = None
        self._max_cells = 0
        self._next_s = 0.0

    def read(self, max_cells: int) -> BlockMap:
        """Return a map; a new one if the last is older than its cost demands.

        Args:
            max_cells: Largest number of cells; in a larger pool each cell is one of several blocks.
        """
        began_s = self._clock()
        if self._last is not None and self._max_cells == max_cells and began_s < self._next_s:
            return self._last
        self._last = block_map(self._pool, self._running(), max_cells)
        self._max_cells = max_cells
        end_s = self._clock()
        self._next_s = end_s + max(MIN_INTERVAL_S, (end_s - began_s) / MAX_SHARE)
        return self._last


def block_map(pool: BlockPool, running: Sequence[Request], max_cells: int) -> BlockMap:
    """Return the map of a pool of blocks.

    Args:
        pool: The pool.
        running: Running requests.
        max_cells: Largest number of cells.
    """
    stride = max(1, -(-pool.num_blocks // max(1, max_cells)))
    codes = pool.sample_codes(stride, free=_code(BlockState.FREE), used=_code(BlockState.HELD))
    for request in running:
        owner = _code(FIRST_OWNER + (request.slot or 0) % NUM_OWNERS)
        for table in request.block_ids:
            cells = table if stride == 1 else [b // stride for b in table if not b % stride]
            _mark(codes, cells, owner)
    codes[NULL_BLOCK] = _code(BlockState.NULL)
    return BlockMap(0, pool.num_blocks, stride, array("H", codes).tobytes())


def _mark(codes: list[int], cells: Sequence[int], owner: int) -> None:
    """Enter a request as the holder of cells; one that another request has entered is shared."""
    shared = _code(BlockState.SHARED)
    for cell in cells:
        code = codes[cell]
        if code < shared:
            codes[cell] = owner | (code & 1)
        elif code & ~1 != owner:
            codes[cell] = shared | (code & 1)


def _code(holder: int) -> int:
    return 2 * int(holder)
