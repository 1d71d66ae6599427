"""Engines for trials: their specs, policies and budgets."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from quire.config import SchedulerSettings
from quire.interfaces.kv_cache import KVCacheSpec, KVLayer
from quire.interfaces.scheduling import ScheduledView, SchedulingPolicy
from quire_kv_cache_specs.chunked_local import ChunkedLocalAttentionSpec
from quire_kv_cache_specs.full_attention import FullAttentionSpec
from quire_kv_cache_specs.recurrent_state import RecurrentStateSpec
from quire_kv_cache_specs.sliding_window import SlidingWindowSpec
from quire_scheduling_policies.fcfs import FirstComeFirstServed
from quire_scheduling_policies.priority import PriorityFirst

TIMEOUT_S = 1000.0
FULL = ("full_attention", ())
WINDOW = ("sliding_window", (("window", 5),))
CHUNK = ("chunked_local", (("chunk", 6),))
STATE = ("recurrent", (("state_shapes", ((1, 4),)),))
SPECS = {
    "full_attention": FullAttentionSpec,
    "sliding_window": SlidingWindowSpec,
    "chunked_local": ChunkedLocalAttentionSpec,
    "recurrent": RecurrentStateSpec,
}
MIXES = ((FULL,), (FULL, WINDOW), (WINDOW,), (FULL, WINDOW, CHUNK), (FULL, STATE), (CHUNK,))


class Contrary(FirstComeFirstServed):
    """A package's policy: two run at most, and the first has to go."""

    def admits(self, request: ScheduledView, running: Sequence[ScheduledView]) -> bool:
        return len(running) < 2

    def victim(self, running: Sequence[ScheduledView]) -> int:
        return 0


class Accounted(SchedulingPolicy):
    """Another policy, with an account of its notifications.

    Attributes:
        running: Those that began and have not ended.
    """

    def __init__(self, policy: SchedulingPolicy) -> None:
        self.running: list[ScheduledView] = []
        self._policy = policy

    def order(self, request: ScheduledView) -> Any:
        return self._policy.order(request)

    def admits(self, request: ScheduledView, running: Sequence[ScheduledView]) -> bool:
        return self._policy.admits(request, running)

    def victim(self, running: Sequence[ScheduledView]) -> int:
        return self._policy.victim(running)

    def began(self, request: ScheduledView) -> None:
        self.running.append(request)

    def ended(self, request: ScheduledView) -> None:
        self.running.remove(request)


POLICIES = (FirstComeFirstServed, PriorityFirst, Contrary)


@dataclass(frozen=True)
class Scene:
    """An engine: what it may hold, and how it works."""

    mix: int = 0
    block_size: int = 4
    num_blocks: int = 16
    async_scheduling: bool = False
    num_stages: int = 1
    has_cache: bool = True
    has_store: bool = False
    policy: int = 0
    is_chunked: bool = True
    budget: int = 9
    max_seqs: int = 4
    max_partial: int = 2
    max_long: int = 1
    long_threshold: int = 0
    max_queued: int = 10_000
    store_timeout_s: float = TIMEOUT_S


def make_spec(kind: tuple, index: int, scene: Scene) -> KVCacheSpec:
    name, params = kind
    layer = KVLayer(f"layers.{index}", name, 1, 8, params)
    spec = SPECS[name](layer, scene.block_size, "float32")
    return spec if scene.has_cache else spec.without_prefix_hits()


def settings_of(scene: Scene) -> SchedulerSettings:
    return SchedulerSettings(
        max_num_seqs=scene.max_seqs,
        max_num_batched_tokens=scene.budget,
        max_num_queued=scene.max_queued,
        enable_chunked_prefill=scene.is_chunked,
        max_num_partial_prefills=scene.max_partial,
        max_long_partial_prefills=scene.max_long,
        long_prefill_token_threshold=scene.long_threshold,
    )
