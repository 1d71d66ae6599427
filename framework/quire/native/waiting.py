"""Where compiled kernels compute, torch's own threads sleep as soon as they have no work.

Then torch has little to compute in parallel, and the kernels' thread pool needs the cores on which
OpenMP's threads would spin for milliseconds. Where torch computes everything, one operator follows
the other and spinning is the faster way: its runtime is left as it is. A runtime reads these
variables once, when it is loaded with torch. What the user has set stays.
"""

import logging
import os
import sys
from collections.abc import MutableMapping

DECIDING = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME")  # any of them is the user's word
POLICY = {"OMP_WAIT_POLICY": "passive"}

logger = logging.getLogger(__name__)


def wait_asleep() -> None:
    """Let torch's threads sleep, in this process and its children; it must come before torch."""
    if "torch" not in sys.modules:
        set_policy(os.environ)
    elif not _is_decided(os.environ):
        logger.info(
            "torch was imported before the engine, so its threads spin while they wait; set "
            "OMP_WAIT_POLICY=passive to leave the cores to the compiled kernels"
        )


def set_policy(environment: MutableMapping[str, str]) -> None:
    """Write the policy, unless there is one."""
    if not _is_decided(environment):
        environment.update(POLICY)


def _is_decided(environment: MutableMapping[str, str]) -> bool:
    return any(name in environment for name in DECIDING)
