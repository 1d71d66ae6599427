"""Construction of the worker of a rank: its groups of ranks, and its parts."""

from quire.interfaces.executor import Worker
from quire.launch.composing import Composed
from quire.launch.workers.key_exchange import KeyExchange


def make_only_worker(composed: Composed) -> Worker:
    """Build the worker of a grid of one in this process."""
    return make_worker(composed, 0, None)


def make_worker(composed: Composed, rank: int, exchange: KeyExchange | None) -> Worker:
    """Build the worker of a rank, connected to the ranks that it computes with.

    Args:
        composed: Composition of the engine.
        rank: Rank of the worker.
        exchange: Exchange through which the ranks find each other; None for a grid of one.
    """
    from quire.layers.parallel import SingleDevice  # loads torch
    from quire.worker.parts import WorkerParts
    from quire.worker.worker import ModelWorker

    parts = WorkerParts.load(composed.settings, composed.composition, composed.plugins.registries)
    return ModelWorker(composed.settings, parts, SingleDevice())
