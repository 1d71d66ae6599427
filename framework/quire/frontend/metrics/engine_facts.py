"""Settings of an engine that metrics show and that never change."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class EngineFacts:
    """Settings that dashboards and autoscalers ask for.

    Attributes:
        block_size: Number of tokens of a KV block.
        kv_cache_dtype: Setting of that name.
        has_prefix_cache: Whether prefixes are cached.
        gpu_memory_utilization: Setting of that name.
        max_loras: Maximum number of adapters in one batch; 0: there are none.
    """

    block_size: int = 0
    kv_cache_dtype: str = "auto"
    has_prefix_cache: bool = True
    gpu_memory_utilization: float = 0.0
    max_loras: int = 0
