"""Allocation of the blocks of a load: the blocks that the resulting prefix hit needs and that fit.

Where a spec needs less than the whole context, most cross-group blocks contain the null block for
its group, as the table of a running request does:

    hit 2, loaded 4      full attention   [ hit hit | 11 12 13 14 ]
                         sliding window   [  0  hit |  0  0 15 16 ]
"""

from quire.engine.kv_cache.block_pool import NULL_BLOCK
from quire.engine.kv_cache.kv_cache_manager import KVCacheManager, PrefixHit
from quire.engine.request import Request
from quire.interfaces.kv_transfer import CrossGroupBlock


def allocate_cross_blocks(
    kv: KVCacheManager,
    request: Request,
    hit: PrefixHit | None,
    max_blocks: int,
    room: int,
    num_reserved: int,
) -> list[CrossGroupBlock]:
    """Allocate blocks for as many cross-group blocks after a hit as fit, without evicting the hit.

    Args:
        kv: Cache manager to allocate from.
        request: Request whose content is loaded.
        hit: Its local prefix hit.
        max_blocks: Number of cross-group blocks available in the store.
        room: Maximum number of blocks to allocate.
        num_reserved: Number of blocks of the pool to leave free.
    """
    found = [] if hit is None else hit.block_ids
    first = 0 if hit is None else hit.num_blocks
    for table in found:
        kv.pool.add_references(table)
    num_blocks = _num_that_fit(kv, first, max_blocks, min(room, kv.pool.num_free - num_reserved))
    unneeded = _unneeded(kv, first + num_blocks)
    cross_blocks = [
        CrossGroupBlock(
            name, tuple(NULL_BLOCK if i in u else kv.pool.allocate(1)[0] for u in unneeded)
        )
        for i, name in enumerate(kv.hashes_after(request, first)[:num_blocks], first)
    ]
    kv.free(found)
    return cross_blocks


def _unneeded(kv: KVCacheManager, num_blocks: int) -> list[range]:
    """Return, for each KV group, the block indices that a hit of this length does not need."""
    return [spec.freeable_blocks(num_blocks * kv.block_size) for spec in kv.specs]


def _num_needed(kv: KVCacheManager, first: int, stop: int) -> int:
    """Return the number of blocks, in all groups, that extend a hit of `first` to `stop`."""
    return sum(
        stop - first - max(0, min(stop, unneeded.stop) - max(first, unneeded.start))
        for unneeded in _unneeded(kv, stop)
    )


def _num_that_fit(kv: KVCacheManager, first: int, max_blocks: int, room: int) -> int:
    """Return the number of cross-group blocks that fit into `room` blocks, by binary search."""
    fits, tried = 0, max_blocks  # all first: with windows a longer hit may need fewer blocks
    while fits < max_blocks:
        if _num_needed(kv, first, first + tried) <= room:
            fits = tried
        else:
            max_blocks = tried - 1
        tried = (fits + max_blocks + 1) // 2
    return fits
