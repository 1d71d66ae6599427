"""Spec of recurrent layers: a state instead of tokens, of which only the latest is read.

With prefix hits, the state at the end of each block stays in that block as a snapshot, from which a
request with an equal prefix continues. A step reads the block of the last computed token and writes
its own:

    5 computed, blocks of 2      [ after 2 | after 4 | after 5 ]      next reads and writes index 2
                                   snapshot  snapshot  running

Without prefix hits a request has one block, whose state is overwritten in each step.
"""

from collections.abc import Sequence
from dataclasses import replace
from math import prod
from typing import Self

from quire.errors import SettingsError
from quire.interfaces.kv_cache import DTYPE_BYTES, KVCacheSpec, KVLayer
from quire_kv_cache_specs.sizes import check_dtype, check_positive

SNAPSHOTS = "snapshots"


class RecurrentStateSpec(KVCacheSpec):
    """State of a recurrent layer: a fixed number of bytes for any block size.

    The layer's parameters are `state_shapes`, a tuple of shapes for the whole model, each sharded
    over the devices along its first dimension; `state_dtype`, by default the KV-cache dtype; and
    `snapshots`, by default true: whether states at block ends are kept for prefix hits.

    Raises:
        SettingsError: Shapes are missing, not positive or cannot be sharded evenly over the
            devices, or the dtype is unknown.
    """

    def __init__(self, layer: KVLayer, block_size: int, kv_dtype: str, tp_size: int = 1) -> None:
        check_positive(layer.name, block_size=block_size, tp_size=tp_size)
        super().__init__(layer, block_size, kv_dtype, tp_size)
        self.state_dtype = str(layer.param("state_dtype", kv_dtype))
        check_dtype(layer.name, self.state_dtype)
        self.state_shapes = _local_shapes(layer, tp_size)
        self.has_snapshots = bool(layer.param(SNAPSHOTS, True))

    @property
    def page_bytes(self) -> int:
        """Number of bytes of one state of one layer on one device."""
        return sum(map(prod, self.state_shapes)) * self.row_bytes

    @property
    def row_bytes(self) -> int:
        """Number of bytes of one element of the state."""
        return DTYPE_BYTES[self.state_dtype]

    def without_prefix_hits(self) -> Self:
        """Return the spec of the same layer with one state per request and no snapshots."""
        params = tuple(pair for pair in self.layer.params if pair[0] != SNAPSHOTS)
        layer = replace(self.layer, params=(*params, (SNAPSHOTS, False)))
        return type(self)(layer, self.block_size, self.kv_dtype, self.tp_size)

    def blocks_needed(self, num_tokens: int, num_lookahead_tokens: int = 0) -> int:
        """Return one block per snapshot plus the running state, or the running state alone."""
        num_tokens += num_lookahead_tokens
        return -(-num_tokens // self.block_size) if self.has_snapshots else min(1, num_tokens)

    def max_blocks_held(self, num_tokens: int, max_step_tokens: int) -> int:
        """Return the number of blocks that a step reads or completes."""
        passed = -(-max_step_tokens // self.block_size)
        return min(self.blocks_needed(num_tokens), 1 + passed)

    def freeable_blocks(self, num_computed_tokens: int) -> range:
        """Return the blocks before the block of the last computed token."""
        if not self.has_snapshots:
            return range(0)
        return range(max(0, num_computed_tokens - 1) // self.block_size)

    def cached_prefix(self, is_cached: Sequence[bool]) -> int:
        """Return the longest hit that ends with a snapshot."""
        if not self.has_snapshots:
            return 0
        return next((i for i in range(len(is_cached), 0, -1) if is_cached[i - 1]), 0)

    def cacheable_blocks(self, fresh: range, num_computed_tokens: int) -> range:
        """Return the blocks that have a snapshot."""
        del num_computed_tokens
        return fresh if self.has_snapshots else range(0)


def _local_shapes(layer: KVLayer, tp_size: int) -> tuple[tuple[int, ...], ...]:
    """Return the shapes of the states on one device."""
    shapes = layer.param("state_shapes")
    if not shapes or not all(shapes):
        raise SettingsError(
            f"{layer.spec} of {layer.name} needs the parameter 'state_shapes': the model's "
            'description must give KVLayer(..., params=(("state_shapes", ((HEADS, SIZE, ...),)),))'
        )
    for index, shape in enumerate(shapes):
        sizes = {f"state_shapes[{index}][{axis}]": size for axis, size in enumerate(shape)}
        check_positive(layer.name, **sizes)
        if shape[0] % tp_size:
            raise SettingsError(
                f"the state {shape} of {layer.name} cannot be sharded over {tp_size} devices along "
                "its first dimension"
            )
    return tuple((shape[0] // tp_size, *shape[1:]) for shape in shapes)
