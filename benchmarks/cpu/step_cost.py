"""Time of a decode step by part, in microseconds.

    python benchmarks/cpu/step_cost.py [--requests 1 16 64] [--kernels auto] [--json FILE]

The functions below are timed; the time of a part does not include parts inside it. Two models run:
one of 5 million parameters, and a hollow one of as many layers, so small that its forward pass is
dispatch only. Steps are traced and replayed, as an engine does on a CPU, and then run in Python. A
replay gathers the inputs and computes the logits as well; a second one samples: both are `model`.
`whole` is a step without timing of its parts, which makes their sum some microseconds longer.
"""

from __future__ import annotations

import argparse
import functools
import json
import random
import statistics
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

from quire import LLM, SamplingParams
from quire.cli.bench.model_shapes import SHAPES, write_shape
from quire.engine.core import EngineCore
from quire.engine.scheduling.scheduler import Scheduler
from quire.frontend.dispatch.shared_core import SharedCore
from quire.frontend.offline_frontend import _BatchRun
from quire.native.tracing import CallTrace
from quire.worker import model_runner
from quire.worker.model_runner import ModelRunner

REQUESTS = (1, 16, 64)
PROMPT_LEN = 128
OUTPUT_LEN = 64
NUM_RUNS = 3
SKIPPED = 4  # steps at both ends of a run: prompts, and completions that end
STEP = "step"
HOLLOW = {"vocab_size": 512, "hidden_size": 16, "intermediate_size": 16, "head_dim": 8}
MODELS = {"5m": SHAPES["5m"], "hollow": SHAPES["5m"] | HOLLOW}


class Part(NamedTuple):
    """A function of a class or a module, and the part of a step that it belongs to."""

    owner: type | ModuleType
    function: str
    name: str


class Meter:
    """Adds up the time of each part, step by step."""

    def __init__(self) -> None:
        self.steps: list[dict[str, float]] = []
        self._open: list[str] = []
        self._step: dict[str, float] = defaultdict(float)
        self._last = 0.0

    @contextmanager
    def timing(self, parts: Sequence[Part]) -> Iterator[None]:
        """Time the functions until the block ends."""
        originals = [(part, vars(part.owner)[part.function]) for part in parts]
        for part, original in originals:
            setattr(part.owner, part.function, self._timed(original, part.name))
        try:
            yield
        finally:
            for part, original in originals:
                setattr(part.owner, part.function, original)

    def _timed(self, function: Callable[..., Any], name: str) -> Callable[..., Any]:
        @functools.wraps(function)
        def timed(*args: Any, **kwargs: Any) -> Any:
            self._note()
            if name == STEP:
                self.steps.append(self._step)
                self._step = defaultdict(float)
            self._open.append(name)
            try:
                return function(*args, **kwargs)
            finally:
                self._note()
                self._open.pop()

        return timed

    def _note(self) -> None:
        now = time.perf_counter()
        self._step[self._open[-1] if self._open else "outside"] += now - self._last
        self._last = now


def parts_of(llm: LLM) -> list[Part]:
    """Return the functions of a step, each with the name of its part."""
    runner: ModelRunner = llm._engine.core.runner  # type: ignore[union-attr]
    return [
        Part(_BatchRun, "_apply_outputs", "outputs"),
        Part(EngineCore, "step", "loop"),
        Part(Scheduler, "schedule", "schedule"),
        Part(Scheduler, "update", "update"),
        Part(ModelRunner, "execute", "runner"),
        Part(model_runner, "build_inputs", "inputs"),
        *(Part(kind, "prepare", "prepare") for kind in {type(b) for b in runner.backends}),
        Part(_owner(type(runner.model), "forward"), "forward", "model"),
        Part(CallTrace, "replay", "model"),
        Part(ModelRunner, "logits_of", "logits"),
        Part(ModelRunner, "sample", "sampling"),
        Part(ModelRunner, "collect", "collect"),
    ]


def _owner(kind: type, function: str) -> type:
    """Return the class that defines a function."""
    return next(base for base in kind.__mro__ if function in vars(base))


def measure(
    requests: tuple[int, ...] = REQUESTS, kernels: str = "auto", **options: Any
) -> list[dict[str, Any]]:
    """Return the microseconds of each part of a decode step, for each model and number of requests.

    Args:
        requests: Numbers of requests.
        kernels: The option of that name.
        options: Further options of `LLM`.
    """
    rows = []
    for name, shape in MODELS.items():
        with tempfile.TemporaryDirectory() as folder:
            write_shape(Path(folder), "5m")
            _reshape(Path(folder) / "config.json", shape)
            with LLM(
                folder, load_format="dummy", kernels=kernels, max_num_seqs=max(requests), **options
            ) as llm:
                about = {"model": name, "decode_steps": llm.composition.decode_steps}
                rows += [_measure_one(llm, count) | about for count in requests]
    return rows


def _reshape(config: Path, shape: Mapping[str, Any]) -> None:
    kept = json.loads(config.read_text(encoding="utf-8"))
    sizes = {name: shape[name] for name in HOLLOW if name != "vocab_size"}  # the tokenizer's
    config.write_text(json.dumps(kept | sizes), encoding="utf-8")


def _measure_one(llm: LLM, num_requests: int) -> dict[str, Any]:
    rng = random.Random(num_requests)
    begin = Part(SharedCore, "step", STEP)
    _steps(llm, num_requests, rng, [begin])
    whole = [step for _ in range(NUM_RUNS) for step in _steps(llm, num_requests, rng, [begin])]
    parts = parts_of(llm)
    split = [s for _ in range(NUM_RUNS) for s in _steps(llm, num_requests, rng, [begin, *parts])]
    names = dict.fromkeys(part.name for part in parts)
    return {
        "requests": num_requests,
        "whole": _quartile([{STEP: sum(step.values())} for step in whole], STEP),
        "parts": {name: _quartile(split, name) for name in (*names, "outside")},
    }


def _steps(
    llm: LLM, num_requests: int, rng: random.Random, parts: Sequence[Part]
) -> list[dict[str, float]]:
    meter = Meter()
    with meter.timing(parts):
        _generate(llm, num_requests, rng)
    return meter.steps[SKIPPED:-SKIPPED]


def _generate(llm: LLM, num_requests: int, rng: random.Random) -> None:
    """Generate for new prompts, so that none is in the prefix cache."""
    vocab_size = llm.composition.description.vocab_size
    prompts = [[rng.randrange(vocab_size) for _ in range(PROMPT_LEN)] for _ in range(num_requests)]
    llm.generate(prompts, SamplingParams(temperature=0, max_tokens=OUTPUT_LEN, ignore_eos=True))


def _quartile(steps: list[dict[str, float]], part: str) -> float:
    """Return the first quartile of the steps: other processes may use the machine."""
    return round(1e6 * statistics.quantiles(step[part] for step in steps)[0], 1)


def _show(rows: Sequence[Mapping[str, Any]]) -> None:
    """Print a column for each number of requests."""
    print(f"decode steps: {rows[0]['decode_steps']}")
    for name in MODELS:
        columns = [row for row in rows if row["model"] == name]
        print(f"{name + ', us':<16}" + "".join(f"{row['requests']:>9}" for row in columns))
        for part in ("whole", *columns[0]["parts"]):
            numbers = [row["parts"].get(part, row["whole"]) for row in columns]
            print(f"  {part:<14}" + "".join(f"{number:>9.1f}" for number in numbers))


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--requests", type=int, nargs="+", default=REQUESTS)
    parser.add_argument("--kernels", default="auto")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    rows = []
    for is_eager in (False, True):
        some = measure(tuple(arguments.requests), arguments.kernels, enforce_eager=is_eager)
        _show(some)
        rows += some
    if arguments.json:
        arguments.json.write_text(json.dumps(rows, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
