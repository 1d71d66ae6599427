"""One command on one GPU: is it right, and how near is it to what the hardware allows?

    python benchmarks/gpu/run.py --write         on a GPU, about six minutes, caches cold
    python benchmarks/gpu/run.py --dry-run       anywhere: tiny sizes, to see that it works

Weights are random, so nothing is downloaded. Every stage runs in a process of its own with a limit
of its own: one that fails or hangs is a line in the report, and the others go on. Figures that were
not taken are written "not measured yet".
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent.parent / "results"
SHAPES = ("qwen3-0.6b", "llama-3.2-1b", "llama-3.1-8b", "qwen3-8b")
BACKENDS = ("triton", "cuda", "torch_sdpa")
TOTAL_S = 480.0


@dataclass(frozen=True, slots=True)
class Stage:
    """One part of the run, and the seconds that it may take."""

    name: str
    limit_s: float


def stages(*, is_dry: bool) -> list[Stage]:
    """Return the parts in the order of what matters most, should time run out."""
    shapes = ("5m",) if is_dry else SHAPES
    return [
        Stage("machine", 60),
        Stage("correctness", 120),
        *(Stage(f"engine:{shape}", 120) for shape in shapes),
        Stage("bandwidth", 120),
        Stage("peer", 120),
    ]


def main() -> None:
    """Run every stage, print the table, and write it if asked; or be one stage."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--dry-run", action="store_true", help="tiny sizes, on any machine")
    parser.add_argument("--write", action="store_true", help="write into benchmarks/results")
    parser.add_argument("--out", type=Path, help="folder to write into, whatever the device")
    parser.add_argument("--only", nargs="+", metavar="STAGE", help="these stages alone")
    parser.add_argument("--stage", help=argparse.SUPPRESS)
    parser.add_argument("--answer", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--rates", default="{}", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.stage:
        from stage import run_stage

        answer = run_stage(arguments.stage, json.loads(arguments.rates), arguments.dry_run)
        arguments.answer.write_text(json.dumps(answer), encoding="utf-8")
        return
    if not arguments.dry_run and not _has_gpu():
        parser.error("there is no CUDA device; --dry-run tries the commands on tiny sizes")
    report = run_all(arguments)
    from report import write_markdown

    table = write_markdown(report)
    print(table)
    folder = arguments.out or (RESULTS if arguments.write and not arguments.dry_run else None)
    if folder is not None:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "gpu.json").write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
        (folder / "gpu.md").write_text(table, encoding="utf-8")


def run_all(arguments: argparse.Namespace) -> dict[str, Any]:
    """Return what every stage found, or why it found nothing."""
    started = time.monotonic()
    report: dict[str, Any] = {
        "date": date.today().isoformat(),
        "command": "python benchmarks/gpu/run.py" + (" --dry-run" if arguments.dry_run else ""),
        "is_dry": arguments.dry_run,
        "stages": {},
    }
    for stage in stages(is_dry=arguments.dry_run):
        if arguments.only and stage.name not in arguments.only and stage.name != "machine":
            continue
        left = TOTAL_S - (time.monotonic() - started)
        report["stages"][stage.name] = _run_stage(
            stage, min(left, stage.limit_s), report, arguments
        )
    report["seconds"] = round(time.monotonic() - started, 1)
    return report


def _run_stage(
    stage: Stage, limit_s: float, report: dict[str, Any], arguments: argparse.Namespace
) -> dict[str, Any]:
    if limit_s < 5:
        return {"error": f"no time was left of {TOTAL_S:.0f} s"}
    started = time.monotonic()
    rates = report["stages"].get("machine", {})
    with tempfile.TemporaryDirectory() as folder:
        answer = Path(folder) / "answer.json"
        argv = [sys.executable, __file__, "--stage", stage.name, "--answer", str(answer)]
        argv += ["--rates", json.dumps(rates), *(["--dry-run"] if arguments.dry_run else [])]
        environment = os.environ | ({"TRITON_INTERPRET": "1"} if arguments.dry_run else {})
        try:
            done = subprocess.run(
                argv, env=environment, timeout=limit_s, capture_output=True, text=True, check=False
            )
        except subprocess.TimeoutExpired:
            return {"error": f"it did not end within {limit_s:.0f} s"}
        seconds = round(time.monotonic() - started, 1)
        if done.returncode or not answer.is_file():
            last = (done.stderr.strip() or "no output").splitlines()[-8:]
            return {"error": "\n".join(last), "seconds": seconds}
        return {**json.loads(answer.read_text(encoding="utf-8")), "seconds": seconds}


def _has_gpu() -> bool:
    import torch

    return torch.cuda.is_available()


if __name__ == "__main__":
    main()
