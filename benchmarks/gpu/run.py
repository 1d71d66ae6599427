"""Correctness and speed on one GPU, compared with the limits of the hardware.

    python benchmarks/gpu/run.py --write         on a GPU, within eight minutes, caches cold
    python benchmarks/gpu/run.py --dry-run       anywhere: tiny sizes, to check that it works

Weights are random, so nothing is downloaded. Every stage runs in its own process with its own time
limit, and reports each figure at once: a failure or a hang costs only the figures that follow in
its stage. The report is written again after every stage. Figures that were not taken are written
"not measured yet".
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent.parent / "results"
SHAPES = ("qwen3-0.6b", "llama-3.1-8b", "llama-3.2-1b", "qwen3-8b")
TOTAL_S = 480.0


@dataclass(frozen=True, slots=True)
class Stage:
    """One part of the run, and its limit in seconds."""

    name: str
    limit_s: float


def stages(*, is_dry: bool) -> list[Stage]:
    """Return the parts, the most important first, in case time runs out."""
    shapes = ("5m",) if is_dry else SHAPES
    return [
        Stage("machine", 60),
        Stage("correctness", 90),
        *(Stage(f"engine:{shape}", 100) for shape in shapes[:2]),
        Stage("bandwidth", 60),
        Stage("products", 60),
        *(Stage(f"engine:{shape}", 100) for shape in shapes[2:]),
        Stage("peer:quire", 40),
        Stage("peer:transformers", 60),
    ]


def main() -> None:
    """Run every stage, print the table, and write it if asked; or be one stage."""
    arguments = _parser().parse_args()
    if arguments.stage:
        _be_a_stage(arguments)
        return
    names = [stage.name for stage in stages(is_dry=arguments.dry_run)]
    unknown = set(arguments.only or ()) - set(names)
    if unknown:
        _parser().error(f"no stage {', '.join(sorted(unknown))}; there are {', '.join(names)}")
    if not arguments.dry_run and not _has_gpu():
        _parser().error("there is no CUDA device; --dry-run tries the commands on tiny sizes")
    report = run_all(arguments)
    print(_write(report, arguments))
    failed = [name for name, stage in report["stages"].items() if "error" in stage]
    sys.exit(f"these stages failed: {', '.join(failed)}" if failed else 0)


def run_all(arguments: argparse.Namespace) -> dict[str, Any]:
    """Return the results of every stage, or its error."""
    started = time.monotonic()
    report: dict[str, Any] = {
        "date": date.today().isoformat(),
        "command": "python benchmarks/gpu/run.py" + (" --dry-run" if arguments.dry_run else ""),
        "commit": _commit(),
        "is_dry": arguments.dry_run,
        "stages": {},
    }
    for stage in stages(is_dry=arguments.dry_run):
        if arguments.only and stage.name not in (*arguments.only, "machine"):
            continue
        left = TOTAL_S - (time.monotonic() - started)
        found = _run_stage(stage, min(left, stage.limit_s), report, arguments)
        report["stages"][stage.name] = found
        report["seconds"] = round(time.monotonic() - started, 1)
        what = found.get("error", "done").splitlines()[-1]
        print(f"{stage.name}: {what}, {report['seconds']} s so far", file=sys.stderr, flush=True)
        _write(report, arguments)
    return report


def merge(found: dict[str, Any], piece: Mapping[str, Any]) -> None:
    """Add results of a stage: lists grow, everything else is replaced."""
    for key, value in piece.items():
        if isinstance(value, list) and isinstance(found.get(key), list):
            found[key] = found[key] + value
        else:
            found[key] = value


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--dry-run", action="store_true", help="tiny sizes, on any machine")
    parser.add_argument("--write", action="store_true", help="write into benchmarks/results")
    parser.add_argument("--out", type=Path, help="folder to write into, whatever the device")
    parser.add_argument("--only", nargs="+", metavar="STAGE", help="these stages alone")
    parser.add_argument("--stage", help=argparse.SUPPRESS)
    parser.add_argument("--results", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--rates", default="{}", help=argparse.SUPPRESS)
    return parser


def _be_a_stage(arguments: argparse.Namespace) -> None:
    from stage import run_stage

    with arguments.results.open("a", encoding="utf-8") as results:
        for piece in run_stage(arguments.stage, json.loads(arguments.rates), arguments.dry_run):
            results.write(json.dumps(piece) + "\n")
            results.flush()


def _run_stage(
    stage: Stage, limit_s: float, report: dict[str, Any], arguments: argparse.Namespace
) -> dict[str, Any]:
    if limit_s < 5:
        return {"error": f"no time was left of {TOTAL_S:.0f} s"}
    started = time.monotonic()
    rates = {
        key: value
        for key, value in report["stages"].get("machine", {}).items()
        if key in ("copy_bytes_s", "matmul_flop_s")
    }
    with tempfile.TemporaryDirectory() as folder:
        results = Path(folder) / "results.jsonl"
        results.touch()
        argv = [sys.executable, __file__, "--stage", stage.name, "--results", str(results)]
        argv += ["--rates", json.dumps(rates), *(["--dry-run"] if arguments.dry_run else [])]
        environment = os.environ | ({"TRITON_INTERPRET": "1"} if arguments.dry_run else {})
        error = _end_of(argv, environment, limit_s)
        found: dict[str, Any] = {}
        for line in results.read_text(encoding="utf-8").splitlines():
            merge(found, json.loads(line))
    if error is not None:
        found["error"] = error
    found["seconds"] = round(time.monotonic() - started, 1)
    return found


def _end_of(argv: list[str], environment: dict[str, str], limit_s: float) -> str | None:
    """Run a process; returns its error, if it failed."""
    try:
        done = subprocess.run(
            argv, env=environment, timeout=limit_s, capture_output=True, text=True, check=False
        )
    except subprocess.TimeoutExpired:
        return f"it did not end within {limit_s:.0f} s"
    if done.returncode == 0:
        return None
    return "\n".join((done.stderr.strip() or "no output").splitlines()[-12:])


def _write(report: dict[str, Any], arguments: argparse.Namespace) -> str:
    from report import write_markdown

    table = write_markdown(report)
    folder = arguments.out or (RESULTS if arguments.write and not arguments.dry_run else None)
    if folder is not None:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "gpu.json").write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
        (folder / "gpu.md").write_text(table, encoding="utf-8")
    return table


def _commit() -> str:
    argv = ["git", "-C", str(Path(__file__).parent), "rev-parse", "--short", "HEAD"]
    try:
        done = subprocess.run(argv, capture_output=True, text=True, check=False)
    except OSError:
        return "not known"
    return done.stdout.strip() or "not known"


def _has_gpu() -> bool:
    import torch

    return torch.cuda.is_available()


if __name__ == "__main__":
    main()
