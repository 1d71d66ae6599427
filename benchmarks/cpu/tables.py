"""The report of a run as Markdown: ratios with their aims, trials, failures, machine, commands."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Any

from comparisons import Bench, Peer, comparisons
from engine_process import Configuration
from rate_tables import TABLES

from quire.cli.bench.tables import markdown_lines

MISSING = "not measured yet"
TITLES = {"native": "With all instructions of the machine", "avx2": "Without AVX-512 in any engine"}
FIGURES = {"out_tok_s": "output", "decode_tok_s": "decode", "prefill_tok_s": "prefill"}
AGREEMENT = ("first_tokens", "equal_tokens")
START_AIMS = {"cached": 5.0, "cold": 60.0}  # seconds
LATER_THAN_OPENVINO = 1.0  # the aim where OpenVINO took part
ENOUGH_PAIRS = 7
BANDWIDTH_AIM = 0.9
WIDE_READERS = ("quire", "quire all bf16", "quire int8")
GIB, GIGA = 1 << 30, 1e9


def write_markdown(report: Mapping[str, Any]) -> str:
    """Return the whole report; without figures, its tables say that they were not measured yet."""
    parts = [
        "# On a CPU, compared with vLLM, OpenVINO, llama.cpp and transformers\n",
        "Each engine runs in its own process, on all cores, with the same random weights and\n"
        "prompts, greedy, with fixed lengths, without prefix caching. The engines take turns in a\n"
        "changing order, each turn after a short warm-up run, and are stopped while another one\n"
        "computes. A ratio is the median over the rounds, with an interval between two of its\n"
        "samples and the probability that such an interval contains the true median. Of each\n"
        "peer the fastest of several configurations takes part, as far as trials are listed\n"
        "below, and once more without flags, which is its own default. Output: all requests\n"
        "together, prompts included; decode: without the prompt; prefill: the prompt alone, so\n"
        "for a single output token it is the time to first token.\n"
        "By default quire computes with the checkpoint's bfloat16 weights: in bfloat16 where the\n"
        "processor multiplies it, else in float32. All bf16 is `--dtype bfloat16` there, and\n"
        "elsewhere `--quantization bf16 --kv-cache-dtype bfloat16`; it is what the peers do with\n"
        "that number type.\n",
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
        f"Tiny sizes, whose figures are meaningless: {', '.join(quick)}.\n" if quick else "",
        f"Without trials (first configurations): {', '.join(untried)}.\n" if untried else "",
        f"![Throughput of each engine](cpu_{isa}.svg)\n" if has_drawing else "",
        _ratios(stages),
        _memory(stages),
        _starts(stages.get("start", {})),
        _load(stages.get("load", {})),
        _trials(stages),
        _engines(stages),
        _rates(stages.get("machine", {})),
        _other_load(stages),
        _failures(stages, unfinished),
        _commands(stages),
    ]


def _machines(stages: Mapping[str, Any]) -> str:
    """Describe the machine and its packages; once, if they were the same for all stages."""
    texts: dict[str, list[str]] = {}
    for name, stage in stages.items():
        texts.setdefault(_machine(stage["machine"]), []).append(name)
    if not texts:
        return f"{MISSING}.\n"
    if len(texts) == 1:
        shown = list(texts)
    else:
        shown = [f"{', '.join(names)}: {text}" for text, names in texts.items()]
    return "\n".join([*shown, _limits(stages.get("machine", {}))])


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
        f"{machine['date']}. {versions}. Instruction sets that torch and its libraries report: "
        f"{'; '.join(machine['obeyed'])}. Variables not passed to the engines: {dropped}.\n"
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
    """Return a row for each ratio, and in a list below them those that were not measured."""
    head = ["load", "quire", "compared with", "figure", "quire tok/s", "peer tok/s", "ratio"]
    rows = [[*head, "pairs", "aim", "reached"]]
    missing: dict[str, list[str]] = {}
    known = comparisons(Bench({}, "native", Path(), 0, is_quick=False, with_trials=False))
    for name, comparison in known.items():
        stage = {"load": comparison.load} | stages.get(name, {})
        for peer in comparison.peers:
            found = [
                _ratio_row(peer, ratio, stage)
                for figure, ours in product(comparison.figures, peer.ours)
                if (ratio := _find_ratio(peer, ours, figure, stage))
            ]
            if not found:
                why = " (absent)" if peer.engine in stage.get("absent", ()) else ""
                missing.setdefault(name, []).append(f"{peer.name}{why}")
            rows += found
        rows += [_noise_row(ratio, stage) for ratio in stage.get("noise", ())]
    lines = [f"* {name}: {', '.join(peers)}" for name, peers in missing.items()]
    if len(rows) == 1:
        return "No comparison is measured yet.\n"
    below = f"\nComparisons that were {MISSING}:\n\n" + "\n".join(lines) + "\n" if lines else ""
    return _table(rows) + below


def _find_ratio(
    peer: Peer, ours: Configuration, figure: str, stage: Mapping[str, Any]
) -> Mapping[str, Any] | None:
    wanted = (peer.name, ours.label, figure)
    for ratio in stage.get("ratios", ()):
        if (ratio["rival"], ratio["ours"], ratio["figure"]) == wanted:
            found: Mapping[str, Any] = ratio
            return found
    return None


def _ratio_row(peer: Peer, ratio: Mapping[str, Any], stage: Mapping[str, Any]) -> list[str]:
    aim = peer.aims.get(ratio["figure"])
    return [
        load_name(stage["load"]),
        ratio["ours"].removeprefix("quire").strip() or "default",
        ratio["theirs"],
        FIGURES[ratio["figure"]],
        *_both_rates(ratio, stage),
        _interval(ratio),
        str(ratio["pairs"]),
        "" if aim is None else f"{aim:g}",
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
    """Return the name of a load in the report."""
    many = "1 request" if load["requests"] == 1 else f"{load['requests']} requests"
    whole = f"{load['shape']}, {many}, {load['input_len']} in, {load['output_len']} out"
    if alone := load.get("single_input_len"):
        whole += f"; decode and prefill: 1 request, {alone:,} in"
    return whole


def _both_rates(ratio: Mapping[str, Any], stage: Mapping[str, Any]) -> list[str]:
    """Return both engines' rates; with a single output token, the seconds to it, too."""
    shown = []
    for who in ("ours", "theirs"):
        rate = stage["rates"][ratio[who]][ratio["figure"]]["median"]
        seconds = stage["load"]["requests"] * stage["load"]["input_len"] / rate
        is_first = stage["load"]["output_len"] == 1
        shown.append(_number(rate) + (f" ({_number(seconds)} s)" if is_first else ""))
    return shown


def verdict(ratio: Mapping[str, Any], aim: float, stage: Mapping[str, Any]) -> str:
    """Return whether an aim for a ratio is reached, or why there is no verdict."""
    reached = _reached(ratio, aim, stage)
    if stage["is_quick"]:
        return reached
    both = (ratio["ours"], ratio["theirs"])
    if any(each["label"] in both and each.get("disagrees") for each in stage["engines"]):
        return "none: completions start differently"
    trials = [each for each in stage.get("trials", ()) if each.get("is_open")]
    if any(each.get("rival") == ratio["rival"] for each in trials):
        return "not all of its configurations were tried"
    return reached


def _reached(found: Mapping[str, Any], aim: float, stage: Mapping[str, Any]) -> str:
    """Return whether enough samples reach an aim."""
    if stage["is_quick"]:
        return "tiny sizes"
    if found["pairs"] < ENOUGH_PAIRS:
        return "too few pairs"
    if found["interval"][0] >= aim:
        return "yes"
    return "by the median" if found["median"] >= aim else "no"


def _interval(ratio: Mapping[str, Any]) -> str:
    low, high = ratio["interval"]
    held = f"{100 * ratio['coverage']:.1f} %"
    return f"{ratio['median']:.2f} ({low:.2f} to {high:.2f}, {held})"


def _memory(stages: Mapping[str, Any]) -> str:
    """Return how fast the weights are read in decoding, as a fraction of the read bandwidth."""
    head = ["load", "engine", "decode tok/s", "weights, GB", "read bandwidth, GB/s"]
    rows = [[*head, "fraction of it", "rounds", "aim", "reached"]]
    for stage in stages.values():
        memory = stage.get("memory", {"shares": {}})
        for label, share in memory["shares"].items():
            aim = BANDWIDTH_AIM if label in WIDE_READERS else None
            rows.append(
                [
                    load_name(stage["load"]),
                    label,
                    _number(stage["rates"][label]["decode_tok_s"]["median"]),
                    f"{share['bytes'] / GIGA:.2f}",
                    f"{memory['bytes_per_s']['median'] / GIGA:.1f}",
                    _interval(share),
                    str(share["pairs"]),
                    "" if aim is None else f"{aim:g}",
                    "" if aim is None else _reached(share, aim, stage),
                ]
            )
    if len(rows) == 1:
        return ""
    return (
        "### Decoding of one request, as a fraction of the read bandwidth\n\n"
        "The bytes of the weights, as the engine stores them, times the tokens per second, and\n"
        "divided by the bandwidth measured in the same round. The KV cache is not counted.\n\n"
        + _table(rows)
    )


def _starts(stage: Mapping[str, Any]) -> str:
    if not stage:
        return ""
    head = ["engine", "kernels", "seconds, median (all)", "whole process"]
    rows = [[*head, "samples", "failed", "aim"]]
    found: dict[tuple[str, str], list[Mapping[str, Any]]] = {
        ("quire", kind): [] for kind in START_AIMS
    }
    for each in stage.get("starts", ()):
        found.setdefault((each["engine"], each["kind"]), []).append(each)
    aims = start_aims(found)
    for (engine, kind), starts in found.items():
        well = [each for each in starts if "first_token_s" in each]
        aim = start_aim(aims[kind], starts) if engine == "quire" else ""
        counts = [str(len(well)), str(len(starts) - len(well)), aim]
        if not well:
            rows.append([engine, kind, MISSING, MISSING, *counts])
            continue
        seconds = [each["first_token_s"] for each in well]
        every = ", ".join(f"{each:.1f}" for each in seconds)
        whole = statistics.median(each["process_s"] for each in well)
        shown = f"{statistics.median(seconds):.1f} ({every})"
        rows.append([engine, kind, shown, f"{whole:.1f}", *counts])
    return (
        "### From the constructor to the first token, Qwen3-0.6B shape\n\n"
        "The aims are for the constructor alone: with cached kernels at most a second more than\n"
        "OpenVINO without flags, if that took part. Engines import different things before it, so\n"
        "the whole process is shown, too.\n\n" + _table(rows)
    )


def start_aims(
    found: Mapping[tuple[str, str], Sequence[Mapping[str, Any]]],
) -> dict[str, float]:
    """Return the most seconds by kind: with cached kernels, OpenVINO's own default and one more."""
    seconds = [
        each["first_token_s"]
        for each in found.get(("openvino", "no flags"), ())
        if "first_token_s" in each
    ]
    if not seconds:
        return START_AIMS
    return START_AIMS | {"cached": statistics.median(seconds) + LATER_THAN_OPENVINO}


def start_aim(aim: float, starts: Sequence[Mapping[str, Any]]) -> str:
    """Return the aim, and whether all starts reach it; a failed start does not."""
    if not starts:
        return f"at most {aim:.3g}"
    seconds = [each.get("first_token_s", math.inf) for each in starts]
    is_reached = "all" if max(seconds) <= aim else "by the median"
    is_reached = is_reached if statistics.median(seconds) <= aim else "no"
    return f"at most {aim:.3g}: {is_reached}"


def _load(stage: Mapping[str, Any]) -> str:
    if not stage:
        return ""
    head = ["engine", "clients", "output tok/s", "requests", "time to first token, s"]
    head += ["time between messages, ms", "longest wait, s", "resident memory, GiB"]
    rows = [head]
    for each in stage.get("clients", ()):
        rows.append(
            [
                each.get("engine", "quire"),
                str(each["clients"]),
                _spread(each["out_tok_s"], 1),
                str(each["requests"]),
                _spread(each["first_token_s"], 1),
                _spread(each["token_s"], 1000),
                f"{each['longest_wait_s']:.2f}",
                _spread(each["resident_bytes"], 1 / GIB),
            ]
        )
    return (
        "### Clients with requests of mixed lengths at once, Qwen3-0.6B shape\n\n"
        "An endless list of requests, the same for each number of clients; at most 64 run at\n"
        "once. Minimum, median and maximum over three windows of time.\n\n" + _table(rows)
    )


def _spread(found: Mapping[str, float] | None, scale: float) -> str:
    if found is None:
        return "none"
    return ", ".join(_number(found[name] * scale) for name in ("least", "median", "most"))


def _trials(stages: Mapping[str, Any]) -> str:
    rows = [["stage", "configuration", "tok/s of each run"]]
    for name, stage in stages.items():
        for tried in stage.get("trials", ()):
            rows.append([name, f"{tried['engine']} {tried['name']}", _trial(tried)])
    if len(rows) == 1:
        return ""
    shown = "Several runs of each, in turn; after a much slower first run there is no second one.\n"
    cache = "With --folder, vLLM's compiled code is kept for the next run of the benchmark.\n"
    return f"### Configurations that were tried\n\n{shown}{cache}\n" + _table(rows)


def _trial(tried: Mapping[str, Any]) -> str:
    if "samples" not in tried:
        shown: str = tried.get("error") or tried["not_tried"]
        return shown
    return "; ".join(
        f"{FIGURES[figure]} {', '.join(_number(sample[figure]) for sample in tried['samples'])}"
        for figure in tried["samples"][0]
    )


def _engines(stages: Mapping[str, Any]) -> str:
    rows = [["stage", "engine", "equal first tokens", "tokens before the first difference"]]
    rows[0] += ["reference", "instruction set"]
    for name, stage in stages.items():
        for each in stage.get("engines", ()):
            isa = each.get("instruction_set") or ", ".join(each["libraries"])
            mark = ": **disagrees**" if each.get("disagrees") else ""
            first, equal = (f"{100 * each.get(key, 0):.0f} %" for key in AGREEMENT)
            row = [name, each["label"], first + mark, equal, each.get("reference", "none")]
            rows.append([*row, isa.replace("|", "")])
    if len(rows) == 1:
        return ""
    return (
        "### Engines that took part\n\nEngines with fewer bits per weight may generate other "
        "tokens; the completions of all others must start alike.\n\n" + _table(rows)
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
    return "\n".join(parts)


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


def _other_load(stages: Mapping[str, Any]) -> str:
    shown = []
    for name, stage in stages.items():
        if rounds := stage.get("rounds"):
            stolen, others = (max(each[who] for each in rounds) for who in ("stolen", "others"))
            loads = [each["load_average"] for each in rounds]
            shown.append(
                f"* {name}: {len(rounds)} rounds of {_number(rounds[-1]['seconds'])} s, at most "
                f"{100 * stolen:.1f} % of a round taken by the host and {100 * others:.1f} % "
                f"used by other processes, load average "
                f"{min(loads):.1f} to {max(loads):.1f}, {stage['load_average_before']:.1f} before"
            )
    return "### Other load on the machine\n\n" + "\n".join(shown) + "\n" if shown else ""


def _failures(stages: Mapping[str, Any], unfinished: Mapping[str, Any]) -> str:
    failed = [f"* {name}: {what}" for name, s in stages.items() for what in s.get("failed", ())]
    for name, stage in unfinished.items():
        what = stage.get("error", "not complete yet, or stopped")
        failed.append(
            f"* {name}, {stage['date']}: {what}; the figures above are from an earlier run"
        )
        failed += [f"* {name}, {stage['date']}: {each}" for each in stage.get("failed", ())]
    return "### Failures\n\n" + "\n".join(failed) + "\n" if failed else ""


def _commands(stages: Mapping[str, Any]) -> str:
    shown: dict[tuple[str, str], list[str]] = {}
    for name, stage in stages.items():
        shown.setdefault((stage["command"], stage["date"]), []).append(
            f"{name} {stage['seconds']:.0f} s"
        )
    lines = [f"* {', '.join(names)}, {date}: `{line}`" for (line, date), names in shown.items()]
    return "### Commands\n\n" + "\n".join(lines) + "\n" if lines else ""


def _table(rows: Sequence[Sequence[str]]) -> str:
    return "\n".join(markdown_lines(rows[0], rows[1:])) + "\n"
