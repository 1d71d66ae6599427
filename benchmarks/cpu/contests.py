"""The loads that engines carry against each other, who takes part, and what the aims are."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from checkpoint_files import TINY, sizes
from engine_process import Configuration, EngineFailedError, EngineProcess
from ways import (
    AGAIN,
    FLOAT32,
    INT4,
    INT8,
    QUIRE,
    Ways,
    all_bf16,
    llama_ways,
    transformers_ways,
    vllm_ways,
)

LOAD_S, RUN_S = 600.0, 600.0
DISTURBED_TURNS = 20
UNTIMED_IN, UNTIMED_OUT = 8, 2  # tokens of each request in a first run, without a clock


@dataclass(frozen=True, slots=True)
class Bench:
    """What every stage is given.

    Attributes:
        pythons: The interpreter of each engine that was named.
        isa: A key of `engine_process.LIMITS`.
        folder: Where checkpoints are, and stay.
        pairs: Rounds of all engines.
        is_quick: Tiny sizes, to see that it works.
        with_trials: Whether each peer's ways to run are tried; if not, the first one takes part.
    """

    pythons: Mapping[str, str]
    isa: str
    folder: Path
    pairs: int
    is_quick: bool
    with_trials: bool


@dataclass(frozen=True, slots=True)
class Rival:
    """A peer, and all ways to run it of which the fastest counts; it races some engines of ours.

    Attributes:
        name: What it is called before one of its ways is chosen.
        trial_s: After so many seconds no further way is tried, and no aim counts as reached.
        aims: How many times as fast ours shall be, by figure.
    """

    engine: str
    name: str
    ways: Ways
    ours: tuple[Configuration, ...]
    trial_s: float
    aims: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Contest:
    """One load, and who is to carry it.

    Attributes:
        figures: What a turn measures: "out_tok_s" of all requests together, or "decode_tok_s"
            and "prefill_tok_s" apart.
        repeats: Runs in one turn, so that it lasts long enough to be measured.
    """

    shape: str
    batch: int
    input_len: int
    output_len: int
    ours: tuple[Configuration, ...]
    rivals: tuple[Rival, ...]
    figures: tuple[str, ...]
    repeats: int = 1

    def quick(self) -> Contest:
        """Return the same with tiny sizes."""
        return replace(self, shape=TINY, batch=2, input_len=16, output_len=12, repeats=1)

    @property
    def load(self) -> dict[str, str | int]:
        """What the report tells of it."""
        return {
            "shape": self.shape,
            "requests": self.batch,
            "input_len": self.input_len,
            "output_len": self.output_len,
            "repeats": self.repeats,
        }

    @property
    def prompts(self) -> list[list[int]]:
        """Always the same ones; the ids avoid the special tokens at the vocabulary's start."""
        draw, end = random.Random(0), sizes(self.shape)["vocab_size"]
        return [[draw.randrange(3, end) for _ in range(self.input_len)] for _ in range(self.batch)]

    def work(self, process: EngineProcess) -> dict[str, float]:
        """Run a little without a clock, and then with one; returns the figures."""
        prompts, length = self.prompts, self.output_len
        process.run([prompt[:UNTIMED_IN] for prompt in prompts], UNTIMED_OUT, 1, RUN_S)
        if self.figures == ("out_tok_s",):
            whole, _ = process.run(prompts, length, self.repeats, RUN_S)
            return {"out_tok_s": self.batch * length / whole}
        for _ in range(DISTURBED_TURNS):
            first, _ = process.run(prompts, 1, self.repeats, RUN_S)
            whole, _ = process.run(prompts, length, self.repeats, RUN_S)
            if whole > first:
                return {
                    "decode_tok_s": self.batch * (length - 1) / (whole - first),
                    "prefill_tok_s": self.batch * self.input_len / first,
                }
        raise EngineFailedError(
            f"{process.configuration.label}: {DISTURBED_TURNS} times one token took longer than "
            f"{length}; the machine is too busy to measure"
        )

    def answers(self, process: EngineProcess) -> list[list[int]]:
        """Run once to warm up; returns the tokens."""
        return process.run(self.prompts, self.output_len, 1, RUN_S)[1]


def throughput(shape: str, bench: Bench) -> Contest:
    """All requests at once, against the engines that batch."""
    is_small = shape == "5m"
    batch, repeats, aims = (16, 4, (3.0, 3.0)) if is_small else (8, 1, (1.5, 2.5))
    vllm = vllm_ways(
        bench.pythons.get("vllm"), bench.folder, bench.isa, 256, batch, is_small=is_small
    )
    trial_s = (400.0, 200.0) if is_small else (900.0, 400.0)
    racing = (QUIRE, all_bf16(bench.isa))
    return Contest(
        shape,
        batch,
        input_len=128,
        output_len=64,
        ours=(*racing, AGAIN, FLOAT32) if is_small else (*racing, AGAIN),
        rivals=(
            Rival("vllm", "vllm", vllm, racing, trial_s[0], {"out_tok_s": aims[0]}),
            Rival(
                "transformers",
                "transformers",
                transformers_ways(bench.isa, is_small=is_small),
                racing,
                trial_s[1],
                {"out_tok_s": aims[1]},
            ),
        ),
        figures=("out_tok_s",),
        repeats=repeats,
    )


def single(bench: Bench) -> Contest:
    """One request, against the engine that is made for one; like bits against like bits."""
    racing = (QUIRE, all_bf16(bench.isa))
    pairs = (("BF16", racing, 1.25), ("Q8_0", (INT8,), 1.25), ("Q4_0", (INT4,), None))
    return Contest(
        "qwen3-0.6b",
        batch=1,
        input_len=128,
        output_len=64,
        ours=(*racing, AGAIN, INT8, INT4),
        rivals=tuple(
            Rival(
                "llama.cpp",
                f"llama.cpp {weights}",
                llama_ways(weights),
                ours,
                trial_s=200.0,
                aims={} if aim is None else {"decode_tok_s": aim},
            )
            for weights, ours, aim in pairs
        ),
        figures=("decode_tok_s", "prefill_tok_s"),
    )


def contests(bench: Bench) -> dict[str, Contest]:
    """Return all of them, by the name of their stage."""
    return {
        "qwen3-0.6b": throughput("qwen3-0.6b", bench),
        "single": single(bench),
        "5m": throughput("5m", bench),
    }
