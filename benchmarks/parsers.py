"""CPU time of tool-call parsers: microseconds a delta, and milliseconds of a whole completion.

    python benchmarks/parsers.py [--family NAME ...] [--rounds 7] [--write]

Every registered family reads completions of 10,000 characters: text alone, text with calls that
have long string arguments, reasoning with such calls, the same where the calls are forced, and a
call in the reasoning with text behind it, through the parser of the server.
Deltas have one token (four characters) or sixteen. The time of a delta is the least of all
rounds, by the CPU clock of the process, without the time of reading the clock: the work of a
delta is the same in each round, and other programs only add to it. `x hermes` is the sum of all
deltas against that of hermes in the same rounds. `4 x` is the time of a text of 40,000 characters
in one delta by that of 10,000: 4 if the work is linear. `--write` writes
`benchmarks/results/parsers.md`.
"""

import argparse
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.append(str(ROOT / "tests" / "parts"))  # how the families write calls
from parser_families import Family, family, family_names  # noqa: E402
from written_calls import TOOLS  # noqa: E402

from quire.call_grammar import CallGrammar, CallShape  # noqa: E402
from quire.cli.bench.tables import machine_info, markdown_lines  # noqa: E402
from quire.frontend.chat.parsing.completion_parsers import CompletionParsers, ParserChoice  # noqa: E402
from quire.plugins.loading import load_plugins  # noqa: E402
from quire.sampling_params import SamplingParams, StructuredOutputsParams  # noqa: E402

RESULTS = ROOT / "benchmarks" / "results" / "parsers.md"
LENGTH = 10_000
TOKEN = 4  # characters
LIMIT_US = 20.0  # p99 of a delta of one token
PROSE = "The quick brown fox jumps over the lazy dog; 1 < 2, and [this] is {text}. "
VALUE = 'def f(x):\n    return {"a": [x, "b"]}  # Größe, 漢字, a \\ b\n'
REASONING_PARSER = "think_tags"
FORCED = StructuredOutputsParams(calls=CallGrammar((CallShape("find", ("find",)),)))


@dataclass(frozen=True, slots=True)
class Load:
    """Completions of a family.

    Attributes:
        name: Name for the table.
        text: The completion.
        prompt: End of the prompt.
        constraint: What forces the calls, behind reasoning that the prompt has opened.
    """

    name: str
    text: str
    prompt: str = ""
    constraint: StructuredOutputsParams | None = None


def loads(of: Family, length: int = LENGTH) -> list[Load]:
    """Return the completions of a family."""
    spelling = of.spelling
    num_calls = 1 if spelling.is_single else 3
    value = (VALUE * length)[: (length // 2) // num_calls]
    calls = spelling.write([("find", {"query": value, "limit": 7})] * num_calls)
    prose = (PROSE * length)[: max(0, length - len(calls))]
    thought = f"{prose}\n</think>\n\n"
    call = spelling.write([("find", {"query": "fox", "limit": 7})])
    behind = (PROSE * length)[: length - len(call)]
    return [
        Load("text", (PROSE * length)[:length]),
        Load("calls", calls + prose if spelling.is_bare else prose + calls),
        Load("reasoning and calls", thought + calls, "<think>\n"),
        Load("reasoning and forced calls", thought + calls, "<think>\n", FORCED),
        Load("text behind a call in the reasoning", call + behind, "<think>\n"),
    ]


def parser_maker(of: Family, load: Load) -> Callable[[], Any]:
    """Return a function that makes the parser of a completion, as the server does."""
    registries = load_plugins().registries
    tools, reasoning = registries.tool_parsers, registries.reasoning_parsers
    entry, other = tools.entry(of.name), reasoning.entry(REASONING_PARSER)
    choice = ParserChoice(of.parser, entry.source, entry.capabilities)
    thoughts = ParserChoice(reasoning.get(other.name), other.source, other.capabilities)
    parsers = CompletionParsers(thoughts if load.prompt else None, choice)
    functions = [{"type": "function", "function": tool} for tool in TOOLS]
    params = SamplingParams(structured_outputs=load.constraint)
    return lambda: parsers(load.prompt, tools=functions, params=params)


def delta_times_us(make: Callable[[], Any], deltas: Sequence[str]) -> list[float]:
    """Return the CPU time of each delta."""
    parser, clock = make(), time.process_time_ns
    times = []
    for delta in deltas:
        started = clock()
        parser.feed(delta)
        times.append(clock() - started)
    parser.close()
    return [each / 1e3 for each in times]


def clock_us() -> float:
    """Return the CPU time of reading the clock."""
    clock = time.process_time_ns
    return min(-(clock() - clock()) for _ in range(10_000)) / 1e3


def whole_ms(make: Callable[[], Any], text: str) -> float:
    """Return the CPU time of a completion in one delta."""
    parser, started = make(), time.process_time_ns()
    parser.read_whole(text)
    return (time.process_time_ns() - started) / 1e6


def in_deltas(text: str, length: int) -> list[str]:
    """Return a text in deltas of one length."""
    return [text[start : start + length] for start in range(0, len(text), length)]


@dataclass(slots=True)
class Figures:
    """Figures of a family and a load.

    Attributes:
        by_token: Least microseconds of each delta of one token.
        by_sixteen: The same of deltas of sixteen tokens.
        whole_ms: Least milliseconds of the completion in one delta.
        longer_ms: The same of a completion that is four times as long.
    """

    by_token: list[float]
    by_sixteen: list[float]
    whole_ms: float
    longer_ms: float


def measure(names: Iterable[str], num_rounds: int) -> dict[tuple[str, str], Figures]:
    """Measure families in turns, in rounds of changing order."""
    overhead = clock_us()
    tasks = [
        (of.name, load, longer)
        for of in map(family, names)
        for load, longer in zip(loads(of), loads(of, 4 * LENGTH), strict=True)
    ]
    rounds: dict[tuple[str, str], list[Figures]] = {}
    for number in range(num_rounds):
        for name, load, longer in tasks if number % 2 == 0 else reversed(tasks):
            make = parser_maker(family(name), load)
            found = Figures(
                delta_times_us(make, in_deltas(load.text, TOKEN)),
                delta_times_us(make, in_deltas(load.text, 16 * TOKEN)),
                whole_ms(make, load.text),
                whole_ms(make, longer.text),
            )
            rounds.setdefault((name, load.name), []).append(found)
    return {key: _least(found, overhead) for key, found in rounds.items()}


def _least(rounds: Sequence[Figures], overhead_us: float) -> Figures:
    def least(times: Iterable[Sequence[float]]) -> list[float]:
        return [max(0.0, min(each) - overhead_us) for each in zip(*times, strict=True)]

    return Figures(
        least(each.by_token for each in rounds),
        least(each.by_sixteen for each in rounds),
        min(each.whole_ms for each in rounds),
        min(each.longer_ms for each in rounds),
    )


def rows(figures: dict[tuple[str, str], Figures]) -> list[list[str]]:
    """Return a row for each family and load."""
    found = []
    for (name, load), each in sorted(figures.items(), key=lambda item: (item[0][1], item[0][0])):
        base = figures.get(("hermes", load))
        share = sum(each.by_token) / sum(base.by_token) if base else 0.0
        found.append(
            [
                load,
                name,
                *_quantiles(each.by_token, LIMIT_US),
                *_quantiles(each.by_sixteen),
                f"{each.whole_ms:.2f}",
                f"{each.longer_ms / each.whole_ms:.1f}",
                f"{share:.2f}" if base else "-",
            ]
        )
    return found


def _quantiles(times: Sequence[float], limit: float = float("inf")) -> list[str]:
    p99 = statistics.quantiles(times, n=100, method="inclusive")[98]
    mark = "**" if p99 > limit else ""
    return [f"{statistics.median(times):.1f}", f"{mark}{p99:.1f}{mark}", f"{max(times):.1f}"]


HEADERS = [
    "completion", "family", "p50 us", "p99 us", "max us", "16 tokens: p50 us", "p99 us", "max us",
    "whole ms", "4 x", "x hermes",
]  # fmt: skip


def main() -> None:
    """Measure, and print a table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--family", nargs="*", default=[], help="only these, and hermes")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--write", action="store_true", help=f"write {RESULTS.name}")
    arguments = parser.parse_args()
    names = dict.fromkeys(["hermes", *(arguments.family or family_names())])
    lines = markdown_lines(HEADERS, rows(measure(names, arguments.rounds)))
    facts = machine_info()
    about = (
        f"`python benchmarks/parsers.py --rounds {arguments.rounds}`, {facts['date']}: "
        f"{facts['cpu']}, {facts['cores']} cores, Python {facts['python']}, load average "
        f"{facts['load_average']} at the end. Completions of {LENGTH:,} characters; a token has "
        f"{TOKEN}. A p99 over {LIMIT_US:.0f} us is bold."
    )
    report = "\n".join(["# Parsers of tool calls", "", about, "", *lines, ""])
    print(report)
    if arguments.write:
        RESULTS.write_text(report, encoding="utf-8")


if __name__ == "__main__":
    main()
