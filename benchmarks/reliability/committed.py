"""R4 to R6 and R22: figures of other benchmarks, read from their committed results."""

import re
from pathlib import Path

from row import Limits, Measured

RESULTS = Path(__file__).parents[1] / "results"
SCHEMAS = RESULTS / "structured_output.md"
MUTANTS = RESULTS / "mutants.md"
SUITE = RESULTS / "suite.md"
MAX_REFUSED, MAX_WRONG_REJECTS = 0.15, 0.005
MAX_MASK_US, MAX_COMPILE_MS = 1000, 50


def grammar_decisions(limits: Limits) -> Measured:
    """Read what `auto` decides about real schemas."""
    del limits
    row = _schemas("real")
    num = _number(row["compiled"].partition(" of ")[2])
    refused = _number(row["refused by name"]) / num
    rejects, _, instances = row["wrong rejects"].partition(" of ")
    wrong_rejects = _number(rejects) / _number(instances)
    num_bad = sum(_number(row[name]) for name in ("wrong accepts", "failed", "timed out"))
    text = (
        f"wrong accepts {row['wrong accepts']}, crashes {row['failed']}, timeouts "
        f"{row['timed out']}; refused {refused:.1%}; wrong rejects {wrong_rejects:.2%} "
        f"(auto, {num:.0f} schemas of real projects in place of MaskBench's)"
    )
    is_met = num_bad == 0 and refused <= MAX_REFUSED and wrong_rejects <= MAX_WRONG_REJECTS
    return Measured(text, is_met, _source(SCHEMAS))


def suite_accepts(limits: Limits) -> Measured:
    """Read what `auto` accepts of the JSON Schema test suite."""
    del limits
    row = _schemas("suite")
    text = f"{row['wrong accepts']} (auto; compiled {row['compiled']})"
    return Measured(text, _number(row["wrong accepts"]) == 0, _source(SCHEMAS))


def grammar_times(limits: Limits) -> Measured:
    """Read how long `auto` takes to compile real schemas, and to fill masks."""
    del limits
    row = _schemas("real")
    mask_us, compile_ms = _number(row["mask p99 us"]), _number(row["CPU p99 ms"])
    text = (
        f"mask {mask_us / 1e3:.2f} ms, compiling {compile_ms:.0f} ms of CPU (p99; auto, real "
        "schemas, a vocabulary of 768)"
    )
    is_met = mask_us <= MAX_MASK_US and compile_ms <= MAX_COMPILE_MS
    return Measured(text, is_met, _source(SCHEMAS))


def suite_time(limits: Limits) -> Measured:
    """Read the last time of the whole suite."""
    del limits
    found = re.findall(
        r"([\d,]+) tests passed in (\d+) min (\d+) s", SUITE.read_text(encoding="utf-8")
    )
    tests, minutes, seconds = found[-1]
    text = (
        f"{tests} tests in {minutes} min {seconds} s; the rate of false failures was not measured"
    )
    return Measured(text, False, _source(SUITE))


def mutation_score(limits: Limits) -> Measured:
    """Read the share of mutants of the engine that tests notice."""
    del limits
    lines = MUTANTS.read_text(encoding="utf-8").splitlines()
    line = next(line for line in lines if line.startswith("| engine |"))
    noticed = line.strip("| ").split("|")[-1].strip()
    found = re.search(r"That is (\d+) of (\d+), (\d+) %", SUITE.read_text(encoding="utf-8"))
    if found is None:
        raise ValueError(f"{SUITE.name} has no share of unlisted changes")
    unlisted, num, share = found.groups()
    text = (
        f"mutants of scheduler and KV cache noticed: {noticed} of the listed ones; of changes by "
        f"people who had not written the tests, anywhere, {unlisted} of {num} ({share} %) at "
        "first; branch coverage was not measured"
    )
    return Measured(text, False, f"{_source(MUTANTS)}, {_source(SUITE)}")


def _schemas(name: str) -> dict[str, str]:
    """Return the cells of the line of `auto` for a set of schemas, by column."""
    lines = SCHEMAS.read_text(encoding="utf-8").splitlines()
    rows = [line.strip("| ").split(" | ") for line in lines if line.startswith("| ")]
    head = rows[0]
    head[head.index("p99 ms")], head[head.index("p99 us")] = "CPU p99 ms", "mask p99 us"
    return next(dict(zip(head, row, strict=True)) for row in rows[1:] if row[:2] == [name, "auto"])


def _number(cell: str) -> float:
    return float(cell.split()[0])


def _source(path: Path) -> str:
    """Return a link to results, with the last date that they name."""
    dates = re.findall(r"\d{4}-\d\d-\d\d", path.read_text(encoding="utf-8"))
    date = f", {max(dates)}" if dates else ""
    return f"[{path.name}](../benchmarks/results/{path.name}){date}"
