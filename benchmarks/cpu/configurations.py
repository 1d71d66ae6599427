"""Configurations of each engine: those of quire, and all of each peer that may be its fastest.

A peer's configurations are tried in an order in which later ones build on the best earlier one: the
number type first, then compiled or not, then other OpenMP and memory libraries.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from engine_process import Configuration

from quire.machine.cores import CPUS, usable_cores
from quire.machine.instruction_sets import bf16_unavailable_reason, cpu_flags, here

QUIRE = Configuration("quire", "", weight_bytes=2)
AGAIN = Configuration("quire", "again", weight_bytes=2)
FLOAT32 = Configuration("quire", "float32", {"dtype": "float32"}, weight_bytes=2)
INT8 = Configuration(
    "quire", "int8", {"quantization": "int8"}, weight_bytes=1.5, keeps_weights=False
)
INT4 = Configuration("quire", "int4", {"quantization": "int4"}, weight_bytes=1, keeps_weights=False)
WEIGHT_BYTES = {
    **{"float32": 4.0, "bfloat16": 2.0},
    **{"BF16": 2.0, "Q8_0": 1.1, "Q4_0": 0.7},
    **{"fp16": 2.5, "int8": 1.5, "int4": 1.0},  # OpenVINO: packed, beside the file it maps
}
VLLM_CACHE_GIB = 2
DTYPES = {"native": ("bfloat16", "float32"), "avx2": ("float32", "bfloat16")}  # likely ones first
OPENVINO_BF16, OPENVINO_F32 = ({"INFERENCE_PRECISION_HINT": each} for each in ("bf16", "f32"))
OPENVINO_WEIGHTS = "fp16"  # its name of the 16-bit format, to which bfloat16 weights are exported
UNLIMITED = 1 << 40  # tokens of a batch, as many as `LLMPipeline` takes by default
LIBRARY_FOLDERS = (Path("/usr/lib"), Path("/usr/lib64"), Path("/usr/local/lib"))

Variant = Callable[[Configuration], Configuration]


@dataclass(frozen=True, slots=True)
class Candidates:
    """All configurations of a peer.

    Attributes:
        tried: Functions that return a configuration from the best one so far; the first ones ignore
            it.
        not_tried: Configurations that are impossible here, with the reason.
    """

    tried: tuple[Variant, ...]
    not_tried: Mapping[str, str]

    @property
    def first(self) -> Configuration:
        """The configuration that takes part if none is tried."""
        return self.tried[0](QUIRE)


def all_bf16(isa: str) -> Configuration:
    """Return quire's with everything possible in bfloat16, as peers do with that number type.

    If the processor multiplies bfloat16, this is the default.

    Args:
        isa: A key of `engine_process.LIMITS`.
    """
    multiplies = isa == "native" and bf16_unavailable_reason(here(), cpu_flags()) is None
    narrow_cache = {"quantization": "bf16", "kv_cache_dtype": "bfloat16"}
    options = {"dtype": "bfloat16"} if multiplies else narrow_cache
    return Configuration("quire", "all bf16", options, weight_bytes=2)


def vllm_candidates(
    python: str | None, folder: Path, isa: str, length: int, batch: int, *, is_small: bool
) -> Candidates:
    """Return vLLM's configurations, on all cores.

    Args:
        python: The interpreter of its environment, which is searched for preloaded libraries.
        folder: Folder for compiled code.
        isa: A key of `engine_process.LIMITS`.
        length: Number of tokens of a request.
        batch: Number of requests.
        is_small: True if one process is tried, too: it saves messages, and loses the binding of
            threads.
    """
    tried = [
        *(
            _always(vllm_configuration(folder, length, batch, dtype, is_eager=True))
            for dtype in DTYPES[isa]
        ),
        _compiled,
    ]
    not_tried = {}
    for name in ("libiomp5", "libtcmalloc"):
        path = find_library(name, python)
        if path is None:
            not_tried[f"{name} preloaded"] = f"no {name}.so is there"
        else:
            tried.append(_preloaded(name, path))
    if is_small:
        tried.append(_in_one_process)
    else:
        not_tried["one process"] = "tried with the small model, where messages cost the most"
    return Candidates(tuple(tried), not_tried)


def vllm_int8(python: str | None, folder: Path, length: int, batch: int) -> Candidates:
    """Return those of vLLM on a checkpoint of eight-bit integers, with its compiler and without."""
    plain = vllm_configuration(folder, length, batch, "bfloat16", is_eager=True)
    eager = replace(
        plain,
        name="int8, eager",
        options={**plain.options, "weights": "int8"},
        weight_bytes=1.5,
        keeps_weights=False,
    )
    tried = [_always(eager), _compiled]
    if (path := find_library("libiomp5", python)) is not None:
        tried.append(_preloaded("libiomp5", path))
    return Candidates(tuple(tried), {})


def vllm_configuration(
    folder: Path, length: int, batch: int, dtype: str, *, is_eager: bool
) -> Configuration:
    """Return a configuration of vLLM, as in its documentation for CPUs."""
    return Configuration(
        "vllm",
        f"{dtype}, {'eager' if is_eager else 'compiled'}",
        {
            "dtype": dtype,
            "enforce_eager": is_eager,
            "max_model_len": length,
            "max_num_seqs": batch,
        },
        {
            "VLLM_CPU_OMP_THREADS_BIND": ",".join(map(str, processors())),
            **_vllm_storage(folder),
        },
        WEIGHT_BYTES[dtype],
    )


def vllm_compiled(
    python: str | None, folder: Path, length: int, batch: int, dtype: str
) -> Candidates:
    """Return vLLM's own default, compiled, with the library for threads that it recommends."""
    best = vllm_configuration(folder, length, batch, dtype, is_eager=False)
    if (path := find_library("libiomp5", python)) is not None:
        best = _preloaded("libiomp5", path)(best)
    why = "a tenth slower in a trial with the Phi-3 shape"
    return Candidates((_always(best),), {f"{dtype}, eager": why})


def transformers_in(dtype: str) -> Candidates:
    """Return `generate` in one number type."""
    options = {"dtype": dtype, "threads": usable_cores()[0]}
    return Candidates(
        (_always(Configuration("transformers", dtype, options, weight_bytes=WEIGHT_BYTES[dtype])),),
        {},
    )


def transformers_candidates(isa: str, *, is_small: bool) -> Candidates:
    """Return those of `generate`: number types, and a static cache where compiling it is quick."""
    plain = [each for dtype in DTYPES[isa] for each in transformers_in(dtype).tried]
    if is_small:
        return Candidates((*plain, _static), {})
    why = "it compiles again for each length and batch, minutes for so many layers"
    return Candidates(tuple(plain), {"static cache, compiled": why})


def llama_candidates(weights: str) -> Candidates:
    """Return those of llama.cpp: with and without its flash attention."""
    threads = usable_cores()[0]
    plain, flash = (
        Configuration(
            "llama.cpp",
            f"{weights}{', flash attention' if is_flash else ''}",
            {
                "weights": weights,
                "n_ctx": 512,
                "n_threads": threads,
                "n_threads_batch": threads,
                "flash_attn": is_flash,
                "use_mmap": False,
            },
            weight_bytes=WEIGHT_BYTES[weights],
            keeps_weights=weights == "BF16",
        )
        for is_flash in (False, True)
    )
    return Candidates((_always(plain), _always(flash)), {})


def openvino_candidates(weights: str, batch: int, cache_gib: int) -> Candidates:
    """Return those of OpenVINO GenAI.

    By default it computes in bfloat16 where the processor can, quantizes the KV cache to eight bits
    and the inputs of products with narrow weights in groups of 32.

    Args:
        weights: Format, as `optimum-cli` names it.
        batch: Number of requests.
        cache_gib: Size of the KV cache, which is allocated once.
    """
    plain = Configuration(
        "openvino",
        weights,
        {
            "weights": weights,
            "scheduler": {
                "max_num_batched_tokens": UNLIMITED,
                "max_num_seqs": batch,
                "cache_size": cache_gib,
            },
            "properties": {
                "INFERENCE_NUM_THREADS": usable_cores()[0],
                "PERFORMANCE_HINT": "LATENCY",
                **OPENVINO_BF16,
            },
        },
        weight_bytes=WEIGHT_BYTES[weights],
        keeps_weights=weights == OPENVINO_WEIGHTS,
    )
    tried = [
        _always(plain),
        _set("float32", OPENVINO_F32),
        _chunked,
        _set("bf16 KV cache", {"KV_CACHE_PRECISION": "bf16"}),
        _set("throughput", {"PERFORMANCE_HINT": "THROUGHPUT"}),
    ]
    if weights != OPENVINO_WEIGHTS:
        for name, size in (("inputs not quantized", "0"), ("inputs in groups of 128", "128")):
            tried.append(_set(name, {"DYNAMIC_QUANTIZATION_GROUP_SIZE": size}))
    return Candidates((*tried, _stateful), {})


def no_flags(engine: str, folder: Path, length: int) -> Candidates:
    """Return a peer's own defaults, without prefix caching as everywhere.

    Args:
        engine: The peer.
        folder: Folder for compiled code.
        length: Number of tokens of a request, for vLLM, whose cache would otherwise take nearly all
            of the memory.
    """
    threads = usable_cores()[0]
    options: dict[str, dict[str, Any]] = {
        "vllm": {"max_model_len": length},
        "transformers": {"dtype": "auto", "threads": threads},
        # those of llama.cpp, which uses all cores; its Python package uses half of them
        "llama.cpp": {"weights": "BF16", "n_threads": threads, "n_threads_batch": threads},
        "openvino": {
            "weights": OPENVINO_WEIGHTS,
            "scheduler": {"max_num_batched_tokens": UNLIMITED},
            "properties": {},
        },
    }
    environment = _vllm_storage(folder) if engine == "vllm" else {}
    configuration = Configuration(engine, "no flags", options[engine], environment, weight_bytes=2)
    return Candidates((_always(configuration),), {})


def processors() -> list[int]:
    """Return one processor of each core, of as many cores as quire uses here by default."""
    cores: dict[str, int] = {}
    for cpu in sorted(os.sched_getaffinity(0)):
        siblings = CPUS / f"cpu{cpu}" / "topology" / "thread_siblings_list"
        cores.setdefault(siblings.read_text().strip() if siblings.exists() else str(cpu), cpu)
    return sorted(cores.values())[: usable_cores()[0]]


def find_library(name: str, python: str | None) -> Path | None:
    """Return a library of a peer's environment or of the system; None without it or the peer."""
    if python is None:
        return None
    for folder in (Path(python).parent.parent, *LIBRARY_FOLDERS):
        found = sorted(path for path in folder.rglob(f"{name}*.so*") if path.is_file())
        if found:
            return min(found, key=lambda path: len(path.name))
    return None


def _vllm_storage(folder: Path) -> dict[str, str]:
    return {
        "VLLM_CPU_KVCACHE_SPACE": str(VLLM_CACHE_GIB),
        "VLLM_CACHE_ROOT": str(folder / "vllm-cache"),
    }


def _always(configuration: Configuration) -> Variant:
    return lambda _best: configuration


def _compiled(best: Configuration) -> Configuration:
    name = best.name.replace("eager", "compiled")
    return replace(best, name=name, options={**best.options, "enforce_eager": False})


def _static(best: Configuration) -> Configuration:
    name = f"{best.name}, static cache, compiled"
    return replace(best, name=name, options={**best.options, "cache_implementation": "static"})


def _preloaded(name: str, path: Path) -> Variant:
    def variant(best: Configuration) -> Configuration:
        paths = ":".join(filter(None, (str(path), best.environment.get("LD_PRELOAD", ""))))
        environment = {**best.environment, "LD_PRELOAD": paths}
        return replace(best, name=f"{best.name}, {name}", environment=environment)

    return variant


def _in_one_process(best: Configuration) -> Configuration:
    environment = {**best.environment, "VLLM_ENABLE_V1_MULTIPROCESSING": "0"}
    return replace(best, name=f"{best.name}, one process", environment=environment)


def _set(name: str, properties: Mapping[str, Any]) -> Variant:
    def variant(best: Configuration) -> Configuration:
        changed = {**best.options["properties"], **properties}
        options = {**best.options, "properties": changed}
        return replace(best, name=f"{best.name}, {name}", options=options)

    return variant


def _chunked(best: Configuration) -> Configuration:
    """Prompts in pieces of 256 tokens, the default of its scheduler."""
    scheduler = {**best.options["scheduler"], "max_num_batched_tokens": 256}
    options = {**best.options, "scheduler": scheduler}
    return replace(best, name=f"{best.name}, chunks of 256", options=options)


def _stateful(best: Configuration) -> Configuration:
    """Its pipeline without paged attention and without a scheduler."""
    options = {name: value for name, value in best.options.items() if name != "scheduler"}
    options["properties"] = {**best.options["properties"], "ATTENTION_BACKEND": "SDPA"}
    return replace(best, name=f"{best.name}, stateful", options=options)
