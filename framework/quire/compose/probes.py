"""Probes of the chosen parts, which run before the choice is final.

A probe is a function that a part names in its capabilities. It prepares what the part runs, such
as compiled kernels, and returns the reason why this machine cannot run it, or None. A part whose
probe returns a reason is not chosen.
"""

import logging
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor

from quire.plugins.registry import import_reference

logger = logging.getLogger(__name__)

Probe = Callable[[Mapping[str, str]], dict[str, str | None]]


def run_probes(parts: Mapping[str, str]) -> dict[str, str | None]:
    """Run probes at the same time, wait for all of them, and log a warning for each cause.

    Args:
        parts: Name of the part for people, by the import string of its probe.

    Returns:
        The cause, the first line of the reason why this machine cannot run the part, by probe;
        None: it can.
    """
    with ThreadPoolExecutor(max(1, len(parts)), "probe") as threads:
        reasons = list(threads.map(_run_probe, parts, parts.values()))
    causes = [reason and reason.partition("\n")[0].rstrip(":") for reason in reasons]
    for cause in dict.fromkeys(filter(None, causes)):
        unavailable = [
            part for part, its in zip(parts.values(), causes, strict=True) if its == cause
        ]
        logger.warning(
            "%s cannot run on this machine, and other parts are used instead: %s",
            " and ".join(unavailable),
            reasons[causes.index(cause)],
        )
    return dict(zip(parts, causes, strict=True))


def _run_probe(reference: str, part: str) -> str | None:
    try:
        probe: Callable[[], str | None]
        probe = import_reference(reference, f"the probe of {part}")  # type: ignore[assignment]
        return probe()
    except Exception as error:
        logger.debug("the probe of %s failed", part, exc_info=True)
        return f"its probe failed: {type(error).__name__}: {error}"
