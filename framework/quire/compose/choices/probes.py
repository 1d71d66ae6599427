"""Probes of the chosen parts, which run before the choice is final.

A probe is a function that a part names in its capabilities. It prepares what the part runs, such
as compiled kernels, and returns the reason why this machine cannot run it, or None. A part whose
probe returns a reason is not chosen.
"""

import logging
import threading
import traceback
from collections.abc import Callable, Mapping
from concurrent.futures import Future, wait

from quire.plugins.registry import import_reference

PATIENCE_S = 5.0  # before the log says which probes are awaited

Probe = Callable[[Mapping[str, str]], dict[str, str | None]]

logger = logging.getLogger(__name__)


def run_probes(parts: Mapping[str, str]) -> dict[str, str | None]:
    """Run probes at the same time, and wait for all of them.

    Args:
        parts: Name of the part for people, by the import string of its probe.

    Returns:
        The reason why this machine cannot run the part, by probe; None: it can.
    """
    results = {reference: _start(reference) for reference in parts}
    pending = set(results.values())
    while pending:
        pending = wait(pending, PATIENCE_S).not_done
        awaited = [parts[reference] for reference, result in results.items() if result in pending]
        if awaited:
            logger.info("waiting for the compilation of %s", " and ".join(awaited))
    return {reference: result.result() for reference, result in results.items()}


class KnownProbes:
    """Runs probes, each once in this process and in those that get its results.

    Args:
        results: Results of another process of this machine, by probe.

    Attributes:
        results: All results so far.
    """

    def __init__(self, results: Mapping[str, str | None] | None = None) -> None:
        self.results = dict(results or {})

    def __call__(self, parts: Mapping[str, str]) -> dict[str, str | None]:
        """Return what `run_probes` returns."""
        unknown = {name: part for name, part in parts.items() if name not in self.results}
        if unknown:
            self.results |= run_probes(unknown)
        return {name: self.results[name] for name in parts}


def cause_of(reason: str) -> str:
    """Return the first line of a reason; what follows is a compiler's output or a traceback."""
    return reason.partition("\n")[0].rstrip(":")


def reason_by(reference: str, what: str, *arguments: object) -> str | None:
    """Call a function of a plugin that returns a reason or None; a failure is a reason, too.

    Args:
        reference: Import string of the function.
        what: Name of the function for people: "its probe".
        *arguments: Arguments of the call.
    """
    try:
        function: Callable[..., object]
        function = import_reference(reference, what)  # type: ignore[assignment]
        reason = function(*arguments)
    except (Exception, SystemExit) as error:  # noqa: BLE001 - the edge of a plugin
        return f"{what} failed: {type(error).__name__}: {error}\n{traceback.format_exc()}"
    if reason is None or (isinstance(reason, str) and reason):
        return reason
    return f"{what} returned {reason!r}, not a reason or None"


def _start(reference: str) -> Future[str | None]:
    """Run a probe in a daemon thread, which does not delay the end of the program."""
    result: Future[str | None] = Future()
    thread = threading.Thread(
        target=lambda: result.set_result(reason_by(reference, "its probe")),
        name="probe",
        daemon=True,
    )
    thread.start()
    return result
