"""How many connections a server may have, and how many it serves with more than health checks.

Beyond the second number, requests get 503 with `Retry-After`, and their connections are closed.
What lies between both is for these answers, and for health checks: a server that a supervisor
believes dead would be killed with all that it computes.
"""

import logging
import sys
from functools import cache
from typing import NamedTuple

logger = logging.getLogger(__name__)

MAX_SERVED = 4096
SPARE = 512
FILES_BESIDE = 256  # descriptors of the process that are no connections


class ConnectionLimits(NamedTuple):
    """Limits on the number of open connections.

    Attributes:
        served: Number up to which requests are served.
        most: Number up to which connections are accepted.
    """

    served: int
    most: int


@cache
def connection_limits() -> ConnectionLimits:
    """Return the limits, once the process has as many descriptors as it needs or may have."""
    num_files = _allow_files(MAX_SERVED + SPARE + FILES_BESIDE)
    most = min(MAX_SERVED + SPARE, max(2, num_files - FILES_BESIDE))
    limits = ConnectionLimits(most - min(SPARE, most // 2), most)
    if limits.served < MAX_SERVED:
        logger.warning(
            "%d open files are allowed, so at most %d connections are served; allow %d for %d "
            "connections (ulimit -n)",
            num_files,
            limits.served,
            MAX_SERVED + SPARE + FILES_BESIDE,
            MAX_SERVED,
        )
    return limits


def _allow_files(wanted: int) -> int:
    """Raise the limit of open files to what is wanted, as far as that is allowed; return it."""
    if sys.platform == "win32":
        return wanted
    import resource  # does not exist there

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return wanted
    allowed = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, hard))
    except (OSError, ValueError):  # the system has another limit besides
        return soft
    return allowed
