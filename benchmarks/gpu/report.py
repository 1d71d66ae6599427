"""The report of a run as Markdown: every figure with the limit that the same run measured."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from quire.cli.bench.tables import markdown_lines

MISSING = "not measured yet"
FIGURES = {
    "single_tok_s": "1 request, decode",
    "batch_tok_s": "256 requests at 1k, decode",
    "prefill_tok_s": "8k prompt, prefill",
    "mixed_tok_s": "256 mixed requests",
}
AIMS = {  # gate and stretch, on one H200
    "qwen3-0.6b": ((700, 1000), (22_000, 26_000), (200_000, None), (21_000, 25_000)),
    "llama-3.2-1b": ((900, 1250), (55_000, 68_000), (170_000, None), (35_000, 45_000)),
    "llama-3.1-8b": ((205, 230), (13_500, 15_500), (29_000, 33_000), (9_000, 10_300)),
    "qwen3-8b": ((200, 225), (12_500, 14_300), (28_000, 32_000), (8_600, 9_800)),
}


def write_markdown(report: Mapping[str, Any]) -> str:
    """Return the whole report."""
    stages = report["stages"]
    parts = [
        "# On a GPU\n",
        _head(report, stages.get("machine", {})),
        "## Whole engine, tokens a second\n",
        _engines(stages),
        _starts(stages),
        "## Attention of a decode step, fraction of the copy bandwidth\n",
        "The aim is 80 % from 17 requests of 1,024 tokens on.\n",
        _bandwidth(stages.get("bandwidth", {})),
        "## Products with weights of quantized checkpoints\n",
        _products(stages.get("products", {})),
        "## Compared with transformers' continuous batching\n",
        _peer(stages.get("peer:quire", {}), stages.get("peer:transformers", {})),
        "## Correctness\n",
        _correctness(stages.get("correctness", {})),
        _failures(stages),
    ]
    return "\n".join(part for part in parts if part)


def _head(report: Mapping[str, Any], machine: Mapping[str, Any]) -> str:
    if report.get("is_dry"):
        return "A dry run on a CPU, with tiny sizes: the figures are meaningless.\n"
    if not report["stages"]:
        return f"{MISSING}: no run on a GPU was possible.\n"
    if "device" not in machine:
        return "The rates of the machine were not measured: their stage failed, see below.\n"
    return (
        f"{machine['device']}, {report['date']}, torch {machine['torch']}, triton "
        f"{machine['triton']}, Python {machine['python']}; `{report['command']}` at "
        f"{report['commit']}, {report['seconds']:.0f} s. Measured in the same run: copies "
        f"{machine['copy_bytes_s'] / 1e12:.2f} TB/s, bfloat16 products "
        f"{machine['matmul_flop_s'] / 1e12:.0f} TFLOP/s. The limit is what these allow.\n"
    )


def _engines(stages: Mapping[str, Any]) -> str:
    rows = [["shape", "what", "quire", "limit", "of the limit", "aim, gate / stretch"]]
    shapes = [name.partition(":")[2] for name in stages if name.startswith("engine:")]
    for shape in shapes or list(AIMS):
        found = stages.get(f"engine:{shape}", {})
        aims = AIMS.get(shape, ((None, None),) * len(FIGURES))
        for (key, what), (gate, stretch) in zip(FIGURES.items(), aims, strict=True):
            limit = found.get("limits", {}).get(key)
            value = found.get(key)
            share = MISSING if not value or not limit else f"{100 * value / limit:.0f} %"
            aim = " / ".join("" if each is None else f"{each:,}" for each in (gate, stretch))
            rows.append([shape, what, _count(value), _count(limit), share, aim.strip(" /")])
    return _table(rows)


def _starts(stages: Mapping[str, Any]) -> str:
    """Return the log lines of each engine's start: captures, memory, seconds."""
    parts = []
    for name, stage in stages.items():
        if stage.get("log"):
            lines = "".join(f"* {line}\n" for line in stage["log"])
            parts.append(f"{name}, ready after {stage['ready_s']:.1f} s:\n\n{lines}")
    return "\n".join(parts)


def _bandwidth(stage: Mapping[str, Any]) -> str:
    found = stage.get("rows", [])
    if not found:
        return f"{MISSING}\n"
    names = list(dict.fromkeys(row["backend"] for row in found))
    rows = [["batch", "context", "lengths", *names]]
    cells = {(r["batch"], r["context"], r["even"], r["backend"]): r for r in found}
    for batch, context, is_even in sorted(dict.fromkeys(key[:3] for key in cells)):
        shares = [_share(cells.get((batch, context, is_even, name))) for name in names]
        rows.append([str(batch), f"{context:,}", "even" if is_even else "uneven", *shares])
    note = "\nWith a star: the KV that is read fits in the device's cache.\n"
    return _table(rows) + (note if any(row.get("is_cached") for row in found) else "")


def _products(stage: Mapping[str, Any]) -> str:
    """Return the bandwidth of few rows, and the speed beside the matrix library's bfloat16."""
    found = stage.get("rows", [])
    if not found:
        return f"{MISSING}\n"
    rows = [["layer", "format", "rows", "us", "of the copy bandwidth", "times bfloat16"]]
    for row in found:
        name = [row["layer"], row["format"]]
        if "error" in row:
            rows.append([*name, row["error"], "", "", ""])
            continue
        times = f"{row['times_bfloat16']:.2f}"
        rows.append([*name, f"{row['rows']:,}", f"{row['us']:.1f}", _share(row), times])
    return _table(rows)


def _peer(mine: Mapping[str, Any], peer: Mapping[str, Any]) -> str:
    if "tok_s" not in mine or "tok_s" not in peer:
        return f"{MISSING}\n"
    return (
        f"{peer['shape']}, {peer['requests']} requests: quire {_count(mine['tok_s'])}, "
        f"transformers {_count(peer['tok_s'])} output tokens a second ({peer['attention']}), "
        f"{mine['tok_s'] / peer['tok_s']:.1f} times. Both were warmed up with the same requests.\n"
    )


def _correctness(stage: Mapping[str, Any]) -> str:
    if "backends" not in stage:
        return f"{MISSING}\n"
    rows = [["backend", "type", "largest error", "correct"]]
    for row in stage["backends"]:
        error = f"{row['error']:.1e}" if "error" in row else row["failed"]
        rows.append([row["backend"], row["dtype"], error, "yes" if row["is_right"] else "NO"])
    lines = [
        f"{each['num_different']} of {each['num_tokens']} tokens of captured steps in "
        f"{each['dtype']} differ from those of uncaptured steps (captured up to "
        f"{each['max_graph_requests']} requests).\n"
        for each in stage.get("engines", [])
    ]
    return _table(rows) + "\n" + "".join(lines)


def _failures(stages: Mapping[str, Any]) -> str:
    parts = []
    for name, stage in stages.items():
        reasons = [*stage.get("failed", []), *([stage["error"]] if "error" in stage else [])]
        if reasons:
            parts.append(f"## {name} failed\n\n```\n" + "\n".join(reasons) + "\n```\n")
    return "\n".join(parts)


def _share(row: Mapping[str, Any] | None) -> str:
    if row is None or row.get("of_copy", 0) is None:
        return MISSING
    if "error" in row:
        return "failed"
    return f"{100 * row['of_copy']:.0f} %" + ("*" if row.get("is_cached") else "")


def _count(value: float | None) -> str:
    return MISSING if not value else f"{value:,.0f}"


def _table(rows: Sequence[Sequence[str]]) -> str:
    return "\n".join(markdown_lines(rows[0], rows[1:])) + "\n"
