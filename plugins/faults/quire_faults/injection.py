"""Injection of the faults of this process: calls are counted at each point, and rules applied."""

import ctypes
import logging
import math
import os
import signal
import threading
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import cache

from quire_faults.rules import Rule, parse

VARIABLE = "QUIRE_FAULTS"
EXIT_STATUS = 70

logger = logging.getLogger(__name__)


class Injection:
    """The rules of one process, with the number of calls at each point.

    Args:
        rules: Rules, in the order in which they are applied to one call.
    """

    def __init__(self, rules: Sequence[Rule] = ()) -> None:
        self.rules = tuple(rules)
        self._points = {rule.point for rule in rules}
        self._calls: Counter[str] = Counter()
        self._logged: set[Rule] = set()
        self._lock = threading.Lock()

    def concerns(self, *points: str) -> bool:
        """Return whether a rule names one of these points."""
        return not self._points.isdisjoint(points)

    def reach(self, point: str) -> str | None:
        """Count a call at a point, and inject the faults that concern it.

        Returns:
            "corrupt" or "withhold" if the caller must do so; else None.

        Raises:
            RuntimeError: The fault is `raise`.
            MemoryError: The fault is `exhaust`.
        """
        if point not in self._points:
            return None
        with self._lock:
            self._calls[point] += 1
            call = self._calls[point]
        left_to_caller = None
        for rule in self.rules:
            if rule.point == point and rule.concerns(call):
                self._log(rule, call)
                left_to_caller = _inject(rule) or left_to_caller
        return left_to_caller

    def _log(self, rule: Rule, call: int) -> None:
        """Log the first injection of a rule; the others are like it."""
        with self._lock:
            is_new = rule not in self._logged
            self._logged.add(rule)
        if is_new:
            logger.warning("injecting the fault %s at call %d of this process", rule.text, call)


@cache
def injection() -> Injection:
    """Return the injection of this process, whose rules are in `QUIRE_FAULTS`.

    Raises:
        SettingsError: The variable has another form.
    """
    return injection_of(os.environ)


def injection_of(environment: Mapping[str, str]) -> Injection:
    """Return the injection for an environment, and log what it will do.

    Raises:
        SettingsError: The variable has another form.
    """
    rules = parse(environment.get(VARIABLE, ""))
    for rule in rules:
        part = f", if the engine runs with {rule.option}" if rule.option else ""
        logger.warning("%s: the fault %s will be injected%s", VARIABLE, rule.text, part)
    return Injection(rules)


def _inject(rule: Rule) -> str | None:
    """Inject a fault; return its name if the caller must do so."""
    match rule.fault:
        case "crash":
            os.kill(os.getpid(), signal.SIGKILL)
        case "exit":
            os._exit(EXIT_STATUS)
        case "stop":
            os.kill(os.getpid(), signal.SIGSTOP)
        case "hang" | "delay":
            time.sleep(rule.duration_s)
        case "freeze":
            _freeze(rule.duration_s)
        case "raise":
            raise RuntimeError(f"injected fault: {rule.text}")
        case "exhaust":
            raise MemoryError(f"injected fault: {rule.text}")
        case fault:
            return fault
    return None


def _freeze(seconds: float) -> None:
    """Sleep without releasing the interpreter, as a call into a C library may."""
    libc = ctypes.PyDLL(None)
    whole = math.floor(seconds)
    libc.usleep(int((seconds - whole) * 1e6))
    libc.sleep(whole)
