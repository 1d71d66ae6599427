"""The full peer that is installed where torch is: transformers' continuous batching, same shape.

Random weights of the same sizes, 32 requests at once, prompts and completions of fixed lengths,
greedy. Each engine has its own process, is warmed up with all requests, and is then timed on them.
The peer keeps its manager between the two, so neither its start nor its captures are in its time.
"""

from __future__ import annotations

import inspect
import random
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from quire.cli.bench.model_shapes import write_shape


@dataclass(frozen=True, slots=True)
class PeerLoad:
    """Sizes of the load for both."""

    requests: int = 32
    num_in: int = 256
    num_out: int = 128

    @property
    def prompts(self) -> list[list[int]]:
        """The prompts, the same for both."""
        rng = random.Random(2)
        return [rng.choices(range(300, 8000), k=self.num_in) for _ in range(self.requests)]


DRY_PEER = PeerLoad(requests=2, num_in=8, num_out=4)


def measure_transformers(
    folder: Path, shape: str, device: torch.device, dtype: torch.dtype, load: PeerLoad
) -> dict[str, Any]:
    """Return the peer's output tokens a second."""
    from transformers import AutoConfig, AutoModelForCausalLM, GenerationConfig

    write_shape(folder, shape)
    config = AutoConfig.from_pretrained(folder)
    with torch.device(device):
        model = AutoModelForCausalLM.from_config(config, dtype=dtype).eval()
    generation = GenerationConfig(
        max_new_tokens=load.num_out, do_sample=False, eos_token_id=-1, pad_token_id=0
    )
    options: dict[str, Any] = {"generation_config": generation}
    if "persistent_manager" in inspect.signature(model.generate_batch).parameters:
        options["persistent_manager"] = True

    def run() -> float:
        started = time.perf_counter()
        outputs = model.generate_batch(inputs=load.prompts, **options)
        seconds = time.perf_counter() - started
        counts = [len(output.generated_tokens) for output in outputs.values()]
        if counts != [load.num_out] * load.requests:
            raise RuntimeError(
                f"the peer generated {counts} tokens; {load.num_out} each were requested"
            )
        return seconds

    first = run()
    return {
        "tok_s": load.requests * load.num_out / run(),
        "first_run_s": first,
        "requests": load.requests,
        "shape": shape,
        "keeps_manager": "persistent_manager" in options,
        "attention": str(model.config._attn_implementation),
    }


def measure_quire(
    folder: Path, shape: str, options: dict[str, Any], load: PeerLoad
) -> dict[str, Any]:
    """Return quire's output tokens a second."""
    from quire import LLM, SamplingParams

    write_shape(folder, shape)
    params = SamplingParams(max_tokens=load.num_out, temperature=0, ignore_eos=True)
    llm = LLM(
        str(folder),
        load_format="dummy",
        enable_prefix_caching=False,
        max_num_seqs=load.requests,
        max_model_len=load.num_in + load.num_out + 8,
        **options,
    )
    try:
        started = time.perf_counter()
        llm.generate(load.prompts, params)
        first = time.perf_counter() - started
        started = time.perf_counter()
        llm.generate(load.prompts, params)
        seconds = time.perf_counter() - started
    finally:
        llm.close()
    return {"tok_s": load.requests * load.num_out / seconds, "first_run_s": first}
