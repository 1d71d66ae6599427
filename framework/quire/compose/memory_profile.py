"""What a GPU's memory is for: the KV cache gets what is left of a share when all else has its part.

    KV cache = total * gpu_memory_utilization
               - others - weights - largest step - attention workspace - slot tables - CUDA graphs

The worker measures these numbers when the weights are loaded, `quire explain` estimates them. What
follows from them is the same arithmetic, and so are the flags that would help where they are too
large.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from quire.config import Settings
from quire.interfaces.kv_cache import KVCacheSpec

GRAPH_BYTES = 8 * 2**20  # of the driver, and of small tensors, for each CUDA graph
LOGIT_BYTES = 4
MAX_GROUPS = 8  # KV groups of a model, at most
PERCENT = 100
OTHER_WAYS = (
    "take a smaller dtype or kv_cache_dtype, a shorter max_model_len, or share the layers "
    "(tensor_parallel_size)"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryProfile:
    """The bytes of one GPU before there is a cache.

    Attributes:
        total_bytes: Of the device.
        other_bytes: Other programs', and what the driver keeps for this one.
        weight_bytes: Of the model, adapters' places included.
        forward_bytes: More than that at the peak of the largest step's forward pass.
        sampling_bytes: The same at the peak of its draw; the two are never needed together.
        workspace_bytes: Kept by the attention backends.
        table_bytes: Of the requests' slots.
        graph_bytes: Set aside for CUDA graphs.
        is_estimated: Nobody has measured it.
    """

    total_bytes: int
    other_bytes: int
    weight_bytes: int
    forward_bytes: int
    sampling_bytes: int
    workspace_bytes: int = 0
    table_bytes: int = 0
    graph_bytes: int = 0
    is_estimated: bool = False

    @property
    def step_bytes(self) -> int:
        """What the largest step takes and gives back."""
        return max(self.forward_bytes, self.sampling_bytes)

    @property
    def parts(self) -> dict[str, int]:
        """Everything but the cache, as people call it."""
        return {
            "others": self.other_bytes,
            "weights": self.weight_bytes,
            "largest step": self.step_bytes,
            "attention workspace": self.workspace_bytes,
            "slot tables": self.table_bytes,
            "CUDA graphs": self.graph_bytes,
        }

    def kv_bytes(self, utilization: float) -> int:
        """Return what is left for the cache; less than 0 where all else does not fit."""
        return round(self.total_bytes * utilization) - sum(self.parts.values())

    def utilization_for(self, kv_bytes: int) -> float | None:
        """Return the smallest share that leaves so much, in whole percent; None if none does."""
        needed = PERCENT * (kv_bytes + sum(self.parts.values()))
        percent = max(1, -(-needed // self.total_bytes))
        return percent / PERCENT if percent <= PERCENT else None

    def summary(self, utilization: float) -> str:
        """Write all parts in GB."""
        kv = {"KV cache": max(0, self.kv_bytes(utilization))}
        parts = (f"{name} {_gigabytes(size)}" for name, size in (self.parts | kv).items())
        return (
            f"{_gigabytes(self.total_bytes)} GB, of which {utilization:g} may be used "
            f"(gpu_memory_utilization): {', '.join(parts)}"
        )


def captured_bytes(num_captures: int, largest: int, vocab_size: int) -> int:
    """Return what captured steps keep beside what the largest of them takes.

    Args:
        num_captures: Graphs.
        largest: Requests of the largest step; all write their logits to one buffer.
        vocab_size: V.
    """
    return num_captures * GRAPH_BYTES + largest * vocab_size * LOGIT_BYTES


def least_cache_bytes(specs: Sequence[KVCacheSpec], settings: Settings) -> int:
    """Return what the cache must hold: the request that was asked for, or one of a token.

    A part of a block counts whole, and each layer has a null block.
    """
    num_tokens = max(1, (settings.model.max_model_len or 2) - 1)
    step = settings.scheduler.max_num_batched_tokens
    return sum(spec.page_bytes * (spec.max_blocks_held(num_tokens, step) + 1) for spec in specs)


def groups_of(specs: Sequence[KVCacheSpec]) -> list[tuple[KVCacheSpec, int]]:
    """Return one spec of each kind, and how many KV groups its layers are likely to make.

    Where there are several kinds, each is cut into groups as large as the smallest kind is.
    """
    kinds = {spec.key: spec for spec in specs}
    counts = Counter(spec.key for spec in specs)
    size = min(counts.values(), default=1)
    return [
        (spec, min(MAX_GROUPS, -(-counts[key] // size)) if len(kinds) > 1 else 1)
        for key, spec in kinds.items()
    ]


def misfit(profile: MemoryProfile, settings: Settings, needed_bytes: int) -> str | None:
    """Return why a cache of so many bytes does not fit and which flags would help, or None.

    Args:
        profile: What everything else takes.
        settings: Which share of the device may be used; a cache whose size the user gives may take
            what the device has.
        needed_bytes: The least that the cache must have.
    """
    given = settings.cache.kv_cache_memory_bytes
    share = settings.cache.gpu_memory_utilization if given is None else 1.0
    left = profile.kv_bytes(share)
    if left >= needed_bytes:
        return None
    told = ", by an estimate of what a step takes" if profile.is_estimated else ""
    start = (
        f"the KV cache needs {needed_bytes:,} bytes, and {max(0, left):,} are left for it"
        f"{told}: {profile.summary(share)}; "
    )
    if given is not None:
        least = f"set kv_cache_memory_bytes to at most {left:,}" if left > 0 else OTHER_WAYS
        return start + least
    enough = profile.utilization_for(needed_bytes)
    if enough is not None:
        return f"{start}set gpu_memory_utilization to at least {enough:.2f}"
    steps = _smaller_steps(profile, settings, needed_bytes)
    return start + (f"{steps}, or {OTHER_WAYS}" if steps else OTHER_WAYS)


def _smaller_steps(profile: MemoryProfile, settings: Settings, needed_bytes: int) -> str:
    """Return how small steps would have to be; empty if that alone does not help."""
    share = settings.cache.gpu_memory_utilization
    room = profile.kv_bytes(share) + profile.step_bytes - needed_bytes
    scheduler = settings.scheduler
    limits = (
        ("max_num_batched_tokens", scheduler.max_num_batched_tokens, profile.forward_bytes),
        ("max_num_seqs", scheduler.max_num_seqs, profile.sampling_bytes),
    )
    smaller = {name: most * room // size for name, most, size in limits if size > room}
    if room <= 0 or not all(smaller.values()):
        return ""
    # Not all that a step takes grows with it, so the number is a power of two below.
    wanted = (f"{name} to {2 ** (most.bit_length() - 1)}" for name, most in smaller.items())
    return f"set {' and '.join(wanted)}"


def _gigabytes(num_bytes: int) -> str:
    return f"{num_bytes / 1e9:.2f}"
