"""Throughput of a whole engine with random weights of a known shape: decode, prefill, and both.

Decoding and prefill are timed step by step at the engine core: a figure is the median of the steps
in which every request got a token, so they include no prompts. The mixed benchmark uses
`LLM.generate` as a user does, tokenizer and detokenizer included. Prefix caching is off; everything
else is the default of `LLM`.
"""

from __future__ import annotations

import logging
import random
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import torch

from quire import LLM, SamplingParams
from quire.cli.bench.model_shapes import write_shape
from quire.messages import EngineRequest

TOKENS = range(300, 8000)  # every shape's vocabulary has them; the first few are special
NANO_VOCABULARY = 10_000  # of the published benchmark, whose lengths depend on it
LOGGED = ("captured", "memory of", "the model is ready", "ready after", "KV cache")


@dataclass(frozen=True, slots=True)
class Load:
    """Sizes of the load; small ones for a dry run.

    Attributes:
        single_len: Number of tokens of the completion of one request alone.
        batch: Number of requests that decode together, for `batch_steps` steps around a `context`.
        prefill_len: Number of tokens of a prompt alone.
        mixed: Number of requests of the mixed benchmark, with prompts and completions of
            `mixed_from` to `mixed_to` tokens.
        repeats: Number of runs of the prefill.
        traced_steps: Number of decode steps that are profiled by kernel; on a GPU only.
    """

    single_len: int = 256
    batch: int = 256
    context: int = 1024
    batch_steps: int = 96
    prefill_len: int = 8192
    mixed: int = 256
    mixed_from: int = 100
    mixed_to: int = 1024
    repeats: int = 3
    traced_steps: int = 20

    def mixed_lengths(self) -> list[tuple[int, int]]:
        """Return lengths of prompts and completions, as in nano-vllm's benchmark (seed 0)."""
        rng = random.Random(0)
        inputs = []
        for _ in range(self.mixed):
            num_in = rng.randint(self.mixed_from, self.mixed_to)
            for _ in range(num_in):
                rng.randint(
                    0, NANO_VOCABULARY
                )  # there the tokens are generated between the lengths
            inputs.append(num_in)
        return [(num_in, rng.randint(self.mixed_from, self.mixed_to)) for num_in in inputs]


DRY = Load(
    single_len=6, batch=4, context=24, batch_steps=6, prefill_len=64,
    mixed=5, mixed_from=4, mixed_to=12, repeats=1, traced_steps=0,
)  # fmt: skip


def measure_engine(
    folder: Path, shape: str, options: dict[str, Any], load: Load
) -> Iterator[dict[str, Any]]:
    """Start an engine and yield one figure after the other."""
    write_shape(folder, shape)
    longest = max(load.prefill_len, load.context + load.batch_steps, 2 * load.mixed_to) + 8
    start_log = _StartLog()
    logging.getLogger("quire").addHandler(start_log)
    logging.getLogger("quire").setLevel(logging.INFO)
    started = time.perf_counter()
    llm = LLM(
        str(folder),
        load_format="dummy",
        enable_prefix_caching=False,
        max_num_seqs=max(load.batch, load.mixed),
        max_model_len=longest,
        max_num_batched_tokens=max(load.prefill_len, 16),
        **options,
    )
    try:
        yield {
            "ready_s": time.perf_counter() - started,
            "backends": [choice.name for choice in llm.composition.attention_backends],
            "log": start_log.lines,
        }
        bench = _Bench(llm, load)
        for figure in (bench.warm_up, bench.single, bench.batch, bench.prefill, bench.mixed):
            yield _guarded(figure)
        if load.traced_steps:
            yield _guarded(bench.trace)
        if torch.cuda.is_available():
            yield {"peak_bytes": torch.cuda.max_memory_allocated()}
    finally:
        llm.close()


class Step(NamedTuple):
    """One step of the engine core, as its caller sees it."""

    at_s: float  # since the requests were added
    num_tokens: int  # sampled in it


class _Bench:
    """One engine and its load."""

    def __init__(self, llm: LLM, load: Load) -> None:
        self.llm = llm
        self.load = load
        self._rng = random.Random(1)

    def warm_up(self) -> dict[str, Any]:
        """Let what is compiled at the first use be compiled, by prompts of several lengths."""
        started = time.perf_counter()
        lengths = [1, 8, 40, self.load.context][: self.load.batch]
        self._steps([(length, 4) for length in lengths])
        self._steps([(self.load.prefill_len, 1)])
        return {"first_use_s": time.perf_counter() - started}

    def single(self) -> dict[str, Any]:
        """Take tokens a second of one request alone, at a short context."""
        return self._decoding("single", [(16, self.load.single_len)])

    def batch(self) -> dict[str, Any]:
        """Take tokens a second of many requests whose contexts are about `context` tokens."""
        load = self.load
        prompt = max(1, load.context - load.batch_steps // 2)
        # The first prompt decodes while the last is computed; only common steps count.
        extra = load.batch * load.context // max(load.prefill_len, 16) + 2
        return self._decoding("batch", [(prompt, load.batch_steps + extra)] * load.batch)

    def prefill(self) -> dict[str, Any]:
        """Take prompt tokens a second of one long prompt, until its first token is there."""
        length = self.load.prefill_len
        times = [self._steps([(length, 1)])[-1].at_s for _ in range(self.load.repeats)]
        return {"prefill_tok_s": length / statistics.median(times), "prefill_s": times}

    def mixed(self) -> dict[str, Any]:
        """Return output tokens a second of prompts and completions of all lengths at once."""
        lengths = self.load.mixed_lengths()
        self._generate(lengths[:: max(1, len(lengths) // 8)][:8])  # what is new in it is compiled
        seconds = self._generate(lengths)
        return {
            "mixed_tok_s": sum(num_out for _, num_out in lengths) / seconds,
            "mixed_s": seconds,
        }

    def trace(self) -> dict[str, Any]:
        """See which kernels a decode step is made of, at one request and at many."""
        found = {}
        for name, batch in (("one", 1), ("many", self.load.batch)):
            found[name] = self._traced([(self.load.context, self.load.traced_steps + 8)] * batch)
        return {"kernels": found}

    def _decoding(self, name: str, lengths: Sequence[tuple[int, int]]) -> dict[str, Any]:
        steps = self._steps(lengths)
        full = [step.at_s for step in steps if step.num_tokens == len(lengths)]
        gaps = sorted(after - before for before, after in pairwise(full[1:]))
        if len(gaps) < 2:
            raise RuntimeError(f"only {len(gaps)} steps had all {len(lengths)} requests")
        return {
            f"{name}_tok_s": len(lengths) / statistics.median(gaps),
            f"{name}_step_ms": {
                "median": 1000 * statistics.median(gaps),
                "p99": 1000 * gaps[int(0.99 * (len(gaps) - 1))],
                "steps": len(gaps),
            },
        }

    def _steps(
        self, lengths: Sequence[tuple[int, int]], between: Callable[[int], object] | None = None
    ) -> list[Step]:
        """Run requests of some lengths to their end, directly in the engine core."""
        core = self.llm._running.core
        requests = [self._request(index, *each) for index, each in enumerate(lengths)]
        started = time.perf_counter()
        for request in requests:
            core.add(request)
        steps: list[Step] = []
        while core.has_work():
            outputs = core.step().outputs
            errors = [output.error for output in outputs if output.error]
            if errors:
                raise RuntimeError(str(errors[0]))
            num_tokens = sum(len(output.token_ids) for output in outputs)
            steps.append(Step(time.perf_counter() - started, num_tokens))
            if between is not None:
                between(num_tokens)
        return steps

    def _request(self, index: int, num_in: int, num_out: int) -> EngineRequest:
        params = SamplingParams(max_tokens=num_out, temperature=0, ignore_eos=True, seed=index)
        intake = self.llm._running.intake
        [request] = intake.admit(self._prompt(num_in), params).requests
        return request

    def _traced(self, lengths: Sequence[tuple[int, int]]) -> dict[str, Any]:
        """Profile decode steps alone: the profiler starts when every request has a token."""
        profiler = torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA])
        seen, begun = 0, 0.0

        def between(num_tokens: int) -> None:
            nonlocal seen, begun
            if num_tokens < len(lengths):
                return
            seen += 1
            if seen == 2:
                torch.cuda.synchronize()
                profiler.start()
                begun = time.perf_counter()
            elif seen == 2 + self.load.traced_steps:
                torch.cuda.synchronize()
                begun = time.perf_counter() - begun
                profiler.stop()

        self._steps(lengths, between)
        return _kernel_times(profiler, self.load.traced_steps, begun)

    def _generate(self, lengths: Sequence[tuple[int, int]]) -> float:
        prompts = [self._prompt(num_in) for num_in, _ in lengths]
        params = [
            SamplingParams(max_tokens=num_out, temperature=0.6, ignore_eos=True)
            for _, num_out in lengths
        ]
        started = time.perf_counter()
        outputs = self.llm.generate(prompts, params)
        seconds = time.perf_counter() - started
        counts = [len(output.outputs[0].token_ids) for output in outputs]
        if counts != [num_out for _, num_out in lengths]:
            raise RuntimeError("a completion has a wrong length")
        return seconds

    def _prompt(self, length: int) -> list[int]:
        return self._rng.choices(TOKENS, k=length)


class _StartLog(logging.Handler):
    """Log lines of the engine's start: captures, memory, times."""

    def __init__(self) -> None:
        super().__init__(logging.INFO)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        message = record.getMessage()
        if any(word in message for word in LOGGED):
            self.lines.append(message)


def _kernel_times(
    profiler: torch.profiler.profile, num_steps: int, wall_s: float
) -> dict[str, Any]:
    """Return microseconds a step by kernel, the longest first, and what was spent between them."""
    times: dict[str, float] = {}
    count = 0
    for event in profiler.events():
        if event.device_type == torch.autograd.DeviceType.CUDA:
            times[event.name] = times.get(event.name, 0.0) + event.device_time_total
            count += 1
    longest = sorted(times.items(), key=lambda each: -each[1])
    return {
        "wall_us": 1e6 * wall_s / num_steps,
        "kernels_us": sum(times.values()) / num_steps,
        "num_kernels": count / num_steps,
        "longest_us": {name[:90]: us / num_steps for name, us in longest[:18]},
    }


def _guarded(figure: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """Measure a figure, or return the reason if it fails."""
    try:
        return figure()
    except Exception as error:  # noqa: BLE001
        return {"failed": [f"{figure.__name__}: {type(error).__name__}: {error}"[:400]]}
