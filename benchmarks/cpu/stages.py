"""Stages of the run, which can run alone; each yields its results piece by piece."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from checkpoint_files import TINY, make_checkpoint, make_openvino
from comparisons import FAMILY_DTYPES, LOAD_S, LONG_PROMPTS, SHORT_LENGTH, Bench, comparisons
from configurations import OPENVINO_WEIGHTS, QUIRE, no_flags, vllm_configuration
from engine_process import (
    Configuration,
    EngineFailedError,
    EngineProcess,
    environment,
    without_paths,
)
from family_shapes import FAMILY_SHAPES
from instruction_limits import cannot_be_limited
from rounds import Replaced, run_comparison
from trials import log_progress

HERE = Path(__file__).parent
RATES: dict[str, tuple[str, ...]] = {  # modules that measure, and their options for quick runs
    "machine_rates": ("--seconds", "0.01"),
    "linear_rates": ("--seconds", "0.001", "--quick"),
    "attention_rates": ("--seconds", "0.001", "--quick"),
    "torch_sdpa_steps": ("--seconds", "0.01", "--requests", "1"),
    "step_cost": ("--requests", "1"),
}
RATES_S = 500.0
CLIENTS, QUICK_CLIENTS = (1, 8, 32, 64, 96), (1, 2)
QUICK_LOAD = ("--shortened", "8", "--window", "0.5")
CACHED_STARTS, COLD_STARTS = 7, 3
LONG_STAGES = tuple(f"prompt-{length}" for length in LONG_PROMPTS)
FAMILY_STAGES = tuple(f"{shape}-{dtype}" for shape in FAMILY_SHAPES for dtype in FAMILY_DTYPES)


def run_stage(name: str, bench: Bench, about: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the results of a stage after each new one, and at last its error if it failed.

    Args:
        name: A key of `STAGES`.
        bench: Inputs of the stage.
        about: Facts that are reported with its figures.
    """
    started = time.monotonic()
    found: dict[str, Any] = {
        **about,
        "date": datetime.now(UTC).date().isoformat(),
        "is_quick": bench.is_quick,
        "load_average_before": round(os.getloadavg()[0], 2),
    }
    try:
        for piece in STAGES[name](bench):
            merge(found, piece)
            found["seconds"] = round(time.monotonic() - started, 1)
            yield found
    except Exception as error:  # noqa: BLE001 - the other stages run nevertheless
        traceback.print_exc()
        found["error"] = without_paths(f"{type(error).__name__}: {error}")
    found["seconds"] = round(time.monotonic() - started, 1)
    yield found


def merge(found: dict[str, Any], piece: dict[str, Any]) -> None:
    """Add results of a stage: lists and mappings grow, except `Replaced` lists."""
    for key, value in piece.items():
        if isinstance(value, Replaced) or key not in found:
            found[key] = value
        elif isinstance(value, list):
            found[key] = found[key] + value
        elif isinstance(value, dict):
            found[key] = found[key] | value
        else:
            found[key] = value


def machine(bench: Bench) -> Iterator[dict[str, Any]]:
    """Measure rates of the machine's memory and arithmetic, and of quire's kernels."""
    for name, quick_options in RATES.items():
        yield _measured(name, quick_options if bench.is_quick else (), bench)


def start(bench: Bench) -> Iterator[dict[str, Any]]:
    """Measure from the constructor to the first token: quire and OpenVINO in turn, and vLLM."""
    folder = make_checkpoint(bench.folder, TINY if bench.is_quick else "qwen3-0.6b")
    yield {"absent": sorted({"vllm", "openvino"} - set(bench.pythons))}
    with tempfile.TemporaryDirectory() as kept:
        variables = {"QUIRE_CACHE_DIR": kept}
        yield _start(QUIRE, "cold", variables, bench, folder)
        for _ in range(CACHED_STARTS):
            yield _start(QUIRE, "cached", variables, bench, folder)
            yield from _openvino_starts(Path(kept), bench, folder)
    for _ in range(COLD_STARTS - 1):
        with tempfile.TemporaryDirectory() as kept:
            yield _start(QUIRE, "cold", {"QUIRE_CACHE_DIR": kept}, bench, folder)
    if "vllm" not in bench.pythons:
        return
    with tempfile.TemporaryDirectory() as kept:
        for kind, is_eager in (("eager", True), ("compiled, its cache cold", False)):
            configuration = vllm_configuration(
                Path(kept), length=SHORT_LENGTH, batch=8, dtype="float32", is_eager=is_eager
            )
            yield _start(configuration, kind, {}, bench, folder)


def served(bench: Bench) -> Iterator[dict[str, Any]]:
    """Measure growing numbers of clients, in quire and then in OpenVINO."""
    folder = make_checkpoint(bench.folder, TINY if bench.is_quick else "qwen3-0.6b")
    wanted = [*map(str, QUICK_CLIENTS if bench.is_quick else CLIENTS)]
    wanted += QUICK_LOAD if bench.is_quick else ()
    absent = [engine for engine in ("openvino",) if not _takes_part(engine, bench)]
    yield {"absent": absent}
    yield from _served("quire", folder, wanted, bench)
    if not absent:
        make_openvino(folder, bench.pythons["openvino"], [OPENVINO_WEIGHTS])
        yield from _served("openvino", folder, wanted, bench)


def _comparing(name: str) -> Callable[[Bench], Iterator[dict[str, Any]]]:
    return lambda bench: run_comparison(comparisons(bench)[name], bench)


STAGES: dict[str, Callable[[Bench], Iterator[dict[str, Any]]]] = {
    "machine": machine,
    **{name: _comparing(name) for name in ("qwen3-0.6b", "qwen3-0.6b-int8")},
    **{name: _comparing(name) for name in ("single", "single-int8", "5m")},
    **{name: _comparing(name) for name in LONG_STAGES},
    "start": start,
    "load": served,
    **{name: _comparing(name) for name in FAMILY_STAGES},
}


def _measured(name: str, options: Sequence[str], bench: Bench) -> dict[str, Any]:
    """Run a module that measures; a failure costs only its figures."""
    with tempfile.TemporaryDirectory() as scratch:
        path = Path(scratch) / "figures.json"
        argv = [sys.executable, str(HERE / f"{name}.py"), *options, "--json", str(path)]
        variables = environment(QUIRE, bench.isa)
        try:
            done = subprocess.run(
                argv, capture_output=True, text=True, env=variables, timeout=RATES_S, check=False
            )
        except subprocess.TimeoutExpired:
            return {"failed": [f"{name} took longer than {RATES_S:.0f} s"]}
        if done.returncode:
            print(done.stderr, file=sys.stderr, flush=True)
            return {"failed": [f"{name} ended with {done.returncode}"]}
        log_progress(f"{name} is measured")
        return {"rates": {name: json.loads(path.read_text(encoding="utf-8"))}}


def _takes_part(engine: str, bench: Bench) -> bool:
    return engine in bench.pythons and not cannot_be_limited(engine, bench.isa)


def _openvino_starts(kept: Path, bench: Bench, folder: Path) -> Iterator[dict[str, Any]]:
    """Yield a start with its defaults, and one with its cache of compiled models."""
    if not _takes_part("openvino", bench):
        return
    make_openvino(folder, bench.pythons["openvino"], [OPENVINO_WEIGHTS])
    plain = no_flags("openvino", bench.folder, SHORT_LENGTH).first
    properties = {"CACHE_DIR": str(kept / "openvino")}
    cached = replace(plain, options={**plain.options, "properties": properties})
    yield _start(plain, "no flags", {}, bench, folder)
    yield _start(cached, "compiled model cached", {}, bench, folder)


def _served(
    engine: str, folder: Path, wanted: Sequence[str], bench: Bench
) -> Iterator[dict[str, Any]]:
    script = str(HERE / "served_requests.py")
    argv = [bench.pythons[engine], script, engine, str(folder), *wanted]
    variables = environment(Configuration(engine, ""), bench.isa)
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True, env=variables) as process:
        for line in process.stdout or ():
            found = {"engine": engine} | json.loads(line)
            rate = found["out_tok_s"]["median"]
            log_progress(f"{engine}, {found['clients']} clients: {rate:.1f} tok/s")
            yield {"clients": [found]}
    if process.returncode:
        raise EngineFailedError(f"{engine} with many clients ended with {process.returncode}")


def _start(
    configuration: Configuration,
    kind: str,
    variables: Mapping[str, str],
    bench: Bench,
    folder: Path,
) -> dict[str, Any]:
    """Return the seconds of one fresh process to its first token, by part."""
    configuration = replace(configuration, environment={**configuration.environment, **variables})
    found: dict[str, Any] = {
        "engine": configuration.engine,
        "kind": kind,
        "configuration": configuration.as_dict(),
    }
    try:
        with EngineProcess(
            configuration, bench.pythons[configuration.engine], bench.isa
        ) as process:
            loaded = process.load(folder, LOAD_S)
            seconds, _ = process.run([[5]], 1, 1, LOAD_S)
    except EngineFailedError as error:
        log_progress(str(error))
        return {"starts": [found | {"error": str(error)}], "failed": [str(error)]}
    first_token_s = loaded["construct_s"] + seconds
    log_progress(f"{configuration.engine}, {kind}: {first_token_s:.1f} s to the first token")
    found |= {
        "first_token_s": first_token_s,
        "process_s": loaded["process_s"] + seconds,
        "import_s": loaded["import_s"],
        "load_average": round(os.getloadavg()[0], 2),
    }
    return {"starts": [found]}
