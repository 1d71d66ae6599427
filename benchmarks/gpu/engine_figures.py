"""What a whole engine reaches with random weights of a known shape: decode, prefill, and both.

Times of decoding are differences: the same prompts with a long answer and with one token, so that
prompts, tokenizing and start-up are in neither. Prefix caching is off; everything else is as `LLM`
does it by default.
"""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from quire import LLM, SamplingParams
from quire.cli.bench_shapes import write_shape

VOCABULARY = 10_000  # ids are drawn from the first of them, in every shape


@dataclass(frozen=True, slots=True)
class Load:
    """How much is asked; a dry run asks little.

    Attributes:
        single_len: Tokens of the answer to one request alone.
        batch: Requests that decode together, each with `context` tokens, for `batch_steps` steps.
        prefill_len: Tokens of a prompt alone.
        mixed: Requests of the mixed benchmark, prompts and answers of `mixed_from` to `mixed_to`.
    """

    single_len: int = 256
    batch: int = 256
    context: int = 1024
    batch_steps: int = 64
    prefill_len: int = 8192
    mixed: int = 256
    mixed_from: int = 100
    mixed_to: int = 1024
    repeats: int = 3

    def mixed_lengths(self) -> list[tuple[int, int]]:
        """Return prompt and answer lengths, drawn as nano-vllm's benchmark draws them (seed 0)."""
        draw = random.Random(0)
        inputs = []
        for _ in range(self.mixed):
            num_in = draw.randint(self.mixed_from, self.mixed_to)
            for _ in range(num_in):
                draw.randint(0, VOCABULARY)  # the prompt's tokens come between the lengths there
            inputs.append(num_in)
        return [(num_in, draw.randint(self.mixed_from, self.mixed_to)) for num_in in inputs]


DRY = Load(
    single_len=3, batch=4, context=24, batch_steps=3, prefill_len=64,
    mixed=5, mixed_from=4, mixed_to=12, repeats=1,
)  # fmt: skip


def measure_engine(folder: Path, shape: str, options: dict[str, Any], load: Load) -> dict[str, Any]:
    """Start an engine, take every figure, and close it."""
    write_shape(folder, shape)
    longest = max(load.prefill_len, load.context + load.batch_steps, 2 * load.mixed_to) + 8
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
    ready_s = time.perf_counter() - started
    try:
        bench = _Bench(llm, load)
        return {
            "ready_s": ready_s,
            "backend": [str(choice.name) for choice in llm.composition.choices][:2],
            "single_tok_s": bench.single(),
            "batch_tok_s": bench.batch(),
            "prefill_tok_s": bench.prefill(),
            "mixed_tok_s": bench.mixed(),
        }
    finally:
        llm.close()


class _Bench:
    """One engine and its load."""

    def __init__(self, llm: LLM, load: Load) -> None:
        self.llm = llm
        self.load = load
        self._draw = random.Random(1)
        self._run([8] * 2, 4)  # what is compiled at the first use is compiled now

    def single(self) -> float:
        """Tokens a second of one request alone, at a short context."""
        return 1 / self._step_s([16], self.load.single_len)

    def batch(self) -> float:
        """Tokens a second of many requests whose contexts are about `context` tokens."""
        prompts = [self.load.context - self.load.batch_steps // 2] * self.load.batch
        return self.load.batch / self._step_s(prompts, self.load.batch_steps)

    def prefill(self) -> float:
        """Prompt tokens a second of one long prompt."""
        times = [self._run([self.load.prefill_len], 1) for _ in range(self.load.repeats)]
        return self.load.prefill_len / statistics.median(times)

    def mixed(self) -> float:
        """Answer tokens a second of prompts and answers of all lengths at once."""
        lengths = self.load.mixed_lengths()
        prompts = [self._prompt(num_in) for num_in, _ in lengths]
        params = [_params(num_out, temperature=0.6) for _, num_out in lengths]
        seconds = _timed(self.llm, prompts, params)
        return sum(num_out for _, num_out in lengths) / seconds

    def _step_s(self, prompt_lens: Sequence[int], num_steps: int) -> float:
        """Return the seconds of a decode step: a long answer less one of a single token."""
        steps = []
        for _ in range(self.load.repeats):
            prompts = [self._prompt(length) for length in prompt_lens]
            short = _timed(self.llm, prompts, [_params(1)] * len(prompts))
            long = _timed(self.llm, prompts, [_params(1 + num_steps)] * len(prompts))
            steps.append((long - short) / num_steps)
        return max(statistics.median(steps), 1e-9)

    def _run(self, prompt_lens: Sequence[int], max_tokens: int) -> float:
        prompts = [self._prompt(length) for length in prompt_lens]
        return _timed(self.llm, prompts, [_params(max_tokens)] * len(prompts))

    def _prompt(self, length: int) -> list[int]:
        # Every shape's vocabulary has these ids; the first few are special.
        return [self._draw.randint(300, VOCABULARY) for _ in range(length)]


def _params(max_tokens: int, temperature: float = 0.0) -> SamplingParams:
    return SamplingParams(max_tokens=max_tokens, temperature=temperature, ignore_eos=True)


def _timed(llm: LLM, prompts: list[list[int]], params: list[SamplingParams]) -> float:
    started = time.perf_counter()
    outputs = llm.generate(prompts, params)
    seconds = time.perf_counter() - started
    for output, wanted in zip(outputs, params, strict=True):
        num_tokens = len(output.outputs[0].token_ids)
        if num_tokens != wanted.max_tokens:
            raise RuntimeError(f"asked for {wanted.max_tokens} tokens, got {num_tokens}")
    return seconds
