"""`quire bench structured`: tokens per second, by the share of requests with structured output."""

import argparse
import random
import statistics
import time
from collections.abc import Mapping
from typing import Any

from quire.cli.bench.bench_arguments import at_least_one
from quire.cli.bench.tables import table_lines
from quire.cli.options import add_model_options, read_settings
from quire.config import Settings
from quire.llm import LLM
from quire.sampling_params import SamplingParams, StructuredOutputsParams

SHARES = (0.0, 0.2, 0.8, 1.0)
MAX_BYTES_PER_TOKEN = 8  # of the closing characters of a grammar: it must outlast its output
HEADERS = ("structured", "tokens/s", "of none", "added ms/step")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the measure's arguments."""
    parser.add_argument("--num-prompts", type=at_least_one, default=16, metavar="N")
    parser.add_argument("--num-grammars", type=at_least_one, default=4, metavar="N")
    parser.add_argument("--input-len", type=at_least_one, default=32, metavar="N", help="tokens")
    parser.add_argument("--output-len", type=at_least_one, default=64, metavar="N", help="tokens")
    parser.add_argument("--repeats", type=at_least_one, default=5, metavar="N", help="timed runs")
    add_model_options(parser)


def measure(arguments: argparse.Namespace) -> dict[str, Any]:
    """Measure with the engine that the options describe."""
    return structured(
        read_settings(arguments),
        arguments.num_prompts,
        arguments.num_grammars,
        arguments.input_len,
        arguments.output_len,
        arguments.repeats,
    )


def lines(figures: Mapping[str, Any]) -> list[str]:
    """Return a line for each share, and the time to compile."""
    rows = [
        (
            f"{row['share']:.0%}",
            f"{row['output_tokens_per_s']:,.1f}",
            f"{row['of_unstructured']:.2f}",
            f"{row['added_ms_per_step']:.3f}",
        )
        for row in figures["shares"]
    ]
    compile_ms = figures["compile_ms"]
    times = f"median {statistics.median(compile_ms):.1f} ms, largest {max(compile_ms):.1f} ms"
    return [
        *table_lines(HEADERS, rows),
        f"first token of a new grammar, less that of none: {times}",
    ]


def structured(
    settings: Settings,
    num_prompts: int,
    num_grammars: int,
    input_len: int,
    output_len: int,
    repeats: int,
) -> dict[str, Any]:
    """Generate greedily for random prompts, all at once, with rotating shares.

    The runs of all shares take turns, so that a change of the machine's speed is in all of them.
    """
    rng = random.Random(0)
    grammars = [_endless(index, output_len) for index in range(num_grammars)]
    with LLM.from_settings(settings) as llm:
        vocab_size = llm.composition.description.vocab_size

        def run(params: list[SamplingParams]) -> tuple[float, int]:
            prompts = [[rng.randrange(vocab_size) for _ in range(input_len)] for _ in params]
            started = time.perf_counter()
            outputs = llm.generate(prompts, params)
            seconds = time.perf_counter() - started
            return seconds, sum(len(output.outputs[0].token_ids) for output in outputs)

        run([_params(None, 1)])
        run([_params(_endless(num_grammars, 1), 1)])  # starts the processes of grammars
        plain_s = statistics.median(run([_params(None, 1)])[0] for _ in range(repeats))
        compile_ms = [1000 * (run([_params(each, 1)])[0] - plain_s) for each in grammars]
        runs: dict[float, list[tuple[float, int]]] = {share: [] for share in SHARES}
        for _ in range(repeats + 1):
            for share in SHARES:
                num_structured = round(share * num_prompts)
                constraints = [grammars[i % num_grammars] for i in range(num_structured)]
                nones = [None] * (num_prompts - num_structured)
                runs[share].append(run([_params(c, output_len) for c in [*constraints, *nones]]))
    speeds = {
        share: statistics.median(tokens / seconds for seconds, tokens in timed[1:])
        for share, timed in runs.items()
    }
    return {
        "model": settings.model.model,
        "backend": settings.parts.structured_output,
        "num_prompts": num_prompts,
        "num_grammars": num_grammars,
        "input_len": input_len,
        "output_len": output_len,
        "repeats": repeats,
        "compile_ms": compile_ms,
        "shares": [
            {
                "share": share,
                "output_tokens_per_s": speed,
                "of_unstructured": speed / speeds[0.0],
                "added_ms_per_step": 1000 * num_prompts * (1 / speed - 1 / speeds[0.0]),
            }
            for share, speed in speeds.items()
        ],
    }


def _endless(index: int, output_len: int) -> StructuredOutputsParams:
    """Return one of different grammars whose completions have at least `output_len` tokens."""
    closing = f"#{{{MAX_BYTES_PER_TOKEN * output_len}}}"
    return StructuredOutputsParams(regex=f"[a-z ]*(?:{index} )?[a-z ]*{closing}")


def _params(constraint: StructuredOutputsParams | None, max_tokens: int) -> SamplingParams:
    return SamplingParams(
        temperature=0, max_tokens=max_tokens, ignore_eos=True, structured_outputs=constraint
    )
