"""Time to compile grammars and to fill masks, through the host and its processes.

    python benchmarks/grammars.py [--vocabulary 768 150000]

The vocabulary is made of random syllables; a line for each grammar: compile time, then the median
and the 99th percentile of one mask, and of 16 masks of 16 requests in one step.
"""

import argparse
import random
import statistics
import time

from quire.engine.grammar.grammar_host import GrammarHost
from quire.engine.grammar.grammar_pool import GrammarLimits
from quire.interfaces.structured_output import Vocabulary
from quire.sampling_params import StructuredOutputsParams

NUM_STEPS = 200
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


def syllables(size: int) -> Vocabulary:
    """Return `size` tokens: all bytes, words of random letters, and one end."""
    rng = random.Random(0)
    letters = "etaoinshrdlu cmfwypvbgk" * 4 + '0123456789{}[]":,.-_\\\n'
    tokens = {bytes([byte]): [byte] for byte in range(256)}
    while len(tokens) < size - 1:
        word = "".join(rng.choices(letters, k=rng.randint(2, 8))).encode()
        tokens.setdefault(word, [len(tokens)])
    return Vocabulary(tokens, (size - 1,), size)


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


def step_ms(host: GrammarHost, names: list[str], vocabulary: Vocabulary) -> list[float]:
    """Walk through a grammar at random and time the masks of each step."""
    rng, times = random.Random(1), []
    for _ in range(NUM_STEPS):
        start = time.perf_counter()
        host.request_masks(list(enumerate(names)))
        masks = host.collect_masks()
        times.append(1000 * (time.perf_counter() - start))
        for name, mask in zip(names, masks, strict=True):
            bits = int.from_bytes(mask.words, "little")
            allowed = [v for v in range(min(512, vocabulary.size)) if bits >> v & 1]
            host.accept(name, [rng.choice(allowed or [vocabulary.eos_token_ids[0]])])
    return sorted(times)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--vocabulary", type=int, nargs="+", default=[768, 150_000])
    for size in parser.parse_args().vocabulary:
        vocabulary = syllables(size)
        host = GrammarHost(lambda vocabulary=vocabulary: vocabulary, limits=PATIENT)
        compile_s(host, "warm-up", StructuredOutputsParams(choice=("a",)))
        print(f"\n{size} tokens             compile     1 mask: median / p99     {BATCH} masks")
        for name, params in GRAMMARS.items():
            seconds = compile_s(host, name, params)
            one = step_ms(host, [name], vocabulary)
            names = [f"{name} {i}" for i in range(BATCH)]
            for other in names:
                compile_s(host, other, params)
            many = step_ms(host, names, vocabulary)
            print(
                f"{name:22} {seconds:8.3f} s {statistics.median(one):9.2f} / "
                f"{one[-3]:5.2f} ms {statistics.median(many):9.2f} / {many[-3]:5.2f} ms"
            )
        host.shutdown()


if __name__ == "__main__":
    main()
