"""The run as Markdown: every ratio beside its aim, and all that was tried, told and left out."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from contests import Bench, Rival, contests
from engine_process import Configuration
from rate_tables import TABLES

MISSING = "not measured yet"
TITLES = {"native": "With all instructions of the machine", "avx2": "Without AVX-512 in any engine"}
FIGURES = {"out_tok_s": "answers", "decode_tok_s": "decode", "prefill_tok_s": "prefill"}
START_AIMS = {"cached": 5, "cold": 60}
ENOUGH_PAIRS = 7
GIB, GIGA = 1 << 30, 1e9


def write_markdown(report: Mapping[str, Any]) -> str:
    """Return the whole report; without one, what will be in it."""
    parts = [
        "# On a CPU, beside vLLM, transformers and llama.cpp\n",
        "Every engine runs in a process of its own, on all cores, with the same random weights\n"
        "and prompts, greedy and of fixed lengths, without cached prefixes. They take turns in an\n"
        "order that changes, each after a short run without a clock, and stand still while\n"
        "another computes. A ratio is the median over the rounds, with an interval between two of\n"
        "its samples and how often such an interval holds the true median. Of each peer the\n"
        "fastest of several ways to run takes part, where trials are told below. Answers: all\n"
        "requests together, prompts included; decode: without the prompt. quire runs by default\n"
        "with the checkpoint's weights, computed in float32 over a float32 KV cache (but not on\n"
        "processors with AMX); all bf16 is\n"
        "`--quantization bf16_dot` (`bf16` on processors that do not multiply bfloat16) with\n"
        "`--kv-cache-dtype bfloat16`, which is what peers do under that number type.\n",
    ]
    for isa in report or ("native",):
        parts += _run(isa, report.get(isa, {"stages": {}, "unfinished": {}}))
    return "\n".join(part for part in parts if part)


def _run(isa: str, part: Mapping[str, Any]) -> list[str]:
    stages, unfinished = part["stages"], part["unfinished"]
    quick = [name for name, stage in stages.items() if stage["is_quick"]]
    untried = [name for name, stage in stages.items() if stage.get("with_trials") is False]
    has_drawing = any("rates" in stage and "rounds" in stage for stage in stages.values())
    return [
        f"## {TITLES[isa]}\n",
        _machines(stages),
        f"Tiny sizes, whose figures say nothing: {', '.join(quick)}.\n" if quick else "",
        f"Without trials, each peer in its first way: {', '.join(untried)}.\n" if untried else "",
        f"![Throughput of each engine](cpu_{isa}.svg)\n" if has_drawing else "",
        _ratios(stages),
        "### From the constructor to the first token, Qwen3-0.6B shape\n",
        "The constructor alone counts for our aims; what engines import before it differs, so\n"
        "only the whole process compares one engine with another.\n",
        _starts(stages.get("start", {})),
        "### Clients with requests of mixed lengths at once, Qwen3-0.6B shape\n",
        "A list of requests without end, the same for each number of clients; at most 64 run at\n"
        "once. What came in three windows, with the least, the median and the most of each.\n",
        _load(stages.get("load", {})),
        _ways(stages),
        _answers(stages),
        _rates(stages.get("machine", {})),
        _quiet(stages),
        _failures(stages, unfinished),
        _commands(stages),
    ]


def _machines(stages: Mapping[str, Any]) -> str:
    """Describe the machine; once, if it and what is installed were the same for all stages."""
    texts: dict[str, list[str]] = {}
    for name, stage in stages.items():
        texts.setdefault(_machine(stage["machine"]), []).append(name)
    if not texts:
        return f"{MISSING}.\n"
    if len(texts) == 1:
        told = list(texts)
    else:
        told = [f"{', '.join(names)}: {text}" for text, names in texts.items()]
    return "\n".join([*told, _limits(stages.get("machine", {}))])


def _machine(machine: Mapping[str, Any]) -> str:
    caches = ", ".join(f"{name} {size}" for name, size in machine["caches"].items())
    versions = "; ".join(
        f"{name}: {', '.join(' '.join(each) for each in found.items()) or 'as quire'}"
        for name, found in machine["versions"].items()
    )
    dropped = ", ".join(machine["dropped_variables"]) or "none"
    return (
        f"{machine['cpu']}, {machine['physical_cores']} cores ({', '.join(machine['flags'])}; "
        f"{caches}), {machine['memory_bytes'] / GIB:.0f} GiB, {machine['system']}, Python "
        f"{machine['python']}, quire {machine['quire']} (commit {machine['commit']}), "
        f"{machine['date']}. {versions}. What torch and its libraries use: "
        f"{'; '.join(machine['obeyed'])}. Variables kept from the engines: {dropped}.\n"
    )


def _limits(stage: Mapping[str, Any]) -> str:
    found = stage.get("rates", {}).get("machine_rates")
    if found is None:
        return "Read bandwidth and FMA peak are not measured yet.\n"
    return (
        f"{found['threads']} threads read {found['bytes_per_s'] / GIGA:.1f} GB/s from memory "
        f"and reach {found['flops'] / GIGA:.0f} GFLOP/s in float32 FMA.\n"
    )


def _ratios(stages: Mapping[str, Any]) -> str:
    head = ["load", "quire", "beside", "", "quire tok/s", "its tok/s", "ratio", "pairs", "aim"]
    rows = [[*head, "reached"]]
    known = contests(Bench({}, "native", Path(), 0, is_quick=False, with_trials=False))
    for name, contest in known.items():
        stage = {"load": contest.load} | stages.get(name, {})
        for rival in contest.rivals:
            for figure in contest.figures:
                rows += [_ratio_row(rival, ours, figure, stage) for ours in rival.ours]
        rows += [_noise_row(ratio, stage) for ratio in stage.get("noise", ())]
    return _table(rows)


def _ratio_row(
    rival: Rival, ours: Configuration, figure: str, stage: Mapping[str, Any]
) -> list[str]:
    aim = rival.aims.get(figure)
    ratio = next(
        (
            each
            for each in stage.get("ratios", ())
            if (each["rival"], each["ours"], each["figure"]) == (rival.name, ours.label, figure)
        ),
        None,
    )
    aim_text = "" if aim is None else f"{aim:g}"
    start = [load_name(stage["load"]), ours.name or "default"]
    if ratio is None:
        why = f"{MISSING}: absent" if rival.engine in stage.get("absent", ()) else MISSING
        return [*start, rival.name, FIGURES[figure], why, *[MISSING] * 2, "0", aim_text, ""]
    return [
        *start,
        ratio["theirs"],
        FIGURES[figure],
        *_both_rates(ratio, stage),
        _interval(ratio),
        str(ratio["pairs"]),
        aim_text,
        "" if aim is None else verdict(ratio, aim, stage),
    ]


def _noise_row(ratio: Mapping[str, Any], stage: Mapping[str, Any]) -> list[str]:
    return [
        load_name(stage["load"]),
        "default",
        "itself, a second process",
        FIGURES[ratio["figure"]],
        *_both_rates(ratio, stage),
        _interval(ratio),
        str(ratio["pairs"]),
        "1",
        "",
    ]


def load_name(load: Mapping[str, Any]) -> str:
    """Return what people call a load."""
    many = "1 request" if load["requests"] == 1 else f"{load['requests']} requests"
    return f"{load['shape']}, {many}, {load['input_len']} in, {load['output_len']} out"


def _both_rates(ratio: Mapping[str, Any], stage: Mapping[str, Any]) -> list[str]:
    return [
        _number(stage["rates"][ratio[who]][ratio["figure"]]["median"]) for who in ("ours", "theirs")
    ]


def verdict(ratio: Mapping[str, Any], aim: float, stage: Mapping[str, Any]) -> str:
    """Return whether an aim is reached, or why nobody can say."""
    if stage["is_quick"]:
        return "tiny sizes"
    both = (ratio["ours"], ratio["theirs"])
    if any(each["label"] in both and each.get("disagrees") for each in stage["engines"]):
        return "none: their answers begin unlike"
    trials = [each for each in stage.get("trials", ()) if each.get("is_open")]
    if any(each.get("rival") == ratio["rival"] for each in trials):
        return "not all of its ways were tried"
    if ratio["pairs"] < ENOUGH_PAIRS:
        return "too few pairs"
    if ratio["interval"][0] >= aim:
        return "yes"
    return "by the median" if ratio["median"] >= aim else "no"


def _interval(ratio: Mapping[str, Any]) -> str:
    low, high = ratio["interval"]
    held = f"{100 * ratio['coverage']:.1f} %"
    return f"{ratio['median']:.2f} ({low:.2f} to {high:.2f}, {held})"


def _starts(stage: Mapping[str, Any]) -> str:
    rows = [["engine", "", "seconds, median (all)", "whole process", "samples", "failed", "aim"]]
    found: dict[tuple[str, str], list[Mapping[str, Any]]] = {
        ("quire", kind): [] for kind in START_AIMS
    }
    for each in stage.get("starts", ()):
        found.setdefault((each["engine"], each["kind"]), []).append(each)
    for (engine, kind), starts in found.items():
        well = [each for each in starts if "first_token_s" in each]
        counts = [str(len(well)), str(len(starts) - len(well)), _start_aim(engine, kind, starts)]
        if not well:
            rows.append([engine, kind, MISSING, MISSING, *counts])
            continue
        seconds = [each["first_token_s"] for each in well]
        every = ", ".join(f"{each:.1f}" for each in seconds)
        whole = statistics.median(each["process_s"] for each in well)
        told = f"{statistics.median(seconds):.1f} ({every})"
        rows.append([engine, kind, told, f"{whole:.1f}", *counts])
    return _table(rows)


def _start_aim(engine: str, kind: str, starts: Sequence[Mapping[str, Any]]) -> str:
    """Return the aim, and whether all starts reach it; one that failed does not."""
    if engine != "quire" or kind not in START_AIMS:
        return ""
    aim = START_AIMS[kind]
    if not starts:
        return f"at most {aim}"
    seconds = [each.get("first_token_s", math.inf) for each in starts]
    is_reached = "all" if max(seconds) <= aim else "by the median"
    is_reached = is_reached if statistics.median(seconds) <= aim else "no"
    return f"at most {aim}: {is_reached}"


def _load(stage: Mapping[str, Any]) -> str:
    head = ["clients", "answer tok/s", "requests", "wait for the first token, s"]
    head += ["between messages, ms", "longest wait, s", "memory held, GiB"]
    rows = [head]
    for each in stage.get("clients", ()):
        rows.append(
            [
                str(each["clients"]),
                _spread(each["out_tok_s"], 1),
                str(each["requests"]),
                _spread(each["first_token_s"], 1),
                _spread(each["token_s"], 1000),
                f"{each['longest_wait_s']:.2f}",
                _spread(each["resident_bytes"], 1 / GIB),
            ]
        )
    return _table(rows if len(rows) > 1 else [*rows, [MISSING] * len(head)])


def _spread(found: Mapping[str, float] | None, scale: float) -> str:
    if found is None:
        return "none"
    return ", ".join(_number(found[name] * scale) for name in ("least", "median", "most"))


def _ways(stages: Mapping[str, Any]) -> str:
    rows = [["stage", "way to run", "tok/s, each run"]]
    for name, stage in stages.items():
        for tried in stage.get("trials", ()):
            rows.append([name, f"{tried['engine']} {tried['name']}", _trial(tried)])
    if len(rows) == 1:
        return ""
    told = "Some runs of each, in turn; one that was much slower than the best had no second one.\n"
    cache = "What vLLM compiles is kept from one run of the benchmark to the next with --folder.\n"
    return f"### Ways to run that were tried\n\n{told}{cache}\n" + _table(rows)


def _trial(tried: Mapping[str, Any]) -> str:
    if "samples" not in tried:
        told: str = tried.get("error") or tried["not_tried"]
        return told
    return "; ".join(
        f"{FIGURES[figure]} {', '.join(_number(sample[figure]) for sample in tried['samples'])}"
        for figure in tried["samples"][0]
    )


def _answers(stages: Mapping[str, Any]) -> str:
    rows = [["stage", "engine", "first tokens", "tokens up to the first other one"]]
    rows[0] += ["as those of", "instructions"]
    for name, stage in stages.items():
        for each in stage.get("engines", ()):
            isa = each.get("instruction_set") or ", ".join(each["libraries"])
            mark = ": **disagrees**" if each.get("disagrees") else ""
            shares = [f"{100 * each.get(key, 0):.0f} %" for key in ("first_tokens", "equal_tokens")]
            row = [name, each["label"], shares[0] + mark, shares[1], each.get("reference", "none")]
            rows.append([*row, isa.replace("|", "")])
    if len(rows) == 1:
        return ""
    return (
        "### What took part\n\nEngines with fewer bits of the weights may well answer otherwise; "
        "the others must begin alike.\n\n" + _table(rows)
    )


def _rates(stage: Mapping[str, Any]) -> str:
    parts = []
    for name, found in stage.get("rates", {}).items():
        if name in TABLES:
            aims, table = TABLES[name]
            parts.append(f"### {name}.py\n\n{aims(found)}\n{table(found)}")
            continue
        rows = [found] if isinstance(found, Mapping) else found
        keys = list(dict.fromkeys(key for row in rows for key in row))
        cells = [[_cell(row.get(key, "")) for key in keys] for row in rows]
        parts.append(f"### {name}.py\n\n" + _table([keys, *cells]))
    return "\n".join(parts) or f"### Rates of the machine and of our kernels\n\n{MISSING}.\n"


def _cell(value: Any) -> str:
    if isinstance(value, float):
        return _number(value)
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {_cell(each)}" for name, each in value.items())
    if isinstance(value, Sequence) and not isinstance(value, str):
        return ", ".join(map(_cell, value))
    return str(value)


def _number(value: float) -> str:
    if abs(value) >= GIGA:
        return f"{value / GIGA:,.1f} G"
    digits = 0 if abs(value) >= 100 else 1 if abs(value) >= 10 else 3 if abs(value) < 1 else 2
    return f"{value:,.{digits}f}"


def _quiet(stages: Mapping[str, Any]) -> str:
    told = []
    for name, stage in stages.items():
        if rounds := stage.get("rounds"):
            stolen, others = (max(each[who] for each in rounds) for who in ("stolen", "others"))
            loads = [each["load_average"] for each in rounds]
            told.append(
                f"* {name}: {len(rounds)} rounds of {_number(rounds[-1]['seconds'])} s, at most "
                f"{100 * stolen:.1f} % of a round stolen by the host and {100 * others:.1f} % "
                f"used by others on the machine, load average "
                f"{min(loads):.1f} to {max(loads):.1f}, {stage['load_average_before']:.1f} before"
            )
    return "### How quiet it was\n\n" + "\n".join(told) + "\n" if told else ""


def _failures(stages: Mapping[str, Any], unfinished: Mapping[str, Any]) -> str:
    failed = [f"* {name}: {what}" for name, s in stages.items() for what in s.get("failed", ())]
    for name, stage in unfinished.items():
        what = stage.get("error", "not ended yet, or stopped")
        failed.append(f"* {name}, {stage['date']}: {what}; the figures above are not of this run")
        failed += [f"* {name}, {stage['date']}: {each}" for each in stage.get("failed", ())]
    return "### What failed\n\n" + "\n".join(failed) + "\n" if failed else ""


def _commands(stages: Mapping[str, Any]) -> str:
    told: dict[tuple[str, str], list[str]] = {}
    for name, stage in stages.items():
        told.setdefault((stage["command"], stage["date"]), []).append(
            f"{name} {stage['seconds']:.0f} s"
        )
    lines = [f"* {', '.join(names)}, {date}: `{line}`" for (line, date), names in told.items()]
    return "### Commands\n\n" + "\n".join(lines) + "\n" if lines else ""


def _table(rows: Iterable[Sequence[str]]) -> str:
    head, *rest = (f"| {' | '.join(row)} |" for row in rows)
    return "\n".join([head, "|" + "---|" * (head.count("|") - 1), *rest]) + "\n"
