"""Memory profile of a GPU, and the bytes that remain for the KV cache.

    KV cache = total * gpu_memory_utilization
               - others - weights - largest step - attention workspace - slot tables - CUDA graphs

The worker measures these numbers after it has loaded the weights; `quire explain` estimates them.
Both use the arithmetic of this module, and suggest the same options if the memory is too small.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from quire.config import Settings
from quire.interfaces.kv_cache import KVCacheSpec

GRAPH_BYTES = 8 * 2**20  # per CUDA graph, in the driver and in small tensors
LOGIT_BYTES = 4
MAX_GROUPS = 8  # maximum number of KV groups of a model
PERCENT = 100
OTHER_REMEDIES = (
    "use a smaller dtype or kv_cache_dtype, a shorter max_model_len, or shard the layers over "
    "several devices (tensor_parallel_size)"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryProfile:
    """Memory use of one GPU without the KV cache.

    Attributes:
        total_bytes: Memory of the device.
        other_bytes: Bytes of other programs, and of the driver for this process.
        weight_bytes: Bytes of the weights, including the slots of adapters.
        forward_bytes: Additional bytes at the peak of the largest step's forward pass.
        sampling_bytes: Additional bytes at the peak of its sampling, which does not overlap with
            the forward pass.
        workspace_bytes: Workspace of the attention backends.
        table_bytes: Bytes of the per-slot tensors of requests.
        graph_bytes: Bytes reserved for CUDA graphs.
        is_estimated: Whether the numbers are estimates, not measured.
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
        """Temporary bytes of the largest step."""
        return max(self.forward_bytes, self.sampling_bytes)

    @property
    def parts(self) -> dict[str, int]:
        """All parts except the KV cache, by their names for people."""
        return {
            "others": self.other_bytes,
            "weights": self.weight_bytes,
            "largest step": self.step_bytes,
            "attention workspace": self.workspace_bytes,
            "slot tables": self.table_bytes,
            "CUDA graphs": self.graph_bytes,
        }

    def kv_bytes(self, utilization: float) -> int:
        """Return the bytes left for the cache; negative if the other parts do not fit."""
        return round(self.total_bytes * utilization) - sum(self.parts.values())

    def utilization_for(self, kv_bytes: int) -> float | None:
        """Return the smallest utilization that leaves these bytes for the cache.

        It is rounded up to a whole percent; None if even 1.0 is not enough.
        """
        needed = PERCENT * (kv_bytes + sum(self.parts.values()))
        percent = max(1, -(-needed // self.total_bytes))
        return percent / PERCENT if percent <= PERCENT else None

    def summary(self, utilization: float) -> str:
        """Return a text with all parts in GB."""
        kv = {"KV cache": max(0, self.kv_bytes(utilization))}
        parts = (f"{name} {_gigabytes(size)}" for name, size in (self.parts | kv).items())
        return (
            f"{_gigabytes(self.total_bytes)} GB, of which {utilization:g} may be used "
            f"(gpu_memory_utilization): {', '.join(parts)}"
        )


def captured_bytes(num_captures: int, largest: int, vocab_size: int) -> int:
    """Return the bytes that CUDA graphs keep, without the activations of the largest one.

    Args:
        num_captures: Number of graphs.
        largest: Number of requests of the largest graph; all graphs share one buffer of logits.
        vocab_size: Size of the vocabulary, V.
    """
    return num_captures * GRAPH_BYTES + largest * vocab_size * LOGIT_BYTES


def least_cache_bytes(specs: Sequence[KVCacheSpec], settings: Settings) -> int:
    """Return the minimum size of the cache.

    It holds one request of `max_model_len` tokens if that is set, else one of a single token, in
    whole blocks, and a null block per layer.
    """
    num_tokens = max(1, (settings.model.max_model_len or 2) - 1)
    step = settings.scheduler.max_num_batched_tokens
    return sum(spec.page_bytes * (spec.max_blocks_held(num_tokens, step) + 1) for spec in specs)


def groups_of(specs: Sequence[KVCacheSpec]) -> list[tuple[KVCacheSpec, int]]:
    """Return one spec of each kind, with the probable number of KV groups of its layers.

    If there are several kinds, each is split into groups of the size of the smallest kind.
    """
    kinds = {spec.key: spec for spec in specs}
    counts = Counter(spec.key for spec in specs)
    size = min(counts.values(), default=1)
    return [
        (spec, min(MAX_GROUPS, -(-counts[key] // size)) if len(kinds) > 1 else 1)
        for key, spec in kinds.items()
    ]


def misfit(profile: MemoryProfile, settings: Settings, needed_bytes: int) -> str | None:
    """Return why a cache of these bytes does not fit, with options that would help, or None.

    Args:
        profile: Memory use without the cache.
        settings: Settings with the utilization; a cache with an explicit size may use all memory
            of the device.
        needed_bytes: Minimum size of the cache.
    """
    given = settings.cache.kv_cache_memory_bytes
    utilization = settings.cache.gpu_memory_utilization if given is None else 1.0
    left = profile.kv_bytes(utilization)
    if left >= needed_bytes:
        return None
    estimated = ", by an estimate of what a step takes" if profile.is_estimated else ""
    start = (
        f"the KV cache needs {needed_bytes:,} bytes, and {max(0, left):,} are left for it"
        f"{estimated}: {profile.summary(utilization)}; "
    )
    if given is not None:
        remedy = f"set kv_cache_memory_bytes to at most {left:,}" if left > 0 else OTHER_REMEDIES
        return start + remedy
    enough = profile.utilization_for(needed_bytes)
    if enough is not None:
        return f"{start}set gpu_memory_utilization to at least {enough:.2f}"
    steps = _smaller_steps(profile, settings, needed_bytes)
    return start + (f"{steps}, or {OTHER_REMEDIES}" if steps else OTHER_REMEDIES)


def _smaller_steps(profile: MemoryProfile, settings: Settings, needed_bytes: int) -> str:
    """Return the step limits that would free enough memory; empty if none would."""
    utilization = settings.cache.gpu_memory_utilization
    available = profile.kv_bytes(utilization) + profile.step_bytes - needed_bytes
    scheduler = settings.scheduler
    limits = (
        ("max_num_batched_tokens", scheduler.max_num_batched_tokens, profile.forward_bytes),
        ("max_num_seqs", scheduler.max_num_seqs, profile.sampling_bytes),
    )
    smaller = {name: most * available // size for name, most, size in limits if size > available}
    if available <= 0 or not all(smaller.values()):
        return ""
    # A part of a step's memory is constant, so the limit is rounded down to a power of two.
    wanted = (f"{name} to {2 ** (most.bit_length() - 1)}" for name, most in smaller.items())
    return f"set {' and '.join(wanted)}"


def _gigabytes(num_bytes: int) -> str:
    return f"{num_bytes / 1e9:.2f}"
