"""The full peer that is installed where torch is: transformers' continuous batching, same shape.

Random weights of the same sizes, 32 requests at once, prompts and answers of fixed lengths, greedy;
quire computes the same in the same run. The peer runs with its own defaults.
"""

from __future__ import annotations

import random
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from quire.cli.bench_shapes import write_shape


@dataclass(frozen=True, slots=True)
class PeerLoad:
    """How much both are asked."""

    requests: int = 32
    num_in: int = 256
    num_out: int = 128


DRY_PEER = PeerLoad(requests=2, num_in=8, num_out=4)


def measure_peer(
    folder: Path, shape: str, device: torch.device, dtype: torch.dtype, load: PeerLoad
) -> dict[str, Any]:
    """Return both engines' answer tokens a second, the peer's after a warm-up of its own."""
    write_shape(folder, shape)
    draw = random.Random(2)
    prompts = [[draw.randint(300, 8000) for _ in range(load.num_in)] for _ in range(load.requests)]
    peer = _peer_s(folder, device, dtype, prompts, load)
    if device.type == "cuda":
        torch.cuda.empty_cache()
    mine = _quire_s(folder, dtype, prompts, load)
    num_tokens = load.requests * load.num_out
    return {
        "requests": load.requests,
        "transformers_tok_s": num_tokens / peer,
        "quire_tok_s": num_tokens / mine,
        "ratio": peer / mine,
    }


def _peer_s(
    folder: Path,
    device: torch.device,
    dtype: torch.dtype,
    prompts: list[list[int]],
    load: PeerLoad,
) -> float:
    from transformers import AutoConfig, AutoModelForCausalLM, GenerationConfig

    config = AutoConfig.from_pretrained(folder)
    with torch.device(device):
        model = AutoModelForCausalLM.from_config(config, dtype=dtype).eval()
    generation = GenerationConfig(
        max_new_tokens=load.num_out, do_sample=False, eos_token_id=-1, pad_token_id=0
    )

    def run(some: list[list[int]]) -> float:
        started = time.perf_counter()
        outputs = model.generate_batch(inputs=some, generation_config=generation)
        seconds = time.perf_counter() - started
        counts = [len(output.generated_tokens) for output in outputs.values()]
        if counts != [load.num_out] * len(some):
            raise RuntimeError(f"the peer was asked for {load.num_out} tokens each, gave {counts}")
        return seconds

    run(prompts[:1])
    return run(prompts)


def _quire_s(folder: Path, dtype: torch.dtype, prompts: list[list[int]], load: PeerLoad) -> float:
    from quire import LLM, SamplingParams

    params = SamplingParams(max_tokens=load.num_out, temperature=0, ignore_eos=True)
    llm = LLM(
        str(folder),
        load_format="dummy",
        dtype=str(dtype).removeprefix("torch."),
        enable_prefix_caching=False,
        max_num_seqs=load.requests,
        max_model_len=load.num_in + load.num_out + 8,
    )
    try:
        llm.generate(prompts[:1], params)
        started = time.perf_counter()
        llm.generate(prompts, params)
        return time.perf_counter() - started
    finally:
        llm.close()
