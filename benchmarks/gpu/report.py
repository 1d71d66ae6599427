"""The run as Markdown, every figure beside the limit that the same run measured."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

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
    machine = stages.get("machine", {})
    parts = [
        "# On a GPU\n",
        _head(report, machine),
        "## Whole engine, tokens a second\n",
        _engines(stages),
        "## Attention of a decode step, share of the copy bandwidth\n",
        _bandwidth(stages.get("bandwidth", {})),
        "## Beside transformers' continuous batching\n",
        _peer(stages.get("peer", {})),
        "## Is it right\n",
        _correctness(stages.get("correctness", {})),
        _errors(stages),
    ]
    return "\n".join(part for part in parts if part)


def _head(report: Mapping[str, Any], machine: Mapping[str, Any]) -> str:
    if report.get("is_dry"):
        return "A dry run on a CPU, with tiny sizes: the figures say nothing.\n"
    if "device" not in machine:
        return f"{MISSING}: no run on a GPU was possible.\n"
    return (
        f"{machine['device']}, {report['date']}, torch {machine['torch']}, triton "
        f"{machine['triton']}, Python {machine['python']}; `{report['command']}`, "
        f"{report['seconds']:.0f} s. Measured in the same run: copies "
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


def _bandwidth(stage: Mapping[str, Any]) -> str:
    found = stage.get("rows", [])
    if not found:
        return f"{MISSING}\n"
    names = list(dict.fromkeys(row["backend"] for row in found))
    rows = [["batch", "context", "lengths", *names]]
    cells = {(r["batch"], r["context"], r["even"], r["backend"]): r for r in found}
    for batch, context, is_even in dict.fromkeys(key[:3] for key in cells):
        shares = [_share(cells.get((batch, context, is_even, name))) for name in names]
        rows.append([str(batch), f"{context:,}", "even" if is_even else "uneven", *shares])
    return _table(rows)


def _peer(stage: Mapping[str, Any]) -> str:
    if "ratio" not in stage:
        return f"{MISSING}\n"
    return (
        f"{stage['shape']}, {stage['requests']} requests: quire {_count(stage['quire_tok_s'])}, "
        f"transformers {_count(stage['transformers_tok_s'])} answer tokens a second, "
        f"{stage['ratio']:.1f} times.\n"
    )


def _correctness(stage: Mapping[str, Any]) -> str:
    if "backends" not in stage:
        return f"{MISSING}\n"
    rows = [["backend", "type", "largest error", "right"]]
    rows += [
        [row["backend"], row["dtype"], f"{row['error']:.1e}", "yes" if row["is_right"] else "NO"]
        for row in stage["backends"]
    ]
    same = "equal" if stage["graphs_equal_eager"] else "DO NOT equal"
    return _table(rows) + f"\nCaptured decode steps {same} uncaptured ones.\n"


def _errors(stages: Mapping[str, Any]) -> str:
    failed = {name: stage["error"] for name, stage in stages.items() if "error" in stage}
    return "".join(f"## {name} failed\n\n```\n{error}\n```\n" for name, error in failed.items())


def _share(row: Mapping[str, Any] | None) -> str:
    if row is None:
        return MISSING
    return "failed" if "error" in row else f"{100 * row['of_copy']:.0f} %"


def _count(value: float | None) -> str:
    return MISSING if not value else f"{value:,.0f}"


def _table(rows: Iterable[list[str]]) -> str:
    head, *body = rows
    lines = [head, ["---"] * len(head), *body]
    return "".join("| " + " | ".join(line) + " |\n" for line in lines)
