"""The measure of JSON schemas: what each backend compiles, refuses, and decides about instances.

    python benchmarks/json_schemas.py [--backend NAME ...] [--set suite real] [--vocabulary 768]

The schemas and their instances, judged beforehand by `jsonschema` with ECMA-262 regexes, are in
`benchmarks/schemas`. Each schema runs in a process of its own with limits of CPU time and memory.
A valid instance must be accepted as compact JSON and with blanks, in each of three tokenizations;
an invalid one in none.
"""

import argparse
import collections
import datetime
import json
import os
import platform
import random
import re
import resource
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from vocabulary import large_tokenizer, large_vocabulary

from quire.config import PluginSettings
from quire.errors import GrammarError
from quire.interfaces.structured_output import Matcher, StructuredOutputBackend, Vocabulary
from quire.plugins.loading import load_plugins
from quire.sampling_params import StructuredOutputsParams

HERE = Path(__file__).parent
RESULTS = HERE / "results" / "structured_output.md"
TIMEOUT_S = 10.0
MEMORY_BYTES = 2**30
MAX_MASKS = 300  # that are timed of each schema
BLANKS: tuple[tuple[str, str], ...] = ((",", ":"), (", ", ": "))
OUTCOMES = ("compiled", "refused by name", "failed", "timed out")
DECISIONS = ("wrong accepts", "wrong rejects")
TIMES = ("CPU p50 ms", "p99 ms", "mask p50 us", "p99 us")
COLUMNS = (*OUTCOMES, *DECISIONS, *TIMES)


class Spelling:
    """Tokenizations of a text by a vocabulary."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._ids = {token: ids[0] for token, ids in vocabulary.tokens.items()}
        self._longest = min(24, max(map(len, self._ids)))

    def tokenizations(self, text: bytes) -> list[list[int]]:
        """Return the text in single bytes, in the longest tokens, and in random ones."""
        rng = random.Random(text)
        return [
            [self._ids[bytes([byte])] for byte in text],
            self._split(text, lambda fits: fits[-1]),
            self._split(text, rng.choice),
        ]

    def _split(self, text: bytes, choose: Any) -> list[int]:
        token_ids, start = [], 0
        while start < len(text):
            ends = range(start + 1, min(len(text), start + self._longest) + 1)
            end = choose([end for end in ends if text[start:end] in self._ids])
            token_ids.append(self._ids[text[start:end]])
            start = end
        return token_ids


def is_accepted(matcher: Matcher, token_ids: Sequence[int], end: int) -> bool:
    """Return whether a matcher accepts tokens, and the end after them."""
    return all(matcher.accept(token_id) for token_id in [*token_ids, end])


def measure(backend: StructuredOutputBackend, row: dict[str, Any]) -> dict[str, Any]:
    """Compile a schema and decide about its instances."""
    # Suite schemas may be true or false, which only JSON text can be.
    params = StructuredOutputsParams(json=json.dumps(row["schema"], ensure_ascii=False))
    start = time.process_time()
    try:
        backend.check(params)
        grammar = backend.compile(params)
    except GrammarError as error:
        return {"outcome": "refused by name", "why": str(error)[:300], "ms": _ms_since(start)}
    except Exception as error:  # noqa: BLE001 - an edge of a plugin: the outcome is counted
        return {"outcome": "failed", "why": f"{type(error).__name__}: {error}"[:300]}
    result = {"outcome": "compiled", "ms": _ms_since(start), "accepts": [], "rejects": []}
    spelling, [end, *_] = Spelling(backend.vocabulary), backend.vocabulary.eos_token_ids
    for kind, wrong in (("valid", "rejects"), ("invalid", "accepts")):
        for instance in row[kind]:
            texts = [json.dumps(instance, ensure_ascii=False, separators=b) for b in BLANKS]
            decisions = [
                is_accepted(grammar.matcher(), token_ids, end)
                for text in texts
                for token_ids in spelling.tokenizations(text.encode())
            ]
            if (kind == "valid" and not all(decisions)) or (kind == "invalid" and any(decisions)):
                result[wrong].append(instance)
    result["masks_us"] = _mask_times(backend, grammar, row["valid"])
    return result


def _mask_times(backend: StructuredOutputBackend, grammar: Any, valid: list[Any]) -> list[float]:
    times: list[float] = []
    words = memoryview(bytearray(-(-backend.vocabulary.size // 32) * 4)).cast("i")
    for instance in valid[:2]:
        text = json.dumps(instance, ensure_ascii=False).encode()
        matcher = grammar.matcher()
        for token_id in Spelling(backend.vocabulary).tokenizations(text)[1][:MAX_MASKS]:
            start = time.perf_counter()
            matcher.fill_bitmask(words)
            times.append(1e6 * (time.perf_counter() - start))
            if not matcher.accept(token_id):
                break
    return times


def _ms_since(start: float) -> float:
    return 1000 * (time.process_time() - start)


def measure_apart(backend: StructuredOutputBackend, row: dict[str, Any]) -> dict[str, Any]:
    """Run `measure` in a forked process with limits."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(reader)
        signal.setitimer(signal.ITIMER_PROF, TIMEOUT_S)
        used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (used + MEMORY_BYTES, used + MEMORY_BYTES))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        with open(writer, "w") as pipe:
            json.dump(measure(backend, row), pipe)
        os._exit(0)
    os.close(writer)
    with open(reader) as pipe:
        text = pipe.read()
    _, status = os.waitpid(pid, 0)
    if os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGPROF:
        return {"outcome": "timed out"}
    return json.loads(text) if text else {"outcome": "failed", "why": "the process died"}


def priority_of(registry: Any, name: str) -> int:
    """Return the place of a backend in `auto`."""
    return registry.entry(name).capabilities.priority or 0


def first_compiled(results: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return the result of the first backend that compiles a schema, or else of the first."""
    return next((each for each in results if each["outcome"] == "compiled"), results[0])


def keyword_of(why: str) -> str:
    """Return the keyword that a refusal names, or the start of the message."""
    found = re.search(r"'([^']+)' at ", why) or re.search(r"['\"]([\w$]+)['\"]", why)
    return found[1] if found else " ".join(why.split()[:6])


def quantile(values: list[float], share: float) -> float:
    """Return a quantile of values; NaN of none."""
    return (
        sorted(values)[min(len(values) - 1, int(share * len(values)))] if values else float("nan")
    )


def summary(results: list[dict[str, Any]], rows: list[dict[str, Any]]) -> list[str]:
    """Return the cells of one line of the table."""
    counts = collections.Counter(result["outcome"] for result in results)
    done = [(res, row) for res, row in zip(results, rows, strict=True) if "accepts" in res]
    accepts, rejects = (sum(len(res[k]) for res, _ in done) for k in ("accepts", "rejects"))
    num_invalid, num_valid = (sum(len(row[k]) for _, row in done) for k in ("invalid", "valid"))
    times = [res["ms"] for res, _ in done]
    masks = [us for res, _ in done for us in res["masks_us"]]
    return [
        f"{counts['compiled']} of {len(rows)} ({counts['compiled'] / len(rows):.1%})",
        *(str(counts[name]) for name in OUTCOMES[1:]),
        f"{accepts} of {num_invalid}",
        f"{rejects} of {num_valid}",
        *(f"{quantile(times, q):.1f}" for q in (0.5, 0.99)),
        *(f"{quantile(masks, q):.0f}" for q in (0.5, 0.99)),
    ]


def main() -> None:
    """Measure, print the wrong decisions, and write the tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--backend", nargs="+", help="default: all that are registered")
    parser.add_argument("--set", nargs="+", default=["suite", "real"], choices=["suite", "real"])
    parser.add_argument("--vocabulary", type=int, default=768, help="size of the vocabulary")
    parser.add_argument("--wrong", type=Path, help="a file for each wrong decision, as JSON lines")
    parser.add_argument("--output", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    registry = load_plugins(PluginSettings()).registries.structured_output
    vocabulary = large_vocabulary(large_tokenizer(arguments.vocabulary))
    lines = [
        "# JSON schemas: what the backends of structured output decide\n",
        f"`python benchmarks/json_schemas.py`, {datetime.date.today()}, Python "
        f"{platform.python_version()}, {os.cpu_count()} CPU cores, {vocabulary.size} tokens; at "
        f"most {TIMEOUT_S:g} s of CPU and {MEMORY_BYTES >> 20} MiB for each schema.\n",
        f"| set | backend | {' | '.join(COLUMNS)} |",
        "|---" * (2 + len(COLUMNS)) + "|",
    ]
    refusals, wrong = [], []
    for name in arguments.set:
        stored = (HERE / f"schemas/{name}.jsonl").read_text().strip().split("\n")
        rows = [json.loads(line) for line in stored]
        names = arguments.backend or sorted(registry, key=lambda each: -priority_of(registry, each))
        measured: list[list[dict[str, Any]]] = []
        for backend_name in [*names, "auto"] if len(names) > 1 else names:
            if backend_name == "auto":
                results = [first_compiled(each) for each in zip(*measured, strict=True)]
            else:
                backend = registry.get(backend_name)(vocabulary)
                results = [measure_apart(backend, row) for row in rows]
            measured.append(results)
            lines.append(f"| {name} | {backend_name} | {' | '.join(summary(results, rows))} |")
            print(lines[-1], flush=True)
            why = [keyword_of(res["why"]) for res in results if "why" in res]
            counted = collections.Counter(why).most_common(25)
            refusals.append(
                f"\n**{name}, {backend_name}**, refused or failed: "
                + ", ".join(f"`{word}` {count}" for word, count in counted)
                + "."
            )
            wrong += [
                {
                    "set": name,
                    "backend": backend_name,
                    "name": row["name"],
                    "decision": kind,
                    "instance": instance,
                    "schema": row["schema"],
                }
                for res, row in zip(results, rows, strict=True)
                for kind in ("accepts", "rejects")
                for instance in res.get(kind, [])
            ]
    arguments.output.write_text("\n".join([*lines, *refusals]) + "\n")
    if arguments.wrong:
        arguments.wrong.write_text("".join(json.dumps(row) + "\n" for row in wrong))


if __name__ == "__main__":
    sys.exit(main())
