"""Beam search against as many plain requests, and against a search that a client makes.

    python benchmarks/beam_search.py [MODEL] [--beam-width 4] [--max-tokens 64] [--rounds 5]

The client sends each beam as a request for one token, with log probabilities, and selects; the
prefix cache shares the blocks. All three take turns in one process, so that they see the same
machine. Printed are the tokens of all beams per second, medians over the rounds, and the ratios.
"""

import argparse
import random
import statistics
import sys
import time
from collections.abc import Callable, Sequence

import msgspec

from quire import LLM, BeamSearchParams, SamplingParams
from quire.engine.beam_search.beam_selection import BeamSelection
from quire.messages import EngineRequest, TokenLogprobs

NUM_PROMPT_TOKENS = 128
MAX_LOGPROBS = 20  # of a request


def main() -> int:
    """Measure, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", nargs="?", default="demo")
    parser.add_argument("--beam-width", type=int, default=4)
    parser.add_argument("--max-tokens", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=5)
    given = parser.parse_args()
    width, num_tokens = given.beam_width, given.max_tokens
    with LLM(given.model, max_model_len=NUM_PROMPT_TOKENS + num_tokens + 1) as llm:
        rng = random.Random(0)
        vocab_size = llm.composition.description.vocab_size
        prompt = [rng.randrange(10, vocab_size) for _ in range(NUM_PROMPT_TOKENS)]
        params = BeamSearchParams(beam_width=width, max_tokens=num_tokens, ignore_eos=True)
        plain = SamplingParams(n=width, max_tokens=num_tokens, temperature=1, ignore_eos=True)
        ways: dict[str, Callable[[], object]] = {
            "beam_search": lambda: llm.beam_search(prompt, params)[0].outputs[0].token_ids,
            f"{width} plain requests": lambda: llm.generate(prompt, plain),
        }
        if params.num_candidates(0) <= MAX_LOGPROBS:
            ways["a client's search"] = lambda: _search(llm, prompt, params)
        rates = _measure(llm, ways, width * num_tokens, given.rounds)
        if len(ways) > 2 and ways["beam_search"]() != ways["a client's search"]():
            print("the client's search finds another completion")
            return 1
    first = statistics.median(rates["beam_search"])
    for name, found in rates.items():
        median = statistics.median(found)
        spread = f"{min(found):.0f} to {max(found):.0f}"
        print(f"{name:20} {median:7.0f} tokens/s ({spread}), beam_search is {first / median:.2f}")
    return 0


def _measure(
    llm: LLM, ways: dict[str, Callable[[], object]], num_tokens: int, rounds: int
) -> dict[str, list[float]]:
    rates: dict[str, list[float]] = {name: [] for name in ways}
    for index in range(rounds + 1):
        for name, way in ways.items():
            llm.reset_prefix_cache()
            start_s = time.perf_counter()
            way()
            if index:  # the first round warms up
                rates[name].append(num_tokens / (time.perf_counter() - start_s))
    return rates


def _search(llm: LLM, prompt: Sequence[int], params: BeamSearchParams) -> list[int]:
    """Search with a request for each token of each beam."""
    message = EngineRequest(
        request_id="client",
        token_ids=list(prompt),
        params=params.sampling_params(),
        max_tokens=params.max_tokens or 0,
        seed=0,
        beam_search=params,
    )
    one = msgspec.structs.replace(
        params.sampling_params(), n=1, max_tokens=1, logprobs=params.num_candidates(0)
    )
    selection, beams = BeamSelection(message), [list(prompt)]
    while not selection.is_over:
        outputs = llm.generate([{"prompt_token_ids": beam} for beam in beams], one)
        rows = []
        for output in outputs:
            (row,) = output.outputs[0].logprobs or ()
            best = sorted(row.items(), key=lambda item: -item[1].logprob)
            ids, values = [token for token, _ in best], [each.logprob for _, each in best]
            rows.append(TokenLogprobs([ids[0], *ids], [values[0], *values], 1))
        beams = [[*beams[each.beam], each.token_id] for each in selection.select(rows)]
    return selection.hypotheses(1)[0].token_ids


if __name__ == "__main__":
    sys.exit(main())
