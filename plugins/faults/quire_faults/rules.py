"""The language of faults: `POINT:FAULT[@WHEN][:DURATION]`, separated by commas.

step.execute:crash@20              the process is killed in its 20th step
sampler:raise@3-7                  the calls 3 to 7 raise
policy.order:delay:50ms            every call takes 50 ms longer
attention.forward:hang@5:30s       the fifth call takes 30 seconds
request_received:raise@/run/broken every call raises while that file exists
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from types import MappingProxyType

from quire.errors import SettingsError

FAULTS: Mapping[str, str] = MappingProxyType(
    {
        "crash": "the process is killed by SIGKILL",
        "exit": "the process exits at once, with status 70",
        "stop": "the process is stopped by SIGSTOP, with all its threads",
        "hang": "the call takes DURATION, one hour by default",
        "freeze": "the same, and no other thread of the interpreter runs meanwhile",
        "delay": "the call takes DURATION longer",
        "raise": "the call raises a RuntimeError",
        "exhaust": "the call raises a MemoryError",
        "corrupt": "the call returns an invalid result",
        "withhold": "the call returns nothing: transfers never end, and their blocks stay held",
    }
)
PARTS: Mapping[str, tuple[str, ...]] = MappingProxyType(  # option, as flag -> points
    {
        "": ("request_received", "request_finished"),
        "--samplers default faults": ("sampler",),
        "--attention-backend faults": ("attention.prepare", "attention.forward"),
        "--scheduling-policy faults": (
            "policy.order", "policy.admits", "policy.victim", "policy.began", "policy.ended",
        ),
        "--structured-output faults": (
            "grammar.check", "grammar.compile", "grammar.accept", "grammar.mask",
        ),
        "--kv-store faults": (
            "kv_store.lookup", "kv_store.start_save", "kv_store.plan_step", "kv_store.finish",
            "kv_store.begin_step", "kv_store.report",
        ),
        "--executor faults": (
            "executor.place", "worker.load", "worker.allocate", "worker.check_health",
            "worker.control", "step.execute", "step.sample", "step.collect",
        ),
    }
)  # fmt: skip
POINTS = tuple(point for points in PARTS.values() for point in points)
CORRUPTIBLE = frozenset(
    {
        "sampler", "attention.forward", "policy.order", "policy.victim", "grammar.mask",
        "kv_store.lookup", "kv_store.report",
    }
)  # fmt: skip
WITHHOLDABLE = frozenset({"kv_store.report"})
DEFAULT_HANG_S = 3600.0

_RULE = re.compile(
    r"(?P<point>[a-z_.]+):(?P<fault>[a-z]+)"
    r"(?:@(?P<when>\*|[0-9]+\+?|[0-9]+-[0-9]+|/[^:]*))?"
    r"(?::(?P<number>[0-9]+(?:\.[0-9]+)?)(?P<unit>ms|s))?"
)


@dataclass(frozen=True, slots=True)
class Rule:
    """One fault at one point.

    Attributes:
        text: The rule as it was written.
        point: Name of the call at which it is injected.
        fault: Name of what is injected.
        first: Number of the first call that it concerns, counted from 1 in each process.
        last: Number of the last one; None: all from the first on.
        file: File that must exist for a call to be concerned; None: none.
        duration_s: Seconds of a hang or a delay.
    """

    text: str
    point: str
    fault: str
    first: int = 1
    last: int | None = None
    file: Path | None = None
    duration_s: float = 0.0

    def concerns(self, call: int) -> bool:
        """Return whether the fault is injected at a call with this number."""
        if call < self.first or (self.last is not None and call > self.last):
            return False
        return self.file is None or self.file.exists()

    @property
    def option(self) -> str:
        """The option by which the user puts the point into an engine; empty: none is needed."""
        return next(option for option, points in PARTS.items() if self.point in points)


def parse(text: str) -> tuple[Rule, ...]:
    """Return the rules of a text; an empty one has none.

    Raises:
        SettingsError: A rule is not written as it should be, or names what does not exist.
    """
    return tuple(_rule(part.strip()) for part in text.split(",") if part.strip())


def _rule(text: str) -> Rule:
    match = _RULE.fullmatch(text)
    if match is None:
        raise SettingsError(
            f"the fault {text!r} is not of the form POINT:FAULT[@WHEN][:DURATION], where WHEN is "
            "3, 3+, 3-7, * or the absolute path of a file, and DURATION is 50ms or 30s"
        )
    point, fault = match["point"], match["fault"]
    _check_known(point, POINTS, "point", text)
    _check_known(fault, FAULTS, "fault", text)
    for name, able in (("corrupt", CORRUPTIBLE), ("withhold", WITHHOLDABLE)):
        if fault == name and point not in able:
            raise SettingsError(
                f"{text!r}: {name} is possible at {', '.join(sorted(able))}, not at {point}"
            )
    first, last, file = _calls(match["when"] or "*", text)
    return Rule(text, point, fault, first, last, file, _duration_s(match, fault, text))


def _check_known(
    name: str, known: Mapping[str, str] | tuple[str, ...], what: str, text: str
) -> None:
    if name not in known:
        near = get_close_matches(name, list(known), 1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        raise SettingsError(
            f"{text!r}: there is no {what} {name!r}{hint} (known: {', '.join(known)})"
        )


def _calls(when: str, text: str) -> tuple[int, int | None, Path | None]:
    """Return the first and the last call that `WHEN` names, and the file that must exist."""
    if when.startswith("/"):
        return 1, None, Path(when)
    if when == "*":
        return 1, None, None
    if when.endswith("+"):
        return int(when[:-1]), None, None
    first, _, last = when.partition("-")
    numbers = int(first), int(last or first)
    if not 1 <= numbers[0] <= numbers[1]:
        raise SettingsError(f"{text!r}: calls are counted from 1 upwards")
    return *numbers, None


def _duration_s(match: re.Match[str], fault: str, text: str) -> float:
    takes_time = fault in ("hang", "freeze", "delay")
    if match["number"] is None:
        if fault == "delay":
            raise SettingsError(f"{text!r}: a delay needs a duration, such as delay:50ms")
        return DEFAULT_HANG_S if takes_time else 0.0
    if not takes_time:
        raise SettingsError(f"{text!r}: {fault} has no duration")
    return float(match["number"]) / (1000 if match["unit"] == "ms" else 1)
