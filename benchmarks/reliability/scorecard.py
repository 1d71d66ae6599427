"""The table of docs/reliability.md, between two markers, from the results of all runs."""

import os
import platform
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from row import Measured, Row

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "reliability.md"
RESULTS = ROOT / "benchmarks" / "results" / "reliability.json"
START, END = "<!-- scorecard -->", "<!-- end of the scorecard -->"
NOT_YET = "not measured yet"
BUSY_LOAD = 1.5  # processes that wait for a core, for each core


def entry(measured: Measured, command: str) -> dict[str, Any]:
    """Return a result with its source, or with its date, machine and command."""
    if measured.source:
        return {"text": measured.text, "is_met": measured.is_met, "source": measured.source}
    cores = os.cpu_count() or 1
    busy = ", busy with other work" if is_busy() else ""
    return {
        "text": measured.text,
        "is_met": measured.is_met,
        "date": datetime.now(UTC).date().isoformat(),
        "machine": f"{cores} cores of {_processor()}{busy}",
        "command": command,
    }


def is_busy() -> bool:
    """Return whether the machine has more work than cores."""
    return os.getloadavg()[0] > BUSY_LOAD * (os.cpu_count() or 1)


def fill(rows: Sequence[Row], results: Mapping[str, Mapping[str, Any]]) -> None:
    """Write the table into the page."""
    before, _, rest = PAGE.read_text(encoding="utf-8").partition(START)
    _, _, after = rest.partition(END)
    PAGE.write_text(f"{before}{START}\n{table(rows, results)}{END}{after}", encoding="utf-8")


def table(rows: Sequence[Row], results: Mapping[str, Mapping[str, Any]]) -> str:
    """Return the rows as Markdown."""
    lines = ["| row | measure | aim | measured | met | when, where |", "|---|---|---|---|---|---|"]
    for row in rows:
        found = results.get(row.id)
        if found is None:
            reason = f": {row.missing}" if row.missing else ""
            lines.append(f"| {row.id} | {row.measure} | {row.aim} | {NOT_YET}{reason} | | |")
            continue
        met = "yes" if found["is_met"] else "**no**"
        lines.append(
            f"| {row.id} | {row.measure} | {row.aim} | {found['text']} | {met} | {_where(found)} |"
        )
    return "\n".join(lines) + "\n"


def _where(found: Mapping[str, Any]) -> str:
    """Return when and where a result was measured."""
    if "source" in found:
        return str(found["source"])
    return f"{found['date']}, {found['machine']}: `{found['command']}`"


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()
