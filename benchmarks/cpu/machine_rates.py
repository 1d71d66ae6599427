"""Peak rates of this machine, measured in the same run as the figures that are divided by them.

    python benchmarks/cpu/machine_rates.py [--threads N] [--seconds S] [--json FILE]

Other processes may run meanwhile, so each rate is the best of many short measurements.
"""

from __future__ import annotations

import argparse
import ctypes
import dataclasses
import itertools
import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch

from quire.machine.instruction_sets import (
    InstructionSet,
    bf16_unavailable_reason,
    cpu_flags,
    here,
)
from quire.machine.pages import own_pages
from quire.native.library import NativeLibrary

LARGE = 2**29  # bytes; no cache has as much
REPEATS = 20_000  # short, so that some are not interrupted
PIECE = 2**25  # bytes that are read at a time
VNNI = {"amx": "avx512_vnni", "avx512": "avx512_vnni", "avx2": "avx_vnni"}  # by instruction set

_POINTER, _NUMBER = ctypes.c_void_p, ctypes.c_int64

LIBRARY = NativeLibrary(
    "the machine's rates",
    Path(__file__).with_name("machine_rates.cpp"),
    {
        # memory, bytes, total, threads
        "read_memory": (_POINTER, _NUMBER, _POINTER, _NUMBER),
        # repeats, total, threads
        "multiply_add": (_NUMBER, _POINTER, _NUMBER),
        # repeats, threads
        "multiply_pairs": (_NUMBER, _NUMBER),
        # repeats, threads
        "multiply_bytes": (_NUMBER, _NUMBER),
        # count
        "elements_per_repeat": (_POINTER,),
    },
)


@dataclass(frozen=True, slots=True)
class MachineRates:
    """Rates of some threads together.

    Attributes:
        threads: Number of threads.
        bytes_per_s: Bytes read from memory per second.
        flops: Multiplications and additions in float32 per second.
        pair_flops: The same of pairs of bfloat16, by `vdpbf16ps`; 0 if the processor has none.
        byte_flops: The same of bytes, by `vpdpbusd`; 0 if the processor has none.
    """

    threads: int
    bytes_per_s: float
    flops: float
    pair_flops: float = 0.0
    byte_flops: float = 0.0


def measure_machine(threads: int | None = None, seconds: float = 2.0) -> MachineRates:
    """Measure all rates.

    Args:
        threads: By default, as many as torch uses.
        seconds: How long to try for the best of each.

    Raises:
        NativeUnavailableError: There is no compiler.
    """
    threads = threads or torch.get_num_threads()
    functions = LIBRARY.load()
    memory = torch.frombuffer(own_pages(LARGE), dtype=torch.float32).fill_(1.0)
    total = ctypes.c_float()
    where = ctypes.addressof(total)
    pieces = itertools.cycle(range(memory.data_ptr(), memory.data_ptr() + LARGE, PIECE))
    reading = best_time(lambda: functions.read_memory(next(pieces), PIECE, where, threads), seconds)
    count = ctypes.c_int64()
    functions.elements_per_repeat(ctypes.addressof(count))
    computing = best_time(lambda: functions.multiply_add(REPEATS, where, threads), seconds)
    flops = 2 * count.value * REPEATS * threads / computing
    pair_flops = byte_flops = 0.0
    if bf16_unavailable_reason(here(), cpu_flags()) is None:
        pairing = best_time(lambda: functions.multiply_pairs(REPEATS, threads), seconds)
        pair_flops = 4 * count.value * REPEATS * threads / pairing
    if _multiplies_bytes():
        multiplying = best_time(lambda: functions.multiply_bytes(REPEATS, threads), seconds)
        byte_flops = 8 * count.value * REPEATS * threads / multiplying
    return MachineRates(threads, PIECE / reading, flops, pair_flops, byte_flops)


def _multiplies_bytes() -> bool:
    chosen = here()
    return isinstance(chosen, InstructionSet) and VNNI.get(chosen.name) in cpu_flags()


def best_time(action: Callable[[], object], seconds: float, at_least: int = 5) -> float:
    """Return the shortest of many runs, in seconds."""
    action()
    best, begun, count = float("inf"), time.perf_counter(), 0
    while count < at_least or time.perf_counter() - begun < seconds:
        start = time.perf_counter()
        action()
        best = min(best, time.perf_counter() - start)
        count += 1
    return best


def main() -> None:
    """Measure, and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--threads", type=int, help="by default, as many as torch uses")
    parser.add_argument("--seconds", type=float, default=2.0, help="for each rate")
    parser.add_argument("--json", type=Path, help="also write the rates here")
    wanted = parser.parse_args()
    rates = measure_machine(wanted.threads, wanted.seconds)
    pairs = f", {rates.pair_flops / 1e9:.0f} GFLOP/s of bfloat16" if rates.pair_flops else ""
    if rates.byte_flops:
        pairs += f", {rates.byte_flops / 1e9:.0f} GFLOP/s of int8"
    print(f"{rates.bytes_per_s / 1e9:.1f} GB/s, {rates.flops / 1e9:.0f} GFLOP/s{pairs}")
    if wanted.json:
        wanted.json.write_text(json.dumps(dataclasses.asdict(rates)) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
