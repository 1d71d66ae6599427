"""Comparison of quire on a CPU with other engines, on the same weights and prompts.

    python benchmarks/cpu/run.py --vllm PYTHON --openvino PYTHON --llama-cpp PYTHON
        --transformers PYTHON --write
    python benchmarks/cpu/run.py --isa avx2 ... --write      every engine without AVX-512
    python benchmarks/cpu/run.py ... --pairs 3 --no-trials --stages qwen3-0.6b single 5m
    python benchmarks/cpu/run.py --quick                     tiny sizes, to check that it works

Nothing is installed: each peer is in its own environment, named by its Python; a peer that is not
named is reported as absent. Weights are random, so nothing is downloaded. Every figure is written
as soon as it is measured. Results of other stages from earlier runs are kept, and those of the same
stage until it is complete. Each stage can run alone.
"""

from __future__ import annotations

import argparse
import json
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

from comparisons import Bench
from drawing import draw
from engine_process import LIMITS, clean_environment
from machine_facts import describe
from stages import FAMILY_STAGES, STAGES, run_stage
from tables import write_markdown

RESULTS = Path(__file__).parent.parent / "results"
PEERS = {  # flag, and the module that the environment must have
    "vllm": ("--vllm", "vllm"),
    "openvino": ("--openvino", "openvino_genai"),
    "llama.cpp": ("--llama-cpp", "llama_cpp"),
    "transformers": ("--transformers", "transformers"),
}
ABSENT = 3


class Seconds(NamedTuple):
    """Time of a stage with all peers: once, for the trials, and for each round."""

    loading: float
    trials: float = 0
    round: float = 0


SECONDS = {
    "machine": Seconds(150),
    "qwen3-0.6b": Seconds(200, 800, 130),
    "qwen3-0.6b-int8": Seconds(100, 450, 40),
    "single": Seconds(60, 200, 60),
    "single-int8": Seconds(120, 450, 60),
    "5m": Seconds(100, 500, 25),
    "prompt-4096": Seconds(120, 700, 100),
    "prompt-16384": Seconds(600, 0, 600),
    "start": Seconds(300),
    "load": Seconds(480),
    **dict.fromkeys(FAMILY_STAGES, Seconds(200, 0, 80)),
}


def main() -> None:
    """Run the stages, print the tables, and write them if asked."""
    arguments = checked(parser())
    signal.signal(signal.SIGTERM, _end)  # stopped engines are ended, too
    report = read_report(arguments.out)
    with tempfile.TemporaryDirectory() as scratch:
        failed = run_stages(arguments, report, arguments.folder or Path(scratch))
    print(write_markdown(report))
    sys.exit(f"these stages failed: {', '.join(failed)}" if failed else 0)


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    found = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    for engine, (flag, _) in PEERS.items():
        found.add_argument(flag, dest=engine, metavar="PYTHON", help=f"a Python that has {engine}")
    found.add_argument("--stages", nargs="+", choices=STAGES, default=list(STAGES))
    found.add_argument(
        "--isa", choices=LIMITS, default="native", help="instruction sets that all engines may use"
    )
    found.add_argument("--pairs", type=int, default=7, help="number of rounds")
    found.add_argument("--quick", action="store_true", help="tiny sizes, to check that it works")
    found.add_argument(
        "--no-trials",
        dest="trials",
        action="store_false",
        help="use each peer's first configuration, instead of trying all of them",
    )
    found.add_argument("--folder", type=Path, help="keeps the checkpoints for the next run")
    written = found.add_mutually_exclusive_group()
    written.add_argument(
        "--write", dest="out", action="store_const", const=RESULTS, help="into benchmarks/results"
    )
    written.add_argument("--out", type=Path, help="folder to write into, instead")
    return found


def checked(arguments_parser: argparse.ArgumentParser) -> argparse.Namespace:
    """Return the parsed command line; ends with a message if it is impossible."""
    arguments = arguments_parser.parse_args()
    if arguments.pairs < 1:
        arguments_parser.error("--pairs must be at least 1")
    if arguments.quick:
        if arguments.out is not None and arguments.out.resolve() == RESULTS.resolve():
            arguments_parser.error("--quick finds nothing for --write to keep; take --out FOLDER")
        arguments.pairs = min(arguments.pairs, 2)
    for engine, (flag, module) in PEERS.items():
        what = reason(vars(arguments)[engine], module)
        if what is not None:
            arguments_parser.error(f"{flag}: {what}")
    return arguments


def reason(python: str | None, module: str) -> str | None:
    """Return why this Python cannot run a peer; None if it can, or if none was named."""
    if python is None:
        return None
    code = f"import importlib.util as u, sys; sys.exit(0 if u.find_spec({module!r}) else {ABSENT})"
    try:
        done = subprocess.run([python, "-c", code], check=False, env=clean_environment())
    except OSError as error:
        return f"{python} does not run: {error.strerror}"
    if done.returncode == ABSENT:
        return f"{python} has no module {module}; name the Python of an environment that has it"
    return f"{python} is no Python; it ended with {done.returncode}" if done.returncode else None


def read_report(folder: Path | None) -> dict[str, Any]:
    """Return the results of earlier runs: by instruction sets, then by stage."""
    path = None if folder is None else folder / "cpu.json"
    if path is None or not path.exists():
        return {}
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return found


def run_stages(arguments: argparse.Namespace, report: dict[str, Any], folder: Path) -> list[str]:
    """Run each stage, and write after each; returns the names of those that failed.

    A stage replaces the results of an earlier run only when it is complete; the results of an
    incomplete stage are kept separately.
    """
    named = {name: vars(arguments)[name] for name in PEERS if vars(arguments)[name]}
    bench = Bench(
        pythons={"quire": sys.executable} | named,
        isa=arguments.isa,
        folder=folder,
        pairs=arguments.pairs,
        is_quick=arguments.quick,
        with_trials=arguments.trials,
    )
    print(estimate(arguments), file=sys.stderr, flush=True)
    part = report.setdefault(arguments.isa, {"stages": {}, "unfinished": {}})
    about = {"command": command(arguments), "machine": describe(bench.pythons, bench.isa)}
    failed = []
    for name in arguments.stages:
        print(f"{name}:", file=sys.stderr, flush=True)
        for stage in run_stage(name, bench, about):
            part["unfinished"][name] = stage
            write(report, arguments.out)
        if "error" in stage:
            failed.append(name)
        else:
            part["stages"][name] = part["unfinished"].pop(name)
            write(report, arguments.out)
        what = stage.get("error", "done")
        print(f"{name}: {what}, {stage['seconds']:.0f} s", file=sys.stderr, flush=True)
    return failed


def estimate(arguments: argparse.Namespace) -> str:
    """Return the expected duration, as it was on two idle cores with all peers."""
    if arguments.quick:
        return "about ten minutes"
    seconds = 0.0
    for name in arguments.stages:
        known = SECONDS[name]
        seconds += known.loading + arguments.pairs * known.round
        seconds += known.trials if arguments.trials else 0
    return f"about {seconds / 60:.0f} minutes with all peers on an idle machine"


def write(report: dict[str, Any], folder: Path | None) -> None:
    """Write figures, tables and charts, each file completely or not at all."""
    if folder is None:
        return
    folder.mkdir(parents=True, exist_ok=True)
    _replace(folder / "cpu.json", json.dumps(report, indent=1) + "\n")
    _replace(folder / "cpu.md", write_markdown(report))
    for isa, part in report.items():
        if (drawing := draw(part["stages"])) is not None:
            _replace(folder / f"cpu_{isa}.svg", drawing)


def _replace(path: Path, text: str) -> None:
    partial = path.with_name(f"{path.name}.partial")
    partial.write_text(text, encoding="utf-8")
    partial.replace(path)


def command(arguments: argparse.Namespace) -> str:
    """Return the command line without paths of this machine."""
    words = ["python", "benchmarks/cpu/run.py"]
    for name, (flag, _) in PEERS.items():
        if vars(arguments)[name]:
            words += [flag, f"PYTHON_WITH_{name.upper().replace('.', '_')}"]
    words += ["--isa", arguments.isa, "--pairs", str(arguments.pairs)]
    words += ["--stages", *arguments.stages]
    words += ["--quick"] if arguments.quick else []
    words += [] if arguments.trials else ["--no-trials"]
    return " ".join(words)


def _end(number: int, _frame: FrameType | None) -> None:
    sys.exit(128 + number)


if __name__ == "__main__":
    main()
