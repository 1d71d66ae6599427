"""quire and `transformers.generate` on the same weights and prompts, in turn, in one run.

    python benchmarks/against_transformers.py --shape 5m
    python benchmarks/against_transformers.py --shape qwen3-0.6b --pairs 7

Each engine lives in a process of its own, as its users would run it, and waits while the other one
computes. A pair is one run of both, in alternating order (A B, B A, ...), greedy and of a fixed
output length. The figure is the median of the pairs' ratios, with a bootstrap interval; absolute
figures depend on the machine and its other load.
"""

import argparse
import json
import os
import platform
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from datetime import date
from pathlib import Path
from typing import Any

import torch

from quire import LLM, SamplingParams
from quire.cli.bench_interval import bootstrap
from quire.cli.bench_shapes import SHAPES
from quire.testing.checkpoints import write_checkpoint

RESULTS = Path(__file__).parent / "results"
DEFAULT_BATCH = {"5m": 16, "qwen3-0.6b": 8}


def main() -> None:
    """Measure, print, and write the result; or be one of the two engines."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--shape", choices=SHAPES, default="5m")
    parser.add_argument("--batch", type=int, help="prompts at the same time")
    parser.add_argument("--input-len", type=int, default=128)
    parser.add_argument("--output-len", type=int, default=64)
    parser.add_argument("--pairs", type=int, default=7)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--write", action="store_true", help="write into benchmarks/results")
    parser.add_argument("--engine", choices=RUNNERS, help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    arguments.batch = arguments.batch or DEFAULT_BATCH[arguments.shape]
    torch.set_num_threads(arguments.threads)
    if arguments.engine is not None:
        be_an_engine(arguments)
        return
    with tempfile.TemporaryDirectory() as folder:
        config = SHAPES[arguments.shape] | {"tie_word_embeddings": True}
        write_checkpoint(Path(folder), "Qwen3ForCausalLM", seed=0, **config)
        report = vars(arguments) | measure(Path(folder), arguments.pairs)
    write = report.pop("write")
    report = {name: value for name, value in report.items() if value is not None}
    report["machine"] = machine()
    report["date"] = date.today().isoformat()
    report["command"] = "python " + " ".join(sys.argv)
    print(json.dumps(report, indent=2))
    if write:
        RESULTS.mkdir(exist_ok=True)
        path = RESULTS / f"against_transformers_{arguments.shape}.json"
        path.write_text(json.dumps(report, indent=2) + "\n")


class Engine:
    """One of the two engines, in a process of its own.

    Args:
        name: Which.
        folder: The checkpoint.
    """

    def __init__(self, name: str, folder: Path) -> None:
        command = [sys.executable, *sys.argv, "--engine", name, "--folder", str(folder)]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def run(self) -> tuple[float, list[list[int]]]:
        """Generate once; returns the seconds, and the tokens of each answer."""
        if self._process.stdin is None or self._process.stdout is None:
            raise RuntimeError("the engine has no pipes")
        print("run", file=self._process.stdin, flush=True)
        answer = json.loads(self._process.stdout.readline())
        return answer["seconds"], answer["token_ids"]

    def close(self) -> None:
        """End the process."""
        self._process.communicate()


def be_an_engine(arguments: argparse.Namespace) -> None:
    """Generate as often as the parent asks, and answer with the time and the tokens."""
    vocab_size = SHAPES[arguments.shape]["vocab_size"]
    prompts = random_prompts(vocab_size, arguments.batch, arguments.input_len)
    run = RUNNERS[arguments.engine](arguments.folder, prompts, arguments.output_len)
    for _ in sys.stdin:
        started = time.perf_counter()
        token_ids = run()
        seconds = time.perf_counter() - started
        print(json.dumps({"seconds": seconds, "token_ids": token_ids}), flush=True)


def random_prompts(vocab_size: int, batch: int, input_len: int) -> list[list[int]]:
    """Draw prompts; the ids avoid the special tokens at the start of the vocabulary."""
    draw = random.Random(0)
    return [[draw.randrange(3, vocab_size) for _ in range(input_len)] for _ in range(batch)]


def measure(folder: Path, pairs: int) -> dict[str, Any]:
    """Run both in turn; returns rates, ratios and how many tokens agree."""
    engines = {name: Engine(name, folder) for name in RUNNERS}
    try:
        answers = {name: engine.run()[1] for name, engine in engines.items()}  # the warm-up
        seconds: dict[str, list[float]] = {name: [] for name in engines}
        for pair in range(pairs):
            names = list(engines) if pair % 2 == 0 else list(reversed(engines))
            for name in names:
                seconds[name].append(engines[name].run()[0])
    finally:
        for engine in engines.values():
            engine.close()
    ratios = [t / q for q, t in zip(seconds["quire"], seconds["transformers"], strict=True)]
    num_tokens = sum(map(len, answers["quire"]))
    rates = {
        f"{name}_output_tokens_per_s": num_tokens / statistics.median(times)
        for name, times in seconds.items()
    }
    return {
        **rates,
        "ratio_median": statistics.median(ratios),
        "ratio_95_interval": bootstrap(ratios, statistics.median),
        "ratios": ratios,
        "equal_tokens": agreement(answers["quire"], answers["transformers"]),
    }


def quire_runner(
    folder: Path, prompts: list[list[int]], output_len: int
) -> Callable[[], list[list[int]]]:
    """Return a function that generates with quire."""
    llm = LLM(str(folder), dtype="float32", max_model_len=len(prompts[0]) + output_len)
    params = SamplingParams(temperature=0, max_tokens=output_len, ignore_eos=True)

    def run() -> list[list[int]]:
        return [output.outputs[0].token_ids for output in llm.generate(prompts, params)]

    return run


def transformers_runner(
    folder: Path, prompts: list[list[int]], output_len: int
) -> Callable[[], list[list[int]]]:
    """Return a function that generates with transformers, all prompts as one batch."""
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    token_ids = torch.tensor(prompts)

    @torch.inference_mode()
    def run() -> list[list[int]]:
        out = model.generate(
            token_ids,
            attention_mask=torch.ones_like(token_ids),
            max_new_tokens=output_len,
            do_sample=False,
            eos_token_id=None,
            pad_token_id=0,
        )
        rows: list[list[int]] = out[:, token_ids.shape[1] :].tolist()
        return rows

    return run


RUNNERS = {"quire": quire_runner, "transformers": transformers_runner}


def agreement(ours: list[list[int]], theirs: list[list[int]]) -> float:
    """Return the share of positions before the first difference; near ties may part two runs."""
    same = total = 0
    for mine, other in zip(ours, theirs, strict=True):
        total += len(other)
        same += next(
            (i for i, (a, b) in enumerate(zip(mine, other, strict=True)) if a != b), len(other)
        )
    return same / total


def machine() -> dict[str, Any]:
    """Describe what this ran on."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.is_file() else []
    models = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    flags = next((line for line in lines if line.startswith("flags")), "")
    return {
        "cpu": models[0] if models else platform.processor(),
        "cores": os.cpu_count(),
        "has_avx512": "avx512f" in flags,
        "threads": torch.get_num_threads(),
        "load_average_at_end": os.getloadavg()[0],
        "python": platform.python_version(),
        "torch": torch.__version__,
    }


if __name__ == "__main__":
    main()
