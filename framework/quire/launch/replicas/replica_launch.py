"""Start of all replicas of an engine: what each is given of the machine, and the router."""

from collections.abc import Mapping
from dataclasses import replace
from functools import partial

from quire.compose.sizes.layer_specs import layer_specs
from quire.config import DEFAULT_EXECUTOR
from quire.engine.kv_cache.block_hash import BlockHasher
from quire.engine.kv_cache.kv_plan import NULL_BLOCKS, fixed_plan
from quire.launch.composing import Composed
from quire.launch.engine_process.engine_config import launch_engine
from quire.launch.engine_process.engine_start import EngineStart
from quire.launch.replicas.replica import Replica, ReplicaLimits
from quire.launch.replicas.replica_devices import divide_devices
from quire.launch.replicas.replicated_core import ReplicatedCore
from quire.launch.replicas.routing.router import Router
from quire.machine.nvml import visible_devices
from quire.messages import Started

OWN_WATCH_S = 10.0  # for an engine to report which of its workers hangs, and to end them


def start_replicas(composed: Composed) -> tuple[ReplicatedCore, Started]:
    """Start all replicas, at the same time, and wait until all are ready for requests.

    Raises:
        QuireError: A replica cannot be started; none runs then.
    """
    settings = composed.settings
    num_replicas = settings.parallel.data_parallel_size
    environments, limits = _environments(composed), _limits(composed)
    replicas = [
        Replica(index, partial(_launch, composed, f"replica {index}", environment), limits)
        for index, environment in enumerate(environments)
    ]
    specs = layer_specs(settings, composed.composition, composed.plugins.registries)
    has_cache = settings.cache.enable_prefix_caching and bool(specs)
    hasher = BlockHasher(specs[0].block_size, b"") if has_cache else None
    num_groups = len(fixed_plan(specs, NULL_BLOCKS + 1).groups)
    core = ReplicatedCore(
        replicas,
        Router(num_replicas, hasher),
        num_groups,
        settings.scheduler.request_timeout_s,
        num_replicas * (settings.scheduler.max_num_seqs + settings.scheduler.max_num_queued),
    )
    return core, core.start()


def _limits(composed: Composed) -> ReplicaLimits:
    """Return the times after which a replica is ended."""
    has_own_watch = composed.composition.executor.name != DEFAULT_EXECUTOR
    return ReplicaLimits(
        step_timeout_s=composed.settings.parallel.step_timeout_s,
        start_timeout_s=composed.settings.parallel.worker_start_timeout_s,
        own_watch_s=OWN_WATCH_S if has_own_watch else 0.0,
    )


def _environments(composed: Composed) -> list[dict[str, str]]:
    """Return the variables of each replica's process: its GPUs, if it computes on any."""
    parallel = composed.settings.parallel
    if composed.composition.device != "cuda":
        return [{} for _ in range(parallel.data_parallel_size)]
    num_each = composed.composition.grid.size
    return divide_devices(visible_devices(), parallel.data_parallel_size, num_each)


def _launch(
    composed: Composed, name: str, environment: Mapping[str, str], num_blocks: int | None
) -> EngineStart:
    """Launch a replica's process.

    A process that died is followed by one with as many KV blocks. It would measure less free
    memory, as the other replicas have taken theirs, and could not serve the same requests.
    """
    if num_blocks:
        settings = composed.settings
        cache = replace(
            settings.cache, num_kv_blocks=num_blocks + NULL_BLOCKS, kv_cache_memory_bytes=None
        )
        composed = replace(composed, settings=replace(settings, cache=cache))
    return launch_engine(composed, name, environment, exit_grace_s=0.0)
