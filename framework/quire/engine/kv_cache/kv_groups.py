"""KV groups: layers that share a block table, and layers that share a tensor.

Groups are made once, over all pipeline stages. Layers whose specs have equal keys use blocks in the
same way. If all keys are equal, there is one group, and each layer has a tensor of its own, with
its own page size. Otherwise one pool of block ids must serve every layer: pages are made equally
long, each kind of layer is cut into groups of at most `group_size` layers, and the n-th layers of
all groups share a tensor, of which every block belongs to one group.

    full x 2, window x 3, group_size 2          tensor 0      tensor 1
      group 0   full.0    full.1                full.0        full.1
      group 1   window.0  window.2              window.0      window.2
      group 2   window.1  (nothing)             window.1      (nothing)

Where a group has no n-th layer, its blocks in the n-th tensor are unused.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import zip_longest
from math import lcm

from quire.interfaces.kv_cache import KVCacheSpec, KVGroup

MAX_DOUBLINGS = 20  # of a block, until a page of tokens is as long as a state
MAX_GROUPS = 8  # each costs a block table per request, to maintain and to send to the worker

Specs = Sequence[KVCacheSpec]


@dataclass(frozen=True, slots=True)
class KVGrouping:
    """The layers of a model, or of one pipeline stage of it, in groups.

    Attributes:
        groups: Specs of each group's layers; empty where a stage has no layer of a group.
        leaders: One spec of each group, which represents the group on every stage.
        page_bytes: Number of bytes of every page if layers of several groups share tensors; 0 if
            each layer has a tensor with its own page size.
    """

    groups: tuple[tuple[KVCacheSpec, ...], ...]
    leaders: tuple[KVCacheSpec, ...]
    page_bytes: int = 0

    @property
    def tensors(self) -> list[tuple[int, tuple[str, ...]]]:
        """For each tensor, the number of bytes per block and the layers that share it."""
        if not self.page_bytes:
            return [
                (spec.page_bytes, (spec.layer.name,)) for group in self.groups for spec in group
            ]
        return [
            (self.page_bytes, tuple(spec.layer.name for spec in row if spec is not None))
            for row in zip_longest(*self.groups)
        ]

    @property
    def bytes_a_block(self) -> int:
        """Number of bytes per block id, over all tensors."""
        return sum(page_bytes for page_bytes, _ in self.tensors)

    def as_kv_groups(self) -> tuple[KVGroup, ...]:
        """Return the groups in the form used in a `KVPlan`."""
        return tuple(
            KVGroup(leader, tuple(spec.layer.name for spec in group), group)
            for leader, group in zip(self.leaders, self.groups, strict=True)
        )

    def on_stage(self, layer_names: frozenset[str]) -> "KVGrouping":
        """Return the part of each group on a pipeline stage with these layers."""
        groups = (
            tuple(spec for spec in group if spec.layer.name in layer_names) for group in self.groups
        )
        return KVGrouping(tuple(groups), self.leaders, self.page_bytes)


def group_layers(specs: Specs) -> KVGrouping:
    """Group the layers of a model, over all its pipeline stages."""
    kinds = _by_kind(specs)
    if len(kinds) <= 1:
        return KVGrouping(tuple(map(tuple, kinds)), tuple(kind[0] for kind in kinds))
    kinds = _by_kind(with_common_blocks(specs))
    group_size = choose_group_size([len(kind) for kind in kinds])
    groups = tuple(group for kind in kinds for group in _split(kind, group_size))
    page_bytes = _equal_page_bytes([spec for group in groups for spec in group])
    return KVGrouping(groups, tuple(group[0] for group in groups), page_bytes)


def choose_group_size(counts: Sequence[int]) -> int:
    """Return the number of layers per group, given the number of layers of each kind.

    It is at least the count of the smallest kind, so that this kind is one group. Among those, it
    is the size with the fewest unused pages and, among equals, the smallest. Sizes that make more
    than `MAX_GROUPS` groups are skipped, unless all do.
    """
    sizes = range(min(counts), max(counts) + 1)
    few = [size for size in sizes if _num_groups(counts, size) <= MAX_GROUPS]
    return min(few or sizes[-1:], key=lambda size: (_num_groups(counts, size) * size, size))


def with_common_blocks(specs: Specs) -> list[KVCacheSpec]:
    """Return the specs with a block size at which a page of tokens is as long as any state.

    A recurrent state has a fixed number of bytes; a page of K and V grows with the block size.
    Doubling the block size, rather than padding the page, uses the difference for tokens.
    """
    start = max(spec.block_size for spec in specs)
    tokens = [spec for spec in specs if not _has_fixed_page(spec)]
    if not tokens:
        return [spec.with_block_size(start) for spec in specs]
    largest_state = max((s.page_bytes for s in specs if _has_fixed_page(s)), default=0)
    sizes = [start << doublings for doublings in range(MAX_DOUBLINGS)]
    long_enough = (size for size in sizes if _largest_page(tokens, size) >= largest_state)
    block_size = next(long_enough, sizes[-1])
    return [spec.with_block_size(block_size) for spec in specs]


def _by_kind(specs: Specs) -> list[list[KVCacheSpec]]:
    kinds: dict[object, list[KVCacheSpec]] = {}
    for spec in specs:
        kinds.setdefault(spec.key, []).append(spec)
    return list(kinds.values())


def _split(layers: list[KVCacheSpec], group_size: int) -> list[tuple[KVCacheSpec, ...]]:
    """Assign the layers round-robin, so that each group has layers of every part of the model."""
    num_groups = -(-len(layers) // group_size)
    return [tuple(layers[index::num_groups]) for index in range(num_groups)]


def _num_groups(counts: Sequence[int], group_size: int) -> int:
    return sum(-(-count // group_size) for count in counts)


def _equal_page_bytes(specs: Specs) -> int:
    """Return the largest page size, rounded up to a multiple of every layer's row size."""
    row_bytes = lcm(*(spec.row_bytes for spec in specs))
    return -(-max(spec.page_bytes for spec in specs) // row_bytes) * row_bytes


def _has_fixed_page(spec: KVCacheSpec) -> bool:
    return spec.with_block_size(2 * spec.block_size).page_bytes == spec.page_bytes


def _largest_page(specs: Specs, block_size: int) -> int:
    return max(spec.with_block_size(block_size).page_bytes for spec in specs)
