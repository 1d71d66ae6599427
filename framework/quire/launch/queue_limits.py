"""Limits on the requests that wait, from the settings."""

from quire.config import Settings
from quire.frontend.dispatch.queue_gate import QueueLimits


def queue_limits(settings: Settings) -> QueueLimits:
    """Return the limits on waiting requests, of all replicas together."""
    num_replicas, scheduler = settings.parallel.data_parallel_size, settings.scheduler
    return QueueLimits(
        num_replicas * scheduler.max_running,
        num_replicas * scheduler.max_num_queued,
        scheduler.max_queue_wait_s,
    )
