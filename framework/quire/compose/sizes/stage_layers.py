"""Decoder layers of each pipeline stage: contiguous ranges of about equal bytes.

The bytes of a stage are those of the weights on one of its ranks, and of the KV cache that its
layers need at least: for one request of the maximum length, or of the size that the user set. Free
memory is not considered, so every process of an engine chooses the same ranges.
"""

from collections.abc import Callable, Sequence
from itertools import accumulate, pairwise

from quire.compose.composition import Composition
from quire.compose.sizes.layer_specs import kv_layer_indexes
from quire.compose.sizes.weight_bytes import weight_sizes
from quire.config import Settings
from quire.errors import SettingsError
from quire.interfaces.kv_cache import KVCacheSpec

Combine = Callable[[int, int], int]


def stage_layers(
    settings: Settings, composition: Composition, specs: Sequence[KVCacheSpec]
) -> tuple[range, ...]:
    """Return the decoder layers of each pipeline stage.

    Args:
        settings: Settings with the defaults of the device.
        composition: Composition of the engine, with its grid.
        specs: KV-cache specs of all layers that have KV.

    Raises:
        SettingsError: There are more stages than layers, or the layers that the user gave are not
            the model's.
        RefusedError: The model's description does not say which layers have the KV.
    """
    num_layers, num_stages = composition.description.num_layers, composition.grid.pp_size
    if num_stages > num_layers:
        raise SettingsError(
            f"pipeline_parallel_size {num_stages} is more than the model's {num_layers} layers; "
            f"set it to at most {num_layers}"
        )
    if settings.parallel.pipeline_layers:
        return _given_ranges(settings.parallel.pipeline_layers, num_layers)
    if num_stages == 1:
        return (range(num_layers),)
    sizes = weight_sizes(composition, composition.grid.tp_size)
    kv_bytes = _kv_bytes(settings, composition, specs)
    ends = [0, *accumulate(kv_bytes)]

    def stage_bytes(layers: range) -> int:
        return sizes.bytes_of(layers) + ends[layers.stop] - ends[layers.start]

    return balanced_ranges(num_layers, num_stages, stage_bytes)


def balanced_ranges(
    num_layers: int, num_stages: int, stage_bytes: Callable[[range], int]
) -> tuple[range, ...]:
    """Divide layers into contiguous ranges, of which the largest is as small as possible.

    Of several such divisions, it is one with the smallest sum of squares.

    Args:
        num_layers: Number of layers, at least `num_stages`.
        num_stages: Number of ranges; each has at least one layer.
        stage_bytes: Function that returns the bytes of a range, not negative.
    """
    sizes = {
        (start, stop): stage_bytes(range(start, stop))
        for start in range(num_layers)
        for stop in range(start + 1, num_layers + 1)
    }
    largest, _ = _best_starts(sizes, num_layers, num_stages, max)
    small = {ends: size for ends, size in sizes.items() if size <= largest}
    _, starts = _best_starts(small, num_layers, num_stages, lambda total, size: total + size**2)
    return tuple(range(start, stop) for start, stop in pairwise((*starts, num_layers)))


def _best_starts(
    sizes: dict[tuple[int, int], int], num_layers: int, num_stages: int, combine: Combine
) -> tuple[int, tuple[int, ...]]:
    """Return the smallest combination of sizes over all divisions, and the ranges' starts.

    Args:
        sizes: Sizes of the ranges that may be used, by start and stop.
        num_layers: Number of layers.
        num_stages: Number of ranges.
        combine: Function of the combination so far and of the next size; it grows with both.
    """
    best: dict[int, tuple[int, tuple[int, ...]]] = {0: (0, ())}  # by the layers divided so far
    for _ in range(num_stages):
        longer: dict[int, tuple[int, tuple[int, ...]]] = {}
        for (start, stop), size in sizes.items():
            if start in best:
                total, starts = best[start]
                candidate = combine(total, size), (*starts, start)
                longer[stop] = min(longer.get(stop, candidate), candidate)
        best = longer
    return best[num_layers]


def _given_ranges(counts: Sequence[int], num_layers: int) -> tuple[range, ...]:
    """Return the ranges with the numbers of layers that the user gave.

    Raises:
        SettingsError: They do not add up to the model's layers.
    """
    if sum(counts) != num_layers:
        needed = num_layers - sum(counts[:-1])
        way_out = f"the last number must be {needed}" if needed > 0 else "give smaller numbers"
        raise SettingsError(
            f"pipeline_layers {','.join(map(str, counts))} adds up to {sum(counts)}, and the model "
            f"has {num_layers} layers; {way_out}, or leave pipeline_layers out"
        )
    return tuple(range(start, stop) for start, stop in pairwise((0, *accumulate(counts))))


def _kv_bytes(
    settings: Settings, composition: Composition, specs: Sequence[KVCacheSpec]
) -> list[int]:
    """Return the bytes of KV of each decoder layer on one rank."""
    num_bytes = [0] * composition.description.num_layers
    for index, spec in zip(kv_layer_indexes(composition.description), specs, strict=True):
        num_bytes[index] += spec.page_bytes * _num_blocks(settings, composition, specs, spec)
    return num_bytes


def _num_blocks(
    settings: Settings, composition: Composition, specs: Sequence[KVCacheSpec], spec: KVCacheSpec
) -> int:
    """Return the number of blocks that a layer is expected to have."""
    cache = settings.cache
    if cache.num_kv_blocks is not None:
        return cache.num_kv_blocks
    if cache.kv_cache_memory_bytes is not None:
        everywhere = cache.kv_cache_memory_bytes * composition.grid.pp_size
        return everywhere // sum(spec.page_bytes for spec in specs)
    num_tokens = max(1, composition.max_model_len - 1)
    return spec.max_blocks_held(num_tokens, settings.scheduler.max_num_batched_tokens)
