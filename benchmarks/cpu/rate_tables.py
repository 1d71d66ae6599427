"""Rates of quire's kernels as Markdown: a row for each load, and how many reach the aims.

The key `way` of a record of linear layers is the name of its kernel.
"""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from quire.cli.bench.tables import markdown_lines

Record = Mapping[str, Any]

BANDWIDTH_AIM, PEAK_AIM, PAIRS_AIM = 0.75, 0.70, 0.75
FEW_ROWS, MANY_ROWS = 4, 16
STOCK = ("F.linear", "mkldnn")
PEAKS = {  # of the instructions that multiply: their names, and the aims
    "FMA": ("the float32 FMA peak", PEAK_AIM),
    "pairs": ("the peak of pairs of bfloat16", PAIRS_AIM),
    "bytes": ("the peak of products of bytes", PAIRS_AIM),
}


def linear_table(records: Sequence[Record]) -> str:
    """Return a row for each weight and kernel: microseconds, and the share of the nearer limit."""
    rows = sorted({record["rows"] for record in records})
    head = ["weight", "kernel", *(f"{count} rows" for count in rows)]
    lines = []
    for (inputs, outputs, kernel), of_weight in itertools.groupby(records, _weight_of):
        cells = {record["rows"]: _linear_cell(record) for record in of_weight}
        lines.append([f"{inputs} x {outputs}", kernel, *(cells.get(count, "") for count in rows)])
    return "\n".join(markdown_lines(head, lines)) + "\n"


def attention_table(records: Sequence[Record]) -> str:
    """Return a row for each load: milliseconds of a layer, and the fraction of its limit."""
    backends = list(dict.fromkeys(record["backend"] for record in records))
    head = ["heads of", "KV cache", "requests", "new tokens", "context", *backends]
    lines = []
    for load, of_load in itertools.groupby(records, _load_of):
        cells = {record["backend"]: _attention_cell(record) for record in of_load}
        lines.append([*map(str, load), *(cells.get(backend, "") for backend in backends)])
    return "\n".join(markdown_lines(head, lines)) + "\n"


def linear_aims(records: Sequence[Record]) -> str:
    """Return how many of our figures reach the aims for few rows and for many."""
    ours = [record for record in records if not record["way"].startswith(STOCK)]
    few = [r["share_of_bandwidth"] for r in ours if r["rows"] <= FEW_ROWS]
    many = [r for r in ours if r["rows"] >= MANY_ROWS]
    shares = {peak: [r["share_of_peak"] for r in many if r["peak"] == peak] for peak in PEAKS}
    return _lines(
        (f"up to {FEW_ROWS} rows, of the read bandwidth", few, BANDWIDTH_AIM),
        *(
            (f"{MANY_ROWS} rows and more, of {name}", shares[peak], aim)
            for peak, (name, aim) in PEAKS.items()
        ),
    )


def attention_aims(records: Sequence[Record]) -> str:
    """Return how many of the figures of backend `cpu` reach the aims for decode and prefill."""
    groups = []
    for backend, name, peak, aim in (
        ("cpu", "", "the float32 FMA peak", PEAK_AIM),
        ("cpu, pairs", " with pairs of bfloat16", "their own peak", PAIRS_AIM),
    ):
        ours = [record for record in records if record["backend"] == backend]
        decode = [r["of_limit"] for r in ours if r["new"] == 1]
        prefill = [r["of_limit"] for r in ours if r["new"] > 1]
        groups.append((f"decode{name}, of the read bandwidth", decode, BANDWIDTH_AIM))
        groups.append((f"prefill{name}, of {peak}", prefill, aim))
    return _lines(*groups)


TABLES: dict[str, tuple[Callable[[Sequence[Record]], str], Callable[[Sequence[Record]], str]]] = {
    "linear_rates": (linear_aims, linear_table),
    "attention_rates": (attention_aims, attention_table),
}


def _lines(*groups: tuple[str, Iterable[float], float]) -> str:
    lines = []
    for name, found, aim in groups:
        fractions = sorted(found)
        if not fractions:
            continue
        reached, median = (
            sum(fraction >= aim for fraction in fractions),
            statistics.median(fractions),
        )
        lines.append(
            f"* {name}: {reached} of {len(fractions)} reach the aim of {aim:.0%}; minimum "
            f"{fractions[0]:.0%}, median {median:.0%}, maximum {fractions[-1]:.0%}"
        )
    return "\n".join(lines) + "\n"


def _weight_of(record: Record) -> tuple[int, int, str]:
    return record["inputs"], record["outputs"], record["way"]


def _linear_cell(record: Record) -> str:
    is_reading = record["share_of_bandwidth"] > record["share_of_peak"]
    share = record["share_of_bandwidth" if is_reading else "share_of_peak"]
    limit = "memory" if is_reading else record["peak"]
    return f"{record['microseconds']:,.0f} us ({share:.0%} {limit})"


def _load_of(record: Record) -> tuple[str, str, int, int, int]:
    names = ("model", "kv", "batch", "new", "context")
    model, kv, batch, new, context = (record[name] for name in names)
    return model, kv, batch, new, context


def _attention_cell(record: Record) -> str:
    peak = "pairs" if record["backend"].endswith("pairs") else "FMA"
    limit = "memory" if record["new"] == 1 else peak
    return f"{record['layer_ms']:.3g} ms ({record['of_limit']:.0%} {limit})"
