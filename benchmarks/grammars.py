"""Time to compile grammars and to fill masks, through the host and its processes.

    python benchmarks/grammars.py [--backend NAME ...] [--vocabulary SIZE ...] [--write]

The vocabulary is a byte-level BPE. The first table has a line for each grammar: the time until it
is ready, and the round trip of one mask and of 16 masks of 16 requests in one step. The second has
a line for each way in which 16 requests may share grammars, with a forward pass between the request
for masks and their collection: multiplications of matrices on all cores. Its last columns are CPU
times, which other programs on the machine change little: that of both parts in the engine's thread,
and the mean of the grammar processes a step. `--write` puts the tables of the largest vocabulary
into `benchmarks/results/grammars.md`.
"""

import argparse
import datetime
import os
import platform
import random
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from vocabulary import SIZE, large_tokenizer, large_vocabulary

from quire.engine.grammar.grammar_host import GrammarHost
from quire.engine.grammar.grammar_pool import GrammarLimits
from quire.errors import GrammarError
from quire.interfaces.structured_output import Vocabulary
from quire.sampling_params import StructuredOutputsParams

RESULTS = Path(__file__).parent / "results" / "grammars.md"
NUM_STEPS = 200
NUM_FORWARD_STEPS = 100
FORWARD_S = 0.02
PATIENT = GrammarLimits(timeout_s=120.0)  # so that no row of the table is missing
BATCH = 16
PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string"},
        "age": {"type": "integer"},
        "tags": {"type": "array", "items": {"type": "string"}},
    },
    "required": ["name", "age", "tags"],
}
GRAMMARS = {
    "choice of 3": StructuredOutputsParams(choice=("red", "green", "blue")),
    "regex, a date": StructuredOutputsParams(regex=r"\d{4}-[01]\d-[0-3]\d"),
    "schema, 3 fields": StructuredOutputsParams(json=PERSON),
    "schema, string of 20": StructuredOutputsParams(json={"type": "string", "maxLength": 20}),
    "schema, 30 fields": StructuredOutputsParams(
        json={
            "type": "object",
            "properties": {f"field_{i}": {"type": ["string", "null"]} for i in range(30)},
            "required": [f"field_{i}" for i in range(30)],
        }
    ),
    "any JSON object": StructuredOutputsParams(json_object=True),
}
Row = tuple[str, ...]


class StepTimes(NamedTuple):
    """Milliseconds of one step: both parts, and the CPU time of both in this thread."""

    sending: float
    collecting: float
    cpu: float

    @property
    def both(self) -> float:
        """Time that masks add to the step."""
        return self.sending + self.collecting


def date(index: int) -> StructuredOutputsParams:
    """Return one of different regexes of many dates."""
    return StructuredOutputsParams(regex=rf"{index}(?: \d{{4}}-[01]\d-[0-3]\d){{200}}")


def records(index: int) -> StructuredOutputsParams:
    """Return one of different schemas of a long list of records."""
    person = {**PERSON, "properties": PERSON["properties"] | {f"field_{index}": {"type": "null"}}}
    return StructuredOutputsParams(json={"type": "array", "items": person, "minItems": 200})


def compile_s(host: GrammarHost, name: str, params: StructuredOutputsParams) -> float:
    """Submit a grammar and wait for it."""
    start = time.perf_counter()
    host.submit(name, params)
    while not (outcomes := host.poll()):
        host.wait_for_compile(1.0)
    for _, error in outcomes:
        if error is not None:
            raise error
    return time.perf_counter() - start


def walk(
    host: GrammarHost,
    names: Sequence[str],
    vocabulary: Vocabulary,
    num_steps: int,
    forward: Callable[[], object] = lambda: None,
) -> list[StepTimes]:
    """Walk through grammars at random; return the times of each step."""
    rng, times = random.Random(1), []
    for _ in range(num_steps):
        start, start_cpu = time.perf_counter(), time.thread_time()
        host.request_masks(list(enumerate(names)))
        sent, cpu = time.perf_counter(), time.thread_time() - start_cpu
        forward()
        done, done_cpu = time.perf_counter(), time.thread_time()
        masks = host.collect_masks()
        cpu += time.thread_time() - done_cpu
        collecting = time.perf_counter() - done
        times.append(StepTimes(1000 * (sent - start), 1000 * collecting, 1000 * cpu))
        for name, mask in zip(names, masks, strict=True):
            host.accept(name, [_any_of(mask.words, vocabulary, rng)])
    return times


def _any_of(words: bytes, vocabulary: Vocabulary, rng: random.Random) -> int:
    """Return an allowed token, of the first ones if it can be: they are short, as in BPE."""
    allowed = [v for v in range(min(2048, vocabulary.size)) if words[v // 8] >> v % 8 & 1]
    return rng.choice(allowed or [vocabulary.eos_token_ids[0]])


def children_cpu_ms(host: GrammarHost) -> float:
    """Return the CPU time of all grammar processes of a host."""
    parent = host._pool._fork_server.pid
    children = Path(f"/proc/{parent}/task/{parent}/children").read_text().split()
    stats = [Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split() for pid in children]
    ticks = sum(int(stat[11]) + int(stat[12]) for stat in stats)
    return 1000 * ticks / os.sysconf("SC_CLK_TCK")


def forward_pass() -> Callable[[], object]:
    """Return a function that keeps all cores busy for `FORWARD_S`."""
    matrix = torch.randn(512, 512)

    def run() -> None:
        until = time.perf_counter() + FORWARD_S
        while time.perf_counter() < until:
            torch.mm(matrix, matrix)

    return run


def of(times: Sequence[float]) -> str:
    """Return median and 99th percentile."""
    ordered = sorted(times)
    return f"{statistics.median(ordered):.2f} / {ordered[round(0.99 * (len(ordered) - 1))]:.2f}"


def grammar_rows(host: GrammarHost, backend: str, vocabulary: Vocabulary) -> list[Row]:
    """Measure each grammar."""
    rows = []
    for name, params in GRAMMARS.items():
        try:
            seconds = compile_s(host, name, params)
        except GrammarError as error:
            rows.append((name, backend, str(error)[:40], "", ""))
            continue
        one = walk(host, [name], vocabulary, NUM_STEPS)
        names = [f"{name} {i}" for i in range(BATCH)]
        for other in names:
            compile_s(host, other, params)
        many = walk(host, names, vocabulary, NUM_STEPS)
        for each in (name, *names):
            host.release(each)
        walks = (of([times.both for times in each]) for each in (one, many))
        rows.append((name, backend, f"{1000 * seconds:.0f}", *walks))
    return rows


def step_rows(host: GrammarHost, backend: str, vocabulary: Vocabulary) -> list[Row]:
    """Measure steps of 16 requests, with a forward pass in between."""
    rows, forward = [], forward_pass()
    for what, grammar in (("dates", date), ("records", records)):
        for sharing, num_grammars in (("one grammar", 1), ("each its own", BATCH)):
            names = [f"{what} {sharing} {i}" for i in range(BATCH)]
            for index, name in enumerate(names):
                compile_s(host, name, grammar(index % num_grammars))
            walk(host, names, vocabulary, 5, forward)
            before_ms = children_cpu_ms(host)
            times = walk(host, names, vocabulary, NUM_FORWARD_STEPS, forward)
            matcher_ms = (children_cpu_ms(host) - before_ms) / NUM_FORWARD_STEPS
            sending, collecting, cpu = map(of, zip(*times, strict=True))
            both = of([each.both for each in times])
            name = f"{what}, {sharing}"
            rows.append((name, backend, sending, collecting, both, cpu, f"{matcher_ms:.2f}"))
            for name in names:
                host.release(name)
    return rows


GRAMMAR_HEADERS = ("grammar", "backend", "ready, ms", "1 mask, ms", f"{BATCH} masks, ms")
STEP_HEADERS = (
    f"{BATCH} requests",
    "backend",
    "sending",
    "collecting",
    "both",
    "engine CPU",
    "matcher CPU",
)


def table(headers: Sequence[str], rows: Sequence[Row]) -> list[str]:
    """Return a table in Markdown."""
    return [f"| {' | '.join(row)} |" for row in (headers, ["---"] * len(headers), *rows)]


def measure(size: int, backends: Sequence[str]) -> list[str]:
    """Return both tables of a vocabulary."""
    vocabulary = large_vocabulary(large_tokenizer(size))
    grammars: list[Row] = []
    steps: list[Row] = []
    for backend in backends:
        host = GrammarHost(lambda: vocabulary, backends=(backend,), limits=PATIENT)
        compile_s(host, "warm-up", StructuredOutputsParams(choice=("a",)))
        grammars += grammar_rows(host, backend, vocabulary)
        if backend == "llguidance":  # others cannot compile long ones with a large vocabulary
            steps += step_rows(host, backend, vocabulary)
        host.shutdown()
    facts = (
        f"{size:,} tokens, {datetime.datetime.now(datetime.UTC).date()}, Python "
        f"{platform.python_version()}, {os.cpu_count()} CPU cores, load {os.getloadavg()[0]:.1f}"
    )
    return [facts, "", *table(GRAMMAR_HEADERS, grammars), "", *table(STEP_HEADERS, steps), ""]


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--backend", nargs="+", default=["llguidance", "outlines"])
    parser.add_argument("--vocabulary", type=int, nargs="+", default=[768, SIZE])
    parser.add_argument("--write", action="store_true", help=f"write {RESULTS.name}")
    arguments = parser.parse_args()
    for size in sorted(arguments.vocabulary):
        lines = measure(size, arguments.backend)
        print("\n".join(lines))
    if arguments.write:
        head = [
            "# Grammars: time to compile and to fill masks",
            "",
            "`python benchmarks/grammars.py`",
        ]
        note = (
            "Median / 99th percentile, in milliseconds; docs/structured_output.md explains the "
            "parts of a step."
        )
        RESULTS.write_text("\n".join([*head, "", note, "", *lines]), encoding="utf-8")


if __name__ == "__main__":
    main()
