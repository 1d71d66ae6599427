"""Loads on which engines are compared, the engines that take part, and the aims."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import product
from pathlib import Path

from checkpoint_files import TINY, sizes
from configurations import (
    AGAIN,
    FLOAT32,
    INT4,
    INT8,
    OPENVINO_WEIGHTS,
    QUIRE,
    Candidates,
    all_bf16,
    llama_candidates,
    no_flags,
    openvino_candidates,
    transformers_candidates,
    transformers_in,
    vllm_candidates,
    vllm_compiled,
    vllm_int8,
)
from engine_process import Configuration, EngineFailedError, EngineProcess
from family_shapes import FAMILY_SHAPES

LOAD_S, RUN_S = 600.0, 600.0
DISTURBED_TURNS = 20
FAMILY_DTYPES = ("float32", "bfloat16")
SHORT_LENGTH = 256  # tokens of a request, at most
FAMILY_LENGTH = 1088  # tokens of a request, at most
LONG_PROMPTS = (4096, 16_384)
TRIED_LENGTH = LONG_PROMPTS[0]  # the settings of a peer are the same for longer ones
PARTS = ("decode_tok_s", "prefill_tok_s", "out_tok_s")
WARM_UP_IN, WARM_UP_OUT = 8, 2  # tokens of each request in the warm-up run


@dataclass(frozen=True, slots=True)
class Bench:
    """Inputs of every stage.

    Attributes:
        pythons: Interpreter of each engine that was named.
        isa: A key of `engine_process.LIMITS`.
        folder: Folder of the checkpoints.
        pairs: Number of rounds of all engines.
        is_quick: True for tiny sizes, to check that it works.
        with_trials: True if each peer's configurations are tried; otherwise the first is used.
    """

    pythons: Mapping[str, str]
    isa: str
    folder: Path
    pairs: int
    is_quick: bool
    with_trials: bool


@dataclass(frozen=True, slots=True)
class Peer:
    """A peer, whose fastest configuration is compared with some configurations of quire.

    Attributes:
        name: Name before one of its configurations is selected.
        trial_s: Seconds after which no configuration is tried; then no aim counts as reached.
        aims: Factor by which quire shall be faster, by figure.
    """

    engine: str
    name: str
    candidates: Candidates
    ours: tuple[Configuration, ...]
    trial_s: float
    aims: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Comparison:
    """One load, and the engines that take part.

    Attributes:
        figures: Figures of a turn: "out_tok_s" of all requests together, "decode_tok_s" and
            "prefill_tok_s" of a part of the work each; with one output token the last one alone.
        repeats: Number of runs in one turn, so that it lasts long enough to be measured.
        single_input_len: Number of tokens of a request that then runs alone, for the figures of a
            part; None: these are of the whole load.
        measures_memory: True if memory is read in every round, too, for the fraction of its
            bandwidth that decoding reaches.
    """

    shape: str
    batch: int
    input_len: int
    output_len: int
    ours: tuple[Configuration, ...]
    peers: tuple[Peer, ...]
    figures: tuple[str, ...]
    repeats: int = 1
    single_input_len: int | None = None
    measures_memory: bool = False

    def quick(self) -> Comparison:
        """Return the same with tiny sizes."""
        return replace(
            self,
            shape=TINY,
            batch=2,
            input_len=16,
            output_len=min(12, self.output_len),
            repeats=1,
            single_input_len=self.single_input_len and 16,
        )

    @property
    def load(self) -> dict[str, str | int]:
        """Description for the report."""
        single = {"single_input_len": self.single_input_len} if self.single_input_len else {}
        return {
            "shape": self.shape,
            "requests": self.batch,
            "input_len": self.input_len,
            "output_len": self.output_len,
            "repeats": self.repeats,
            **single,
        }

    @property
    def prompts(self) -> list[list[int]]:
        """Prompts, always the same; ids avoid the special tokens, the first of the vocabulary."""
        return self._prompts(self.batch, self.input_len)

    def _prompts(self, number: int, length: int) -> list[list[int]]:
        rng, end = random.Random(0), sizes(self.shape)["vocab_size"]
        return [[rng.randrange(3, end) for _ in range(length)] for _ in range(number)]

    def work(self, process: EngineProcess) -> dict[str, float]:
        """Warm up, run once, and return the figures."""
        prompts, length = self.prompts, self.output_len
        process.run([prompt[:WARM_UP_IN] for prompt in prompts], WARM_UP_OUT, 1, RUN_S)
        if length == 1:
            first, _ = process.run(prompts, 1, self.repeats, RUN_S)
            return {"prefill_tok_s": sum(map(len, prompts)) / first}
        if self.single_input_len is None and "decode_tok_s" in self.figures:
            return self._parts(prompts, process)
        whole, _ = process.run(prompts, length, self.repeats, RUN_S)
        found = {"out_tok_s": self.batch * length / whole}
        if self.single_input_len is None:
            return found
        return self._parts(self._prompts(1, self.single_input_len), process) | found

    def _parts(self, prompts: list[list[int]], process: EngineProcess) -> dict[str, float]:
        """Return the rates of the prompts, of the tokens after them, and of all output."""
        length = self.output_len
        for _ in range(DISTURBED_TURNS):
            first, _ = process.run(prompts, 1, self.repeats, RUN_S)
            whole, _ = process.run(prompts, length, self.repeats, RUN_S)
            if whole > first:
                return {
                    "decode_tok_s": len(prompts) * (length - 1) / (whole - first),
                    "prefill_tok_s": sum(map(len, prompts)) / first,
                    "out_tok_s": len(prompts) * length / whole,
                }
        raise EngineFailedError(
            f"{process.configuration.label}: {DISTURBED_TURNS} times one token took longer than "
            f"{length}; the machine is too busy to measure"
        )

    def completions(self, process: EngineProcess) -> list[list[int]]:
        """Run once to warm up, and return the tokens."""
        return process.run(self.prompts, self.output_len, 1, RUN_S)[1]


def throughput(shape: str, bench: Bench) -> Comparison:
    """Return the load of all requests at once, compared with the engines that batch."""
    is_small = shape == "5m"
    batch, repeats, aims = (16, 4, (4.0, 3.0)) if is_small else (8, 1, (1.25, 2.5))
    vllm = vllm_candidates(
        bench.pythons.get("vllm"), bench.folder, bench.isa, SHORT_LENGTH, batch, is_small=is_small
    )
    transformers = transformers_candidates(bench.isa, is_small=is_small)
    trial_s = (400.0, 200.0) if is_small else (900.0, 400.0)
    compared = (QUIRE, all_bf16(bench.isa))
    openvino_aims = {} if is_small else {"out_tok_s": 1.25}
    return Comparison(
        shape,
        batch,
        input_len=128,
        output_len=64,
        ours=(*compared, AGAIN, FLOAT32),
        peers=(
            Peer("vllm", "vllm", vllm, compared, trial_s[0], {"out_tok_s": aims[0]}),
            _openvino(OPENVINO_WEIGHTS, batch, compared, openvino_aims),
            Peer(
                "transformers",
                "transformers",
                transformers,
                compared,
                trial_s[1],
                {"out_tok_s": aims[1]},
            ),
            *_without_flags(("vllm", "openvino", "transformers"), ("out_tok_s",), bench),
        ),
        figures=("out_tok_s",),
        repeats=repeats,
    )


def narrow_throughput(bench: Bench) -> Comparison:
    """Return the load of all requests at once with weights of eight bits."""
    vllm = vllm_int8(bench.pythons.get("vllm"), bench.folder, SHORT_LENGTH, batch=8)
    aims = {"out_tok_s": 1.25}
    return Comparison(
        "qwen3-0.6b",
        batch=8,
        input_len=128,
        output_len=64,
        ours=(QUIRE, INT8),
        peers=(
            Peer("vllm", "vllm int8", vllm, (INT8,), 400.0, aims),
            _openvino("int8", 8, (INT8,), aims),
        ),
        figures=("out_tok_s",),
    )


def single(bench: Bench) -> Comparison:
    """Return the load of one request, compared with the engines that are made for it."""
    compared, aims = (QUIRE, all_bf16(bench.isa)), {"out_tok_s": 1.15}
    return Comparison(
        "qwen3-0.6b",
        batch=1,
        input_len=128,
        output_len=64,
        ours=(*compared, AGAIN),
        peers=(
            _llama("BF16", compared, aims),
            _openvino(OPENVINO_WEIGHTS, 1, compared, aims),
            *_without_flags(("llama.cpp", "openvino"), PARTS, bench),
        ),
        figures=PARTS,
        measures_memory=True,
    )


def narrow_single() -> Comparison:
    """Return the load of one request with weights of eight bits, and of four."""
    aims = {"out_tok_s": 1.15}
    return Comparison(
        "qwen3-0.6b",
        batch=1,
        input_len=128,
        output_len=64,
        ours=(QUIRE, INT8, INT4),
        peers=(
            _llama("Q8_0", (INT8,), aims),
            _openvino("int8", 1, (INT8,), aims),
            _llama("Q4_0", (INT4,), {}),
            _openvino("int4", 1, (INT4,), {}),
        ),
        figures=PARTS,
        measures_memory=True,
    )


def long_prompt(length: int, bench: Bench) -> Comparison:
    """Return the load of one long prompt, whose first token is waited for."""
    compared = (QUIRE, all_bf16(bench.isa))
    is_tried = length == TRIED_LENGTH
    aims = {"prefill_tok_s": 1.0} if is_tried else {}
    return Comparison(
        "qwen3-0.6b",
        batch=1,
        input_len=length,
        output_len=1,
        ours=(*compared, INT8),
        peers=(
            _openvino(OPENVINO_WEIGHTS, 1, compared, aims, cache_gib=4, is_tried=is_tried),
            _openvino("int8", 1, (INT8,), aims, cache_gib=4, is_tried=is_tried),
            *_without_flags(("openvino",), ("prefill_tok_s",), bench),
        ),
        figures=("prefill_tok_s",),
    )


def family(shape: str, dtype: str, bench: Bench) -> Comparison:
    """Return the loads of another family, in one number type; in bfloat16 without flags, too."""
    vllm = vllm_compiled(bench.pythons.get("vllm"), bench.folder, FAMILY_LENGTH, 8, dtype)
    is_default = dtype == "bfloat16"
    ours = all_bf16(bench.isa) if is_default else FLOAT32
    figures = ("out_tok_s", "decode_tok_s", "prefill_tok_s")
    plain = _without_flags(("vllm", "transformers"), figures, bench, FAMILY_LENGTH)
    peers = {"vllm": (vllm, 1.5), "transformers": (transformers_in(dtype), 3.0)}
    return Comparison(
        shape,
        batch=8,
        input_len=128,
        output_len=32,
        ours=(ours, QUIRE) if is_default else (ours,),
        peers=(
            *(
                Peer(engine, engine, candidates, (ours,), 900.0, dict.fromkeys(figures, aim))
                for engine, (candidates, aim) in peers.items()
            ),
            *(plain if is_default else ()),
        ),
        figures=figures,
        single_input_len=1000,
    )


def comparisons(bench: Bench) -> dict[str, Comparison]:
    """Return all comparisons, by the name of their stage."""
    found = {
        "qwen3-0.6b": throughput("qwen3-0.6b", bench),
        "qwen3-0.6b-int8": narrow_throughput(bench),
        "single": single(bench),
        "single-int8": narrow_single(),
        "5m": throughput("5m", bench),
        **{f"prompt-{length}": long_prompt(length, bench) for length in LONG_PROMPTS},
    }
    for shape, dtype in product(FAMILY_SHAPES, FAMILY_DTYPES):
        found[f"{shape}-{dtype}"] = family(shape, dtype, bench)
    return found


def _openvino(
    weights: str,
    batch: int,
    ours: tuple[Configuration, ...],
    aims: Mapping[str, float],
    *,
    cache_gib: int = 1,
    is_tried: bool = True,
) -> Peer:
    candidates = openvino_candidates(weights, batch, cache_gib)
    if not is_tried:
        why = {"all others": f"tried with {TRIED_LENGTH:,} tokens"}
        candidates = Candidates(candidates.tried[:1], why)
    return Peer("openvino", f"openvino {weights}", candidates, ours, 900.0, aims)


def _llama(weights: str, ours: tuple[Configuration, ...], aims: Mapping[str, float]) -> Peer:
    return Peer("llama.cpp", f"llama.cpp {weights}", llama_candidates(weights), ours, 200.0, aims)


def _without_flags(
    engines: Iterable[str],
    figures: Iterable[str],
    bench: Bench,
    length: int = SHORT_LENGTH,
) -> Iterator[Peer]:
    for engine in engines:
        candidates = no_flags(engine, bench.folder, length)
        aims = dict.fromkeys(figures, 1.0)
        yield Peer(engine, f"{engine} no flags", candidates, (QUIRE,), 0.0, aims)
