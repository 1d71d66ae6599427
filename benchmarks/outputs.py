"""Tokens and log probabilities of the demo and of random checkpoints, as JSON, bit by bit.

    python benchmarks/outputs.py before.json     # in a checkout of the commit before
    python benchmarks/outputs.py after.json
    cmp before.json after.json                   # equal, bit by bit, in float32

For changes that must not change any result: another arrangement of the code, other names.
"""

import argparse
import json
import random
import tempfile
from pathlib import Path
from typing import Any

from quire import LLM, RequestOutput, SamplingParams
from quire.testing.checkpoints import write_checkpoint

ARCHITECTURES = (
    "LlamaForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM", "Gemma3ForCausalLM",
)  # fmt: skip
KERNELS = ("auto", "torch")
PROMPT_LENGTHS = (1, 7, 16, 33, 80)
DEMO_VOCAB_SIZE = 256  # the demo's first tokens: bytes
PARAMS = {
    "greedy": SamplingParams(
        temperature=0, max_tokens=24, ignore_eos=True, logprobs=3, prompt_logprobs=1
    ),
    "random": SamplingParams(
        temperature=0.9, top_p=0.9, top_k=50, min_p=0.01, seed=5,
        max_tokens=24, ignore_eos=True, logprobs=1, n=2,
    ),
}  # fmt: skip


def outputs_of(llm: LLM, vocab_size: int, name: str) -> list[dict[str, Any]]:
    """Return what a model generates after some random prompts."""
    prompts = random.Random(3)
    batch = [[prompts.randrange(3, vocab_size) for _ in range(length)] for length in PROMPT_LENGTHS]
    return [
        {"model": name, "params": label, **_as_json(output)}
        for label, params in PARAMS.items()
        for output in llm.generate(batch, params)
    ]


def _as_json(output: RequestOutput) -> dict[str, Any]:
    """Return token ids, and log probabilities bit by bit."""
    return {
        "token_ids": [list(completion.token_ids) for completion in output.outputs],
        "logprobs": [
            [_bits(candidates) for candidates in completion.logprobs or ()]
            for completion in output.outputs
        ],
        "prompt_logprobs": [
            None if candidates is None else _bits(candidates)
            for candidates in output.prompt_logprobs or ()
        ],
    }


def _bits(candidates: Any) -> dict[int, str]:
    return {token_id: candidates[token_id].logprob.hex() for token_id in sorted(candidates)}


def measure() -> list[dict[str, Any]]:
    """Return the outputs of all models with all kernels."""
    found: list[dict[str, Any]] = []
    options: dict[str, Any] = {"dtype": "float32", "max_model_len": 160}
    for kernels in KERNELS:
        for architecture in ARCHITECTURES:
            with tempfile.TemporaryDirectory() as folder:
                written = write_checkpoint(Path(folder), architecture, seed=9)
                with LLM(folder, kernels=kernels, **options) as llm:
                    name = f"{architecture} {kernels}"
                    found += outputs_of(llm, written.config["vocab_size"], name)
        with LLM("demo", kernels=kernels, **options) as llm:
            found += outputs_of(llm, DEMO_VOCAB_SIZE, f"demo {kernels}")
    return found


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("file", type=Path, help="where the JSON goes")
    parser.parse_args().file.write_text(json.dumps(measure(), indent=1), encoding="utf-8")
