"""OpenMP wait policy: with compiled kernels, torch's own threads sleep when they have no work.

With compiled kernels torch has little to compute in parallel, and the kernels' thread pool needs
the cores on which OpenMP's threads would spin for milliseconds. Without them spinning is faster,
because one operator follows the other; then the OpenMP runtime is not configured. A runtime reads
these variables once, when it is loaded with torch. Variables set by the user are not changed.
"""

import logging
import os
import sys
from collections.abc import MutableMapping

USER_VARIABLES = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME")
SLEEP_POLICY = {"OMP_WAIT_POLICY": "passive"}

logger = logging.getLogger(__name__)


def wait_asleep() -> None:
    """Make torch's threads sleep while idle, in this process and its children.

    It must be called before torch is imported.
    """
    if "torch" not in sys.modules:
        set_policy(os.environ)
    elif not _is_set_by_user(os.environ):
        logger.info(
            "torch was imported before the engine, so its threads spin while they wait; set "
            "OMP_WAIT_POLICY=passive to leave the cores to the compiled kernels"
        )


def set_policy(environment: MutableMapping[str, str]) -> None:
    """Set the policy, unless the user has set one."""
    if not _is_set_by_user(environment):
        environment.update(SLEEP_POLICY)


def _is_set_by_user(environment: MutableMapping[str, str]) -> bool:
    return any(name in environment for name in USER_VARIABLES)
