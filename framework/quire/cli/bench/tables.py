"""Text output of benchmark figures, and facts about the machine."""

import os
import platform
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from importlib.metadata import version
from typing import Any

from quire.machine.instruction_sets import CPU_INFO


def plain_lines(figures: Mapping[str, Any]) -> list[str]:
    """Return one line per figure."""
    return [
        f"{name:<28} {value:,.3f}" if isinstance(value, float) else f"{name:<28} {value}"
        for name, value in figures.items()
    ]


def table_lines(headers: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Return a table whose columns are as wide as their widest cell, aligned to the right."""
    widths = [max(map(len, column)) for column in zip(headers, *rows, strict=True)]
    return [
        "  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True))
        for row in (headers, *rows)
    ]


def markdown_lines(headers: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """Return a Markdown table."""
    return [f"| {' | '.join(row)} |" for row in (headers, ["---"] * len(headers), *rows)]


def machine_info() -> dict[str, Any]:
    """Return facts about the machine that runs the benchmark, and the date."""
    return {
        "cpu": _cpu_name(),
        "cores": os.cpu_count(),
        "load_average": round(os.getloadavg()[0], 2),
        "python": platform.python_version(),
        "quire": version("quire"),
        "date": datetime.now(UTC).date().isoformat(),
    }


def _cpu_name() -> str:
    lines = CPU_INFO.read_text().splitlines() if CPU_INFO.is_file() else []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.processor())
