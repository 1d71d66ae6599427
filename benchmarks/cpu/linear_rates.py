"""Linear layers compared with the limits of memory and arithmetic, and with torch's own.

    python benchmarks/cpu/linear_rates.py [--threads N] [--seconds S] [--json FILE]

A weight is multiplied with rows of float32. Copies of it are used in turn, together 128 MiB, which
is more than most caches have, as in the layers of a model. The limit of a product is the longer of
two times: to read its weight (the bytes in memory, scales included) and to compute its
multiplications, at the peak of the instruction that multiplies: of float32, of pairs of bfloat16 or
of bytes. Every figure is the best of many runs; the machine's rates are measured again just before
every weight. A record has the name of its kernel as `way`: the committed results have this key.
Weights of quantized checkpoints have codes of 4 bits in groups of 128.
"""

from __future__ import annotations

import argparse
import itertools
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from machine_rates import MachineRates, best_time, measure_machine
from rate_tables import linear_table
from torch import Tensor, nn
from torch.nn.functional import linear

from quire.interfaces.quantization import LinearMethod
from quire.interfaces.quantized_weight import QuantizedWeight
from quire.layers.linear.prepacked import Prepacked
from quire.machine.instruction_sets import bf16_unavailable_reason, cpu_flags, here
from quire.plugins.loading import load_plugins

SIZES = (  # inputs and outputs; the last four are those of Qwen3-0.6B
    (256, 512),
    (256, 8192),
    (1024, 4096),
    (1024, 6144),
    (2048, 1024),
    (3072, 1024),
    (1024, 151936),
)
ROWS = (1, 2, 4, 8, 16, 64, 512, 2048)
METHODS = ("bf16", "bf16_dot", "float32", "float16", "int8", "int4")  # those that can serve here
CODES = {"codes": "codes", "codes, bfloat16": "codes", "codes_int8": "codes_int8"}  # their methods
STOCK = ("F.linear float32", "F.linear bf16", "mkldnn prepacked float32")
CODES_GROUP = 128
CYCLE_BYTES = 2**27  # of all copies of a weight
MAX_FLOPS = 2**38  # of one product
FLOAT32, CPU = torch.float32, torch.device("cpu")
REGISTRIES = load_plugins().registries
FMA, PAIRS, BYTES = "FMA", "pairs", "bytes"  # instructions
PEAKS = {  # others multiply float32
    "bf16_dot": PAIRS, "codes, bfloat16": PAIRS, "F.linear bf16": PAIRS,
    "int8": BYTES, "int4": BYTES, "codes_int8": BYTES,
}  # fmt: skip

Product = Callable[[Tensor], Tensor]


@dataclass(frozen=True, slots=True)
class Weight:
    """One kernel's product, and the number of bytes that it reads."""

    product: Product
    num_bytes: int


def measure(
    threads: int | None = None,
    seconds: float = 0.1,
    sizes: tuple[tuple[int, int], ...] = SIZES,
    rows: tuple[int, ...] = ROWS,
) -> list[dict[str, Any]]:
    """Return a record for each kernel, size and number of rows.

    Args:
        threads: Number of threads; by default, as many as torch uses.
        seconds: Time spent on each figure.
        sizes: Inputs and outputs of weights.
        rows: Numbers of rows of x.
    """
    if threads is not None:
        torch.set_num_threads(threads)
    found = []
    with torch.inference_mode():
        for inputs, outputs in sizes:
            for kernel in (*filter(_can_serve, (*METHODS, *CODES)), *STOCK):
                found += _of_weight(kernel, inputs, outputs, rows, seconds)
    return found


def _can_serve(kernel: str) -> bool:
    return PEAKS.get(kernel) != PAIRS or bf16_unavailable_reason(here(), cpu_flags()) is None


def _peak(kernel: str, machine: MachineRates) -> tuple[str, float]:
    """Return the instruction that multiplies, and its peak."""
    peaks = {PAIRS: machine.pair_flops, BYTES: machine.byte_flops}
    instruction = PEAKS.get(kernel, FMA)
    return (instruction, peaks[instruction]) if peaks.get(instruction) else (FMA, machine.flops)


def _of_weight(
    kernel: str, inputs: int, outputs: int, rows: tuple[int, ...], seconds: float
) -> Iterator[dict[str, Any]]:
    first = _weight(kernel, inputs, outputs)
    num_copies = 1 + CYCLE_BYTES // first.num_bytes
    others = [_weight(kernel, inputs, outputs) for _ in range(num_copies - 1)]
    machine = measure_machine(seconds=seconds)
    instruction, peak = _peak(kernel, machine)
    for count in rows:
        flops = 2 * count * inputs * outputs
        if flops > MAX_FLOPS:
            continue
        elapsed = _best(kernel, [first, *others], count, inputs, seconds)
        reading, computing = first.num_bytes / machine.bytes_per_s, flops / peak
        yield {
            "way": kernel,
            "inputs": inputs,
            "outputs": outputs,
            "rows": count,
            "threads": machine.threads,
            "microseconds": elapsed * 1e6,
            "weight_bytes": first.num_bytes,
            "machine_bytes_per_s": machine.bytes_per_s,
            "peak": instruction,
            "machine_flops": peak,
            "share_of_bandwidth": reading / elapsed,
            "share_of_peak": computing / elapsed,
        }


def _best(kernel: str, weights: list[Weight], count: int, inputs: int, seconds: float) -> float:
    x = torch.randn(count, inputs, dtype=torch.bfloat16 if kernel == "F.linear bf16" else FLOAT32)
    turn = itertools.cycle(weights)
    return best_time(lambda: next(turn).product(x), seconds, at_least=3)


def _weight(kernel: str, inputs: int, outputs: int) -> Weight:
    if kernel in CODES:
        return _of_method(_codes_method(kernel), _codes(outputs, inputs))
    dense = torch.randn(outputs, inputs, dtype=torch.bfloat16)
    if kernel == "float16":
        dense = dense.half()
    elif kernel != "F.linear bf16":
        dense = dense.float()
    if kernel.startswith("F.linear"):
        return Weight(lambda x: linear(x, dense), dense.nbytes)
    if kernel in METHODS:
        method = REGISTRIES.quantizations.get(kernel).from_config({}).linear_method("layer")
    else:
        method = Prepacked(FLOAT32, CPU)
    return _of_method(method, dense)


def _codes_method(kernel: str) -> LinearMethod:
    method = REGISTRIES.quantizations.get(CODES[kernel]).from_config({})
    if PEAKS.get(kernel) == PAIRS:
        method = method.for_dtype("bfloat16")
    found: LinearMethod = method.linear_method("layer")
    return found


def _codes(outputs: int, inputs: int) -> QuantizedWeight:
    codes = torch.randint(16, (outputs, inputs), dtype=torch.uint8)
    scales = torch.rand(outputs, -(-inputs // CODES_GROUP)) + 0.5
    return QuantizedWeight(codes, scales, torch.arange(16.0) - 8, CODES_GROUP)


def _of_method(method: LinearMethod, weight: Tensor | QuantizedWeight) -> Weight:
    layer = nn.Module()
    method.create_weights(layer, *weight.shape)
    if isinstance(weight, QuantizedWeight):
        method.load_quantized(layer, weight, 0)
    else:
        method.load(layer, weight, 0)
    method.finish_loading(layer)
    kept = (*layer.parameters(), *layer.buffers())
    num_bytes = sum(t.numel() * t.element_size() for t in kept)
    return Weight(lambda x: method.apply(layer, x), num_bytes)


def main() -> None:
    """Print the table, and write the records if asked."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--threads", type=int)
    parser.add_argument("--seconds", type=float, default=0.1)
    parser.add_argument("--quick", action="store_true", help="one size, to see that it works")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    sizes, rows = (SIZES[:1], ROWS[:2]) if options.quick else (SIZES, ROWS)
    found = measure(options.threads, options.seconds, sizes, rows)
    print(linear_table(found))
    if options.json is not None:
        options.json.write_text(json.dumps(found, indent=2) + "\n")


if __name__ == "__main__":
    main()
